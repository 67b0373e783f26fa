//! Dropout: which elements of one training step are dropped, as pure functions of where they stand.
//!
//! The candle reference draws the same masks, so both drop the same elements.

use super::network::Stack;
use crate::rng::{self, Mask};

/// How often dropout drops, by place; each in [0, 1).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DropoutRates {
    /// On embeddings, on every sublayer's output (Vaswani et al. 2017, section 5.4) and on what an
    /// untied output projection reads.
    pub residual: f32,
    /// On attention probabilities.
    pub attention: f32,
    /// After the feed-forward's activation.
    pub activation: f32,
}

/// Dropout of one training step on one slice of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// Tells (seed, step, slice) from all others.
    pub key: u64,
    /// How often.
    pub rates: DropoutRates,
}

/// A place in a stack; the numbers are part of every run's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Layer number, then which sublayer.
    SelfAttention(usize),
    /// The decoder's look at the encoder's result.
    CrossAttention(usize),
    /// The two linear layers.
    FeedForward(usize),
    /// The sum of embedding and positions.
    Embedding,
    /// What the output projection reads.
    Output,
}

/// Masks of one sublayer; nothing where the rate is 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Masks {
    /// On the sublayer's output `[tokens, d_model]`.
    pub residual: Option<Mask>,
    /// On attention probabilities (see [`super::attention::Shape::probs_len`]), or on the
    /// feed-forward's hidden numbers `[tokens, d_ff]`.
    pub inner: Option<Mask>,
}

impl Dropout {
    /// The masks of a place; elements are counted over the packed tokens of the slice.
    pub fn masks(&self, stack: &Stack, place: Place) -> Masks {
        let (layer, number, inner) = match place {
            Place::SelfAttention(layer) => (layer, 0, self.rates.attention),
            Place::CrossAttention(layer) => (layer, 1, self.rates.attention),
            Place::FeedForward(layer) => (layer, 2, self.rates.activation),
            Place::Embedding => (0, 3, 0.0),
            Place::Output => (0, 4, 0.0),
        };
        let place = |kind| [stack.dropout_key, layer as u64, number, kind];
        Masks {
            residual: self.mask(&place(0), self.rates.residual),
            inner: self.mask(&place(1), inner),
        }
    }

    fn mask(&self, place: &[u64], rate: f32) -> Option<Mask> {
        (rate > 0.0).then(|| Mask::new(rng::key(&[self.key, rng::key(place)]), rate))
    }
}
