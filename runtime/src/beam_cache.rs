//! The self-attention caches of several beams, and what a search has in the arena.

use model_format::Model;

use crate::arena::Carver;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::search::BeamBuffers;
use crate::slices::CopyFrom;
use crate::tokenizer::TokenId;

/// What a search has in the arena.
pub struct SearchBuffers<'a, P: Precision> {
    /// Of one step, `[target_vocab]`.
    pub logits: &'a mut [P::Logit],
    /// Ids after the start id of one output, `[target_len]`.
    pub history: &'a mut [TokenId],
    /// Lists of a beam search.
    pub beams: BeamBuffers<'a>,
}

impl<'a, P: Precision> SearchBuffers<'a, P> {
    /// The self-attention caches of all beams, and what a search has, in the whole arena.
    pub(crate) fn with_caches(
        model: &Model<'_>,
        plan: &Plan,
        arena: &'a mut [u8],
    ) -> (&'a mut [u8], Self) {
        let mut carver = Carver::new(arena);
        let _ = carver.take_bytes(plan.cross);
        let caches = carver.take_bytes(plan.caches());
        (caches, Self::carve(model, plan, carver.take_bytes(plan.search)))
    }

    /// In the bytes that the plan has for them.
    pub(crate) fn carve(model: &Model<'_>, plan: &Plan, search: &'a mut [u8]) -> Self {
        let limits = plan.limits;
        let (beams, target) = (usize::from(limits.beams), usize::from(limits.target_len));
        let mut carver = Carver::new(search);
        Self {
            logits: carver.take(model.config().target_vocab.into()),
            history: carver.take(target),
            beams: BeamBuffers {
                live: carver.take(beams),
                candidates: carver.take(beams.saturating_mul(2)),
                finished: carver.take(beams),
                links: carver.take(target.saturating_mul(beams)),
            },
        }
    }
}

/// Copies the first `len` positions of the cache in slot `from` to slot `to`.
pub(crate) fn copy_cache<P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    caches: &mut [u8],
    [from, to]: [u16; 2],
    len: usize,
) {
    let start = |slot: u16| usize::from(slot).saturating_mul(plan.self_cache);
    let (low, high) = (start(from.min(to)), start(from.max(to)));
    let (before, after) = caches.split_at_mut_checked(high).unwrap_or_default();
    let low = before.get_mut(low..).unwrap_or_default();
    let (source, target) = if from < to { (low, after) } else { (after, low) };
    let (mut source, mut target) = (Carver::new(source), Carver::new(target));
    let d_model = usize::from(model.config().d_model);
    let capacity = usize::from(plan.limits.target_len);
    let elements = capacity.saturating_mul(d_model);
    let used = len.saturating_mul(d_model);
    // Keys and values of every layer.
    for _ in 0..2 * usize::from(model.config().decoder.n_layers) {
        let rows = source.take::<P::Cached>(elements).get(..used).unwrap_or_default();
        target.take::<P::Cached>(elements).copy_from(rows);
    }
}
