//! Multi-head attention over cached keys and values (Vaswani et al. 2017, section 3.2).

use model_format::Model;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use super::NormSlots;
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
}

/// Where an attention's tensors lie, and what it writes.
pub struct AttentionSlots {
    /// The sublayer's norm.
    pub norm: NormSlots,
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

/// `query = W_q x`, `[tokens, d_model]`.
pub fn project_query<P: Precision>(
    model: &Model<'_>,
    slots: &AttentionSlots,
    input: &P::Input<'_>,
    query: &mut [P::Activation],
) {
    let [linear, ..] = slots.linear;
    let (linear, range) = (P::linear(model, linear), P::range(model, slots.query));
    profile::run(Operator::Query, || P::project(&linear, input, range, query));
}

/// Stores `W_k x` and `W_v x`, keys and values of the tokens of `input`, from `position` on; faster with
/// `room` for `[tokens, d_model]`.
#[inline(always)]
pub fn remember<P: Precision>(
    model: &Model<'_>,
    slots: &AttentionSlots,
    (input, position): (&P::Input<'_>, usize),
    cache: &mut KvCache<'_, P::Cached>,
    room: &mut [P::Activation],
) {
    let [_, key, value, _] = slots.linear;
    let start = position.wrapping_mul(model.config().d_model.into());
    profile::run(Operator::Key, || remember_one::<P>(model, key, input, (cache.keys, start), room));
    profile::run(Operator::Value, || {
        remember_one::<P>(model, value, input, (cache.values, start), room);
    });
}

#[inline(never)]
fn remember_one<P: Precision>(
    model: &Model<'_>,
    slot: Slot,
    input: &P::Input<'_>,
    (to, start): (&mut [P::Cached], usize),
    room: &mut [P::Activation],
) {
    let (linear, range) = (P::linear(model, slot), P::cache_range(model, slot));
    P::project_cached(&linear, input, range, to.get_mut(start..).unwrap_or_default(), room);
}

/// `stream += W_o context`, `[tokens, d_model]`.
pub fn project_output<P: Precision>(
    model: &Model<'_>,
    slots: &AttentionSlots,
    context: &P::Input<'_>,
    stream: &mut [P::Activation],
) {
    let [.., output] = slots.linear;
    let (linear, residual) = (P::linear(model, output), P::residual(model, slots.sum));
    profile::run(Operator::Output, || P::project_add(&linear, context, residual, stream));
}

/// The heads.
pub struct MultiHead<'m, P: Precision> {
    heads: P::Heads<'m>,
    shape: HeadShape,
    context_range: P::Range,
}

impl<'m, P: Precision> MultiHead<'m, P> {
    /// Those of the attention at `slots`.
    pub fn new(model: &Model<'m>, slots: &AttentionSlots, shape: HeadShape) -> Self {
        let heads = P::heads(model, slots.heads);
        Self { heads, shape, context_range: P::range(model, slots.context) }
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
        let d_model = n_heads.wrapping_mul(d_k);
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
        let first = head.wrapping_mul(d_k);
        let x = x.get_mut(first..first.wrapping_add(d_k)).unwrap_or_default();
        let rows = |data: &'c [P::Cached]| Rows {
            data: data.get(first..).unwrap_or_default(),
            stride: n_heads.wrapping_mul(d_k),
            rows: len,
            cols: d_k,
        };
        let (keys, values) = (rows(cache.keys), rows(cache.values));
        let cache = HeadCache { keys, values };
        P::attend(&self.heads, head, x, cache, scratch, self.context_range);
    }
}
