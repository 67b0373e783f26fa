//! Names the instruction set that the kernels are written for, which `model-format` tells: `cfg(kiloformer_isa)`
//! and `cfg(kiloformer_NAME)`; none where the portable ones are used.

use std::env;

const ISAS: [&str; 8] = ["armv6m", "armv7m", "dsp", "mve", "neon", "rv32m", "simd128", "x86"];

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
    let isa = env::var("DEP_KILOFORMER_ISA").expect("model-format tells it");
    if ISAS.contains(&&*isa) {
        // Those that share `kernels/quad.rs`.
        if env::var("DEP_KILOFORMER_LAYOUT").is_ok_and(|layout| layout == "quad-rows") {
            println!("cargo::rustc-cfg=kiloformer_quad");
        }
        println!("cargo::rustc-cfg=kiloformer_isa");
        println!("cargo::rustc-cfg=kiloformer_{isa}");
    }
}
