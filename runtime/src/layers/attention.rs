//! Multi-head attention over cached keys and values (Vaswani et al. 2017, section 3.2).

use model_format::Model;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::precision::{AttentionScratch, HeadCache, Precision, Rows};

/// How `d_model` is cut into heads.
#[derive(Debug, Clone, Copy)]
pub struct HeadShape {
    /// Number of heads.
    pub n_heads: usize,
    /// Size of one head.
    pub d_k: usize,
}

/// Keys `[capacity, d_model]` and values, transposed, `[d_model, capacity]`.
///
/// So scores and context are both products of a matrix with a vector, like a linear layer.
pub struct KvCache<'a, T> {
    /// Keys.
    pub keys: &'a mut [T],
    /// Values.
    pub values: &'a mut [T],
    /// Positions that fit.
    pub capacity: usize,
}

/// One attention: four projections and the constants of its heads.
pub struct Attention<'m, P: Precision> {
    query: P::Linear<'m>,
    key: P::Linear<'m>,
    value: P::Linear<'m>,
    output: P::Linear<'m>,
    heads: P::Heads<'m>,
    shape: HeadShape,
    query_range: P::Range,
    key_range: P::Range,
    value_range: P::Range,
    context_range: P::Range,
    residual: P::Residual,
}

/// Where an attention's tensors lie, and what it writes.
pub struct AttentionSlots {
    /// Query, key, value and output projections.
    pub linear: [Slot; 4],
    /// Constants of the heads.
    pub heads: Slot,
    /// The query.
    pub query: ActivationSlot,
    /// The context.
    pub context: ActivationSlot,
    /// The residual stream before.
    pub stream: ActivationSlot,
    /// The residual stream after.
    pub sum: ActivationSlot,
}

impl<'m, P: Precision> Attention<'m, P> {
    /// The attention at `slots`.
    pub fn new(model: &Model<'m>, slots: &AttentionSlots, shape: HeadShape) -> Self {
        let [query, key, value, output] = slots.linear.map(|slot| P::linear(model, slot));
        let [_, key_slot, value_slot, _] = slots.linear;
        Self {
            query,
            key,
            value,
            output,
            heads: P::heads(model, slots.heads),
            shape,
            query_range: P::range(model, slots.query),
            key_range: P::cache_range(model, key_slot),
            value_range: P::cache_range(model, value_slot),
            context_range: P::range(model, slots.context),
            residual: P::residual(model, slots.stream, slots.sum),
        }
    }

    /// Stores key and value of `x` `[d_model]` at `position`.
    pub fn remember(
        &self,
        x: &[P::Activation],
        position: usize,
        cache: &mut KvCache<'_, P::Cached>,
    ) {
        let d_model = self.shape.n_heads.saturating_mul(self.shape.d_k);
        let start = position.saturating_mul(d_model);
        let mut keys = cache.keys.get_mut(start..).unwrap_or_default().iter_mut();
        P::project_cached(&self.key, x, self.key_range, |_, key| {
            if let Some(to) = keys.next() {
                *to = key;
            }
        });
        let column = cache.values.get_mut(position..).unwrap_or_default();
        let mut values = column.iter_mut().step_by(cache.capacity.max(1));
        P::project_cached(&self.value, x, self.value_range, |_, value| {
            if let Some(to) = values.next() {
                *to = value;
            }
        });
    }

    /// `query = W_q x`, `[d_model]`.
    pub fn query(&self, x: &[P::Activation], query: &mut [P::Activation]) {
        P::project(&self.query, x, self.query_range, query);
    }

    /// `stream += W_o concat(heads)` over the first `len` positions of `cache`.
    ///
    /// `query`, `context` (scratch) and `stream` are `[d_model]`.
    pub fn attend(
        &self,
        query: &[P::Activation],
        cache: &KvCache<'_, P::Cached>,
        len: usize,
        scratch: &mut AttentionScratch<'_, P>,
        context: &mut [P::Activation],
        stream: &mut [P::Activation],
    ) {
        let HeadShape { n_heads, d_k } = self.shape;
        for head in 0..n_heads {
            let first = head.saturating_mul(d_k);
            let part = first..first.saturating_add(d_k);
            let query = query.get(part.clone()).unwrap_or_default();
            let context = context.get_mut(part).unwrap_or_default();
            let keys = Rows {
                data: cache.keys.get(first..).unwrap_or_default(),
                stride: n_heads.saturating_mul(d_k),
                rows: len,
                cols: d_k,
            };
            let values = Rows {
                data: cache.values.get(first.saturating_mul(cache.capacity)..).unwrap_or_default(),
                stride: cache.capacity,
                rows: d_k,
                cols: len,
            };
            let scratch = AttentionScratch {
                scores: scratch.scores.get_mut(..len).unwrap_or_default(),
                probabilities: scratch.probabilities.get_mut(..len).unwrap_or_default(),
            };
            let range = self.context_range;
            let cache = HeadCache { keys, values };
            P::attend(&self.heads, head, query, cache, scratch, range, context);
        }
        P::project_add(&self.output, context, self.residual, stream);
    }
}
