//! The CPU engine: the whole network forward and back, written by hand over flat buffers.
//!
//! candle spends three quarters of a step of such a small model on graph nodes and allocations. Here
//! a step allocates nothing, padding does not exist and all work is matrix products or vector loops.
//! The candle model in [`crate::reference`] is its judge: the tests compare logits and every gradient.
//!
//! Layers go down only: `stack` -> `layers` -> `attention`, `gemm`, `kernels`.

pub mod attention;
pub mod decode;
pub mod dropout;
pub mod gemm;
pub mod kernels;
pub mod layers;
pub mod network;
pub mod observe;
pub mod stack;
#[cfg(test)]
pub(crate) mod tests;

use crate::data::batch::Pairs;
use crate::rng::Mask;
use dropout::Place;
pub use dropout::{Dropout, DropoutRates};
use layers::Scratch;
pub use network::Network;
use stack::{Pass, StackActs};

/// How the loss is taken.
#[derive(Debug, Clone, Copy)]
pub struct LossOptions {
    /// Share of the target distribution that is spread over all ids but pad; in [0, 1).
    pub smoothing: f32,
    /// Factor of the gradient: one over the target tokens of the whole batch.
    pub scale: f32,
}

/// Losses in nats, summed over target tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSum {
    /// With label smoothing.
    pub smoothed: f64,
    /// Negative log likelihood.
    pub nll: f64,
    /// Target tokens, end ids included.
    pub tokens: usize,
}

impl LossSum {
    /// The smoothed loss per target token.
    pub fn smoothed_mean(&self) -> f64 {
        self.smoothed / self.tokens.max(1) as f64
    }

    /// Negative log likelihood per target token.
    pub fn nll_mean(&self) -> f64 {
        self.nll / self.tokens.max(1) as f64
    }
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
    /// What the encoder keeps for the way back.
    pub encoder: StackActs,
    /// What the decoder keeps for the way back.
    pub decoder: StackActs,
    /// `[target tokens, target_vocab]`; after the loss, its gradient.
    pub logits: Vec<f32>,
    /// `[target tokens, d_model]`: what an untied output read, where dropout is on.
    dropped: Vec<f32>,
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
        let Workspace { encoder, decoder, logits, dropped, scratch, .. } = workspace;
        pass.forward(&self.encoder, &pairs.source, None, encoder, scratch);
        let memory = Some((encoder.output(&self.encoder, self.config.norm), &pairs.source));
        pass.forward(&self.decoder, &pairs.target, memory, decoder, scratch);
        let hidden = decoder.output(&self.decoder, self.config.norm);
        let mask = self.output_mask(&pass);
        if mask.is_some() {
            layers::reset(dropped, hidden.len());
            kernels::dropout(dropped, hidden, mask);
        }
        self.output.forward(params, if mask.is_some() { dropped } else { hidden }, logits);
    }

    /// Dropout on what the output projection reads; none where it is the target embedding.
    fn output_mask(&self, pass: &Pass) -> Option<Mask> {
        match self.config.output.is_tied() {
            true => None,
            false => pass.masks(&self.decoder, Place::Output).residual,
        }
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
        let Workspace { encoder, decoder, logits, dropped, scratch, d_stream, d_memory } =
            workspace;
        let hidden = decoder.output(&self.decoder, self.config.norm);
        let mask = self.output_mask(&pass);
        let read: &[f32] = if mask.is_some() { dropped } else { hidden };
        layers::reset(d_stream, hidden.len());
        self.output.backward(params, grads, read, logits, Some((d_stream, false)));
        if mask.is_some() {
            layers::reset(dropped, d_stream.len());
            kernels::dropout(dropped, d_stream, mask);
            std::mem::swap(dropped, d_stream);
        }
        let memory = encoder.output(&self.encoder, self.config.norm);
        d_memory.clear();
        d_memory.resize(memory.len(), 0.0);
        let memory = Some((memory, &pairs.source, d_memory.as_mut_slice()));
        pass.backward(&self.decoder, &pairs.target, memory, decoder, d_stream, grads, scratch);
        pass.backward(&self.encoder, &pairs.source, None, encoder, d_memory, grads, scratch);
    }
}
