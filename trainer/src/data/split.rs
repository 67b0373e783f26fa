//! Training, development and test side, divided by source.

use anyhow::{Result, ensure};
use model_format::config::Family;

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

/// Reads what a config names for a model of `family`: pairs of the bundled dictionary, one file to
/// divide, or a file for each side.
pub fn load(config: &DataConfig, family: Family) -> Result<Split> {
    let split = match (&config.train, &config.dev) {
        (None, None) => by_hash(config.task.pairs(config.stress)?),
        (Some(train), Some(dev)) => {
            let (train, dev) = (corpus::read(train, family)?, corpus::read(dev, family)?);
            Split { train, dev, test: Vec::new() }
        }
        (Some(all), None) => {
            let Split { mut train, dev, test } = by_hash(corpus::read(all, family)?);
            train.extend(test);
            Split { train, dev, test: Vec::new() }
        }
        (None, Some(_)) => anyhow::bail!("held-out pairs need training pairs"),
    };
    ensure!(!split.train.is_empty(), "no training pair is left after the division by source");
    Ok(split)
}

/// Divides pairs by a hash of the source, so that all targets of a source are on one side; texts
/// without a source are divided by themselves.
fn by_hash(pairs: Vec<Pair>) -> Split {
    let mut split = Split::default();
    for pair in pairs {
        let text = if pair.source.is_empty() { &pair.target } else { &pair.source };
        let side = match rng::key(&[rng::fnv1a(text.as_bytes())]) % PARTS {
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

    use crate::data::tasks::Task;

    #[test]
    fn no_word_of_the_dictionary_is_on_two_sides() {
        for task in [Task::G2p, Task::Stress, Task::Syllables, Task::Words] {
            divides_well(by_hash(task.pairs(true).unwrap()));
        }
    }

    fn divides_well(split: Split) {
        let text = |p: &Pair| if p.source.is_empty() { &p.target } else { &p.source }.clone();
        let words = |pairs: &[Pair]| pairs.iter().map(text).collect::<BTreeSet<_>>();
        let (train, dev, test) = (words(&split.train), words(&split.dev), words(&split.test));
        assert!(train.is_disjoint(&dev) && train.is_disjoint(&test) && dev.is_disjoint(&test));
        let all = train.len() + dev.len() + test.len();
        for held_out in [dev.len(), test.len()] {
            let share = held_out as f64 / all as f64;
            assert!((share - 0.05).abs() < 0.003, "{share}");
        }
    }
}
