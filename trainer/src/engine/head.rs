//! From the last stack's result to logits: which rows the output projection reads.
//!
//! A decoder's positions are read as they are. A tagger's frame is left out, so that there is a row for
//! every symbol; a classifier's positions, those of its frame included, are averaged.

use model_format::config::Family;

use super::dropout::Place;
use super::kernels;
use super::layers::reset;
use super::network::{Network, Stack};
use super::stack::Pass;
use crate::data::batch::{Packed, Pairs};
use crate::rng::Mask;

/// What the head keeps for the way back.
#[derive(Default)]
pub struct HeadActs {
    /// `[labels, d_model]`: the rows of an encoder that are read.
    rows: Vec<f32>,
    /// `[labels, d_model]`: what an untied output read, where dropout is on.
    dropped: Vec<f32>,
    /// `[labels, d_model]`: the gradient of `rows`.
    d_rows: Vec<f32>,
}

/// The output projection with what it reads.
pub struct Head<'a> {
    network: &'a Network,
    params: &'a [f32],
    mask: Option<Mask>,
}

impl Network {
    /// The stack that the output reads.
    pub fn last_stack(&self) -> Option<&Stack> {
        self.decoder.as_ref().or(self.encoder.as_ref())
    }

    /// The head of one run.
    pub fn head<'a>(&'a self, pass: &Pass<'a>) -> Head<'a> {
        // None where the output is the target embedding.
        let mask = match self.last_stack() {
            Some(stack) if !self.config.output.is_tied() => {
                pass.masks(stack, Place::Output).residual
            }
            _ => None,
        };
        Head { network: self, params: pass.params, mask }
    }
}

impl Head<'_> {
    /// `hidden` `[tokens, d_model]` to `logits` `[labels, target_vocab]`.
    pub fn forward(
        &self,
        pairs: &Pairs,
        hidden: &[f32],
        acts: &mut HeadActs,
        logits: &mut Vec<f32>,
    ) {
        let HeadActs { rows, dropped, .. } = acts;
        let read = match self.network.config.family {
            Family::EncoderDecoder | Family::DecoderOnly => hidden,
            Family::Tagger => self.symbols(&pairs.source, hidden, rows),
            Family::Classifier => self.means(&pairs.source, hidden, rows),
        };
        if self.mask.is_some() {
            reset(dropped, read.len());
            kernels::dropout(dropped, read, self.mask);
        }
        let read = if self.mask.is_some() { dropped } else { read };
        self.network.output.forward(self.params, read, logits);
    }

    /// From the gradient of the logits to that of `hidden`, in `d_hidden`; the output's own is added.
    pub fn backward(
        &self,
        pairs: &Pairs,
        hidden: &[f32],
        acts: &mut HeadActs,
        d_logits: &[f32],
        grads: &mut [f32],
        d_hidden: &mut Vec<f32>,
    ) {
        let HeadActs { rows, dropped, d_rows } = acts;
        let family = self.network.config.family;
        let is_direct = matches!(family, Family::EncoderDecoder | Family::DecoderOnly);
        let rows: &[f32] = if is_direct { hidden } else { rows };
        let read: &[f32] = if self.mask.is_some() { dropped } else { rows };
        reset(d_rows, rows.len());
        self.network.output.backward(self.params, grads, read, d_logits, Some((d_rows, false)));
        if self.mask.is_some() {
            reset(dropped, d_rows.len());
            kernels::dropout(dropped, d_rows, self.mask);
            std::mem::swap(dropped, d_rows);
        }
        match family {
            Family::EncoderDecoder | Family::DecoderOnly => std::mem::swap(d_hidden, d_rows),
            Family::Tagger => self.symbols_backward(&pairs.source, d_rows, d_hidden),
            Family::Classifier => self.means_backward(&pairs.source, d_rows, d_hidden),
        }
    }

    fn d_model(&self) -> usize {
        self.network.config.d_model.into()
    }

    /// The places in `hidden` of a sentence's symbols.
    fn symbol_range(&self, (first, len): (usize, usize)) -> std::ops::Range<usize> {
        let (d, frame) = (self.d_model(), self.network.config.source_frame);
        let first = first + usize::from(frame.has_start());
        first * d..(first + len - usize::from(frame.len())) * d
    }

    fn symbols<'b>(&self, source: &Packed, hidden: &[f32], rows: &'b mut Vec<f32>) -> &'b [f32] {
        rows.clear();
        for &span in &source.spans {
            rows.extend_from_slice(&hidden[self.symbol_range(span)]);
        }
        rows
    }

    fn symbols_backward(&self, source: &Packed, d_rows: &[f32], d_hidden: &mut Vec<f32>) {
        d_hidden.clear();
        d_hidden.resize(source.ids.len() * self.d_model(), 0.0);
        let mut d_rows = d_rows;
        for &span in &source.spans {
            let range = self.symbol_range(span);
            let (now, later) = d_rows.split_at(range.len());
            d_hidden[range].copy_from_slice(now);
            d_rows = later;
        }
    }

    /// The mean of each sentence's rows; zeros where there is none.
    fn means<'b>(&self, source: &Packed, hidden: &[f32], rows: &'b mut Vec<f32>) -> &'b [f32] {
        let d = self.d_model();
        rows.clear();
        rows.resize(source.spans.len() * d, 0.0);
        for (mean, &(first, len)) in rows.chunks_exact_mut(d).zip(&source.spans) {
            kernels::add_column_sums(mean, &hidden[first * d..][..len * d]);
            let share = 1.0 / len.max(1) as f32;
            mean.iter_mut().for_each(|v| *v *= share);
        }
        rows
    }

    fn means_backward(&self, source: &Packed, d_rows: &[f32], d_hidden: &mut Vec<f32>) {
        let d = self.d_model();
        reset(d_hidden, source.ids.len() * d);
        for (d_mean, &(first, len)) in d_rows.chunks_exact(d).zip(&source.spans) {
            let share = 1.0 / len.max(1) as f32;
            for row in d_hidden[first * d..][..len * d].chunks_exact_mut(d) {
                row.iter_mut().zip(d_mean).for_each(|(d, &mean)| *d = mean * share);
            }
        }
    }
}
