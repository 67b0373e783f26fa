//! The decoder: one id -> hidden `[d_model]`, over the keys and values of all positions before, part by
//! part of a layer, so that a caller may stop in between; and the output: hidden -> logits.

use core::ops::Range;

use model_format::Model;
use model_format::config::NormPlace;
use model_format::directory::{DecoderSlot, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation};

use crate::align::Align;
use crate::arena::Carver;
use crate::budget::{Budget, Costs, Cursor, Part};
use crate::encoder::CopyFrom;
use crate::layers::{
    AttentionSlots, Embedding, FeedForward, HeadShape, KeyValueProjection, KvCache, MultiHead,
    Norm, QueryProjection, rotate, start_rotation,
};
use crate::plan::{Plan, padded, rotation_len};
use crate::precision::{AttentionScratch, Precision};

/// One decoder layer.
///
/// The constants of a sublayer are read when it runs and dropped after it: those of a whole layer
/// would fill the stack.
#[derive(Clone, Copy)]
struct DecoderLayer<'x, 'm> {
    model: &'x Model<'m>,
    layer: u16,
}

impl<'m> DecoderLayer<'_, 'm> {
    fn place(self) -> NormPlace {
        self.model.config().norm
    }

    fn slot(self, slot: DecoderSlot) -> Slot {
        Slot::Decoder(self.layer, slot)
    }

    fn activation(self, activation: DecoderActivation) -> ActivationSlot {
        ActivationSlot::Decoder(self.layer, activation)
    }

    fn heads(self) -> HeadShape {
        let config = self.model.config();
        HeadShape { n_heads: config.decoder.n_heads.into(), d_k: config.decoder_d_k() }
    }

    fn norm<P: Precision>(self, norm: DecoderSlot, output: DecoderActivation) -> Norm<'m, P> {
        Norm::new(self.model, self.slot(norm), self.activation(output))
    }

    fn self_attention(self) -> AttentionSlots {
        use {DecoderActivation as A, DecoderSlot as S};
        AttentionSlots {
            linear: [S::Query, S::Key, S::Value, S::Output].map(|s| self.slot(s)),
            heads: self.slot(S::Heads),
            query: self.activation(A::Query),
            context: self.activation(A::Context),
            stream: ActivationSlot::decoder_stream(self.model.config(), self.layer),
            sum: self.activation(A::Sum1),
        }
    }

    fn cross_attention(self) -> AttentionSlots {
        use {DecoderActivation as A, DecoderSlot as S};
        let linear = [S::CrossQuery, S::CrossKey, S::CrossValue, S::CrossOutput];
        AttentionSlots {
            linear: linear.map(|s| self.slot(s)),
            heads: self.slot(S::CrossHeads),
            query: self.activation(A::CrossQuery),
            context: self.activation(A::CrossContext),
            stream: self.activation(match self.place() {
                NormPlace::Pre => A::Sum1,
                NormPlace::Post => A::Norm1,
            }),
            sum: self.activation(A::Sum2),
        }
    }

    /// Query, key and value of the new position.
    #[inline(never)]
    fn project<P: Precision>(self, step: &mut Step<'_, P>, cache: &mut Cache<'_, P>) {
        let norm = self.norm::<P>(DecoderSlot::Norm1, DecoderActivation::Norm1);
        let query = QueryProjection::<P>::new(self.model, &self.self_attention());
        let key_value = KeyValueProjection::<P>::new(self.model, &self.self_attention());
        let Step { position, x, normed, work, .. } = step;
        let (to, _) = attention_buffers::<P>(work, x.len(), 0);
        let input = before(self.place(), &norm, x, normed);
        query.forward(input, to);
        key_value.remember(input, *position, cache);
    }

    /// Attention to all positions so far.
    #[inline(never)]
    fn attend<P: Precision>(self, step: &mut Step<'_, P>, cache: &Cache<'_, P>) {
        let norm = self.norm::<P>(DecoderSlot::Norm1, DecoderActivation::Norm1);
        let attention = MultiHead::<P>::new(self.model, &self.self_attention(), self.heads());
        let Step { position, x, normed, work, .. } = step;
        let (query, mut scratch) = attention_buffers::<P>(work, x.len(), cache.capacity);
        let len = position.saturating_add(1);
        attention.attend(query, (cache, len), &mut scratch, normed, x, |_, _| ());
        after(self.place(), &norm, x);
    }

    /// Attention to `memory`.
    #[inline(never)]
    fn attend_memory<P: Precision>(
        self,
        step: &mut Step<'_, P>,
        cross: &Cache<'_, P>,
        align: &mut impl Align<P>,
    ) {
        let norm = self.norm::<P>(DecoderSlot::Norm2, DecoderActivation::Norm2);
        let projection = QueryProjection::<P>::new(self.model, &self.cross_attention());
        let attention = MultiHead::<P>::new(self.model, &self.cross_attention(), self.heads());
        let Step { source_len, x, normed, work, .. } = step;
        let (query, mut scratch) = attention_buffers::<P>(work, x.len(), cross.capacity);
        projection.forward(before(self.place(), &norm, x, normed), query);
        let seen = |head, scratch: AttentionScratch<'_, P>| align.head(self.layer, head, scratch);
        attention.attend(query, (cross, *source_len), &mut scratch, normed, x, seen);
        after(self.place(), &norm, x);
    }

    /// Cross keys and values of these positions of `memory`.
    #[inline(never)]
    fn remember<P: Precision>(
        self,
        memory: &[P::Activation],
        positions: Range<usize>,
        cache: &mut Cache<'_, P>,
    ) {
        let key_value = KeyValueProjection::<P>::new(self.model, &self.cross_attention());
        let d_model = usize::from(self.model.config().d_model);
        let first = positions.start.saturating_mul(d_model);
        // Not zipped: a zip of chunks divides by their length, which could panic for all it knows.
        let mut rows = memory.get(first..).unwrap_or_default().chunks_exact(d_model.max(1));
        for position in positions {
            key_value.remember(rows.next().unwrap_or_default(), position, cache);
        }
    }

    /// The norm after the last layer, where there is one.
    #[inline(never)]
    fn final_norm<P: Precision>(self, x: &mut [P::Activation]) {
        let config = self.model.config();
        if config.final_norm && self.layer.saturating_add(1) == config.decoder.n_layers {
            Norm::<P>::new(self.model, Slot::DecoderNorm, ActivationSlot::DecoderFinal)
                .forward_in_place(x);
        }
    }

    #[inline(never)]
    fn feed_forward<P: Precision>(self, step: &mut Step<'_, P>) {
        use {DecoderActivation as A, DecoderSlot as S};
        let norm = self.norm::<P>(S::Norm3, A::Norm3);
        let feed_forward = FeedForward::<P>::new(
            self.model,
            [S::Linear1, S::Linear2].map(|s| self.slot(s)),
            self.activation(A::Hidden),
            [
                ActivationSlot::decoder_middle(self.model.config(), self.layer),
                self.activation(A::Sum3),
            ],
        );
        let Step { x, normed, work, .. } = step;
        let d_ff = self.model.config().decoder.d_ff;
        let hidden = Carver::new(work).take::<P::Activation>(d_ff.into());
        match self.place() {
            NormPlace::Pre => norm.forward(x, normed),
            NormPlace::Post => normed.copy_from(x),
        }
        feed_forward.forward(normed, hidden, x);
        after(self.place(), &norm, x);
    }
}

/// A query `[d_model]`, and room for `len` positions.
fn attention_buffers<P: Precision>(
    work: &mut [u8],
    d_model: usize,
    len: usize,
) -> (&mut [P::Activation], AttentionScratch<'_, P>) {
    let mut carver = Carver::new(work);
    let query = carver.take(d_model);
    (query, AttentionScratch { scores: carver.take(len), probabilities: carver.take(len) })
}

/// What a sublayer reads: the normed stream before it, or the stream itself.
fn before<'x, P: Precision>(
    place: NormPlace,
    norm: &Norm<'_, P>,
    x: &'x [P::Activation],
    normed: &'x mut [P::Activation],
) -> &'x [P::Activation] {
    match place {
        NormPlace::Pre => {
            norm.forward(x, normed);
            normed
        }
        NormPlace::Post => x,
    }
}

fn after<P: Precision>(place: NormPlace, norm: &Norm<'_, P>, x: &mut [P::Activation]) {
    if place == NormPlace::Post {
        norm.forward_in_place(x);
    }
}

type Cache<'a, P> = KvCache<'a, <P as Precision>::Cached>;

/// What a layer works on.
struct Step<'a, P: Precision> {
    position: usize,
    source_len: usize,
    /// The stream, `[d_model]`.
    x: &'a mut [P::Activation],
    /// Its norm, then the context, `[d_model]`.
    normed: &'a mut [P::Activation],
    /// Attention's or feed-forward's buffers.
    work: &'a mut [u8],
}

/// What a step works on.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Of the id that is read.
    pub position: usize,
    /// Positions of `memory`.
    pub source_len: usize,
    /// Where the beam's cache lies.
    pub slot: usize,
}

/// All that the decoder has in the arena.
pub(crate) struct Decoder<'a, P: Precision> {
    /// Cross keys and values of all layers.
    cross: &'a mut [u8],
    /// Keys and values of self-attention of all layers, from those of the beam on.
    caches: &'a mut [u8],
    /// What a search has.
    search: &'a mut [u8],
    /// Sine and cosine of the position.
    rotation: &'a mut [[i32; 2]],
    step: Step<'a, P>,
}

impl<'a, P: Precision> Decoder<'a, P> {
    /// The parts of `arena`, for a step at this place.
    #[inline(never)]
    pub fn new(
        model: &Model<'_>,
        plan: &Plan,
        arena: &'a mut [u8],
        Place { position, source_len, slot }: Place,
    ) -> Self {
        let d_model = usize::from(model.config().d_model);
        let mut carver = Carver::new(arena);
        let cross = carver.take(plan.cross);
        let caches = carver.take::<u8>(plan.caches());
        let search = carver.take(plan.search);
        let first = slot.saturating_mul(plan.self_cache);
        Self {
            cross,
            caches: caches.get_mut(first..).unwrap_or_default(),
            search,
            rotation: carver.take(rotation_len(model.config())),
            step: Step {
                position,
                source_len,
                x: carver.take(d_model),
                normed: carver.take(d_model),
                work: carver.take_rest(),
            },
        }
    }

    /// Embeds `id`. Positions come one after the other, from 0 on; `moves` for the first beam of each.
    #[inline(never)]
    pub fn embed(&mut self, model: &Model<'_>, id: u16, moves: bool) {
        match self.step.position {
            _ if !moves => (),
            0 => start_rotation(self.rotation),
            _ => rotate(self.rotation, model.pairs(Slot::Frequencies)),
        }
        let embedding = Embedding::<P>::target(model);
        embedding.forward(id, self.step.position, self.rotation, self.step.x);
    }

    /// What the output projection reads once all layers are done, `[d_model]`, and what a search has.
    pub fn into_output(self) -> (&'a [P::Activation], &'a mut [u8]) {
        (self.step.x, self.search)
    }

    /// Runs the layers from `cursor` on as far as `budget` goes; whether they are done.
    pub fn decode(
        &mut self,
        model: &Model<'_>,
        plan: &Plan,
        cursor: &mut Cursor,
        budget: &mut impl Budget,
        align: &mut impl Align<P>,
    ) -> bool {
        let config = model.config();
        let costs = Costs::of(config);
        while cursor.layer < config.decoder.n_layers {
            let layer = DecoderLayer { model, layer: cursor.layer };
            let (cost, next) = match cursor.part {
                Part::Project => (costs.project(), Part::Attend),
                Part::Attend => {
                    let next = match config.has_cross_attention() {
                        true => Part::AttendMemory,
                        false => Part::FeedForward,
                    };
                    (costs.attend(self.step.position.saturating_add(1)), next)
                }
                Part::AttendMemory => {
                    (costs.attend_memory(self.step.source_len), Part::FeedForward)
                }
                Part::FeedForward => (costs.feed_forward(&config.decoder), Part::Project),
            };
            let part = cursor.part;
            if !cursor.advance(budget, (1, cost), |_| self.run(layer, plan, part, align)) {
                return false;
            }
            cursor.next(next);
        }
        true
    }

    /// One part of a layer.
    fn run(
        &mut self,
        layer: DecoderLayer<'_, '_>,
        plan: &Plan,
        part: Part,
        align: &mut impl Align<P>,
    ) {
        let Self { cross, caches, step, .. } = self;
        let shape = (usize::from(layer.layer), step.x.len());
        match part {
            Part::Project | Part::Attend => {
                let capacity = plan.limits.target_len.into();
                let mut cache = layer_cache::<P>(caches, shape, capacity);
                match part {
                    Part::Project => layer.project(step, &mut cache),
                    _ => layer.attend(step, &cache),
                }
            }
            Part::AttendMemory => {
                let capacity = plan.limits.source_len.into();
                layer.attend_memory(step, &layer_cache::<P>(cross, shape, capacity), align);
            }
            Part::FeedForward => {
                layer.feed_forward(step);
                layer.final_norm::<P>(step.x);
            }
        }
    }
}

/// Cross keys and values of every layer, once per source, from `cursor` on as far as `budget` goes;
/// whether they are stored. `memory` is `[len, d_model]`.
pub(crate) fn remember_memory<P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    cursor: &mut Cursor,
    budget: &mut impl Budget,
    memory: &[P::Activation],
    cross: &mut [u8],
) -> bool {
    let d_model = usize::from(model.config().d_model);
    let len = memory.len().checked_div(d_model).unwrap_or(0);
    while cursor.layer < model.config().decoder.n_layers {
        let layer = DecoderLayer { model, layer: cursor.layer };
        let place = (usize::from(cursor.layer), d_model);
        let mut cache = layer_cache::<P>(cross, place, plan.limits.source_len.into());
        let units = (len, Costs::of(model.config()).remember());
        let run = |range| layer.remember::<P>(memory, range, &mut cache);
        if !cursor.advance(budget, units, run) {
            return false;
        }
        cursor.next(Part::Project);
    }
    true
}

/// Keys and values of one layer of `[capacity, d_model]` each, in those of all layers.
fn layer_cache<P: Precision>(
    caches: &mut [u8],
    (layer, d_model): (usize, usize),
    capacity: usize,
) -> Cache<'_, P> {
    let len = capacity.saturating_mul(d_model);
    let layer_len = padded(len.saturating_mul(size_of::<P::Cached>())).saturating_mul(2);
    let caches = caches.get_mut(layer.saturating_mul(layer_len)..).unwrap_or_default();
    let mut carver = Carver::new(caches);
    KvCache { keys: carver.take(len), values: carver.take(len), capacity }
}

/// Pushes the logits of these rows of the output into `sink`, ids ascending.
#[inline(never)]
pub(crate) fn project_logits<P: Precision>(
    model: &Model<'_>,
    hidden: &[P::Activation],
    rows: Range<usize>,
    mut sink: impl FnMut(u16, P::Logit),
) {
    let slot = match model.config().output.is_tied() {
        true => Slot::TargetEmbedding,
        false => Slot::Output,
    };
    let linear = P::linear_rows(model, slot, rows.clone());
    P::project_logits(&linear, hidden, |row, logit| {
        sink(rows.start.saturating_add(row) as u16, logit);
    });
}
