//! How good a model is, by its family, with what knowing nothing would give beside it.
//!
//! ```text
//! references   texts against their references: error rates
//! labels       labels against their references, and the majority's
//! language     perplexity, and that of single symbols
//! ```

mod labels;
mod language;
mod references;

use std::fmt;

use anyhow::Result;
use model_format::config::Family;
use serde::Serialize;

use crate::data::batch::{Example, Pairs};
use crate::data::corpus::{self, Pair};
use crate::data::tokenizer::Tokenizer;
use crate::engine::{LossOptions, LossSum, Network, Workspace};
pub use labels::{LabelQuality, LabelScores, Majority};
pub use language::{LanguageQuality, Unigram};
pub use references::{References, Scores, edit_distance};

/// Held-out pairs, ready to evaluate on.
#[derive(Debug, Clone, Default)]
pub struct HeldOut {
    /// For the loss.
    pub examples: Vec<Example>,
    /// For error rates and accuracies.
    pub references: References,
    /// What knowing nothing gives, where it is known.
    pub baseline: Option<Baseline>,
}

/// What a model must beat, as the training pairs say.
#[derive(Debug, Clone, PartialEq)]
pub enum Baseline {
    /// Always the most frequent label.
    Majority(Majority),
    /// Every symbol by its frequency alone.
    Unigram(Unigram),
}

impl Baseline {
    /// That of a network's family; a model of pairs of texts has none.
    pub fn of(network: &Network, train: &[Example]) -> Option<Self> {
        match network.config.family {
            Family::EncoderDecoder => None,
            Family::DecoderOnly => Some(Self::Unigram(Unigram::of(network, train))),
            Family::Tagger | Family::Classifier => Some(Self::Majority(Majority::of(train))),
        }
    }
}

/// How good a model is on held-out pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Negative log likelihood per target token, in nats.
    pub loss: f64,
    /// What its family is judged by.
    pub scores: FamilyScores,
}

/// What each family is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FamilyScores {
    /// Of texts.
    Texts(Scores),
    /// Of labels.
    Labels(LabelQuality),
    /// Of a language model.
    Language(LanguageQuality),
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {:.4}, ", self.loss)?;
        match self.scores {
            FamilyScores::Texts(scores) => scores.fmt(f),
            FamilyScores::Labels(labels) => labels.fmt(f),
            FamilyScores::Language(language) => language.fmt(f),
        }
    }
}

/// A share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

impl HeldOut {
    /// Encodes `pairs`; `train` are the examples that the baseline is taken from, where there are any.
    pub fn new(
        pairs: &[Pair],
        (source, target): (&Tokenizer, &Tokenizer),
        network: &Network,
        train: &[Example],
    ) -> Result<Self> {
        let baseline = if train.is_empty() { None } else { Baseline::of(network, train) };
        Ok(Self {
            examples: corpus::encode(pairs, (source, target), &network.config)?,
            references: References::new(pairs, target),
            baseline,
        })
    }

    /// Token-weighted loss and what else the family is judged by; nothing where there is no pair.
    pub fn evaluate(
        &self,
        network: &Network,
        params: &[f32],
        tokenizers: (&Tokenizer, &Tokenizer),
        threads: usize,
    ) -> Option<Quality> {
        if self.examples.is_empty() {
            return None;
        }
        let loss = loss(network, params, &self.examples, threads);
        if network.config.family == Family::DecoderOnly {
            return Some(Quality { loss, scores: self.language(loss) });
        }
        let outputs = transcribe(network, params, tokenizers, &self.references.sources, threads);
        let scores = self.judge(network.config.family, &outputs, tokenizers);
        Some(Quality { loss, scores })
    }

    /// Judges a language model by its loss.
    pub fn language(&self, loss: f64) -> FamilyScores {
        let baseline = match &self.baseline {
            Some(Baseline::Unigram(unigram)) => Some(unigram.perplexity(&self.examples)),
            _ => None,
        };
        FamilyScores::Language(LanguageQuality { perplexity: loss.exp(), baseline })
    }

    /// Judges one output (as symbols) for each source.
    pub fn judge(
        &self,
        family: Family,
        outputs: &[Vec<String>],
        tokenizers: (&Tokenizer, &Tokenizer),
    ) -> FamilyScores {
        if family == Family::EncoderDecoder {
            return FamilyScores::Texts(self.references.score(outputs));
        }
        let mut quality = LabelQuality::new(LabelScores::of(&self.references, outputs));
        if let Some(Baseline::Majority(majority)) = &self.baseline {
            let of = |outputs: Vec<Vec<String>>| LabelScores::of(&self.references, &outputs);
            let is_tagger = family == Family::Tagger;
            quality.majority = Some(of(majority.labels(&self.references, tokenizers, is_tagger)));
            quality.by_symbol =
                is_tagger.then(|| of(majority.labels_by_symbol(&self.references, tokenizers)));
        }
        FamilyScores::Labels(quality)
    }
}

/// Runs `f` on every part of `items`, one thread a part, and returns the results in order.
fn parallel<T: Sync, R: Send>(items: &[T], threads: usize, f: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    let part = items.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let f = &f;
        let handles: Vec<_> =
            items.chunks(part).map(|chunk| scope.spawn(move || f(chunk))).collect();
        let results = handles.into_iter().map(|handle| handle.join());
        results.map(|r| r.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Greedy outputs of texts, as symbols.
pub fn transcribe(
    network: &Network,
    params: &[f32],
    (source, target): (&Tokenizer, &Tokenizer),
    texts: &[String],
    threads: usize,
) -> Vec<Vec<String>> {
    // A language model's texts are prompts.
    let reader = if network.config.has_encoder() { source } else { target };
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| reader.encode(text)).collect();
    let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    let decoded = parallel(&ids, threads, |part| network.greedy(params, part)).concat();
    let symbols = |ids: &[u32]| {
        ids.iter().map(|&id| target.symbols()[id as usize].clone()).collect::<Vec<_>>()
    };
    decoded.iter().map(|d| symbols(&d.ids)).collect()
}

/// Negative log likelihood per target token, without dropout or smoothing.
pub fn loss(network: &Network, params: &[f32], examples: &[Example], threads: usize) -> f64 {
    let parts = parallel(examples, threads, |part| {
        let mut workspace = Workspace::default();
        let mut sum = LossSum::default();
        for batch in part.chunks(64) {
            let pairs = Pairs::pack(batch, &network.config);
            network.forward(params, &pairs, None, &mut workspace);
            let options = LossOptions { smoothing: 0.0, scale: 1.0 };
            sum += network.loss(&pairs, options, &mut workspace);
        }
        sum
    });
    let mut sum = LossSum::default();
    parts.into_iter().for_each(|part| sum += part);
    sum.nll_mean()
}
