//! Chooses the board (the memory map the linker reads and the `board` cfg the program reads) and the
//! model file, whose matrices it lays out for the board's processor.

use model_format::{AlignedBytes, Model, Processor, repack};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Every board: its name in `cfg(board = ...)` and its file in `memory/`.
const BOARDS: [(&str, &str); 5] = [
    ("mps2", "mps2.x"),
    ("riscv-virt", "riscv-virt.x"),
    ("microbit", "microbit.x"),
    ("stm32f4", "stm32f4.x"),
    ("rp2040", "rp2040.x"),
];

/// The model that ships, as seen from this directory.
const DEFAULT_MODEL: &str = "../models/g2p-en.kfm";

fn main() {
    choose_model();
    let target = env::var("TARGET").expect("cargo sets the target");
    let board = chosen_board(&target);
    let out = out_dir();
    let (_, map) = BOARDS.iter().find(|(name, _)| *name == board).expect("a board of the list");
    fs::copy(PathBuf::from("memory").join(map), out.join("memory.x"))
        .expect("copying the memory map");

    let names: Vec<String> = BOARDS.iter().map(|(name, _)| format!("{name:?}")).collect();
    println!("cargo:rustc-check-cfg=cfg(board, values({}))", names.join(", "));
    println!("cargo:rustc-cfg=board={board:?}");
    println!("cargo:rustc-check-cfg=cfg(armv6m)");
    if target.starts_with("thumbv6m") {
        println!("cargo:rustc-cfg=armv6m");
    }
    println!("cargo:rustc-link-search={}", out.display());
    println!("cargo:rerun-if-changed=memory");
    println!("cargo:rerun-if-changed=build.rs");
}

/// Hands the model's path to the program: `KILOFORMER_MODEL`, or the one that ships.
fn choose_model() {
    let asked = env::var_os("KILOFORMER_MODEL").map(PathBuf::from);
    let path = asked.unwrap_or_else(|| DEFAULT_MODEL.into());
    println!("cargo:rerun-if-env-changed=KILOFORMER_MODEL");
    println!("cargo:rerun-if-env-changed=KILOFORMER_LAYOUT");
    println!("cargo:rerun-if-changed={}", path.display());
    match fs::read(&path) {
        Ok(file) => {
            let packed = out_dir().join("model.kfm");
            fs::write(&packed, laid_out(&file)).expect("writing the model");
            println!("cargo:rustc-env=KILOFORMER_MODEL_FILE={}", packed.display());
        }
        Err(error) => {
            let here = env::current_dir().unwrap_or_default();
            explain_missing(&here.join(path), &error);
        }
    }
}

/// The file in the layout whose kernels are the fastest on this target, or as it is where
/// `KILOFORMER_LAYOUT=kept`; one that is no model is left to the program to refuse.
fn laid_out(file: &[u8]) -> Vec<u8> {
    let target = env::var("TARGET").expect("cargo sets the target");
    let processor = Processor::of_target(&target, target_cpu().as_deref());
    let file = AlignedBytes::from(file);
    let is_kept = env::var_os("KILOFORMER_LAYOUT").is_some_and(|layout| layout == "kept");
    match (Model::from_bytes(&file), processor) {
        (Ok(model), Some(processor)) if !is_kept => {
            let layout = processor.layout(model.header().precision);
            repack(&model, layout).expect("a layout that suits").to_vec()
        }
        _ => file.to_vec(),
    }
}

/// What `-C target-cpu` names.
fn target_cpu() -> Option<String> {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    flags
        .split_once("target-cpu=")
        .and_then(|(_, rest)| rest.split(['\u{1f}', ' ']).next().map(str::to_owned))
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

fn explain_missing(path: &Path, error: &std::io::Error) {
    println!("cargo::error=no model at {}: {error}", path.display());
    println!("cargo::error=train one with `cargo run --release -p trainer` in the root directory");
    println!("cargo::error=and name it: KILOFORMER_MODEL=/path/to/g2p.kfm cargo run --release");
}

/// The board whose feature is on, else the emulated one of this target.
fn chosen_board(target: &str) -> &'static str {
    let asked: Vec<&str> = BOARDS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some())
        .collect();
    match asked.as_slice() {
        [] if target.starts_with("thumb") => "mps2",
        [] if target.starts_with("riscv32") => "riscv-virt",
        [] => panic!("no board of the list runs code for {target}"),
        [one] => one,
        several => panic!("choose one board, not {several:?}"),
    }
}
