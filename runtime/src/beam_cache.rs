//! The self-attention caches of several beams, and what a search has in the arena.

use model_format::Model;

use crate::arena::Carver;
use crate::encoder::CopyFrom;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::search::BeamBuffers;
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
        let _ = carver.take::<u8>(plan.cross);
        let caches = carver.take(plan.caches());
        (caches, Self::carve(model, plan, carver.take(plan.search)))
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
    for _ in 0..model.config().decoder.n_layers {
        let used = len.saturating_mul(d_model);
        let keys = source.take::<P::Cached>(elements).get(..used).unwrap_or_default();
        target.take::<P::Cached>(elements).copy_from(keys);
        // Not zipped: a zip of chunks divides by their length, which could panic for all it knows.
        let mut rows = source.take::<P::Cached>(elements).chunks_exact(capacity.max(1));
        for row in target.take::<P::Cached>(elements).chunks_exact_mut(capacity.max(1)) {
            let values = rows.next().unwrap_or_default();
            row.copy_from(values.get(..len).unwrap_or_default());
        }
    }
}
