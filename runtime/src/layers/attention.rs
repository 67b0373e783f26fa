//! Multi-head attention over cached keys and values (Vaswani et al. 2017, section 3.2).

use model_format::Model;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::precision::{AttentionScratch, HeadCache, Precision, Rows};
use crate::profile::{self, Operator};

/// How `d_model` is cut into heads.
#[derive(Debug, Clone, Copy)]
pub struct HeadShape {
    /// Number of heads.
    pub n_heads: usize,
    /// Size of one head.
    pub d_k: usize,
}

/// Keys and values, `[capacity, d_model]` each.
pub struct KvCache<'a, T> {
    /// Keys.
    pub keys: &'a mut [T],
    /// Values.
    pub values: &'a mut [T],
    /// Positions that fit.
    pub capacity: usize,
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
    /// The residual stream after.
    pub sum: ActivationSlot,
}

/// `W_q`.
pub struct QueryProjection<'m, P: Precision> {
    linear: P::Linear<'m>,
    range: P::Range,
}

impl<'m, P: Precision> QueryProjection<'m, P> {
    /// That of the attention at `slots`.
    pub fn new(model: &Model<'m>, slots: &AttentionSlots) -> Self {
        let [query, ..] = slots.linear;
        Self { linear: P::linear(model, query), range: P::range(model, slots.query) }
    }

    /// `query = W_q x`, `[tokens, d_model]`.
    pub fn forward(&self, input: &P::Input<'_>, query: &mut [P::Activation]) {
        profile::run(Operator::Query, || P::project(&self.linear, input, self.range, query));
    }
}

/// `W_k` and `W_v`.
pub struct KeyValueProjection<'m, P: Precision> {
    key: P::Linear<'m>,
    value: P::Linear<'m>,
    key_range: P::Range,
    value_range: P::Range,
    d_model: usize,
}

impl<'m, P: Precision> KeyValueProjection<'m, P> {
    /// Those of the attention at `slots`.
    pub fn new(model: &Model<'m>, slots: &AttentionSlots) -> Self {
        let [_, key, value, _] = slots.linear;
        Self {
            key: P::linear(model, key),
            value: P::linear(model, value),
            key_range: P::cache_range(model, key),
            value_range: P::cache_range(model, value),
            d_model: model.config().d_model.into(),
        }
    }

    /// Stores keys and values of the tokens of `input` from `position` on; faster with `room` for
    /// `[tokens, d_model]`.
    pub fn remember(
        &self,
        input: &P::Input<'_>,
        position: usize,
        cache: &mut KvCache<'_, P::Cached>,
        room: &mut [P::Activation],
    ) {
        let start = position.saturating_mul(self.d_model);
        let keys = cache.keys.get_mut(start..).unwrap_or_default();
        profile::run(Operator::Key, || {
            P::project_cached(&self.key, input, self.key_range, keys, room);
        });
        let values = cache.values.get_mut(start..).unwrap_or_default();
        profile::run(Operator::Value, || {
            P::project_cached(&self.value, input, self.value_range, values, room);
        });
    }
}

/// The heads, and `W_o`.
pub struct MultiHead<'m, P: Precision> {
    heads: P::Heads<'m>,
    output: P::Linear<'m>,
    shape: HeadShape,
    context_range: P::Range,
    residual: P::Residual,
}

impl<'m, P: Precision> MultiHead<'m, P> {
    /// Those of the attention at `slots`.
    pub fn new(model: &Model<'m>, slots: &AttentionSlots, shape: HeadShape) -> Self {
        let [.., output] = slots.linear;
        Self {
            heads: P::heads(model, slots.heads),
            output: P::linear(model, output),
            shape,
            context_range: P::range(model, slots.context),
            residual: P::residual(model, slots.sum),
        }
    }

    /// `x = concat(heads)` over the first `len` positions of `cache`, where `x` is the query before and
    /// the context after, `[d_model]`.
    pub fn attend(
        &self,
        x: &mut [P::Activation],
        (cache, len): (&KvCache<'_, P::Cached>, usize),
        scratch: &mut AttentionScratch<'_, P>,
    ) {
        let HeadShape { n_heads, d_k } = self.shape;
        let d_model = n_heads.saturating_mul(d_k);
        let rows = |data| Rows { data, stride: d_model, rows: len, cols: d_model };
        let all = HeadCache { keys: rows(&*cache.keys), values: rows(&*cache.values) };
        if !P::attend_all(&self.heads, d_k, x, all, self.context_range) {
            self.attend_seen(x, (cache, len), scratch, |_, _| ());
        }
    }

    /// As [`attend`](Self::attend); each head's scratch is shown to `seen` once it has attended.
    pub fn attend_seen(
        &self,
        x: &mut [P::Activation],
        (cache, len): (&KvCache<'_, P::Cached>, usize),
        scratch: &mut AttentionScratch<'_, P>,
        mut seen: impl FnMut(usize, AttentionScratch<'_, P>),
    ) {
        for head in 0..self.shape.n_heads {
            let mut scratch = AttentionScratch {
                scores: scratch.scores.get_mut(..len).unwrap_or_default(),
                probabilities: scratch.probabilities.get_mut(..len).unwrap_or_default(),
            };
            self.attend_head(head, x, cache, &mut scratch);
            seen(head, scratch);
        }
    }

    /// `stream += W_o context`, `[tokens, d_model]`.
    pub fn output(&self, context: &P::Input<'_>, stream: &mut [P::Activation]) {
        profile::run(Operator::Output, || {
            P::project_add(&self.output, context, self.residual, stream);
        });
    }

    /// One head's part of `x`, over as many positions as `scratch` has.
    #[inline(never)]
    fn attend_head<'c>(
        &self,
        head: usize,
        x: &mut [P::Activation],
        cache: &'c KvCache<'_, P::Cached>,
        scratch: &mut AttentionScratch<'_, P>,
    ) {
        let HeadShape { n_heads, d_k } = self.shape;
        let len = scratch.scores.len();
        let first = head.saturating_mul(d_k);
        let x = x.get_mut(first..first.saturating_add(d_k)).unwrap_or_default();
        let rows = |data: &'c [P::Cached]| Rows {
            data: data.get(first..).unwrap_or_default(),
            stride: n_heads.saturating_mul(d_k),
            rows: len,
            cols: d_k,
        };
        let (keys, values) = (rows(cache.keys), rows(cache.values));
        let cache = HeadCache { keys, values };
        P::attend(&self.heads, head, x, cache, scratch, self.context_range);
    }
}
