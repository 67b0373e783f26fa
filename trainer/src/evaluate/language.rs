//! Perplexity of a language model, and that of its symbols one by one.

use std::fmt;

use serde::Serialize;

use crate::data::batch::{Example, Pairs};
use crate::engine::Network;

/// A language model's perplexity per symbol, end ids included, beside that of its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LanguageQuality {
    /// `e` to the loss.
    pub perplexity: f64,
    /// That of [`Unigram`].
    pub baseline: Option<f64>,
}

impl fmt::Display for LanguageQuality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "perplexity {:.3} per symbol", self.perplexity)?;
        match self.baseline {
            Some(baseline) => write!(f, "; symbols by their frequency: {baseline:.3}"),
            None => Ok(()),
        }
    }
}

/// Every symbol and the end id by its frequency in the training texts, each counted once more than
/// seen, so that none is impossible.
#[derive(Debug, Clone, PartialEq)]
pub struct Unigram {
    /// Negative log likelihood of every id, in nats.
    nll: Vec<f64>,
    network: model_format::config::ModelConfig,
}

impl Unigram {
    /// Counts the labels of a language model's examples.
    pub fn of(network: &Network, train: &[Example]) -> Self {
        let special = network.config.special;
        let mut counts = vec![1u64; network.config.target_vocab.into()];
        for never in [special.pad, special.start] {
            counts[usize::from(never)] = 0;
        }
        let labels = Pairs::pack(train, &network.config).labels;
        labels.iter().for_each(|&id| counts[id as usize] += 1);
        let total = counts.iter().sum::<u64>() as f64;
        let nll = counts.iter().map(|&n| (total / n as f64).ln()).collect();
        Self { nll, network: network.config }
    }

    /// The perplexity per symbol of `examples`.
    pub fn perplexity(&self, examples: &[Example]) -> f64 {
        let labels = Pairs::pack(examples, &self.network).labels;
        let sum: f64 = labels.iter().map(|&id| self.nll[id as usize]).sum();
        (sum / labels.len().max(1) as f64).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::families;

    #[test]
    fn unigram_perplexity_is_that_of_the_counts() {
        let [language, ..] = families();
        let network = Network::new(&language).unwrap();
        let text = |ids: &[u32]| Example { source: Vec::new(), target: ids.to_vec() };
        // 4 four times, 5 once, end twice, each once more; six other ids that are possible.
        let unigram = Unigram::of(&network, &[text(&[4, 4, 5]), text(&[4, 4])]);
        let total: f64 = 5.0 + 2.0 + 3.0 + 6.0;
        let expected = -((5.0 / total).ln() + (1.0 / total).ln() + (3.0 / total).ln()) / 3.0;
        let perplexity = unigram.perplexity(&[text(&[4, 6])]);
        assert!((perplexity - expected.exp()).abs() < 1e-9, "{perplexity}");
    }
}
