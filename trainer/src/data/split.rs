//! Training, development and test side, divided by source.

use anyhow::{Result, ensure};

use super::cmudict;
use super::corpus::{self, Pair};
use crate::config::DataConfig;
use crate::rng;

/// One in this many sources is for development, one for testing.
const PARTS: u64 = 20;

/// Pairs by their purpose; no source is on two sides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// Trained on.
    pub train: Vec<Pair>,
    /// Watched during training.
    pub dev: Vec<Pair>,
    /// For the final figures; empty where the user gives their own files.
    pub test: Vec<Pair>,
}

/// Reads what a config names: the bundled dictionary, one file to divide, or a file for each side.
pub fn load(config: &DataConfig) -> Result<Split> {
    let split = match (&config.train, &config.dev) {
        (None, None) => by_hash(cmudict::load(config.stress)?),
        (Some(train), Some(dev)) => {
            let (train, dev) = (corpus::read_tsv(train)?, corpus::read_tsv(dev)?);
            Split { train, dev, test: Vec::new() }
        }
        (Some(all), None) => {
            let Split { mut train, dev, test } = by_hash(corpus::read_tsv(all)?);
            train.extend(test);
            Split { train, dev, test: Vec::new() }
        }
        (None, Some(_)) => anyhow::bail!("held-out pairs need training pairs"),
    };
    ensure!(!split.train.is_empty(), "no training pair is left after the division by source");
    Ok(split)
}

/// Divides pairs by a hash of the source, so that all targets of a source are on one side.
fn by_hash(pairs: Vec<Pair>) -> Split {
    let mut split = Split::default();
    for pair in pairs {
        let side = match rng::key(&[rng::fnv1a(pair.source.as_bytes())]) % PARTS {
            0 => &mut split.dev,
            1 => &mut split.test,
            _ => &mut split.train,
        };
        side.push(pair);
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_word_of_the_dictionary_is_on_two_sides() {
        let split = by_hash(cmudict::load(true).unwrap());
        let words =
            |pairs: &[Pair]| pairs.iter().map(|p| p.source.clone()).collect::<BTreeSet<_>>();
        let (train, dev, test) = (words(&split.train), words(&split.dev), words(&split.test));
        assert!(train.is_disjoint(&dev) && train.is_disjoint(&test) && dev.is_disjoint(&test));
        let all = train.len() + dev.len() + test.len();
        for held_out in [dev.len(), test.len()] {
            let share = held_out as f64 / all as f64;
            assert!((share - 0.05).abs() < 0.003, "{share}");
        }
    }
}
