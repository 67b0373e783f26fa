//! A trained model, ready for use: what export, calibration and evaluation start from.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use model_format::config::{ModelConfig, UnknownPolicy};

use crate::checkpoint::{self, Checkpoint, Header};
use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::engine::observe::Observer;
use crate::evaluate;

/// One tensor: row-major values and their shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Row-major.
    pub shape: Vec<usize>,
    /// As many as the shape says.
    pub values: Vec<f32>,
}

/// Architecture, vocabularies and averaged weights.
#[derive(Debug, Clone)]
pub struct TrainedModel {
    /// Architecture and map of `params`.
    pub network: Network,
    /// Source vocabulary; empty for a language model.
    pub source: Tokenizer,
    /// Target vocabulary, or the labels.
    pub target: Tokenizer,
    /// Flat, in the order of `network.layout`.
    pub params: Vec<f32>,
    /// What an exported file does with source symbols that it does not know.
    pub unknown: UnknownPolicy,
}

impl TrainedModel {
    /// From a checkpoint file, or the folder of a run: the averaged weights.
    pub fn load(path: &Path) -> Result<Self> {
        Self::from_checkpoint(checkpoint::load(path)?)
    }

    /// The averaged weights of a run.
    pub fn from_checkpoint(run: Checkpoint) -> Result<Self> {
        let Checkpoint { header, weights } = run;
        let network = Network::new(&header.config.model)?;
        let Header { source, target, .. } = header;
        // No training text has an unknown symbol, so nothing was learned of it.
        let unknown = UnknownPolicy::Refuse;
        Ok(Self { network, source, target, params: weights.ema, unknown })
    }

    /// From named tensors, for weights that come from elsewhere.
    ///
    /// The vocabularies must have the config's sizes and special ids; labels have no special ids, and a
    /// language model's source is [`Tokenizer::none`].
    pub fn from_tensors(
        config: &ModelConfig,
        source: Tokenizer,
        target: Tokenizer,
        tensors: &BTreeMap<String, Vec<f32>>,
    ) -> Result<Self> {
        let network = Network::new(config)?;
        let special = Some(config.special);
        for (name, vocab, tokenizer, special) in [
            ("source", config.source_vocab, &source, special.filter(|_| config.has_encoder())),
            ("target", config.target_vocab, &target, special.filter(|_| config.has_decoder())),
        ] {
            ensure!(
                usize::from(vocab) == tokenizer.len(),
                "{name}: the config has {vocab} symbols, the vocabulary {}",
                tokenizer.len()
            );
            ensure!(
                tokenizer.special() == special,
                "{name}: the config's special ids are {special:?}, the vocabulary's {:?}",
                tokenizer.special()
            );
        }
        let params = network.layout.gather(tensors)?;
        Ok(Self { network, source, target, params, unknown: UnknownPolicy::Refuse })
    }

    /// The architecture.
    pub fn config(&self) -> &ModelConfig {
        &self.network.config
    }

    /// All tensors by name.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let specs = self.network.layout.specs.iter();
        let tensor = |spec: &crate::params::ParamSpec| Tensor {
            shape: spec.shape.clone(),
            values: self.params[spec.range()].to_vec(),
        };
        specs.map(|spec| (spec.name.clone(), tensor(spec))).collect()
    }

    /// One sentence with a look at every activation; see [`crate::engine::observe`].
    pub fn forward_observed(&self, src: &[u32], tgt_in: &[u32], observer: Observer) -> Vec<f32> {
        self.network.forward_observed(&self.params, src, tgt_in, observer)
    }

    /// Greedy output of each text, as symbols: its labels where there is no decoder, its continuation
    /// where there is no encoder.
    pub fn transcribe(&self, texts: &[String], threads: usize) -> Vec<Vec<String>> {
        let tokenizers = (&self.source, &self.target);
        evaluate::transcribe(&self.network, &self.params, tokenizers, texts, threads)
    }
}
