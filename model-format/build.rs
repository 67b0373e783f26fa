//! Names a fact of the target that `numeric` chooses by.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(kiloformer_short_products)");
    let target = std::env::var("TARGET").unwrap_or_default();
    // Cortex-M0, M0+ and M23 give the lower 32 bits of a product only.
    if target.starts_with("thumbv6m") || target.starts_with("thumbv8m.base") {
        println!("cargo::rustc-cfg=kiloformer_short_products");
    }
}
