//! The boards that `firmware-example` runs on in QEMU, and how to build for them.

use std::{
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
    /// Emulator and arguments before the ELF; `None`: the runner that cargo uses for this target.
    emulator: Option<&'static str>,
}

/// Cortex-M4F.
pub const M4F: Board =
    Board { name: "mps2-an386", target: "thumbv7em-none-eabihf", feature: None, emulator: None };

/// Cortex-M0+ code on a Cortex-M3 that traps unaligned access.
pub const M0_PLUS: Board =
    Board { name: "mps2-an385", target: "thumbv6m-none-eabi", feature: None, emulator: None };

/// RV32IMC.
pub const RISC_V: Board =
    Board { name: "virt", target: "riscv32imc-unknown-none-elf", feature: None, emulator: None };

/// A true Cortex-M0 with 16 KB of RAM; its stream is the emulated UART.
pub const MICROBIT: Board = Board {
    name: "microbit",
    target: "thumbv6m-none-eabi",
    feature: Some("microbit"),
    emulator: Some(
        "qemu-system-arm -M microbit -display none -serial stdio -monitor none \
         -semihosting-config enable=on,target=native -icount shift=3 -kernel",
    ),
};

/// The firmware of a real STM32F4 board; QEMU's netduinoplus2 has the same chip, and its USART2.
pub const STM32F4: Board = Board {
    name: "stm32f4",
    target: "thumbv7em-none-eabihf",
    feature: Some("stm32f4"),
    emulator: Some(
        "qemu-system-arm -M netduinoplus2 -display none -serial null -serial stdio -monitor none \
         -semihosting-config enable=on,target=native -icount shift=3 -kernel",
    ),
};

impl Board {
    /// Builds the firmware with `model` in its flash; gives the path of a copy of its own.
    pub fn build(&self, model: &Path) -> PathBuf {
        self.build_with(model, None)
    }

    /// As [`build`](Self::build), with a feature of the firmware besides the board's.
    pub fn build_with(&self, model: &Path, feature: Option<&str>) -> PathBuf {
        // Every build writes the same file: one at a time, and the copy is made before the next.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());

        let target_dir = firmware_dir().join("target");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--release", "--quiet", "--target", self.target]);
        let features = self.feature.into_iter().chain(feature);
        cargo.args(features.flat_map(|feature| ["--features", feature]));
        cargo.arg("--target-dir").arg(&target_dir).current_dir(firmware_dir());
        cargo.env("KILOFORMER_MODEL", model);
        // Flags meant for the host would replace those of firmware-example/.cargo/config.toml.
        cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        let status = cargo.status().expect("starting cargo");
        assert!(status.success(), "{}: the firmware does not build", self.name);

        let built = target_dir.join(self.target).join("release/firmware-example");
        let stem = model.file_stem().expect("a model file").to_string_lossy();
        let feature = feature.unwrap_or("plain");
        let copy = target_dir.join(format!("{}-{feature}-{stem}.elf", self.name));
        std::fs::copy(&built, &copy).expect("copying the firmware");
        copy
    }

    /// The emulator's command line, up to the ELF.
    pub fn emulator(&self) -> Vec<String> {
        let line = self.emulator.map_or_else(|| runner_of(self.target), str::to_owned);
        line.split_whitespace().map(str::to_owned).collect()
    }
}

/// The runner that `cargo run` uses for `target`, from firmware-example's cargo configuration.
fn runner_of(target: &str) -> String {
    let path = firmware_dir().join(".cargo/config.toml");
    let config = std::fs::read_to_string(path).expect("firmware-example's cargo configuration");
    let section = format!("[target.{target}]");
    config
        .lines()
        .skip_while(|line| *line != section)
        .find_map(|line| line.strip_prefix("runner = \"")?.strip_suffix('"'))
        .expect("a runner for every emulated target")
        .to_owned()
}

fn firmware_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../firmware-example")
}
