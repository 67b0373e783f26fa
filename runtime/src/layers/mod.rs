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
use crate::slices::CopyFrom;

/// A LayerNorm: where its weights lie, and what it writes.
pub type NormSlots = (Slot, ActivationSlot);

/// What a sublayer reads of the stream's tokens `x` `[tokens, d_model]`, and what it leaves of `work`:
/// their norm, at its start, or `x` itself where the norm comes after.
#[inline(never)]
pub fn norm_before<'x, P: Precision>(
    model: &Model<'_>,
    norm: NormSlots,
    x: &'x [P::Activation],
    work: &'x mut [u8],
) -> (&'x [P::Activation], &'x mut [u8]) {
    if model.config().norm == NormPlace::Post {
        return (x, work);
    }
    let mut carver = Carver::new(work);
    let normed = carver.take(x.len());
    normed.copy_from(x);
    norm_in_place::<P>(model, norm, normed);
    (normed, carver.take_rest())
}

/// `x = LayerNorm(x)` for every token of `x` `[tokens, d_model]`.
#[inline(never)]
pub fn norm_in_place<P: Precision>(
    model: &Model<'_>,
    (slot, output): NormSlots,
    x: &mut [P::Activation],
) {
    let (weights, range) = (P::norm(model, slot), P::range(model, output));
    for x in x.chunks_exact_mut(usize::from(model.config().d_model).max(1)) {
        profile::run(Operator::LayerNorm, || P::layer_norm(&weights, range, x));
    }
}
