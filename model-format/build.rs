//! Names what the target is: the instruction set that `runtime`'s kernels are written for, which its own
//! build script asks this one for, and what of it matters here.
//!
//! `cfg(target_feature)` is never set on stable for the extensions of Arm's M profile: there the
//! architecture's name and the asked-for processor decide.

use std::env;

/// What says in the compiler's flags that the core has Helium.
const MVE_FLAGS: [&str; 4] =
    ["target-cpu=cortex-m52", "target-cpu=cortex-m55", "target-cpu=cortex-m85", "+mve"];

/// What says in the compiler's flags that an Armv8-M core has the DSP extension, which is optional.
const DSP_FLAGS: [&str; 4] =
    ["target-cpu=cortex-m33", "target-cpu=cortex-m35p", "target-cpu=star-mc1", "+dsp"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(kiloformer_short_products)");
    println!(
        "cargo::rustc-check-cfg=cfg(kiloformer_layout, values(\"paired-rows\", \"quad-rows\"))"
    );
    let isa = isa().unwrap_or_default();
    println!("cargo::metadata=isa={isa}");
    if let Some(layout) = layout(isa) {
        println!("cargo::metadata=layout={layout}");
        println!("cargo::rustc-cfg=kiloformer_layout=\"{layout}\"");
    }
    let target = env::var("TARGET").unwrap_or_default();
    // Cortex-M0, M0+ and M23 give the lower 32 bits of a product only.
    if target.starts_with("thumbv6m") || target.starts_with("thumbv8m.base") {
        println!("cargo::rustc-cfg=kiloformer_short_products");
    }
}

/// The one layout that the kernels of such a core are made for, where they are made for one alone.
fn layout(isa: &str) -> Option<&'static str> {
    match isa {
        "dsp" => Some("paired-rows"),
        "armv6m" | "armv7m" | "rv32m" => Some("quad-rows"),
        _ => None,
    }
}

/// None where the portable kernels are used.
fn isa() -> Option<&'static str> {
    let variable = |name| env::var(name).unwrap_or_default();
    let target = variable("TARGET");
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let features = variable("CARGO_CFG_TARGET_FEATURE");
    let has = |feature| features.split(',').any(|name| name == feature);
    if target.starts_with("thumbv8m.main") && MVE_FLAGS.iter().any(|flag| flags.contains(flag)) {
        Some("mve")
    } else if target.starts_with("thumbv6m") {
        Some("armv6m")
    } else if target.starts_with("thumbv7em")
        || (target.starts_with("thumbv8m.main")
            && DSP_FLAGS.iter().any(|flag| flags.contains(flag)))
    {
        Some("dsp")
    } else if target.starts_with("thumbv7m") || target.starts_with("thumbv8m.main") {
        Some("armv7m")
    } else if target.starts_with("riscv32im") {
        Some("rv32m")
    } else if target.starts_with("aarch64-") && has("neon") {
        Some("neon")
    } else if target.starts_with("wasm32-") && has("simd128") {
        Some("simd128")
    } else if target.starts_with("x86_64-") && has("sse2") {
        Some("x86")
    } else {
        None
    }
}
