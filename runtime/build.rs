//! Names the instruction set that the kernels are written for: `cfg(kiloformer_isa)` and
//! `cfg(kiloformer_NAME)`; none where the portable ones are used.
//!
//! `cfg(target_feature)` is never set on stable for the extensions of Arm's M profile: there the
//! architecture's name and the asked-for processor decide.

use std::env;

const ISAS: [&str; 8] = ["armv6m", "armv7m", "dsp", "mve", "neon", "rv32m", "simd128", "x86"];
/// Those that share `kernels/quad.rs`.
const QUAD: [&str; 3] = ["armv6m", "armv7m", "rv32m"];

/// What says in the compiler's flags that the core has Helium.
const MVE_FLAGS: [&str; 4] =
    ["target-cpu=cortex-m52", "target-cpu=cortex-m55", "target-cpu=cortex-m85", "+mve"];

/// What says in the compiler's flags that an Armv8-M core has the DSP extension, which is optional.
const DSP_FLAGS: [&str; 4] =
    ["target-cpu=cortex-m33", "target-cpu=cortex-m35p", "target-cpu=star-mc1", "+dsp"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(kiloformer_isa)");
    for isa in ISAS {
        println!("cargo::rustc-check-cfg=cfg(kiloformer_{isa})");
    }
    println!("cargo::rustc-check-cfg=cfg(kiloformer_quad)");
    println!("cargo::rustc-check-cfg=cfg(kiloformer_vfp)");
    println!("cargo::rustc-check-cfg=cfg(kiloformer_v8m)");
    let target = env::var("TARGET").unwrap_or_default();
    if target.starts_with("thumbv8m") {
        println!("cargo::rustc-cfg=kiloformer_v8m");
    }
    // A Cortex-M whose FPU is used has one that converts halves.
    if target.starts_with("thumb") && target.ends_with("eabihf") {
        println!("cargo::rustc-cfg=kiloformer_vfp");
    }
    if let Some(isa) = isa() {
        if QUAD.contains(&isa) {
            println!("cargo::rustc-cfg=kiloformer_quad");
        }
        println!("cargo::rustc-cfg=kiloformer_isa");
        println!("cargo::rustc-cfg=kiloformer_{isa}");
    }
}

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
