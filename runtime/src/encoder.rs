//! The encoder: source ids -> `memory` `[source_len, d_model]`, position by position through each part
//! of a layer, so that a caller may stop in between.

use core::ops::Range;

use model_format::Model;
use model_format::config::NormPlace;
use model_format::directory::{EncoderSlot, Slot};
use model_format::formats::{ActivationSlot, EncoderActivation};

use crate::arena::Carver;
use crate::budget::{Budget, Costs, Cursor, Part};
use crate::layers::{
    AttentionSlots, Embedding, FeedForward, HeadShape, KeyValueProjection, KvCache, MultiHead,
    Norm, QueryProjection, rotate, start_rotation,
};
use crate::plan::{Plan, group_len, rotation_len};
use crate::precision::{AttentionScratch, Precision};
use crate::profile::{self, Operator, Side};
use crate::tokenizer::Ids;

/// One encoder layer.
///
/// The constants of a sublayer are read when it runs and dropped after it: those of a whole layer
/// would fill the stack.
#[derive(Clone, Copy)]
struct EncoderLayer<'x, 'm> {
    model: &'x Model<'m>,
    layer: u16,
}

impl<'m> EncoderLayer<'_, 'm> {
    fn place(self) -> NormPlace {
        self.model.config().norm
    }

    fn slot(self, slot: EncoderSlot) -> Slot {
        Slot::Encoder(self.layer, slot)
    }

    fn activation(self, activation: EncoderActivation) -> ActivationSlot {
        ActivationSlot::Encoder(self.layer, activation)
    }

    fn norm<P: Precision>(self, norm: EncoderSlot, output: EncoderActivation) -> Norm<'m, P> {
        Norm::new(self.model, self.slot(norm), self.activation(output))
    }

    fn attention(self) -> AttentionSlots {
        use {EncoderActivation as A, EncoderSlot as S};
        AttentionSlots {
            linear: [S::Query, S::Key, S::Value, S::Output].map(|s| self.slot(s)),
            heads: self.slot(S::Heads),
            query: self.activation(A::Query),
            context: self.activation(A::Context),
            sum: self.activation(A::Sum1),
        }
    }

    /// `stream` is `[len, d_model]`; `scratch` holds what the plan counted for one phase: what is
    /// hidden, then the norm of what it is made of.
    #[inline(never)]
    fn feed_forward<P: Precision>(
        self,
        stream: &mut [P::Activation],
        shape: Shape,
        positions: Range<usize>,
        scratch: &mut [u8],
    ) {
        use {EncoderActivation as A, EncoderSlot as S};
        let norm = self.norm::<P>(S::Norm2, A::Norm2);
        let feed_forward = FeedForward::<P>::new(
            self.model,
            &self.model.config().encoder,
            [S::Linear1, S::Linear2].map(|s| self.slot(s)),
            [A::Hidden, A::Sum2].map(|a| self.activation(a)),
        );
        let Shape { d_model, d_ff, .. } = shape;
        let tokens = most_tokens::<P>(shape);
        let mut carver = Carver::new(scratch);
        let hidden = carver.take::<P::Activation>(tokens.saturating_mul(d_ff));
        let work = carver.take_rest();
        for chunk in chunks(positions, tokens) {
            let x = rows_mut(stream, &chunk, d_model);
            let (input, inputs) = norm.before(self.place(), (x, d_model), work);
            feed_forward.hidden((input, tokens_of(&chunk)), hidden, inputs);
            feed_forward.add((hidden, tokens_of(&chunk)), x, work);
            if self.place() == NormPlace::Post {
                norm.forward_all_in_place(x, d_model);
            }
        }
    }

    /// The norm after the last layer, where there is one.
    #[inline(never)]
    fn final_norm<P: Precision>(self, stream: &mut [P::Activation]) {
        let config = self.model.config();
        if config.final_norm && self.layer.saturating_add(1) == config.encoder.n_layers {
            let norm = Norm::<P>::new(self.model, Slot::EncoderNorm, ActivationSlot::Memory);
            norm.forward_all_in_place(stream, config.d_model.into());
        }
    }

    /// Query, key and value of these positions, into `scratch`.
    #[inline(never)]
    fn project<P: Precision>(
        self,
        stream: &[P::Activation],
        shape: Shape,
        positions: Range<usize>,
        scratch: &mut [u8],
    ) {
        let norm = self.norm::<P>(EncoderSlot::Norm1, EncoderActivation::Norm1);
        let query = QueryProjection::<P>::new(self.model, &self.attention());
        let key_value = KeyValueProjection::<P>::new(self.model, &self.attention());
        let d_model = shape.d_model;
        let AttentionBuffers { queries, mut cache, work } =
            AttentionBuffers::<P>::carve(shape, scratch);
        for chunk in chunks(positions, most_tokens::<P>(shape)) {
            let x = rows_of(stream, &chunk, d_model);
            let (x, inputs) = norm.before(self.place(), (x, d_model), work);
            let input = P::input(x, [tokens_of(&chunk), d_model], inputs);
            let to = rows_mut(queries, &chunk, d_model);
            key_value.remember(&input, chunk.start, &mut cache, to);
            query.forward(&input, to);
        }
    }

    /// Attention of these positions, once all positions are projected.
    #[inline(never)]
    fn attend<P: Precision>(
        self,
        stream: &mut [P::Activation],
        shape: Shape,
        positions: Range<usize>,
        scratch: &mut [u8],
    ) {
        let norm = self.norm::<P>(EncoderSlot::Norm1, EncoderActivation::Norm1);
        let config = self.model.config();
        let heads = HeadShape { n_heads: config.encoder.n_heads.into(), d_k: config.encoder_d_k() };
        let attention = MultiHead::<P>::new(self.model, &self.attention(), heads);
        let Shape { len, d_model, .. } = shape;
        let AttentionBuffers { queries, cache, work } =
            AttentionBuffers::<P>::carve(shape, scratch);
        for chunk in chunks(positions, most_tokens::<P>(shape)) {
            let contexts = rows_mut(queries, &chunk, d_model);
            let mut scratch = AttentionScratch::carve(work, len);
            for query in contexts.chunks_exact_mut(d_model.max(1)) {
                attention.attend(query, (&cache, len), &mut scratch);
            }
            let x = rows_mut(stream, &chunk, d_model);
            attention.output(&P::input(contexts, [tokens_of(&chunk), d_model], work), x);
            if self.place() == NormPlace::Post {
                norm.forward_all_in_place(x, d_model);
            }
        }
    }
}

/// Tokens that products take together.
fn most_tokens<P: Precision>(shape: Shape) -> usize {
    group_len(P::TOKENS, shape.capacity)
}

/// `positions` in pieces of at most `tokens`.
pub(crate) fn chunks(positions: Range<usize>, tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = positions.clone().step_by(tokens.max(1));
    starts.map(move |start| start..start.saturating_add(tokens).min(positions.end))
}

/// Their number; not `len`, which could panic for all a compiler sees.
pub(crate) fn tokens_of(positions: &Range<usize>) -> usize {
    positions.end.saturating_sub(positions.start)
}

/// The rows of these positions in `[len, d_model]`.
pub(crate) fn rows_of<'x, T>(x: &'x [T], positions: &Range<usize>, d_model: usize) -> &'x [T] {
    let range = positions.start.saturating_mul(d_model)..positions.end.saturating_mul(d_model);
    x.get(range).unwrap_or_default()
}

/// As [`rows_of`].
fn rows_mut<'x, T>(x: &'x mut [T], positions: &Range<usize>, d_model: usize) -> &'x mut [T] {
    let range = positions.start.saturating_mul(d_model)..positions.end.saturating_mul(d_model);
    x.get_mut(range).unwrap_or_default()
}

/// What self-attention holds for one layer.
struct AttentionBuffers<'a, P: Precision> {
    /// `[capacity, d_model]`; a context takes the place of its query.
    queries: &'a mut [P::Activation],
    /// Keys and values.
    cache: KvCache<'a, P::Cached>,
    /// Norms and what their products need; or scores and probabilities of one head; or what the output
    /// projection needs.
    work: &'a mut [u8],
}

impl<'a, P: Precision> AttentionBuffers<'a, P> {
    fn carve(shape: Shape, scratch: &'a mut [u8]) -> Self {
        let Shape { capacity, d_model, .. } = shape;
        let len = capacity.saturating_mul(d_model);
        let mut carver = Carver::new(scratch);
        Self {
            queries: carver.take(len),
            cache: KvCache { keys: carver.take(len), values: carver.take(len), capacity },
            work: carver.take_rest(),
        }
    }
}

/// Copies without the panic of `copy_from_slice`.
pub(crate) trait CopyFrom<T> {
    fn copy_from(&mut self, from: &[T]);
}

impl<T: Copy> CopyFrom<T> for [T] {
    fn copy_from(&mut self, from: &[T]) {
        for (to, from) in self.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// Sizes of one run.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Source positions of this run.
    pub len: usize,
    /// Source positions that the arena has room for.
    pub capacity: usize,
    pub d_model: usize,
    pub d_ff: usize,
}

/// What lies below `memory`, and the first `len` rows of `memory`, `[len, d_model]`.
pub(crate) fn buffers<'a, P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    arena: &'a mut [u8],
    len: usize,
) -> (&'a mut [u8], &'a mut [P::Activation]) {
    let mut carver = Carver::new(arena);
    let low = carver.take(plan.memory_offset);
    (low, carver.take(len.saturating_mul(model.config().d_model.into())))
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

/// Runs the layers from `cursor` on as far as `budget` goes; whether they are done. `memory` is
/// `[len, d_model]`.
pub(crate) fn encode<P: Precision>(
    model: &Model<'_>,
    shape: Shape,
    cursor: &mut Cursor,
    budget: &mut impl Budget,
    scratch: &mut [u8],
    memory: &mut [P::Activation],
) -> bool {
    let config = model.config();
    let costs = Costs::of(config);
    let len = shape.len;
    while cursor.layer < config.encoder.n_layers {
        let layer = EncoderLayer { model, layer: cursor.layer };
        let (is_done, next) = match cursor.part {
            Part::Project => {
                let units = (len, costs.project());
                let run = |range| layer.project::<P>(memory, shape, range, scratch);
                (cursor.advance(budget, units, run), Part::Attend)
            }
            Part::Attend => {
                let units = (len, costs.attend(len));
                let run = |range| layer.attend::<P>(memory, shape, range, scratch);
                (cursor.advance(budget, units, run), Part::FeedForward)
            }
            Part::AttendMemory | Part::FeedForward => {
                let units = (len, costs.feed_forward(&config.encoder));
                let run = |range: Range<usize>| {
                    layer.feed_forward::<P>(memory, shape, range.clone(), scratch);
                    layer.final_norm::<P>(rows_mut(memory, &range, shape.d_model));
                };
                (cursor.advance(budget, units, run), Part::Project)
            }
        };
        if !is_done {
            return false;
        }
        cursor.next(next);
    }
    true
}
