//! Tasks whose pairs come from the bundled dictionary.

use std::collections::HashSet;
use std::fmt;

use anyhow::Result;
use model_format::config::Family;
use serde::{Deserialize, Serialize};

use super::cmudict;
use super::corpus::Pair;

/// What is learned from the bundled dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// The phones of a word, from its letters: an encoder-decoder model.
    #[default]
    G2p,
    /// The stress of every phone of a word (0, 1, 2; `-` for a consonant), from its phones: a tagger.
    Stress,
    /// The number of syllables of a word, from its letters: a classifier.
    Syllables,
    /// Words, letter by letter: a decoder-only model.
    Words,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::G2p => "g2p",
            Self::Stress => "stress",
            Self::Syllables => "syllables",
            Self::Words => "words",
        })
    }
}

impl Task {
    /// What a model of the task is.
    pub const fn family(self) -> Family {
        match self {
            Self::G2p => Family::EncoderDecoder,
            Self::Stress => Family::Tagger,
            Self::Syllables => Family::Classifier,
            Self::Words => Family::DecoderOnly,
        }
    }

    /// Whether it is the task of every run that names none.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// All pairs of the task, none twice; `stress` says whether the phones of [`Task::G2p`] keep their
    /// stress digits.
    pub fn pairs(self, stress: bool) -> Result<Vec<Pair>> {
        let entries = cmudict::load(stress || self != Self::G2p)?;
        let derive = match self {
            Self::G2p => return Ok(entries),
            Self::Stress => stress_of_phones,
            Self::Syllables => syllables_of_word,
            Self::Words => word,
        };
        let mut seen = HashSet::new();
        let pairs = entries.into_iter().map(derive);
        Ok(pairs.filter(|p| seen.insert((p.source.clone(), p.target.clone()))).collect())
    }
}

/// The stress digit that ends a vowel.
fn stress_of(phone: &str) -> Option<char> {
    phone.chars().last().filter(char::is_ascii_digit)
}

fn stress_of_phones(entry: Pair) -> Pair {
    let phones = entry.target.split(' ');
    let bare: Vec<&str> = phones.clone().map(|p| p.trim_end_matches(['0', '1', '2'])).collect();
    let labels: Vec<String> =
        phones.map(|p| stress_of(p).map_or_else(|| "-".into(), String::from)).collect();
    Pair { source: bare.join(" "), target: labels.join(" "), line: entry.line }
}

/// A syllable has one vowel.
fn syllables_of_word(entry: Pair) -> Pair {
    let vowels = entry.target.split(' ').filter(|phone| stress_of(phone).is_some()).count();
    Pair { target: vowels.to_string(), ..entry }
}

fn word(entry: Pair) -> Pair {
    Pair { source: String::new(), target: entry.source, line: entry.line }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: &str, target: &str) -> Pair {
        Pair { source: source.into(), target: target.into(), line: 7 }
    }

    #[test]
    fn pairs_are_derived_from_an_entry() {
        let permit = || entry("permit", "P ER0 M IH1 T");
        assert_eq!(stress_of_phones(permit()), entry("P ER M IH T", "- 0 - 1 -"));
        assert_eq!(syllables_of_word(permit()), entry("permit", "2"));
        assert_eq!(word(permit()), entry("", "permit"));
    }

    #[test]
    fn every_task_has_its_known_size_and_no_pair_twice() {
        let sizes = [Task::G2p, Task::Stress, Task::Syllables, Task::Words]
            .map(|task| task.pairs(true).unwrap().len());
        assert_eq!(sizes, [133_973, 115_286, 126_630, 124_926]);
    }
}
