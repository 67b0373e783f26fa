//! The decoder: one id -> logits, over the keys and values of all positions before.

use model_format::Model;
use model_format::config::{ModelConfig, NormPlace};
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
struct DecoderLayer<'m, P: Precision> {
    place: NormPlace,
    norms: [Norm<'m, P>; 3],
    self_attention: Attention<'m, P>,
    cross_attention: Attention<'m, P>,
    feed_forward: FeedForward<'m, P>,
}

fn heads(config: &ModelConfig) -> HeadShape {
    HeadShape { n_heads: config.decoder.n_heads.into(), d_k: config.decoder_d_k() }
}

/// The cross-attention of layer `layer`.
fn cross_attention<'m, P: Precision>(model: &Model<'m>, layer: u16) -> Attention<'m, P> {
    use {DecoderActivation as A, DecoderSlot as S};
    let slot = |s| Slot::Decoder(layer, s);
    let activation = |a| ActivationSlot::Decoder(layer, a);
    let slots = AttentionSlots {
        linear: [S::CrossQuery, S::CrossKey, S::CrossValue, S::CrossOutput].map(slot),
        heads: slot(S::CrossHeads),
        query: activation(A::CrossQuery),
        context: activation(A::CrossContext),
        stream: activation(match model.config().norm {
            NormPlace::Pre => A::Sum1,
            NormPlace::Post => A::Norm1,
        }),
        sum: activation(A::Sum2),
    };
    Attention::new(model, &slots, heads(model.config()))
}

impl<'m, P: Precision> DecoderLayer<'m, P> {
    fn new(model: &Model<'m>, layer: u16) -> Self {
        use {DecoderActivation as A, DecoderSlot as S};
        let config = model.config();
        let slot = |s| Slot::Decoder(layer, s);
        let activation = |a| ActivationSlot::Decoder(layer, a);
        let self_attention = AttentionSlots {
            linear: [S::Query, S::Key, S::Value, S::Output].map(slot),
            heads: slot(S::Heads),
            query: activation(A::Query),
            context: activation(A::Context),
            stream: ActivationSlot::decoder_stream(config, layer),
            sum: activation(A::Sum1),
        };
        let before_feed_forward = match config.norm {
            NormPlace::Pre => activation(A::Sum2),
            NormPlace::Post => activation(A::Norm2),
        };
        Self {
            place: config.norm,
            norms: [(S::Norm1, A::Norm1), (S::Norm2, A::Norm2), (S::Norm3, A::Norm3)]
                .map(|(s, a)| Norm::new(model, slot(s), activation(a))),
            self_attention: Attention::new(model, &self_attention, heads(config)),
            cross_attention: cross_attention(model, layer),
            feed_forward: FeedForward::new(
                model,
                [S::Linear1, S::Linear2].map(slot),
                activation(A::Hidden),
                [before_feed_forward, activation(A::Sum3)],
            ),
        }
    }

    fn forward(&self, step: &mut Step<'_, P>, self_cache: &mut Cache<'_, P>, cross: &Cache<'_, P>) {
        let [norm1, norm2, _] = &self.norms;
        let Step { position, source_len, x, normed, work } = step;
        let d_model = x.len();
        let mut carver = Carver::new(work);
        let query = carver.take::<P::Activation>(d_model);
        let longest = self_cache.capacity.max(cross.capacity);
        let mut scratch = AttentionScratch {
            scores: carver.take::<P::Score>(longest),
            probabilities: carver.take::<P::Probability>(longest),
        };

        let input = before(self.place, norm1, x, normed);
        self.self_attention.query(input, query);
        self.self_attention.remember(input, *position, self_cache);
        self.self_attention.attend(query, self_cache, *position + 1, &mut scratch, normed, x);
        after(self.place, norm1, x);

        let input = before(self.place, norm2, x, normed);
        self.cross_attention.query(input, query);
        self.cross_attention.attend(query, cross, *source_len, &mut scratch, normed, x);
        after(self.place, norm2, x);
    }

    fn feed_forward(&self, step: &mut Step<'_, P>, d_ff: usize) {
        let [_, _, norm3] = &self.norms;
        let Step { x, normed, work, .. } = step;
        let hidden = Carver::new(work).take::<P::Activation>(d_ff);
        match self.place {
            NormPlace::Pre => norm3.forward(x, normed),
            NormPlace::Post => normed.copy_from(x),
        }
        self.feed_forward.forward(normed, hidden, x);
        after(self.place, norm3, x);
    }
}

type Cache<'a, P> = KvCache<'a, <P as Precision>::Cached>;

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
        let attention = cross_attention::<P>(model, layer);
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
    let (x, normed) = (carver.take(d_model), carver.take(d_model));
    let work = carver.take_rest();
    if position == 0 {
        start_rotation(rotation);
    }
    Embedding::<P>::target(model).forward(id, position, rotation, x);
    rotate(rotation, model.pairs(Slot::Frequencies));

    let (mut cross, mut caches) = (Carver::new(cross), Carver::new(caches));
    let mut step = Step { position, source_len, x, normed, work };
    for layer in 0..config.decoder.n_layers {
        let cross = take_cache::<P>(&mut cross, plan.limits.source_len.into(), d_model);
        let mut cache = take_cache::<P>(&mut caches, plan.limits.target_len.into(), d_model);
        let layer = DecoderLayer::<P>::new(model, layer);
        layer.forward(&mut step, &mut cache, &cross);
        layer.feed_forward(&mut step, config.decoder.d_ff.into());
    }
    let Step { x, .. } = step;
    if config.final_norm {
        Norm::<P>::new(model, Slot::DecoderNorm, ActivationSlot::DecoderFinal).forward_in_place(x);
    }
    project_logits::<P>(model, x, sink);
}

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
