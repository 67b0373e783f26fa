//! Every family learns from a file, is judged beside its baseline, stops and goes on.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use model_format::config::{Activation, Family, Precision, StackConfig};
use trainer::backend::Device;
use trainer::config::{RunConfig, with_family};
use trainer::data::tokenizer::Unit;
use trainer::device;
use trainer::evaluate::{FamilyScores, Quality};
use trainer::export::export;
use trainer::model::TrainedModel;
use trainer::session::Session;
use trainer::train::{Ended, evaluate_run};

/// 300 words over five letters.
fn words() -> impl Iterator<Item = String> {
    (0..300usize).map(|i| {
        let letter = |j: usize| char::from(b'a' + ((i * (j + 3) + i / 11 + j * j) % 5) as u8);
        (0..2 + i % 7).map(letter).collect()
    })
}

fn is_vowel(c: char) -> bool {
    c == 'a' || c == 'e'
}

/// A tagger's label of a letter: whether it is a vowel and whether the one before it was.
fn tags(word: &str) -> String {
    let before = [' '].into_iter().chain(word.chars());
    let tag = |(c, before)| format!("{}{}", u8::from(is_vowel(c)), u8::from(is_vowel(before)));
    word.chars().zip(before).map(tag).collect::<Vec<_>>().join(" ")
}

fn write(folder: &Path, family: Family) -> PathBuf {
    let line = |word: String| match family {
        Family::DecoderOnly => format!("{}\n", "abcde".repeat(3).split_at(word.len()).0),
        Family::Tagger => format!("{word}\t{}\n", tags(&word)),
        _ => format!("{word}\t{}\n", word.chars().filter(|&c| is_vowel(c)).count().min(3)),
    };
    let path = folder.join(format!("{family:?}.txt"));
    std::fs::write(&path, words().map(line).collect::<String>()).unwrap();
    path
}

fn config(data: PathBuf, family: Family) -> RunConfig {
    let mut config = RunConfig::default();
    (config.data.train, config.data.dev) = (Some(data.clone()), Some(data));
    if family == Family::DecoderOnly {
        config.data.target.unit = Unit::Character;
    }
    let stack = StackConfig { n_layers: 1, n_heads: 2, d_ff: 24 };
    (config.model.d_model, config.model.encoder, config.model.decoder) = (16, stack, stack);
    config.model.activation = Activation::Gelu;
    config.model = with_family(config.model, family);
    (config.train.epochs, config.train.batch_size) = (40, 32);
    (config.train.eval_epochs, config.train.label_smoothing) = (40, 0.0);
    (config.train.schedule.warmup_steps, config.train.schedule.rate) = (40, 1e-2);
    config.train.adam.ema_decay = 0.9;
    config
}

fn trained(folder: &Path, family: Family) -> (Session, Quality) {
    let config = config(write(folder, family), family);
    let mut session = Session::begin(folder.join(format!("{family:?}")), config).unwrap();
    assert_eq!(session.train(&AtomicBool::new(false)).unwrap(), Ended::Finished);
    let quality = evaluate_run(&session.network, &session.run, session.held_out()).unwrap();
    (session, quality)
}

#[test]
fn labels_are_learned_far_beyond_the_majority() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::Tagger, Family::Classifier] {
        let (session, quality) = trained(folder.path(), family);
        let FamilyScores::Labels(labels) = quality.scores else { panic!("{quality:?}") };
        let majority = labels.majority.unwrap();
        assert!(labels.scores.label_accuracy > 0.95, "{family:?}: {quality}");
        assert!(majority.label_accuracy < 0.7, "{family:?}: {quality}");
        assert_eq!(labels.by_symbol.is_some(), family == Family::Tagger);
        let model = TrainedModel::load(&session.folder).unwrap();
        let answers = model.transcribe(&["abaceba".into()], 1);
        assert_eq!(answers[0].len(), if family == Family::Tagger { 7 } else { 1 });
    }
}

#[test]
fn a_language_model_learns_what_follows_and_goes_on_with_a_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let (session, quality) = trained(folder.path(), Family::DecoderOnly);
    let FamilyScores::Language(language) = quality.scores else { panic!("{quality:?}") };
    assert!((language.perplexity.ln() - quality.loss).abs() < 1e-12);
    // Where a text ends is open; which letter follows is not.
    assert!(language.perplexity < 2.0 && language.baseline.unwrap() > 4.0, "{quality}");
    let model = TrainedModel::load(&session.folder).unwrap();
    assert!(model.source.symbols().is_empty());
    let answer = model.transcribe(&["a".into()], 1).concat().concat();
    assert!("bcdeabcdeabcde".starts_with(&answer), "{answer}");
}

/// What `trainer eval` says.
fn eval(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).arg("eval").args(arguments).output();
    let output = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_checkpoint_is_evaluated_beside_its_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let (session, quality) = trained(folder.path(), Family::Tagger);
    let FamilyScores::Labels(labels) = quality.scores else { panic!("{quality:?}") };
    let run = session.folder.to_str().unwrap();
    let data = session.run.header.config.data.train.clone().unwrap();
    let outputs = folder.path().join("outputs.tsv");
    let outputs = outputs.to_str().unwrap();
    let (status, said, _) = eval(&[run, "--data", data.to_str().unwrap(), "--outputs", outputs]);
    assert_eq!(status, Some(0));
    for (name, scores) in [
        ("the model", labels.scores),
        ("majority label", labels.majority.unwrap()),
        ("  by symbol", labels.by_symbol.unwrap()),
    ] {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap();
        let expected = format!("{:.2}%", 100.0 * scores.label_accuracy);
        assert!(line.contains(&expected), "{line}: not {expected}");
    }
    let lines = std::fs::read_to_string(outputs).unwrap();
    assert!(lines.contains("\t") && lines.lines().all(|l| l.split('\t').count() == 2));
    // What is not the model's.
    let bad = folder.path().join("bad.tsv");
    std::fs::write(&bad, "ab\t10 77\n").unwrap();
    let (status, _, said) = eval(&[run, "--data", bad.to_str().unwrap()]);
    assert_eq!(status, Some(1));
    assert!(said.ends_with("bad.tsv: line 1: the label `77` is not the model's\n"), "{said}");
    let (_, _, said) = eval(&[run, "--task", "words"]);
    assert_eq!(
        said,
        "error: the task words is not for a tagger: choose another --task, or --data\n"
    );
}

#[test]
fn a_language_model_is_evaluated_by_perplexity_and_goes_on_with_halves() {
    let folder = tempfile::tempdir().unwrap();
    let (session, quality) = trained(folder.path(), Family::DecoderOnly);
    let FamilyScores::Language(language) = quality.scores else { panic!("{quality:?}") };
    let run = session.folder.to_str().unwrap();
    let data = session.run.header.config.data.train.clone().unwrap();
    let outputs = folder.path().join("outputs.tsv");
    let (status, said, _) =
        eval(&[run, "--data", data.to_str().unwrap(), "--outputs", outputs.to_str().unwrap()]);
    assert_eq!(status, Some(0));
    for number in [language.perplexity, language.baseline.unwrap()] {
        assert!(said.contains(&format!("{number:.3}")), "{said}");
    }
    let lines = std::fs::read_to_string(outputs).unwrap();
    assert!(lines.lines().all(|line| "abcdeabcdeabcde".starts_with(&line.replace('\t', ""))));
}

#[test]
fn a_stopped_run_of_every_family_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::Tagger, Family::Classifier, Family::DecoderOnly] {
        let mut config = config(write(folder.path(), family), family);
        (config.train.epochs, config.train.dropout.activation) = (2, 0.1);
        let out = |name: &str| folder.path().join(format!("{family:?}-{name}"));
        let mut whole = Session::begin(out("whole"), config.clone()).unwrap();
        assert_eq!(whole.train(&AtomicBool::new(false)).unwrap(), Ended::Finished);
        let mut stopped = Session::begin(out("stopped"), config).unwrap();
        // A flag that is set from the beginning stops after one step.
        assert_eq!(stopped.train(&AtomicBool::new(true)).unwrap(), Ended::Interrupted);
        assert_eq!(stopped.run.header.progress.step, 1);
        let mut resumed = Session::resume(&out("stopped")).unwrap();
        assert_eq!(resumed.train(&AtomicBool::new(false)).unwrap(), Ended::Finished);
        assert!(resumed.run == whole.run, "{family:?}");
    }
}

#[test]
fn every_family_is_exported_and_gives_the_same_labels_and_texts() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::Tagger, Family::Classifier, Family::DecoderOnly] {
        let (session, _) = trained(folder.path(), family);
        let model = TrainedModel::load(&session.folder).unwrap();
        let texts: Vec<String> = ["ab", "abcd", "a", "abcde"].map(String::from).to_vec();
        let expected = model.transcribe(&texts, 1);
        for precision in [Precision::HalfFloat, Precision::FixedPoint] {
            let file = export(&model, precision, &session.split.train).unwrap();
            let exported = device::check(&file).unwrap();
            let given = device::evaluate(exported, &texts, 1).unwrap().outputs;
            assert_eq!(given, expected, "{family:?} {precision:?}");
        }
    }
}

/// As `backend.rs` has it for pairs of texts, with its reasons.
#[test]
fn candle_and_the_engine_train_the_same_labels_and_texts() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::Tagger, Family::Classifier, Family::DecoderOnly] {
        let mut config = config(write(folder.path(), family), family);
        (config.train.epochs, config.train.schedule.rate) = (2, 2e-3);
        (config.train.schedule.warmup_steps, config.train.adam.eps) = (4, 1e-5);
        (config.train.dropout.attention, config.train.dropout.activation) = (0.1, 0.1);
        let train = |name: &str, device| {
            let out = folder.path().join(format!("{family:?}-{name}"));
            let mut session = Session::begin(out, config.clone()).unwrap();
            let begun = session.run.weights.params.clone();
            session.device = device;
            assert_eq!(session.train(&AtomicBool::new(false)).unwrap(), Ended::Finished);
            (session.run.weights.params, begun)
        };
        let ((engine, begun), (candle, _)) =
            (train("engine", Device::Cpu), train("candle", Device::CandleCpu));
        let distance = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
        };
        let (way, apart) = (distance(&engine, &begun), distance(&engine, &candle));
        assert!(way > 0.1 && apart < 0.01 * way, "{family:?}: {apart} apart after {way}");
    }
}

#[test]
fn two_sides_can_learn_one_embedding() {
    let folder = tempfile::tempdir().unwrap();
    let data = common::write_pairs(folder.path());
    let mut config = config(data, Family::EncoderDecoder);
    (config.train.epochs, config.model.shared_embedding) = (1, true);
    let session = Session::begin(folder.path().join("run"), config).unwrap();
    let model = session.network.config;
    assert_eq!((model.source_vocab, model.target_vocab), (14, 14));
    let names = session.network.layout.specs.iter().map(|spec| spec.name.as_str());
    let embeddings: Vec<&str> = names.filter(|name| name.ends_with("embedding.weight")).collect();
    assert_eq!(embeddings, ["target_embedding.weight"]);
}
