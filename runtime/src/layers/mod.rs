//! The layers, written once for every number type.

mod attention;
mod embedding;
pub mod feed_forward;

pub use attention::{
    AttentionSlots, HeadShape, KvCache, MultiHead, project_output, project_query, remember,
};
pub use embedding::{Embedding, rotate, start_rotation};
pub use feed_forward::FeedForwardSlots;

use model_format::Model;
use model_format::config::NormPlace;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::arena::Carver;
use crate::precision::Precision;
use crate::profile::{self, Operator};

/// LayerNorm with the format of its output.
pub struct Norm<'m, P: Precision> {
    weights: P::Norm<'m>,
    range: P::Range,
}

impl<'m, P: Precision> Norm<'m, P> {
    /// The norm at `slot`, which writes `output`.
    pub fn new(model: &Model<'m>, slot: Slot, output: ActivationSlot) -> Self {
        Self { weights: P::norm(model, slot), range: P::range(model, output) }
    }

    /// `out = LayerNorm(x)`, both `[d_model]`.
    pub fn forward(&self, x: &[P::Activation], out: &mut [P::Activation]) {
        profile::run(Operator::LayerNorm, || P::layer_norm(&self.weights, x, self.range, out));
    }

    /// The same for every token of `x` `[tokens, d_model]`.
    pub fn forward_all(&self, x: &[P::Activation], out: &mut [P::Activation], d_model: usize) {
        // Not zipped: a zip of chunks divides by their length, which could panic for all it knows.
        let mut rows = out.chunks_exact_mut(d_model.max(1));
        for x in x.chunks_exact(d_model.max(1)) {
            self.forward(x, rows.next().unwrap_or_default());
        }
    }

    /// What a sublayer reads of the stream's tokens `x` `[tokens, d_model]`, and what it leaves of
    /// `work`: their norm, at its start, or `x` itself where the norm comes after.
    pub fn before<'x>(
        &self,
        place: NormPlace,
        (x, d_model): (&'x [P::Activation], usize),
        work: &'x mut [u8],
    ) -> (&'x [P::Activation], &'x mut [u8]) {
        if place == NormPlace::Post {
            return (x, work);
        }
        let mut carver = Carver::new(work);
        let normed = carver.take(x.len());
        self.forward_all(x, normed, d_model);
        (normed, carver.take_rest())
    }

    /// `x = LayerNorm(x)`, `[d_model]`.
    pub fn forward_in_place(&self, x: &mut [P::Activation]) {
        profile::run(Operator::LayerNorm, || {
            P::layer_norm_in_place(&self.weights, self.range, x);
        });
    }

    /// The same for every token of `x` `[tokens, d_model]`.
    pub fn forward_all_in_place(&self, x: &mut [P::Activation], d_model: usize) {
        for x in x.chunks_exact_mut(d_model.max(1)) {
            self.forward_in_place(x);
        }
    }
}
