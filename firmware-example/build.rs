//! Chooses the board (the memory map the linker reads and the `board` cfg the program reads) and the
//! model file, whose matrices it lays out for the board's processor.

use model_format::{AlignedBytes, Model, Processor, repack};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A board.
struct Board {
    /// Its name in `cfg(board = ...)`; a feature of this name, where there is one, chooses it.
    name: &'static str,
    /// Its file in `memory/`, if it is bare metal.
    map: Option<&'static str>,
    /// The files of `src/board/` that make it up, in `cfg(part = ...)`: first its own.
    parts: &'static [&'static str],
    /// Targets that run on it where no feature asks for another one, by how their names begin.
    default_for: &'static [&'static str],
}

const BOARDS: [Board; 9] = [
    Board {
        name: "mps2",
        map: Some("mps2.x"),
        parts: &["mps", "host_stream", "systick"],
        default_for: &["thumbv6m", "thumbv7m", "thumbv7em"],
    },
    Board {
        name: "mps2-an505",
        map: Some("mps2-an505.x"),
        parts: &["mps", "host_stream", "systick"],
        default_for: &["thumbv8m.main"],
    },
    Board {
        name: "mps3",
        map: Some("mps3.x"),
        parts: &["mps", "host_stream", "systick"],
        default_for: &[],
    },
    Board {
        name: "riscv-virt",
        map: Some("riscv-virt.x"),
        parts: &["riscv_virt", "host_stream"],
        default_for: &["riscv32"],
    },
    Board {
        name: "aarch64-virt",
        map: Some("aarch64-virt.x"),
        parts: &["aarch64_virt", "host_stream"],
        default_for: &["aarch64"],
    },
    Board { name: "node", map: None, parts: &["node"], default_for: &["wasm32"] },
    Board {
        name: "microbit",
        map: Some("microbit.x"),
        parts: &["microbit", "polled", "register"],
        default_for: &[],
    },
    Board {
        name: "stm32f4",
        map: Some("stm32f4.x"),
        parts: &["stm32f4", "polled", "register", "systick"],
        default_for: &[],
    },
    Board {
        name: "rp2040",
        map: Some("rp2040.x"),
        parts: &["rp2040", "polled", "register", "systick"],
        default_for: &[],
    },
];

/// The model that ships, as seen from this directory.
const DEFAULT_MODEL: &str = "../models/g2p-en.kfm";

fn main() {
    choose_model();
    let target = env::var("TARGET").expect("cargo sets the target");
    let board = chosen_board(&target);
    let out = out_dir();
    if let Some(map) = board.map {
        fs::copy(PathBuf::from("memory").join(map), out.join("memory.x"))
            .expect("copying the memory map");
    }

    name_to_the_program("board", BOARDS.iter().map(|board| board.name), &[board.name]);
    name_to_the_program("part", BOARDS.iter().flat_map(|board| board.parts).copied(), board.parts);
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

/// Sets `cfg(key = ...)` for the values that are so, of those there are.
fn name_to_the_program(key: &str, all: impl Iterator<Item = &'static str>, so: &[&str]) {
    let all: Vec<String> = all.map(|value| format!("{value:?}")).collect();
    println!("cargo:rustc-check-cfg=cfg({key}, values({}))", all.join(", "));
    for value in so {
        println!("cargo:rustc-cfg={key}={value:?}");
    }
}

/// The board whose feature is on, else the emulated one of this target.
fn chosen_board(target: &str) -> &'static Board {
    let has_feature =
        |name: &str| env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some();
    let asked: Vec<&Board> = BOARDS.iter().filter(|board| has_feature(board.name)).collect();
    let is_default = |board: &&Board| board.default_for.iter().any(|name| target.starts_with(name));
    match asked.as_slice() {
        [] => BOARDS
            .iter()
            .find(is_default)
            .unwrap_or_else(|| panic!("no board of the list runs code for {target}")),
        [one] => one,
        [one, another, ..] => panic!("choose one board, not {} and {}", one.name, another.name),
    }
}
