//! The engine's dropout masks, moved to the padded shape of the reference.
//!
//! The engine counts elements over packed tokens; a factor is looked up at the place that its element
//! has there. Both therefore drop the same elements. Padding gets the factor 0.

use candle_core::{DType, Device, Result, Tensor};

use crate::data::batch::{Packed, Pairs};
use crate::engine::attention::pad;
use crate::engine::dropout::{Masks, Place};
use crate::engine::network::{Network, Stack};
use crate::rng::Mask;
use crate::workers::Slice;

/// Dropout of one step.
pub struct PaddedDropout<'a> {
    network: &'a Network,
    slices: &'a [Slice],
    device: &'a Device,
    dtype: DType,
}

/// Which sentences of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What the encoder reads.
    Source,
    /// What the decoder reads; without a decoder, the labels.
    Target,
}

impl Side {
    fn of(self, pairs: &Pairs) -> &Packed {
        match self {
            Self::Source => &pairs.source,
            Self::Target => &pairs.target,
        }
    }
}

impl<'a> PaddedDropout<'a> {
    /// Dropout of the slices of one batch, in the order in which they stand in the padded batch.
    pub fn new(
        network: &'a Network,
        slices: &'a [Slice],
        device: &'a Device,
        dtype: DType,
    ) -> Self {
        Self { network, slices, device, dtype }
    }

    /// `x` after the dropout that the masks of `place` hold for rows `[tokens, width]`, padded to
    /// `[b, len, width]`.
    pub fn rows(
        &self,
        x: &Tensor,
        side: Side,
        place: Place,
        mask: fn(&Masks) -> Option<Mask>,
    ) -> Result<Tensor> {
        let (_, len, width) = x.dims3()?;
        let mut factors = Vec::with_capacity(x.elem_count());
        for slice in self.slices {
            let Some(mask) = mask(&self.masks(slice, side, place)) else { return Ok(x.clone()) };
            for &(first, n) in &side.of(&slice.pairs).spans {
                factors.extend(mask.factors(first * width).take(n * width));
                factors.resize(factors.len() + (len - n) * width, 0.0);
            }
        }
        self.apply(x, factors)
    }

    /// `probs` `[b, n_heads, q, k]` after dropout; the engine counts them by sentence, head, query and
    /// key, with rows of keys padded to whole vectors.
    pub fn probs(&self, probs: &Tensor, sides: (Side, Side), place: Place) -> Result<Tensor> {
        let (_, n_heads, q, k) = probs.dims4()?;
        let mut factors = Vec::with_capacity(probs.elem_count());
        for slice in self.slices {
            let Some(mask) = self.masks(slice, sides.0, place).inner else {
                return Ok(probs.clone());
            };
            let spans = |side: Side| side.of(&slice.pairs).spans.iter();
            let mut at = 0;
            for (&(_, q_len), &(_, k_len)) in spans(sides.0).zip(spans(sides.1)) {
                for _ in 0..n_heads {
                    for _ in 0..q_len {
                        factors.extend(mask.factors(at).take(k_len));
                        factors.resize(factors.len() + k - k_len, 0.0);
                        at += pad(k_len);
                    }
                    factors.resize(factors.len() + (q - q_len) * k, 0.0);
                }
            }
        }
        self.apply(probs, factors)
    }

    fn masks(&self, slice: &Slice, side: Side, place: Place) -> Masks {
        match self.stack(side) {
            Some(stack) => slice.dropout.masks(stack, place),
            None => Masks::default(),
        }
    }

    fn stack(&self, side: Side) -> Option<&Stack> {
        match side {
            Side::Source => self.network.encoder.as_ref(),
            Side::Target => self.network.last_stack(),
        }
    }

    fn apply(&self, x: &Tensor, factors: Vec<f32>) -> Result<Tensor> {
        let factors = Tensor::from_vec(factors, x.shape(), self.device)?.to_dtype(self.dtype)?;
        x * factors
    }
}
