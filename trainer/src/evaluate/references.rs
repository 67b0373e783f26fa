//! Texts against their references: word and symbol error rates.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::percent;
use crate::data::corpus::Pair;
use crate::data::tokenizer::{Splitting, Tokenizer};

/// Error rates over distinct sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Distinct sources.
    pub words: usize,
    /// Share of outputs that equal none of their references.
    pub wer: f64,
    /// Edits to the nearest reference over its length, summed.
    pub per: f64,
    /// As `wer`, after removing stress digits.
    pub wer_no_stress: f64,
    /// As `per`, after removing stress digits.
    pub per_no_stress: f64,
}

impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wer, per, wer_no_stress, per_no_stress, .. } = *self;
        let [wer, per, wer_no_stress, per_no_stress] =
            [wer, per, wer_no_stress, per_no_stress].map(percent);
        write!(f, "WER {wer}, PER {per} (without stress {wer_no_stress}, {per_no_stress})")
    }
}

/// Sources with all their references, each a list of symbols.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct References {
    /// Distinct, in code point order.
    pub sources: Vec<String>,
    /// For each source, its references.
    pub targets: Vec<Vec<Vec<String>>>,
}

impl References {
    /// Gathers the references of every distinct source.
    pub fn new(pairs: &[Pair], target: &Tokenizer) -> Self {
        Self::split(pairs, &target.splitting)
    }

    /// Gathers the references of every distinct source, cut into symbols by `target`.
    pub fn split(pairs: &[Pair], target: &Splitting) -> Self {
        let mut grouped: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
        for pair in pairs {
            let symbols = target.symbols(&pair.target);
            grouped.entry(&pair.source).or_default().push(symbols);
        }
        let sources = grouped.keys().map(|&s| s.to_owned()).collect();
        Self { sources, targets: grouped.into_values().collect() }
    }

    /// The distinct sources of `pairs`, sorted.
    pub fn sources_of(pairs: &[Pair]) -> Vec<String> {
        let sources: BTreeSet<&str> = pairs.iter().map(|pair| pair.source.as_str()).collect();
        sources.into_iter().map(str::to_owned).collect()
    }

    /// Scores one output (as symbols) for each source.
    pub fn score(&self, outputs: &[Vec<String>]) -> Scores {
        let (wer, per) = rates(outputs, &self.targets);
        let stressless =
            |symbols: &Vec<String>| symbols.iter().map(|s| without_stress(s)).collect::<Vec<_>>();
        let outputs: Vec<_> = outputs.iter().map(stressless).collect();
        let targets: Vec<Vec<_>> =
            self.targets.iter().map(|t| t.iter().map(stressless).collect()).collect();
        let (wer_no_stress, per_no_stress) = rates(&outputs, &targets);
        Scores { words: outputs.len(), wer, per, wer_no_stress, per_no_stress }
    }
}

/// A phone without its stress digit.
fn without_stress(phone: &str) -> String {
    phone.trim_end_matches(['0', '1', '2']).to_owned()
}

fn rates(outputs: &[Vec<String>], targets: &[Vec<Vec<String>>]) -> (f64, f64) {
    let (mut wrong, mut edits, mut length) = (0, 0, 0);
    for (output, references) in outputs.iter().zip(targets) {
        let nearest = references.iter().map(|r| (edit_distance(output, r), r.len())).min();
        let (distance, reference_len) = nearest.unwrap_or((0, 0));
        wrong += usize::from(distance > 0);
        edits += distance;
        length += reference_len;
    }
    (wrong as f64 / outputs.len().max(1) as f64, edits as f64 / length.max(1) as f64)
}

/// Levenshtein's distance.
pub fn edit_distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::Unit;

    #[test]
    fn distances() {
        let d = |a: &str, b: &str| edit_distance(a.as_bytes(), b.as_bytes());
        assert_eq!(d("kitten", "sitting"), 3);
        assert_eq!((d("", "abc"), d("abc", ""), d("abc", "abc")), (3, 3, 0));
    }

    #[test]
    fn any_reference_counts_and_stress_can_be_ignored() {
        let pair = |source: &str, target: &str| Pair {
            source: source.into(),
            target: target.into(),
            line: 1,
        };
        let pairs = [pair("a", "AH0"), pair("a", "EY1"), pair("b", "B IY1")];
        let splitting = Splitting { unit: Unit::Word, lowercase: false };
        let target = Tokenizer::build(splitting, ["AH0 EY1 B IY1"]).unwrap();
        let references = References::new(&pairs, &target);
        assert_eq!(references.sources, ["a", "b"]);
        let outputs = [vec!["EY1".into()], vec!["B".to_owned(), "IY0".into()]];
        let scores = references.score(&outputs);
        assert_eq!((scores.wer, scores.wer_no_stress), (0.5, 0.0));
        assert_eq!((scores.per, scores.per_no_stress), (1.0 / 3.0, 0.0));
    }
}
