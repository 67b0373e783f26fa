//! The parts of one decoder layer, at one position.

use core::ops::Range;

use model_format::Model;
use model_format::config::NormPlace;
use model_format::directory::{DecoderSlot, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation};

use crate::align::Align;
use crate::arena::Carver;
use crate::encoder::{chunks, rows_of, tokens_of};
use crate::layers::{
    AttentionSlots, FeedForward, HeadShape, KeyValueProjection, KvCache, MultiHead, Norm,
    QueryProjection,
};
use crate::plan::group_len;
use crate::precision::{AttentionScratch, Precision};

/// One decoder layer.
///
/// The constants of a sublayer are read when it runs and dropped after it: those of a whole layer
/// would fill the stack.
#[derive(Clone, Copy)]
pub(crate) struct DecoderLayer<'x, 'm> {
    pub model: &'x Model<'m>,
    pub layer: u16,
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
            sum: self.activation(A::Sum2),
        }
    }

    /// Query, key and value of the new position.
    #[inline(never)]
    pub fn project<P: Precision>(self, step: &mut Step<'_, P>, cache: &mut Cache<'_, P>) {
        let norm = self.norm::<P>(DecoderSlot::Norm1, DecoderActivation::Norm1);
        let query = QueryProjection::<P>::new(self.model, &self.self_attention());
        let key_value = KeyValueProjection::<P>::new(self.model, &self.self_attention());
        let Step { position, x, work, .. } = step;
        let (to, work) = query_and_work::<P>(work, x.len());
        let (input, inputs) = norm.before(self.place(), (x, x.len()), work);
        let input = P::input(input, [1, x.len()], inputs);
        key_value.remember(&input, *position, cache, to);
        query.forward(&input, to);
    }

    /// Attention to all positions so far.
    #[inline(never)]
    pub fn attend<P: Precision>(self, step: &mut Step<'_, P>, cache: &Cache<'_, P>) {
        let norm = self.norm::<P>(DecoderSlot::Norm1, DecoderActivation::Norm1);
        let attention = MultiHead::<P>::new(self.model, &self.self_attention(), self.heads());
        let Step { position, x, work, .. } = step;
        let (query, work) = query_and_work::<P>(work, x.len());
        let len = position.saturating_add(1);
        let mut scratch = AttentionScratch::carve(work, len);
        attention.attend(query, (cache, len), &mut scratch);
        attention.output(&P::input(query, [1, x.len()], work), x);
        after(self.place(), &norm, x);
    }

    /// Attention to `memory`.
    #[inline(never)]
    pub fn attend_memory<P: Precision, A: Align<P>>(
        self,
        step: &mut Step<'_, P>,
        cross: &Cache<'_, P>,
        align: &mut A,
    ) {
        let norm = self.norm::<P>(DecoderSlot::Norm2, DecoderActivation::Norm2);
        let projection = QueryProjection::<P>::new(self.model, &self.cross_attention());
        let attention = MultiHead::<P>::new(self.model, &self.cross_attention(), self.heads());
        let Step { source_len, x, work, .. } = step;
        let (query, work) = query_and_work::<P>(work, x.len());
        let (input, inputs) = norm.before(self.place(), (x, x.len()), work);
        projection.forward(&P::input(input, [1, x.len()], inputs), query);
        let mut scratch = AttentionScratch::carve(work, *source_len);
        let seen = |head, scratch: AttentionScratch<'_, P>| align.head(self.layer, head, scratch);
        let cross = (cross, *source_len);
        match A::SEES {
            true => attention.attend_seen(query, cross, &mut scratch, seen),
            false => attention.attend(query, cross, &mut scratch),
        }
        attention.output(&P::input(query, [1, x.len()], work), x);
        after(self.place(), &norm, x);
    }

    /// Cross keys and values of these positions of `memory`; `inputs` is what products need.
    #[inline(never)]
    pub fn remember<P: Precision>(
        self,
        memory: &[P::Activation],
        positions: Range<usize>,
        cache: &mut Cache<'_, P>,
        inputs: &mut [u8],
    ) {
        let key_value = KeyValueProjection::<P>::new(self.model, &self.cross_attention());
        let d_model = usize::from(self.model.config().d_model);
        for chunk in chunks(positions, group_len(P::TOKENS, cache.capacity)) {
            let input =
                P::input(rows_of(memory, &chunk, d_model), [tokens_of(&chunk), d_model], inputs);
            key_value.remember(&input, chunk.start, cache, &mut []);
        }
    }

    /// The norm after the last layer, where there is one.
    #[inline(never)]
    pub fn final_norm<P: Precision>(self, x: &mut [P::Activation]) {
        let config = self.model.config();
        if config.final_norm && self.layer.saturating_add(1) == config.decoder.n_layers {
            Norm::<P>::new(self.model, Slot::DecoderNorm, ActivationSlot::DecoderFinal)
                .forward_in_place(x);
        }
    }

    #[inline(never)]
    pub fn feed_forward<P: Precision>(self, step: &mut Step<'_, P>) {
        use {DecoderActivation as A, DecoderSlot as S};
        let norm = self.norm::<P>(S::Norm3, A::Norm3);
        let stack = &self.model.config().decoder;
        let feed_forward = FeedForward::<P>::new(
            self.model,
            stack,
            [S::Linear1, S::Linear2].map(|s| self.slot(s)),
            [A::Hidden, A::Sum3].map(|a| self.activation(a)),
        );
        let Step { x, work, .. } = step;
        let mut carver = Carver::new(work);
        let hidden = carver.take::<P::Activation>(stack.d_ff.into());
        let work = carver.take_rest();
        let (input, inputs) = norm.before(self.place(), (x, x.len()), work);
        feed_forward.hidden((input, 1), hidden, inputs);
        feed_forward.add((hidden, 1), x, work);
        after(self.place(), &norm, x);
    }
}

/// A query `[d_model]`, and what is left.
fn query_and_work<P: Precision>(
    work: &mut [u8],
    d_model: usize,
) -> (&mut [P::Activation], &mut [u8]) {
    let mut carver = Carver::new(work);
    (carver.take(d_model), carver.take_rest())
}

fn after<P: Precision>(place: NormPlace, norm: &Norm<'_, P>, x: &mut [P::Activation]) {
    if place == NormPlace::Post {
        norm.forward_in_place(x);
    }
}

pub(crate) type Cache<'a, P> = KvCache<'a, <P as Precision>::Cached>;

/// What a layer works on.
pub(crate) struct Step<'a, P: Precision> {
    pub position: usize,
    pub source_len: usize,
    /// The stream, `[d_model]`.
    pub x: &'a mut [P::Activation],
    /// The query, which becomes the context, or what is hidden; then norms, scores and probabilities
    /// and what products need, none of which outlives its sublayer.
    pub work: &'a mut [u8],
}
