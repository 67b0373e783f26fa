//! Instructions of every operator and of the whole model, on every emulated core that counts them.
//!
//! `./ci.sh bench` builds the firmwares, runs them, prints the tables and compares with the committed
//! counts in `benches/device/counts.tsv`. Counts are exact, so this is no timed test. With
//! `KILOFORMER_COUNTS=write` it writes them.

#[allow(dead_code, reason = "the boards that count no instructions")]
#[path = "../device/board.rs"]
mod board;
mod counts;
mod measure;
mod model;
#[path = "../device/qemu.rs"]
mod qemu;
mod report;

use std::{path::Path, thread};

use board::{AARCH64, M0_PLUS, M3, M4F, M7, M33, M55, RISC_V};
use counts::Counts;
use measure::{Measured, Subject, measure};

/// Words that the model runs: every 54th of the list.
const WORDS: &str = include_str!("../device/words.txt");
const EVERY: usize = 54;

/// What the operators and the rest may differ by from the whole, in percent: boundaries keep some code
/// apart that is one without them.
const PROFILE_TOLERANCE: f64 = 2.0;

fn subjects() -> [Subject; 8] {
    [
        Subject { board: M4F, core: "Cortex-M4" },
        Subject { board: M7, core: "Cortex-M7" },
        Subject { board: M33, core: "Cortex-M33" },
        Subject { board: M55, core: "Cortex-M55" },
        Subject { board: M3, core: "Cortex-M3" },
        Subject { board: M0_PLUS, core: "Cortex-M0+" },
        Subject { board: RISC_V, core: "RV32IMC" },
        Subject { board: AARCH64, core: "AArch64" },
    ]
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn no_count_has_grown() {
    let words: Vec<&str> = WORDS.lines().step_by(EVERY).collect();
    let subjects = subjects();
    let measured: Vec<Measured<'_>> = thread::scope(|scope| {
        let words = &words;
        let start = |subject| scope.spawn(move || measure(subject, words));
        let threads: Vec<_> = subjects.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a measurement")).collect()
    });
    let macs = model::macs(&words);
    for measured in &measured {
        report::print(measured, macs, words.len() as u64);
    }
    judge(&measured.iter().flat_map(Measured::counts).collect());
    measured.iter().for_each(assert_profile_is_whole);
}

/// Compares with the committed counts, or replaces them.
fn judge(measured: &Counts) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/device/counts.tsv");
    if std::env::var_os("KILOFORMER_COUNTS").is_some_and(|value| value == "write") {
        return counts::write(&path, measured);
    }
    let verdict = counts::compare(&counts::read(&path), measured);
    if !verdict.better.is_empty() {
        println!("\nfewer instructions; KILOFORMER_COUNTS=write ./ci.sh bench writes the counts:");
        verdict.better.iter().for_each(|line| println!("  {line}"));
    }
    assert!(verdict.worse.is_empty(), "more instructions:\n  {}", verdict.worse.join("\n  "));
}

/// The operators and the rest are what a firmware without boundaries spends.
fn assert_profile_is_whole(measured: &Measured<'_>) {
    let parts: u64 = measured.shares.iter().map(|share| share.count).sum();
    let difference = (parts as f64 / measured.total as f64 - 1.0) * 100.0;
    let name = measured.subject.board.name;
    assert!(difference.abs() < PROFILE_TOLERANCE, "{name}: {difference:+.2}%");
}
