//! The firmware in QEMU: the same words as on the host, the same text, the same bits.
//!
//! Ignored in a plain `cargo test`; `ci.sh device` gets what they need and runs them.

mod board;
mod models;
mod qemu;
#[path = "../../../firmware-example/src/searches.rs"]
mod searches;
mod transcript;

use std::path::{Path, PathBuf};
use std::time::Duration;

use board::{
    AARCH64, Board, EVERY_CORE, M0_PLUS, M3, M4F, M7, M33, M55, MICROBIT, RISC_V, STM32F4, WASM,
    WASM_SIMD128,
};
use models::{Expected, ModelFile};
use transcript::{Batch, Cost, Sizes};

/// 543 words of the dictionary: every 248th, and all of 18 letters and more.
const WORDS: &str = include_str!("words.txt");

/// How many words of the list a test runs, and how long that may take.
struct Size {
    words: usize,
    /// Of these, one in so many is run again for its cost.
    costed: usize,
    limit: Duration,
}

const ALL: Size = Size { words: usize::MAX, costed: 18, limit: Duration::from_secs(1200) };
const SOME: Size = Size { words: 60, costed: 6, limit: Duration::from_secs(300) };
/// Software floats are slow.
const FEW: Size = Size { words: 5, costed: 4, limit: Duration::from_secs(300) };

/// Runs the model on the host and on the board: the answers and the bits of the logits must be equal.
/// Prints what it costs there.
fn equals_the_host(board: &Board, model: &ModelFile, size: &Size) {
    let longest = "abcdefghijklmnopqrstuvwxyz".repeat(20);
    let (longest, too_long) =
        (&longest[..model.letter_limit()], &longest[..model.letter_limit() + 1]);
    let words: Vec<&str> = WORDS
        .lines()
        .take(size.words)
        .chain([longest, too_long, "KiloByte", "rock'n'roll", "route66", "na\u{ef}ve"])
        .collect();
    texts_equal_the_host(board, model, &words, size);
}

/// The same for any texts.
fn texts_equal_the_host(board: &Board, model: &ModelFile, words: &[&str], size: &Size) {
    let costed: Vec<&str> = words.iter().step_by(size.costed).copied().collect();
    let elf = build(board, model);
    let input = transcript::input(words, &costed);
    let output = qemu::talk(board, &elf, &input, size.limit);

    let batch = Batch::parse(&output);
    let expected = model.run(words.iter().copied());
    assert_same_answers(words, &expected, &batch.answers);
    assert_eq!(batch.hash, expected.hash, "{} {}: other logits", board.name, model.name);
    let cost = Cost::parse(&output);
    let again: Vec<_> = batch.answers.iter().step_by(size.costed).cloned().collect();
    assert_eq!(cost.answers, again, "with the hash and without");
    println!(
        "{:<10} {:<12} {:>4} words, hash {:016x}, {:>9} {} a word, arena {}, stack {} of {}",
        board.name,
        model.name,
        words.len(),
        batch.hash,
        cost.total / costed.len() as u64,
        cost.unit,
        batch.arena,
        cost.stack,
        cost.stack_of_all
    );
    for line in output.lines().filter(|line| line.starts_with("load ")) {
        println!("           {line}");
    }
}

/// The firmware with `model`. With random weights it has the self-test besides, so that one build serves
/// all the tests that nothing trained is needed for.
fn build(board: &Board, model: &ModelFile) -> PathBuf {
    let feature = model.name.starts_with("random-fixed").then_some("selftest");
    board.build_with(&model.path, feature)
}

fn assert_same_answers(words: &[&str], expected: &Expected, answers: &[(String, String)]) {
    assert_eq!(answers.len(), words.len());
    for ((word, expected), (asked, answer)) in words.iter().zip(&expected.answers).zip(answers) {
        assert_eq!(word, asked);
        match expected {
            Some(text) => assert_eq!(text.trim(), answer, "{word}"),
            None => assert!(answer.starts_with("! "), "{word}: {answer}"),
        }
    }
}

/// The model that ships over all words; random weights, which say more in each of them, over some.
fn fixed_point_equals_the_host(board: &Board) {
    for model in models::fixed_point() {
        let size = if model.name.starts_with("random") { &SOME } else { &ALL };
        equals_the_host(board, &model, size);
    }
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_cortex_m4f() {
    fixed_point_equals_the_host(&M4F);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_cortex_m0_plus() {
    fixed_point_equals_the_host(&M0_PLUS);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_cortex_m3() {
    fixed_point_equals_the_host(&M3);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_cortex_m7() {
    fixed_point_equals_the_host(&M7);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_cortex_m33() {
    fixed_point_equals_the_host(&M33);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_cortex_m55() {
    fixed_point_equals_the_host(&M55);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_risc_v() {
    fixed_point_equals_the_host(&RISC_V);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn fixed_point_on_aarch64() {
    fixed_point_equals_the_host(&AARCH64);
}

#[test]
#[ignore = "needs Node and its target; ci.sh runs it"]
fn fixed_point_on_wasm() {
    fixed_point_equals_the_host(&WASM);
    fixed_point_equals_the_host(&WASM_SIMD128);
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn half_float_everywhere() {
    let models = models::half_float();
    for model in &models {
        equals_the_host(&M4F, model, &SOME);
    }
    for board in [M0_PLUS, RISC_V] {
        equals_the_host(&board, &models[models.len() - 1], &FEW);
    }
}

/// Families, activations, frames, shared embeddings, odd sizes.
#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn every_choice_of_the_configuration() {
    for model in models::golden() {
        equals_the_host(&M4F, &model, &SOME);
        let config = model.config();
        if config.has_cross_attention() || model.is_half_float() {
            continue;
        }
        for board in [M0_PLUS, RISC_V] {
            equals_the_host(&board, &model, &SOME);
        }
    }
}

/// The trained tagger, classifier and language model, over the words of the list; the tagger's texts
/// are their phones, as the speller finds them, without stress.
#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn every_task_of_the_dictionary() {
    let words: Vec<&str> = WORDS.lines().collect();
    let speller = models::shipped("g2p-en").expect("the model that ships");
    let phones = speller.run(words.iter().copied()).answers;
    let phones = phones.into_iter().flatten();
    let phones: Vec<String> =
        phones.map(|text| text.replace(|c: char| c.is_ascii_digit(), "")).collect();
    let phones: Vec<&str> = phones.iter().map(String::as_str).collect();
    for (name, texts) in [("stress-en", &phones), ("syllables-en", &words), ("words-en", &words)] {
        let model = models::shipped(name).expect("the model that ships");
        texts_equal_the_host(&M4F, &model, texts, &ALL);
    }
}

/// Models that another test has made, with their texts: those that PyTorch trains and the trainer
/// imports, in `./ci.sh --with-pytorch`.
#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn models_of_a_folder() {
    let Some(folder) = std::env::var_os("KILOFORMER_BOARD_MODELS") else {
        println!("skipped: KILOFORMER_BOARD_MODELS names no folder");
        return;
    };
    let models = models::of_folder(Path::new(&folder));
    assert!(!models.is_empty(), "no model in {}", folder.display());
    for model in models {
        let texts = std::fs::read_to_string(model.path.with_extension("txt")).expect("its texts");
        texts_equal_the_host(&M4F, &model, &texts.lines().collect::<Vec<_>>(), &FEW);
    }
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn over_a_uart_and_in_16_kilobytes() {
    equals_the_host(&MICROBIT, &models::tiny_fixed_point(), &SOME);
    let model = models::fixed_point().remove(0);
    equals_the_host(&STM32F4, &model, &Size { words: 10, ..SOME });
}

/// Scores, constraints, sampling, beam search, bounded steps and alignment: the same texts and the same
/// bits as on the host.
#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn every_way_to_search_finds_the_same() {
    let words: Vec<&str> = WORDS.lines().step_by(60).collect();
    let input = format!(":search\n{}\n\n:quit\n", words.join("\n"));
    let fixed = models::fixed_point();
    let half = models::half_float().remove(0);
    let boards = [M4F, M0_PLUS, RISC_V];
    for (board, model) in boards
        .iter()
        .flat_map(|board| fixed.iter().map(move |model| (board, model)))
        .chain([(&M4F, &half)])
    {
        let elf = board.build_with(&model.path, Some("search"));
        let output = qemu::talk(board, &elf, &input, Duration::from_secs(600));
        let (found, costs) = transcript::searches(&output);
        assert_eq!(found, model.searches(&words), "{} {}", board.name, model.name);
        println!("{:<10} {:<12} {costs}", board.name, model.name);
    }
}

/// What the firmware says to every way to fail; numbers are those of the random model, but for those that
/// depend on how it is laid out for the board.
const ERRORS: &str = include_str!("errors.txt");

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn every_error_says_its_numbers() {
    let model = models::fixed_point().remove(0);
    for board in EVERY_CORE {
        let elf = build(board, &model);
        let output = qemu::talk(board, &elf, ":errors\n:quit\n", Duration::from_secs(60));
        let (banner, output) = output.split_once("> ").expect("a prompt");
        let Sizes { model, arena } = Sizes::parse(banner);
        let expected = ERRORS
            .replace("{half}", &transcript::grouped(model / 2))
            .replace("{all but one}", &transcript::grouped(model - 1))
            .replace("{arena}", &transcript::grouped(arena));
        assert_eq!(output.trim_end_matches("> "), expected, "{}", board.name);
    }
}

#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn kernels_equal_their_reference() {
    let model = models::fixed_point().remove(0);
    for board in EVERY_CORE {
        let elf = build(board, &model);
        let output = qemu::talk(
            board,
            &elf,
            ":selftest
:quit
",
            Duration::from_secs(120),
        );
        // The number of cases is that of the kernels' block and tokens.
        assert!(
            output.contains("> the kernels equal the contract in "),
            "{}: {output}",
            board.name
        );
    }
}

/// A fault must not look like an answer that takes long.
#[test]
#[ignore = "needs QEMU and embedded targets; ci.sh runs it"]
fn a_fault_ends_the_run_with_a_status() {
    let model = models::fixed_point().remove(0);
    for board in EVERY_CORE {
        let elf = build(board, &model);
        let (status, output) = qemu::run(board, &elf, ":fault\n:quit\n", Duration::from_secs(60));
        assert_eq!(status.code(), Some(1), "{}: {output}", board.name);
        assert!(output.ends_with("> "), "{}: {output}", board.name);
    }
}
