//! The firmware in QEMU: the same words as on the host, the same text, the same bits.
//!
//! Ignored in a plain `cargo test`; `ci.sh device` gets what they need and runs them.

mod board;
mod qemu;
mod transcript;

use std::{path::Path, time::Duration};

use board::{Board, M0_PLUS, M4F, MICROBIT, RISC_V, STM32F4};
use transcript::{Batch, batch_input};

/// 543 words of the dictionary: every 248th, and all of 18 letters and more.
const WORDS: &str = include_str!("words.txt");

fn echo(board: &Board) {
    let elf = board.build(Path::new("echo"));
    let output = qemu::talk(board, &elf, &batch_input(WORDS.lines()), Duration::from_secs(60));
    let batch = Batch::parse(&output);
    for ((word, answer), expected) in batch.answers.iter().zip(WORDS.lines()) {
        assert_eq!(word, expected);
        assert!(answer.starts_with('!') || answer.replace(' ', "").eq_ignore_ascii_case(word));
    }
    println!(
        "{}: {:016x} {} {}, stack {}",
        board.name, batch.hash, batch.cost, batch.unit, batch.stack
    );
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn echoes() {
    for board in [M4F, M0_PLUS, RISC_V, MICROBIT, STM32F4] {
        echo(&board);
    }
}
