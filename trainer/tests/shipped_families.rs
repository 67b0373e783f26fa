//! The models of the other families that ship beat what knowing nothing gives, on words that they have
//! not seen. `models/README.md` has the figures of the whole test side.

use std::collections::BTreeSet;
use std::path::Path;

use trainer::config::RunConfig;
use trainer::data::corpus::{self, Pair};
use trainer::data::split;
use trainer::data::tasks::Task;
use trainer::data::tokenizer::Tokenizer;
use trainer::engine::Network;
use trainer::evaluate::{FamilyScores, HeldOut, LabelScores, References};
use trainer::session::vocabularies;
use trainer::{decode, device};

/// Texts of the test side that are looked at, at equal distances.
const TEXTS: usize = 400;

/// A file and what it is judged by.
struct Shipped {
    file: model_format::AlignedBytes,
    held_out: HeldOut,
    tokenizers: (Tokenizer, Tokenizer),
}

/// The file of `task`, and some of its test side beside the baseline of all training pairs.
fn shipped(task: Task) -> Shipped {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../models/{task}-en.kfm"));
    let mut config = RunConfig::of_task(task);
    let split = split::load(&config.data, task.family()).unwrap();
    let tokenizers = vocabularies(&split, &mut config).unwrap();
    let network = Network::new(&config.model).unwrap();
    let both = (&tokenizers.0, &tokenizers.1);
    let train = corpus::encode(&split.train, both, &config.model).unwrap();
    let held_out = HeldOut::new(&some(&split.test), both, &network, &train).unwrap();
    Shipped { file: device::read(&path).unwrap(), held_out, tokenizers }
}

/// All pairs of some texts.
fn some(test: &[Pair]) -> Vec<Pair> {
    let text = |pair: &Pair| match pair.source.as_str() {
        "" => pair.target.clone(),
        source => source.to_owned(),
    };
    let texts: BTreeSet<String> = test.iter().map(text).collect();
    let distance = texts.len() / TEXTS;
    let chosen: BTreeSet<String> = texts.into_iter().step_by(distance).collect();
    assert!(chosen.len() >= TEXTS, "{}", chosen.len());
    test.iter().filter(|pair| chosen.contains(&text(pair))).cloned().collect()
}

/// The file's labels, those of the most frequent label, and for a tagger those of each symbol's.
fn labels(task: Task) -> (LabelScores, LabelScores, Option<LabelScores>) {
    let Shipped { file, held_out, tokenizers } = shipped(task);
    let model = device::check(&file).unwrap();
    let References { sources, .. } = &held_out.references;
    let outputs = device::evaluate(model, sources, 2).unwrap().outputs;
    let scores = held_out.judge(task.family(), &outputs, (&tokenizers.0, &tokenizers.1));
    let FamilyScores::Labels(quality) = scores else { panic!("{scores:?}") };
    println!("{task}: {quality}");
    (quality.scores, quality.majority.unwrap(), quality.by_symbol)
}

#[test]
fn stress_marks_are_right_4_points_more_often_than_each_phones_most_frequent() {
    let (model, majority, by_symbol) = labels(Task::Stress);
    let by_symbol = by_symbol.unwrap();
    assert!(by_symbol.label_accuracy > majority.label_accuracy);
    assert!(model.label_accuracy >= by_symbol.label_accuracy + 0.04, "{model:?}, {by_symbol:?}");
}

#[test]
fn numbers_of_syllables_are_right_40_points_more_often_than_the_most_frequent() {
    let (model, majority, _) = labels(Task::Syllables);
    assert!(model.label_accuracy >= majority.label_accuracy + 0.4, "{model:?}, {majority:?}");
}

#[test]
fn the_perplexity_of_words_is_at_most_60_percent_of_the_letters_frequencies() {
    let Shipped { file, held_out, tokenizers } = shipped(Task::Words);
    let model = device::check(&file).unwrap();
    let texts: Vec<String> =
        held_out.examples.iter().map(|e| tokenizers.1.decode(&e.target)).collect();
    let scores = decode::score_texts(model, &texts).unwrap();
    let nll: f64 = scores.iter().map(|score| -f64::from(decode::nats(score.sum))).sum();
    let tokens: f64 = scores.iter().map(|score| f64::from(score.tokens)).sum();
    let FamilyScores::Language(language) = held_out.language(nll / tokens) else { panic!() };
    println!("words: {language}");
    assert!(language.perplexity <= 0.6 * language.baseline.unwrap(), "{language}");
}
