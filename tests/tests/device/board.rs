//! The boards that `firmware-example` runs on in QEMU or Node, and how to build for them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// A board and the emulator command that plays it.
pub struct Board {
    /// What messages call it.
    pub name: &'static str,
    target: &'static str,
    feature: Option<&'static str>,
    /// A file of firmware-example/.cargo that is named with `--config`.
    config: Option<&'static str>,
    /// Emulator and arguments before the ELF; `None`: the runner that cargo uses for this target.
    emulator: Option<&'static str>,
}

/// Cortex-M4F.
pub const M4F: Board = Board::new("mps2-an386", "thumbv7em-none-eabihf");

/// Cortex-M0+ code on a Cortex-M3 that traps unaligned access.
pub const M0_PLUS: Board = Board::new("mps2-an385", "thumbv6m-none-eabi");

/// Cortex-M3.
pub const M3: Board = Board::new("mps2-an385-m3", "thumbv7m-none-eabi");

/// Cortex-M7: the program of the Cortex-M4F.
pub const M7: Board = Board {
    emulator: Some(
        "qemu-system-arm -M mps2-an500 -display none -serial none -monitor none \
         -semihosting-config enable=on,target=native -icount shift=6 -kernel",
    ),
    ..Board::new("mps2-an500", "thumbv7em-none-eabihf")
};

/// Cortex-M33, with its DSP extension.
pub const M33: Board =
    Board { config: Some("cortex-m33"), ..Board::new("mps2-an505", "thumbv8m.main-none-eabihf") };

/// Cortex-M55, with its vector extension.
pub const M55: Board = Board {
    feature: Some("mps3"),
    config: Some("cortex-m55"),
    ..Board::new("mps3-an547", "thumbv8m.main-none-eabihf")
};

/// RV32IMC.
pub const RISC_V: Board = Board::new("virt", "riscv32imc-unknown-none-elf");

/// AArch64, bare metal.
pub const AARCH64: Board = Board::new("virt-aarch64", "aarch64-unknown-none");

/// WebAssembly under Node.
pub const WASM: Board = Board::new("node", "wasm32-unknown-unknown");

/// WebAssembly with vectors.
pub const WASM_SIMD128: Board =
    Board { config: Some("wasm-simd128"), ..Board::new("node-simd128", "wasm32-unknown-unknown") };

/// One for each core.
pub const EVERY_CORE: [&Board; 10] =
    [&M4F, &M0_PLUS, &M3, &M7, &M33, &M55, &RISC_V, &AARCH64, &WASM, &WASM_SIMD128];

/// A true Cortex-M0 with 16 KB of RAM; its stream is the emulated UART.
pub const MICROBIT: Board = Board {
    feature: Some("microbit"),
    emulator: Some(
        "qemu-system-arm -M microbit -display none -serial stdio -monitor none \
         -semihosting-config enable=on,target=native -icount shift=3 -kernel",
    ),
    ..Board::new("microbit", "thumbv6m-none-eabi")
};

/// The firmware of a real STM32F4 board; QEMU's netduinoplus2 has the same chip, and its USART2.
pub const STM32F4: Board = Board {
    feature: Some("stm32f4"),
    emulator: Some(
        "qemu-system-arm -M netduinoplus2 -display none -serial null -serial stdio -monitor none \
         -semihosting-config enable=on,target=native -icount shift=3 -kernel",
    ),
    ..Board::new("stm32f4", "thumbv7em-none-eabihf")
};

impl Board {
    /// The board that firmware for `target` runs on by default.
    const fn new(name: &'static str, target: &'static str) -> Self {
        Self { name, target, feature: None, config: None, emulator: None }
    }

    /// Builds the firmware with `model` in its flash; gives the path of a copy of its own.
    #[allow(dead_code, reason = "of the two tests that share this file, one")]
    pub fn build(&self, model: &Path) -> PathBuf {
        self.build_with(model, None)
    }

    /// As [`build`](Self::build), with a feature of the firmware besides the board's.
    pub fn build_with(&self, model: &Path, feature: Option<&str>) -> PathBuf {
        // Every build writes the same file: one at a time, and the copy is made before the next. A copy is
        // as good for the next test of this run.
        static COPIES: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
        let mut copies = COPIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());

        let target_dir = firmware_dir().join("target");
        let stem = model.file_stem().expect("a model file").to_string_lossy();
        let copy = format!("{}-{}-{stem}.elf", self.name, feature.unwrap_or("plain"));
        let copy = target_dir.join(copy);
        if copies.get(&copy).is_some_and(|of| of == model) {
            return copy;
        }
        let built = self.build_in(&target_dir, model, feature);
        std::fs::copy(&built, &copy).expect("copying the firmware");
        copies.insert(copy.clone(), model.to_owned());
        copy
    }

    /// Has cargo build in `target_dir`; gives the path of the program.
    fn build_in(&self, target_dir: &Path, model: &Path, feature: Option<&str>) -> PathBuf {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--release", "--quiet", "--target", self.target]);
        let features = self.feature.into_iter().chain(feature);
        cargo.args(features.flat_map(|feature| ["--features", feature]));
        if let Some(config) = self.config {
            cargo.arg("--config").arg(config_file(config));
        }
        cargo.arg("--target-dir").arg(target_dir).current_dir(firmware_dir());
        cargo.env("KILOFORMER_MODEL", model);
        // Flags meant for the host would replace those of firmware-example/.cargo/config.toml.
        cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        let status = cargo.status().expect("starting cargo");
        assert!(status.success(), "{}: the firmware does not build", self.name);
        let built = target_dir.join(self.target).join("release/firmware-example");
        if self.target.starts_with("wasm32") { built.with_extension("wasm") } else { built }
    }

    /// The emulator's command line, up to the ELF.
    pub fn emulator(&self) -> Vec<String> {
        let line = self.emulator.map_or_else(|| self.runner(), str::to_owned);
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// The runner that `cargo run` uses, from firmware-example's cargo configuration.
    fn runner(&self) -> String {
        let path = config_file(self.config.unwrap_or("config"));
        let config = std::fs::read_to_string(path).expect("firmware-example's cargo configuration");
        let section = format!("[target.{}]", self.target);
        config
            .lines()
            .skip_while(|line| *line != section)
            .find_map(|line| line.strip_prefix("runner = \"")?.strip_suffix('"'))
            .expect("a runner for every emulated target")
            .to_owned()
    }
}

fn config_file(name: &str) -> PathBuf {
    firmware_dir().join(".cargo").join(name).with_extension("toml")
}

/// The folder of the firmware; what an emulator's command line names lies there.
pub fn firmware_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../firmware-example")
}
