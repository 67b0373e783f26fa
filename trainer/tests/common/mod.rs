//! What the tests of whole runs share.
#![allow(dead_code)] // each of them uses a part of it

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// 120 pairs over five letters: every letter becomes its capital.
pub fn write_pairs(folder: &Path) -> PathBuf {
    let word = |i: usize| -> String {
        (0..1 + i % 7).map(|j| char::from(b'a' + ((i * (j + 3) + i / 11) % 5) as u8)).collect()
    };
    let spelled = |word: &str| word.to_uppercase().chars().map(String::from).collect::<Vec<_>>();
    let line = |word: String| format!("{word}\t{}\n", spelled(&word).join(" "));
    let path = folder.join("pairs.tsv");
    std::fs::write(&path, (0..120).map(word).map(line).collect::<String>()).unwrap();
    path
}

/// `trainer train` with some arguments.
pub fn trainer(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.arg("train").args(args).stderr(Stdio::null());
    command
}

/// A run of 5 x 40 steps of a tiny model with a checkpoint after every step.
pub fn begin(pairs: &Path, out: &Path) -> Command {
    let mut command = trainer(&["--epochs", "40", "--batch-size", "24", "--checkpoint-steps", "1"]);
    command.args(["--d-model", "8", "--encoder-d-ff", "8", "--decoder-d-ff", "8"]);
    command.args(["--encoder-layers", "1", "--encoder-heads", "2", "--decoder-heads", "2"]);
    command.args(["--eval-epochs", "40", "--warmup-steps", "20"]);
    command.arg("--data").arg(pairs).arg("--out").arg(out);
    command
}
