//! The decoder: one id -> logits, over the keys and values of all positions before.

use model_format::Model;
use model_format::config::NormPlace;
use model_format::directory::{DecoderSlot, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation};

use crate::arena::Carver;
use crate::encoder::CopyFrom;
use crate::layers::{
    Attention, AttentionSlots, Embedding, FeedForward, HeadShape, KvCache, Norm, rotate,
    start_rotation,
};
use crate::plan::{Plan, rotation_len};
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

    fn self_attention<P: Precision>(self) -> Attention<'m, P> {
        use {DecoderActivation as A, DecoderSlot as S};
        let slots = AttentionSlots {
            linear: [S::Query, S::Key, S::Value, S::Output].map(|s| self.slot(s)),
            heads: self.slot(S::Heads),
            query: self.activation(A::Query),
            context: self.activation(A::Context),
            stream: ActivationSlot::decoder_stream(self.model.config(), self.layer),
            sum: self.activation(A::Sum1),
        };
        Attention::new(self.model, &slots, self.heads())
    }

    fn cross_attention<P: Precision>(self) -> Attention<'m, P> {
        use {DecoderActivation as A, DecoderSlot as S};
        let linear = [S::CrossQuery, S::CrossKey, S::CrossValue, S::CrossOutput];
        let slots = AttentionSlots {
            linear: linear.map(|s| self.slot(s)),
            heads: self.slot(S::CrossHeads),
            query: self.activation(A::CrossQuery),
            context: self.activation(A::CrossContext),
            stream: self.activation(match self.place() {
                NormPlace::Pre => A::Sum1,
                NormPlace::Post => A::Norm1,
            }),
            sum: self.activation(A::Sum2),
        };
        Attention::new(self.model, &slots, self.heads())
    }

    #[inline(never)]
    fn attend_self<P: Precision>(self, step: &mut Step<'_, P>, cache: &mut Cache<'_, P>) {
        let norm = self.norm::<P>(DecoderSlot::Norm1, DecoderActivation::Norm1);
        let attention = self.self_attention::<P>();
        let Step { position, x, normed, work, .. } = step;
        let (query, mut scratch) = attention_buffers::<P>(work, x.len(), cache.capacity);
        let input = before(self.place(), &norm, x, normed);
        attention.query(input, query);
        attention.remember(input, *position, cache);
        attention.attend(query, cache, *position + 1, &mut scratch, normed, x);
        after(self.place(), &norm, x);
    }

    #[inline(never)]
    fn attend_memory<P: Precision>(self, step: &mut Step<'_, P>, cross: &Cache<'_, P>) {
        let norm = self.norm::<P>(DecoderSlot::Norm2, DecoderActivation::Norm2);
        let attention = self.cross_attention::<P>();
        let Step { source_len, x, normed, work, .. } = step;
        let (query, mut scratch) = attention_buffers::<P>(work, x.len(), cross.capacity);
        let input = before(self.place(), &norm, x, normed);
        attention.query(input, query);
        attention.attend(query, cross, *source_len, &mut scratch, normed, x);
        after(self.place(), &norm, x);
    }

    #[inline(never)]
    fn feed_forward<P: Precision>(self, step: &mut Step<'_, P>) {
        use {DecoderActivation as A, DecoderSlot as S};
        let norm = self.norm::<P>(S::Norm3, A::Norm3);
        let stream = match self.place() {
            NormPlace::Pre => A::Sum2,
            NormPlace::Post => A::Norm2,
        };
        let feed_forward = FeedForward::<P>::new(
            self.model,
            [S::Linear1, S::Linear2].map(|s| self.slot(s)),
            self.activation(A::Hidden),
            [self.activation(stream), self.activation(A::Sum3)],
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

/// One step's buffers.
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

/// Cross keys and values of every layer, once per source. `memory` is `[len, d_model]`.
pub(crate) fn remember_memory<P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    memory: &[P::Activation],
    cross: &mut [u8],
) {
    let d_model = usize::from(model.config().d_model);
    let mut carver = Carver::new(cross);
    for layer in 0..model.config().decoder.n_layers {
        let attention = DecoderLayer { model, layer }.cross_attention::<P>();
        let mut cache = take_cache::<P>(&mut carver, plan.limits.source_len.into(), d_model);
        for (position, x) in memory.chunks_exact(d_model.max(1)).enumerate() {
            attention.remember(x, position, &mut cache);
        }
    }
}

fn take_cache<'a, P: Precision>(
    carver: &mut Carver<'a>,
    capacity: usize,
    d_model: usize,
) -> Cache<'a, P> {
    let len = capacity.saturating_mul(d_model);
    KvCache { keys: carver.take(len), values: carver.take(len), capacity }
}

/// Reads `id` at `position` and pushes the logits of the next one into `sink`, ids ascending.
pub(crate) fn decode_step<P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    arena: &mut [u8],
    (id, position, source_len): (u16, usize, usize),
    sink: impl FnMut(u16, P::Logit),
) {
    let config = model.config();
    let d_model = usize::from(config.d_model);
    let mut carver = Carver::new(arena);
    let cross = carver.take::<u8>(plan.cross);
    let caches = carver.take::<u8>(plan.self_cache);
    let rotation = carver.take::<[i32; 2]>(rotation_len(config));
    let x = carver.take::<P::Activation>(d_model);
    let normed = carver.take::<P::Activation>(d_model);
    let work = carver.take_rest();
    embed::<P>(model, id, position, rotation, x);

    let (mut cross, mut caches) = (Carver::new(cross), Carver::new(caches));
    let mut step = Step::<P> { position, source_len, x, normed, work };
    for layer in 0..config.decoder.n_layers {
        let cross = take_cache::<P>(&mut cross, plan.limits.source_len.into(), d_model);
        let mut cache = take_cache::<P>(&mut caches, plan.limits.target_len.into(), d_model);
        let layer = DecoderLayer { model, layer };
        layer.attend_self(&mut step, &mut cache);
        layer.attend_memory(&mut step, &cross);
        layer.feed_forward(&mut step);
    }
    let Step { x, .. } = step;
    if config.final_norm {
        Norm::<P>::new(model, Slot::DecoderNorm, ActivationSlot::DecoderFinal).forward_in_place(x);
    }
    project_logits::<P>(model, x, sink);
}

/// The embedding of `id`; `rotation` moves from this position to the next.
#[inline(never)]
fn embed<P: Precision>(
    model: &Model<'_>,
    id: u16,
    position: usize,
    rotation: &mut [[i32; 2]],
    out: &mut [P::Activation],
) {
    if position == 0 {
        start_rotation(rotation);
    }
    Embedding::<P>::target(model).forward(id, position, rotation, out);
    rotate(rotation, model.pairs(Slot::Frequencies));
}

#[inline(never)]
fn project_logits<P: Precision>(
    model: &Model<'_>,
    hidden: &[P::Activation],
    mut sink: impl FnMut(u16, P::Logit),
) {
    let slot = match model.config().output.is_tied() {
        true => Slot::TargetEmbedding,
        false => Slot::Output,
    };
    P::project_logits(&P::linear(model, slot), hidden, |row, logit| sink(row as u16, logit));
}
