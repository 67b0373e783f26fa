//! The CPU engine: the whole network forward and back, written by hand over flat buffers.
//!
//! candle spends three quarters of a step of such a small model on graph nodes and allocations. Here
//! a step allocates nothing, padding does not exist and all work is matrix products or vector loops.
//! The candle model in [`crate::reference`] is its judge: the tests compare logits and every gradient.
//!
//! Layers go down only: `head`, `stack` -> `layers` -> `attention`, `gemm`, `activations`, `kernels`.

pub mod activations;
pub mod attention;
pub mod decode;
pub mod dropout;
pub mod gemm;
pub mod head;
pub mod kernels;
pub mod layers;
pub mod network;
pub mod observe;
pub mod sanity;
pub mod stack;
#[cfg(test)]
pub(crate) mod tests;

use crate::data::batch::Pairs;
pub use dropout::{Dropout, DropoutRates};
use layers::Scratch;
pub use network::Network;
use network::Stack;
use stack::{Pass, StackActs};

/// How the loss is taken.
#[derive(Debug, Clone, Copy)]
pub struct LossOptions {
    /// Share of the target distribution that is spread over all ids but pad, or over all labels; in
    /// [0, 1).
    pub smoothing: f32,
    /// Factor of the gradient: one over the target tokens of the whole batch.
    pub scale: f32,
}

/// Losses in nats, summed over target tokens: symbols and end ids, or labels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSum {
    /// With label smoothing.
    pub smoothed: f64,
    /// Negative log likelihood.
    pub nll: f64,
    /// Target tokens.
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
    head: head::HeadActs,
    scratch: Scratch,
    d_stream: Vec<f32>,
    d_memory: Vec<f32>,
}

impl Network {
    /// Logits of packed pairs, teacher-forced where there is a decoder, into `workspace.logits`.
    ///
    /// # Panics
    /// When a sentence is longer than the table of positions, or there are not as many sources as
    /// targets.
    pub fn forward(
        &self,
        params: &[f32],
        pairs: &Pairs,
        dropout: Option<&Dropout>,
        workspace: &mut Workspace,
    ) {
        let pass = Pass { network: self, params, dropout };
        let Workspace { encoder, decoder, logits, head, scratch, .. } = workspace;
        if let Some(stack) = &self.encoder {
            pass.forward(stack, &pairs.source, None, encoder, scratch);
        }
        if let Some(stack) = &self.decoder {
            let memory = self.encoder.as_ref();
            let memory = memory.map(|e| (encoder.output(e, self.config.norm), &pairs.source));
            pass.forward(stack, &pairs.target, memory, decoder, scratch);
        }
        let (stack, acts) = self.top(encoder, decoder);
        self.head(&pass).forward(pairs, acts.output(stack, self.config.norm), head, logits);
    }

    /// The loss of `workspace.logits`, which become its gradient.
    pub fn loss(&self, pairs: &Pairs, options: LossOptions, workspace: &mut Workspace) -> LossSum {
        let (smoothed, nll) = kernels::cross_entropy(
            &mut workspace.logits,
            &pairs.labels,
            self.config.target_vocab.into(),
            self.never_a_target(),
            options.smoothing,
            options.scale,
        );
        LossSum { smoothed, nll, tokens: pairs.labels.len() }
    }

    /// The id of the output that is never a target; labels have none.
    pub fn never_a_target(&self) -> Option<usize> {
        self.config.has_decoder().then_some(self.config.special.pad.into())
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
        let Workspace { encoder, decoder, logits, head, scratch, d_stream, d_memory } = workspace;
        let (stack, acts) = self.top(encoder, decoder);
        let hidden = acts.output(stack, self.config.norm);
        self.head(&pass).backward(pairs, hidden, head, logits, grads, d_stream);
        if let Some(stack) = &self.decoder {
            let memory = self.encoder.as_ref().map(|stack| {
                let memory = encoder.output(stack, self.config.norm);
                d_memory.clear();
                d_memory.resize(memory.len(), 0.0);
                (memory, &pairs.source, d_memory.as_mut_slice())
            });
            pass.backward(stack, &pairs.target, memory, decoder, d_stream, grads, scratch);
            std::mem::swap(d_stream, d_memory);
        }
        if let Some(stack) = &self.encoder {
            pass.backward(stack, &pairs.source, None, encoder, d_stream, grads, scratch);
        }
    }

    /// The stack that the output reads, and what it kept.
    fn top<'a>(
        &'a self,
        encoder: &'a StackActs,
        decoder: &'a StackActs,
    ) -> (&'a Stack, &'a StackActs) {
        match (&self.decoder, &self.encoder) {
            (Some(stack), _) => (stack, decoder),
            (None, Some(stack)) => (stack, encoder),
            (None, None) => unreachable!("every family has a stack"),
        }
    }
}
