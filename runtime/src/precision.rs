//! What the layers need of a number type; [`FixedPoint`](crate::FixedPoint) and
//! [`HalfFloat`](crate::HalfFloat) are the two.

use core::ops::Range;

use bytemuck::{AnyBitPattern, NoUninit};
use model_format::Model;
use model_format::config::{Activation, Precision as Stored};
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::arena::Carver;
use crate::logit::Logit;

/// A number that lies in the arena.
pub trait Number: AnyBitPattern + NoUninit {}

impl<T: AnyBitPattern + NoUninit> Number for T {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::FixedPoint {}
    impl Sealed for crate::HalfFloat {}
}

/// Rows of a cache that one head sees: row `r` is `data[r * stride..][..cols]`.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    /// The cache from the head's first element on.
    pub data: &'a [T],
    /// Distance between the starts of two rows.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Row `row`; empty past the end.
    pub fn row(&self, row: usize) -> &'a [T] {
        let start = row.wrapping_mul(self.stride);
        self.data.get(start..start.wrapping_add(self.cols)).unwrap_or_default()
    }
}

/// The cache that one head sees, `[len, d_k]` each.
#[derive(Clone, Copy)]
pub struct HeadCache<'a, T> {
    /// Keys.
    pub keys: Rows<'a, T>,
    /// Values.
    pub values: Rows<'a, T>,
}

/// Buffers of one attention head, each as long as the positions it sees.
pub struct AttentionScratch<'a, P: Precision> {
    /// Scores `[len]`.
    pub scores: &'a mut [P::Score],
    /// Probabilities before their division by the sum, `[len]`.
    pub probabilities: &'a mut [P::Probability],
}

impl<'a, P: Precision> AttentionScratch<'a, P> {
    /// Room for `len` positions, at the start of `work`.
    pub(crate) fn carve(work: &'a mut [u8], len: usize) -> Self {
        let mut carver = Carver::new(work);
        Self { scores: carver.take(len), probabilities: carver.take(len) }
    }

    /// Probabilities, and the scores' memory as `[len]` of numbers in Q15.
    pub fn into_weights(self) -> (&'a [P::Probability], &'a mut [u16]) {
        let len = self.scores.len();
        let weights = bytemuck::try_cast_slice_mut(self.scores).unwrap_or_default();
        (self.probabilities, weights.get_mut(..len).unwrap_or_default())
    }
}

/// Position of a token in the embedding.
pub enum Position<'a, 'm, P: Precision> {
    /// Sine and cosine (Q30) of every pair of columns.
    Sinusoidal {
        /// `[d_model / 2]` of `[sin, cos]`.
        rotation: &'a [[i32; 2]],
        /// Whether sine and cosine alternate; in halves otherwise.
        interleaved: bool,
    },
    /// A row of a learned table.
    Learned {
        /// The table.
        table: P::Embedding<'m>,
        /// The row.
        position: usize,
    },
}

/// The operations of a layer on one number type. Every output is written in full.
///
/// Shapes: the input of a product is `[tokens, cols]` and `out` `[tokens, rows]` of the weights; elsewhere
/// `x` and `out` are `[d_model]`.
pub trait Precision: sealed::Sealed + Copy + 'static {
    /// How files store it.
    const STORED: Stored;
    /// Most tokens that products take together.
    const TOKENS: usize;
    /// Activations.
    type Activation: Number;
    /// Elements of the key and value caches.
    type Cached: Number;
    /// Attention scores.
    type Score: Number;
    /// Probabilities.
    type Probability: Number;
    /// What the output layer gives.
    type Logit: Logit + Number;
    /// Activations made ready for products.
    type Input<'x>: Copy;
    /// Weights of a linear layer.
    type Linear<'m>: Copy;
    /// Weights of a LayerNorm.
    type Norm<'m>: Copy;
    /// Constants of the heads of an attention.
    type Heads<'m>: Copy;
    /// A table of embeddings.
    type Embedding<'m>: Copy;
    /// What an output saturates to.
    type Range: Copy;
    /// How a residual stream enters a sum.
    type Residual: Copy;

    /// Linear weights of `model`.
    fn linear<'m>(model: &Model<'m>, slot: Slot) -> Self::Linear<'m>;
    /// LayerNorm weights of `model`.
    fn norm<'m>(model: &Model<'m>, slot: Slot) -> Self::Norm<'m>;
    /// Head constants of `model`.
    fn heads<'m>(model: &Model<'m>, slot: Slot) -> Self::Heads<'m>;
    /// An embedding of `model`, written to `output`.
    fn embedding<'m>(model: &Model<'m>, slot: Slot, output: ActivationSlot) -> Self::Embedding<'m>;
    /// What `output` saturates to.
    fn range(model: &Model<'_>, output: ActivationSlot) -> Self::Range;
    /// What the keys or values made by the tensor at `slot` saturate to.
    fn cache_range(model: &Model<'_>, slot: Slot) -> Self::Range;
    /// How the residual stream enters `sum`.
    fn residual(model: &Model<'_>, sum: ActivationSlot) -> Self::Residual;

    /// `out = embedding[id] * scale + position`, the scale being `sqrt(d_model)` or 1.
    fn embed(
        embedding: &Self::Embedding<'_>,
        id: usize,
        position: &Position<'_, '_, Self>,
        out: &mut [Self::Activation],
    );
    /// Makes `x` `[tokens, cols]`, at most [`TOKENS`](Self::TOKENS), ready for products with any number
    /// of matrices; `scratch` is what the plan counted for it.
    fn input<'x>(
        x: &'x [Self::Activation],
        shape: [usize; 2],
        scratch: &'x mut [u8],
    ) -> Self::Input<'x>;
    /// `out = W x + b` for every token.
    fn project(
        linear: &Self::Linear<'_>,
        input: &Self::Input<'_>,
        range: Self::Range,
        out: &mut [Self::Activation],
    );
    /// `out = activation(W x + b)` for every token.
    fn project_activated(
        linear: &Self::Linear<'_>,
        input: &Self::Input<'_>,
        activation: Activation,
        range: Self::Range,
        out: &mut [Self::Activation],
    );
    /// `stream = stream + W x + b` for every token.
    fn project_add(
        linear: &Self::Linear<'_>,
        input: &Self::Input<'_>,
        residual: Self::Residual,
        stream: &mut [Self::Activation],
    );
    /// `out = W x + b` in the cache's numbers for every token; `room` for as many activations spares a
    /// product that is made in one go the way by blocks.
    fn project_cached(
        linear: &Self::Linear<'_>,
        input: &Self::Input<'_>,
        range: Self::Range,
        out: &mut [Self::Cached],
        room: &mut [Self::Activation],
    );
    /// `sink(row, W x + b)` as logits of one token, for these rows, ascending: some from `row` on.
    fn project_logits(
        linear: &Self::Linear<'_>,
        rows: Range<usize>,
        input: &Self::Input<'_>,
        sink: impl FnMut(usize, &[Self::Logit]),
    );
    /// `out = mean(rows)` column by column; `out` is `[d_model]`, `rows` `[len, d_model]` and not
    /// empty.
    fn mean(rows: &[Self::Activation], out: &mut [Self::Activation]);
    /// `x = LayerNorm(x)`.
    fn layer_norm(norm: &Self::Norm<'_>, range: Self::Range, x: &mut [Self::Activation]);
    /// The weights of the head that attended last, in Q15, written over its scores: `[len]`.
    fn weights(scratch: AttentionScratch<'_, Self>) -> &[u16];
    /// All heads in one go, as [`attend`](Self::attend) does one after the other, where nobody looks at
    /// their probabilities: `x` is `[d_model]`, and `cache` has all columns. `false`, and nothing done, where
    /// that is not possible.
    #[inline(always)]
    fn attend_all(
        _heads: &Self::Heads<'_>,
        _d_k: usize,
        _x: &mut [Self::Activation],
        _cache: HeadCache<'_, Self::Cached>,
        _range: Self::Range,
    ) -> bool {
        false
    }
    /// One head: `x = softmax(keys x / sqrt(d_k)) values`, the query before and the context after
    /// (Vaswani et al. 2017, eq. 1): the query is dead once its scores are made.
    ///
    /// `x` is `[d_k]`.
    fn attend(
        heads: &Self::Heads<'_>,
        head: usize,
        x: &mut [Self::Activation],
        cache: HeadCache<'_, Self::Cached>,
        scratch: &mut AttentionScratch<'_, Self>,
        range: Self::Range,
    );
}
