//! Labels against their references, and what the most frequent label alone would give.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;

use super::{References, percent};
use crate::data::batch::Example;
use crate::data::tokenizer::Tokenizer;

/// How many labels are right, over distinct sources; of several references the nearest counts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LabelScores {
    /// Distinct sources.
    pub texts: usize,
    /// Share of labels that are right.
    pub label_accuracy: f64,
    /// Share of sources whose labels all are right.
    pub text_accuracy: f64,
}

impl LabelScores {
    /// Scores the labels of each source; those that are missing are wrong.
    pub fn of(references: &References, outputs: &[Vec<String>]) -> Self {
        let (mut right, mut labels, mut whole) = (0, 0, 0);
        for (output, references) in outputs.iter().zip(&references.targets) {
            let agreeing = |reference: &&Vec<String>| {
                output.iter().zip(*reference).filter(|(a, b)| a == b).count()
            };
            let nearest = references.iter().map(|r| (agreeing(&r), r.len()));
            let (agreed, len) = nearest.max_by_key(|(agreed, _)| *agreed).unwrap_or((0, 0));
            right += agreed;
            labels += len;
            whole += usize::from(references.contains(output));
        }
        let share = |n: usize, of: usize| n as f64 / of.max(1) as f64;
        Self {
            texts: outputs.len(),
            label_accuracy: share(right, labels),
            text_accuracy: share(whole, outputs.len()),
        }
    }
}

/// A model's labels beside those of its baselines.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LabelQuality {
    /// The model's.
    #[serde(flatten)]
    pub scores: LabelScores,
    /// Always the most frequent label of the training pairs.
    pub majority: Option<LabelScores>,
    /// The most frequent label of every symbol, for a tagger.
    pub by_symbol: Option<LabelScores>,
}

impl LabelQuality {
    /// Without a baseline.
    pub fn new(scores: LabelScores) -> Self {
        Self { scores, majority: None, by_symbol: None }
    }
}

impl fmt::Display for LabelQuality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, scores: &LabelScores| {
            let [labels, texts] = [scores.label_accuracy, scores.text_accuracy].map(percent);
            write!(f, "{labels} of labels, {texts} of texts right")
        };
        write(f, &self.scores)?;
        for (name, baseline) in
            [("majority label", &self.majority), ("majority of each symbol", &self.by_symbol)]
        {
            if let Some(scores) = baseline {
                write!(f, "; {name}: ")?;
                write(f, scores)?;
            }
        }
        Ok(())
    }
}

/// The most frequent labels of the training pairs; of equally frequent ones the lowest id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Majority {
    label: u32,
    by_symbol: HashMap<u32, u32>,
}

impl Majority {
    /// Counts the labels of a tagger's or a classifier's examples.
    pub fn of(train: &[Example]) -> Self {
        let mut counts = BTreeMap::<u32, usize>::new();
        let mut by_symbol = HashMap::<u32, BTreeMap<u32, usize>>::new();
        for Example { source, target } in train {
            for &label in target {
                *counts.entry(label).or_default() += 1;
            }
            // A classifier has one label for many symbols; only a tagger asks for these.
            for (&symbol, &label) in source.iter().zip(target) {
                *by_symbol.entry(symbol).or_default().entry(label).or_default() += 1;
            }
        }
        let by_symbol = by_symbol.iter().map(|(&symbol, counts)| (symbol, most_frequent(counts)));
        Self { label: most_frequent(&counts), by_symbol: by_symbol.collect() }
    }

    /// The most frequent label for every symbol of every source, or once where that is no tagger's.
    pub fn labels(
        &self,
        references: &References,
        (source, target): (&Tokenizer, &Tokenizer),
        is_tagger: bool,
    ) -> Vec<Vec<String>> {
        let label = &target.symbols()[self.label as usize];
        let len = |text: &String| if is_tagger { source.encode(text).len() } else { 1 };
        references.sources.iter().map(|text| vec![label.clone(); len(text)]).collect()
    }

    /// The most frequent label of each symbol, for every source of a tagger.
    pub fn labels_by_symbol(
        &self,
        references: &References,
        (source, target): (&Tokenizer, &Tokenizer),
    ) -> Vec<Vec<String>> {
        let label = |symbol: &u32| {
            let label = self.by_symbol.get(symbol).copied().unwrap_or(self.label);
            target.symbols()[label as usize].clone()
        };
        let labels = |text: &String| source.encode(text).iter().map(label).collect();
        references.sources.iter().map(labels).collect()
    }
}

fn most_frequent(counts: &BTreeMap<u32, usize>) -> u32 {
    let best = counts.iter().max_by_key(|&(&label, &n)| (n, std::cmp::Reverse(label)));
    best.map_or(0, |(&label, _)| label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::corpus::Pair;
    use crate::data::tokenizer::{Splitting, Unit};

    fn pair(source: &str, target: &str) -> Pair {
        Pair { source: source.into(), target: target.into(), line: 1 }
    }

    const WORDS: Splitting = Splitting { unit: Unit::Word, lowercase: false };

    #[test]
    fn the_nearest_reference_counts_for_labels_and_any_for_the_whole() {
        let pairs = [pair("a b c", "0 1 0"), pair("a b c", "1 1 1"), pair("d", "0")];
        let references = References::split(&pairs, &WORDS);
        let outputs = [vec!["1", "1", "0"], vec!["0"]];
        let outputs = outputs.map(|labels| labels.into_iter().map(String::from).collect());
        let scores = LabelScores::of(&references, &outputs);
        assert_eq!((scores.label_accuracy, scores.text_accuracy), (0.75, 0.5));
        let missing = LabelScores::of(&references, &[vec![], vec!["0".into()]]);
        assert_eq!((missing.label_accuracy, missing.text_accuracy), (0.25, 0.5));
    }

    #[test]
    fn the_majority_is_counted_on_the_training_pairs() {
        let source = Tokenizer::build(WORDS, ["a b"]).unwrap();
        let target = Tokenizer::build_labels(WORDS, ["x y z"]).unwrap();
        let example = |s: &str, t: &str| Example {
            source: source.encode(s),
            target: target.encode_known(t).unwrap(),
        };
        let train = [example("a a b", "x x z"), example("b a b", "y y z")];
        let majority = Majority::of(&train);
        let references = References::split(&[pair("b a", "z z")], &WORDS);
        let tokenizers = (&source, &target);
        // All labels are equally frequent: the first counts.
        assert_eq!(majority.labels(&references, tokenizers, true), [["x", "x"]]);
        assert_eq!(majority.labels(&references, tokenizers, false), [["x"]]);
        assert_eq!(majority.labels_by_symbol(&references, tokenizers), [["z", "x"]]);
    }
}
