//! Names the facts of the target that the kernels choose by.
//!
//! `cfg(target_feature = "dsp")` is never set on stable, so the architecture's name decides.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(kiloformer_dsp)");
    let target = std::env::var("TARGET").unwrap_or_default();
    if target.starts_with("thumbv7em") {
        println!("cargo::rustc-cfg=kiloformer_dsp");
    }
}
