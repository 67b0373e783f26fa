//! Bad input: a clear error, status 1, nothing lost and nothing left behind.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{begin, trainer, write_pairs};
use trainer::checkpoint;

/// Runs to the end; returns the exit status and what was said on stderr.
fn run(mut command: Command) -> (Option<i32>, String) {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Runs what must fail with status 1 and one line that holds `expected`.
fn fails(command: Command, expected: &str) {
    let (status, said) = run(command);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(expected), "{said}");
    assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn bad_pairs_are_named_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, out) = (folder.path().join("bad.tsv"), folder.path().join("run"));
    let long = format!("ab\t{}\n", "A ".repeat(40));
    for (text, expected) in [
        (b"a\tA\nno tab\n".as_slice(), "bad.tsv: line 2: no tab between source and target"),
        (b"a\t\n", "bad.tsv: line 1: the target is empty"),
        (b"a\tA\n\n\t\tA\n", "bad.tsv: line 3: more than one tab"),
        (long.as_bytes(), "bad.tsv: line 1: the target has 40 symbols, the limit is 31"),
        (b"a\tA\nb\xe9\tB\n", "bad.tsv: line 2: not UTF-8 (byte 6 of the file)"),
        (b"\n\n", "bad.tsv: no pair"),
    ] {
        std::fs::write(&bad, text).unwrap();
        fails(begin(&bad, &out), expected);
        assert!(!out.exists(), "nothing may be left behind");
    }
    fails(begin(&folder.path().join("none.tsv"), &out), "none.tsv: No such file");
    // A model that reads such a symbol could be trained, but not exported.
    std::fs::write(&bad, format!("a {}\tA\n", "b".repeat(65))).unwrap();
    let mut command = begin(&bad, &out);
    command.args(["--source-unit", "word"]).arg("--dev").arg(&bad);
    fails(command, "has 65 bytes; the runtime reads symbols of at most 64");
    assert!(!out.exists(), "nothing may be left behind");
}

#[test]
fn labels_and_texts_that_do_not_fit_are_named_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, out) = (folder.path().join("bad.tsv"), folder.path().join("run"));
    for (family, text, expected) in [
        ("tagger", "ab\tX Y\nab\tX Y X\n", "bad.tsv: line 2: 3 labels for 2 symbols"),
        ("classifier", "ab\tX\nb\tX Y\n", "bad.tsv: line 2: 2 labels, a classifier's text has one"),
        ("classifier", "ab\tX\nb\tX\n", "there must be two different labels"),
        ("decoder-only", "ab\nab\tX\n", "bad.tsv: line 2: a tab, but a decoder-only model"),
        ("decoder-only", "\n\n", "bad.tsv: no pair"),
    ] {
        std::fs::write(&bad, text).unwrap();
        let mut command = trainer(&["--family", family]);
        command.arg("--data").arg(&bad).arg("--dev").arg(&bad).arg("--out").arg(&out);
        fails(command, expected);
        assert!(!out.exists(), "nothing may be left behind");
    }
}

#[test]
fn a_dry_run_shows_the_size_of_a_config_and_makes_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (config, out) = (folder.path().join("x.json"), folder.path().join("run"));
    let stack = r#"{"n_layers": 2, "n_heads": 4, "d_ff": 256}"#;
    let json = format!(
        r#"{{"model": {{"source_vocab": 1000, "target_vocab": 1000, "d_model": 64, "norm": "post",
        "final_norm": false, "output": "untied-bias", "encoder": {stack}, "decoder": {stack}}}}}"#
    );
    std::fs::write(&config, json).unwrap();
    let mut command = trainer(&["--dry-run"]);
    command.arg("--config").arg(&config).arg("--out").arg(&out);
    let output = command.output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("\nparameters      426472\n"), "{said}");
    assert!(said.contains("\nvocabularies    1000 source, 1000 target\n"), "{said}");
    let line = said.lines().find(|line| line.starts_with("source_embedding.weight")).unwrap();
    assert!(line.ends_with("1000x64       64000"), "{line}");
    assert!(!out.exists());
    std::fs::write(&config, r#"{"model": {"d_modl": 64}}"#).unwrap();
    let mut command = trainer(&["--dry-run"]);
    command.arg("--config").arg(&config);
    fails(command, "x.json: no field is `model.d_modl`");
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_pairs(folder.path());
    fails(begin(&pairs, Path::new("/proc/no/run")), "making /proc/no/run: ");
    fails(begin(&pairs, &pairs), "pairs.tsv: File exists");
}

#[test]
fn values_that_mean_nothing_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, out) = (write_pairs(folder.path()), folder.path().join("run"));
    for (arguments, expected) in [
        (["--epochs", "0"], "epochs is 0"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--encoder-heads", "0"], "encoder.n_heads is 0: d_model 8 is no multiple of it"),
        (["--decoder-heads", "3"], "decoder.n_heads is 3: d_model 8 is no multiple of it"),
        (["--d-model", "9"], "d_model is 9"),
        (["--decoder-layers", "0"], "decoder.n_layers is 0"),
    ] {
        let mut command = trainer(&arguments);
        command.arg("--data").arg(&pairs).arg("--out").arg(&out);
        if arguments[0] != "--d-model" {
            command.args(["--d-model", "8"]);
        }
        fails(command, expected);
        assert!(!out.exists(), "nothing may be left behind");
    }
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_keeps_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, out) = (write_pairs(folder.path()), folder.path().join("run"));
    let mut command = begin(&pairs, &out);
    command.args(["--rate", "1e30"]);
    let (status, said) = run(command);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("the last checkpoint is kept"), "{said}");
    let kept = checkpoint::load(&out).unwrap();
    assert!(kept.weights.params.iter().all(|p| p.is_finite()));
}

#[test]
fn a_finished_run_is_evaluated_again_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, out) = (write_pairs(folder.path()), folder.path().join("run"));
    let mut command = begin(&pairs, &out);
    command.args(["--dev"]).arg(&pairs);
    let (status, first) = run(command);
    assert_eq!(status, Some(0), "{first}");
    let bytes = || std::fs::read(out.join(checkpoint::FILE_NAME)).unwrap();
    let before = bytes();
    let (status, again) = run(trainer(&["--resume", out.to_str().unwrap()]));
    assert_eq!(status, Some(0), "{again}");
    assert_eq!(again.lines().last(), first.lines().last());
    assert!(again.contains("finished: held-out pairs, loss "), "{again}");
    assert!(!again.contains("epoch"), "{again}");
    assert!(bytes() == before);
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let kinds: Vec<serde_json::Value> =
        metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kinds.iter().filter(|line| line["kind"] == "final").count(), 2);
    fails(begin(&pairs, &out), "holds a run already: choose another --out, or go on with --resume");
}

#[test]
fn a_resumed_run_takes_a_device_but_no_other_configuration() {
    let resume = |option: &str, value: &str| run(trainer(&["--resume", "nowhere", option, value]));
    for (option, value) in [("--epochs", "9"), ("--d-model", "8"), ("--data", "a"), ("--out", "b")]
    {
        let (status, said) = resume(option, value);
        assert_eq!(status, Some(2));
        assert!(said.contains("cannot be used with"), "{option}: {said}");
    }
    let (status, said) = resume("--device", "cpu");
    assert_eq!(status, Some(1));
    assert!(said.contains("reading nowhere: No such file"), "{said}");
}
