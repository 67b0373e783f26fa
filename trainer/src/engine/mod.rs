//! The CPU engine: the whole network forward and back, written by hand over flat buffers.
//!
//! candle spends three quarters of a step of such a small model on graph nodes and allocations. Here
//! a step allocates nothing, padding does not exist and all work is matrix products or vector loops.
//! The candle model in [`crate::reference`] is its judge: the tests compare logits and every gradient.
//!
//! Layers go down only: `stack` -> `layers` -> `attention`, `gemm`, `kernels`.

pub mod attention;
pub mod decode;
pub mod gemm;
pub mod kernels;
pub mod layers;
pub mod network;
pub mod observe;
pub mod stack;
#[cfg(test)]
pub(crate) mod tests;

use crate::data::batch::Pairs;
use crate::rng::{self, Mask};
use layers::Scratch;
pub use network::Network;
use stack::{Pass, StackActs};

/// Dropout of one training step on one slice of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// Tells (seed, step, slice) from all others.
    pub key: u64,
    pub rates: DropoutRates,
}

/// Where dropout acts, and how often.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DropoutRates {
    /// On embeddings and on every sublayer's output (Vaswani et al. 2017, section 5.4).
    pub residual: f32,
    /// On attention probabilities.
    pub attention: f32,
    /// After the feed-forward's ReLU.
    pub activation: f32,
}

impl Dropout {
    /// The mask of one place in the network.
    pub fn mask(&self, place: &[u64], rate: f32) -> Option<Mask> {
        (rate > 0.0).then(|| Mask::new(rng::key(&[self.key, rng::key(place)]), rate))
    }
}

/// How the loss is taken.
#[derive(Debug, Clone, Copy)]
pub struct LossOptions {
    pub smoothing: f32,
    /// Factor of the gradient: one over the tokens of the whole batch.
    pub scale: f32,
}

/// Losses summed over target tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSum {
    /// With label smoothing.
    pub smoothed: f64,
    /// Negative log likelihood.
    pub nll: f64,
    pub tokens: usize,
}

impl std::ops::AddAssign for LossSum {
    fn add_assign(&mut self, other: Self) {
        self.smoothed += other.smoothed;
        self.nll += other.nll;
        self.tokens += other.tokens;
    }
}

/// Everything a worker keeps between calls, so that a step allocates nothing.
#[derive(Default)]
pub struct Workspace {
    pub encoder: StackActs,
    pub decoder: StackActs,
    /// `[target tokens, target_vocab]`; after the loss, its gradient.
    pub logits: Vec<f32>,
    scratch: Scratch,
    d_stream: Vec<f32>,
    d_memory: Vec<f32>,
}

impl Network {
    /// Teacher-forced logits of packed pairs, into `workspace.logits`.
    pub fn forward(
        &self,
        params: &[f32],
        pairs: &Pairs,
        dropout: Option<&Dropout>,
        workspace: &mut Workspace,
    ) {
        let pass = Pass { network: self, params, dropout };
        let Workspace { encoder, decoder, logits, scratch, .. } = workspace;
        pass.forward(&self.encoder, &pairs.source, None, encoder, scratch);
        let memory = Some((encoder.output(&self.encoder, self.config.norm), &pairs.source));
        pass.forward(&self.decoder, &pairs.target, memory, decoder, scratch);
        let hidden = decoder.output(&self.decoder, self.config.norm);
        self.output.forward(params, hidden, logits);
    }

    /// The loss of `workspace.logits`, which become its gradient.
    pub fn loss(&self, pairs: &Pairs, options: LossOptions, workspace: &mut Workspace) -> LossSum {
        let (smoothed, nll) = kernels::cross_entropy(
            &mut workspace.logits,
            &pairs.labels,
            self.config.target_vocab.into(),
            self.config.special.pad.into(),
            options.smoothing,
            options.scale,
        );
        LossSum { smoothed, nll, tokens: pairs.labels.len() }
    }

    /// Adds the gradient of every parameter to `grads`; follows `forward` and `loss` on the same pairs.
    pub fn backward(
        &self,
        params: &[f32],
        pairs: &Pairs,
        dropout: Option<&Dropout>,
        grads: &mut [f32],
        workspace: &mut Workspace,
    ) {
        let pass = Pass { network: self, params, dropout };
        let Workspace { encoder, decoder, logits, scratch, d_stream, d_memory, .. } = workspace;
        let hidden = decoder.output(&self.decoder, self.config.norm);
        layers::reset(d_stream, hidden.len());
        self.output.backward(params, grads, hidden, logits, Some((d_stream, false)));
        let memory = encoder.output(&self.encoder, self.config.norm);
        d_memory.clear();
        d_memory.resize(memory.len(), 0.0);
        let memory = Some((memory, &pairs.source, d_memory.as_mut_slice()));
        pass.backward(&self.decoder, &pairs.target, memory, decoder, d_stream, grads, scratch);
        pass.backward(&self.encoder, &pairs.source, None, encoder, d_memory, grads, scratch);
    }
}
