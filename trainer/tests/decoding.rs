//! `trainer run` with a search, and `trainer explain`, on the model that ships.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use trainer::alignment::align;
use trainer::device;

fn model() -> PathBuf {
    shipped("g2p-en.kfm")
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name)
}

fn trainer(command: &str, args: &[&str]) -> Output {
    trainer_with(command, "g2p-en.kfm", args)
}

fn trainer_with(command: &str, name: &str, args: &[&str]) -> Output {
    let mut trainer = Command::new(env!("CARGO_BIN_EXE_trainer"));
    trainer.arg(command).arg(shipped(name)).args(args).output().unwrap()
}

/// The columns of every line of `trainer run`.
fn run(args: &[&str]) -> Vec<Vec<String>> {
    let output = trainer("run", args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn refused(args: &[&str], expected: &str) {
    let output = trainer("run", args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(expected), "{said}");
    assert!(output.stdout.is_empty(), "nothing is answered");
}

#[test]
fn beams_give_the_best_first_and_one_beam_is_greedy() {
    let best = run(&["--beams", "4", "--n-best", "4", "--scores", "read"]);
    let texts: Vec<&str> = best.iter().map(|line| line[1].as_str()).collect();
    assert_eq!(texts[..2], ["R EH1 D", "R IY1 D"], "both are right");
    let scores: Vec<f32> = best.iter().map(|line| line[2].parse().unwrap()).collect();
    assert!(best.len() == 4 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    for word in ["kilobyte", "mississippi", "o'neill"] {
        assert_eq!(run(&["--beams", "1", word]), run(&[word]));
        assert_eq!(run(&["--scores", word])[0][1], run(&[word])[0][1]);
    }
}

#[test]
fn a_seed_repeats_what_is_drawn_and_the_most_probable_of_one_is_greedy() {
    let drawn = |seed| run(&["--temperature", "2", "--seed", seed, "kilobyte", "kilobyte"]);
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    assert_ne!(drawn("1")[0], drawn("1")[1], "each text has random numbers of its own");
    assert_eq!(run(&["--top-k", "1", "kilobyte"]), run(&["kilobyte"]));
}

#[test]
fn constraints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let choices = folder.path().join("choices.txt");
    std::fs::write(&choices, "M EH1 G AH0 B AY2 T\nK AE1 T\nB AY1 T\n").unwrap();
    let choices = choices.to_str().unwrap();
    let chosen = run(&["--choices", choices, "bite", "megabit", "cut"]);
    let chosen: Vec<&str> = chosen.iter().map(|line| line[1].as_str()).collect();
    assert_eq!(chosen, ["B AY1 T", "M EH1 G AH0 B AY2 T", "K AE1 T"]);
    let answer = |args: &[&str]| run(args)[0][1].clone();
    assert_eq!(answer(&["--prefix", "K AY1", "kilobyte"]), "L AH0 B AY2 T");
    assert!(!answer(&["--suppress", "AH0 IH1", "kilobyte"]).contains("AH0"));
    assert_eq!(answer(&["--max-len", "3", "kilobyte"]).split(' ').count(), 3);
    assert!(answer(&["--min-len", "12", "kilobyte"]).split(' ').count() >= 11);
}

#[test]
fn options_that_mean_nothing_are_refused_before_the_first_text() {
    for (args, expected) in [
        (["--beams", "0", "a"].as_slice(), "at least one beam"),
        (&["--beams", "2", "--n-best", "3", "a"], "3 outputs are asked for, not 1 to 2"),
        (&["--beams", "2", "--length-penalty", "-1", "a"], "the length penalty is -1, below 0"),
        (&["--top-k", "74", "a"], "top-k is 74, not 1 to 73"),
        (&["--top-k", "0", "a"], "top-k is 0"),
        (&["--temperature", "0", "a"], "the temperature is 0, not above 0"),
        (&["--temperature", "-1", "a"], "the temperature is -1, not above 0"),
        (&["--temperature", "nan", "a"], "the temperature is NaN"),
        (&["--top-p", "1.5", "a"], "top-p is 1.5, not above 0 and at most 1"),
        (&["--min-len", "33", "a"], "at least 33 ids are asked for and at most 32"),
        (&["--repetition-penalty", "-0.5", "a"], "the repetition penalty is -0.5, not at least 1"),
        (&["--suppress", "QQ", "a"], "`QQ` is no symbol"),
        (&["--choices", "/nowhere.txt", "a"], "reading /nowhere.txt"),
    ] {
        refused(args, expected);
    }
    refused(&["--prefix", &"K ".repeat(32), "a"], "32 ids");
}

#[test]
fn every_step_attends_to_the_whole_source() {
    let file = device::read(&model()).unwrap();
    let alignment = align(device::check(&file).unwrap(), "Transformer").unwrap();
    assert_eq!(alignment.source.join(" "), "t r a n s f o r m e r <end>");
    assert_eq!(alignment.target.join(" "), "T R AE0 N S F AO1 R M ER0 <end>");
    assert_eq!(alignment.heads.len(), 4);
    for head in &alignment.heads {
        let rows = head.weights.chunks_exact(alignment.source.len());
        assert_eq!(rows.len(), alignment.target.len());
        for row in rows {
            let sum: f32 = row.iter().sum();
            assert!((sum - 1.0).abs() < 1e-3, "{sum}");
        }
    }
}

#[test]
fn explain_draws_every_head_of_a_layer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("attention.svg");
    let output = path.to_str().unwrap();
    let drawn = trainer("explain", &["rust", "--layer", "0", "--output", output]);
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let picture = std::fs::read_to_string(&path).unwrap();
    assert!(picture.contains("<svg") && picture.contains("layer 0, head 3"));
    let none = trainer("explain", &["rust", "--layer", "1"]);
    let said = String::from_utf8(none.stderr).unwrap();
    assert!(said.contains("there is no layer 1: the decoder has 1"), "{said}");
}

#[test]
fn inspect_counts_the_parameters() {
    let output = trainer("inspect", &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("\nparameters           295120\n"), "{said}");
}

/// The longest output is 32 ids; the prefix takes 10 of them.
#[test]
fn lengths_and_choices_are_about_what_follows_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("choices.txt");
    let prefix = ["K"; 10].join(" ");
    let after = |args: &[&str]| {
        let args = [&["--prefix", prefix.as_str()], args, &["kilobyte"]].concat();
        let output = trainer("run", &args);
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()))
    };
    let choices = ["--choices", path.to_str().unwrap()];
    for (len, fits) in [(1, true), (21, true), (22, false)] {
        let choice = ["B"; 22][..len].join(" ");
        std::fs::write(&path, &choice).unwrap();
        for search in [[].as_slice(), &["--beams", "2"], &["--top-k", "2"]] {
            let (success, said) = after(&[&choices[..], search].concat());
            let said = said.unwrap();
            assert_eq!(success, fits, "{len} {search:?}: {said}");
            match fits {
                true => assert_eq!(said, format!("kilobyte\t{choice}\n")),
                // Before the first text.
                false => assert_eq!(
                    said,
                    "error: allowed output 1 has 23 ids with its end, not 0 to 22\n"
                ),
            }
        }
    }
    let (success, said) = after(&["--min-len", "22"]);
    let said = said.unwrap();
    assert!(success && said.trim_end().split([' ', '\t']).count() >= 22, "{said}");
    let (success, said) = after(&["--min-len", "23"]);
    let said = said.unwrap();
    assert!(!success && said == "error: at least 23 ids are asked for and at most 22\n", "{said}");
}

#[test]
fn blank_lines_are_no_choices() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("choices.txt");
    let choices = path.to_str().unwrap();
    // Without them, ending at once would be allowed, and nothing would be said before the end.
    std::fs::write(&path, "\nZH ZH ZH ZH\n  \n").unwrap();
    assert_eq!(run(&["--choices", choices, "bite"])[0][1], "ZH ZH ZH ZH");
    std::fs::write(&path, "\n \n").unwrap();
    refused(&["--choices", choices, "bite"], "choices.txt: no output in it");
}

#[test]
fn more_beams_than_any_search_needs_are_refused() {
    let output = trainer("run", &["--beams", "65535", "a"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("65535 is not in 0..=1024"), "{said}");
}

#[test]
fn labels_have_scores() {
    for (name, text, labels) in
        [("stress-en.kfm", "P ER M IH T", 5), ("syllables-en.kfm", "permit", 1)]
    {
        let line = |args: &[&str]| {
            let output = trainer_with("run", name, args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{said}");
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };
        let scored = line(&["--scores", text]);
        let columns: Vec<&str> = scored.split('\t').collect();
        assert_eq!(columns[..2].join("\t"), line(&[text]));
        let sum: f32 = columns[3].parse().unwrap();
        let confidence: f32 = columns[4].strip_suffix('%').unwrap().parse().unwrap();
        // The confidence is the mean per label.
        let expected = 100.0 * (sum / labels as f32).exp();
        assert!(sum < 0.0 && (confidence - expected).abs() < 0.2, "{scored}");
        let output = trainer_with("run", name, &["--beams", "2", text]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("only labels: there is nothing to search"), "{said}");
    }
}

#[test]
fn a_language_models_prompt_is_its_text() {
    let output = trainer_with("run", "words-en.kfm", &["--prefix", "ki", "ki"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("takes its prompt as the text, not as a prefix"), "{said}");
}

#[test]
fn saturations_of_a_language_model_are_counted_on_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.txt");
    std::fs::write(&path, "kilobyte\nrust\n\nlatte\n").unwrap();
    let output = trainer_with("inspect", "words-en.kfm", &["--data", path.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("saturations counted on 3 texts"), "{said}");
}
