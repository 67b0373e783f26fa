//! What comes before the encoder's layers: source ids -> `[source_len, d_model]`, where `memory` will be.

use model_format::Model;
use model_format::directory::Slot;

use crate::arena::Carver;
use crate::layers::{Embedding, rotate, start_rotation};
use crate::plan::{Plan, rotation_len};
use crate::precision::Precision;
use crate::profile::{self, Operator, Side};
use crate::tokenizer::Ids;

/// What lies below `memory`, and the first `len` rows of `memory`, `[len, d_model]`.
pub(crate) fn buffers<'a, P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    arena: &'a mut [u8],
    len: usize,
) -> (&'a mut [u8], &'a mut [P::Activation]) {
    let mut carver = Carver::new(arena);
    let low = carver.take_bytes(plan.memory_offset);
    (low, carver.take(len.wrapping_mul(model.config().d_model.into())))
}

/// Embeds `ids` into the first rows of `memory`, `[len, d_model]`. On its own stack, which is
/// gone when the layers run.
#[inline(never)]
pub(crate) fn embed<P: Precision>(
    model: &Model<'_>,
    ids: Ids<'_>,
    scratch: &mut [u8],
    memory: &mut [P::Activation],
) {
    profile::side(Side::Encoder);
    let config = model.config();
    let rotation = Carver::new(scratch).take::<[i32; 2]>(rotation_len(config));
    let frequencies = model.pairs(Slot::Frequencies);
    start_rotation(rotation);
    let embedding = Embedding::<P>::source(model);
    let rows = memory.chunks_exact_mut(usize::from(config.d_model).max(1));
    for (position, (id, out)) in ids.zip(rows).enumerate() {
        embedding.forward(id, position, rotation, out);
        profile::run(Operator::Positions, || rotate(rotation, frequencies));
    }
}
