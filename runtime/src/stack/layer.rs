//! The parts of one layer of either stack, on some tokens: all of a source in groups in the encoder, the
//! one of the step in the decoder.

use core::ops::Range;

use model_format::Model;
use model_format::config::{NormPlace, StackConfig};
use model_format::directory::{DecoderSlot, EncoderSlot, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation, EncoderActivation};

use crate::align::Align;
use crate::arena::Carver;
use crate::layers::{
    AttentionSlots, FeedForward, HeadShape, KeyValueProjection, KvCache, MultiHead, Norm,
    QueryProjection,
};
use crate::precision::{AttentionScratch, Precision};
use crate::rows::{chunks, rows_mut, rows_of, tokens_of};

/// Which layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stack {
    Encoder,
    Decoder,
}

/// What an attention attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// The stack's own positions.
    ToSelf,
    /// `memory`; in decoders alone.
    ToMemory,
}

/// One layer.
///
/// The constants of a sublayer are read when it runs and dropped after it: those of a whole layer
/// would fill the stack.
#[derive(Clone, Copy)]
pub(super) struct Layer<'x, 'm> {
    pub model: &'x Model<'m>,
    pub stack: Stack,
    pub layer: u16,
}

/// The tokens that a part of a layer works on.
pub(super) struct Tokens<'a, P: Precision> {
    /// Position of the first.
    pub position: usize,
    /// How many.
    pub len: usize,
    /// Of those, how many products take together.
    pub group: usize,
    /// The stream, `[len, d_model]`.
    pub x: &'a mut [P::Activation],
    /// Queries, which become contexts: `[len, d_model]`; empty in feed-forward.
    pub queries: &'a mut [P::Activation],
    /// What is hidden; norms, scores, probabilities and what products need, none of which outlives its
    /// sublayer.
    pub work: &'a mut [u8],
}

pub(super) type Cache<'a, P> = KvCache<'a, <P as Precision>::Cached>;

impl<'m> Layer<'_, 'm> {
    fn d_model(self) -> usize {
        self.model.config().d_model.into()
    }

    /// The configuration of its stack.
    fn config(self) -> StackConfig {
        let config = self.model.config();
        match self.stack {
            Stack::Encoder => config.encoder,
            Stack::Decoder => config.decoder,
        }
    }

    fn slot(self, encoder: EncoderSlot, decoder: DecoderSlot) -> Slot {
        match self.stack {
            Stack::Encoder => Slot::Encoder(self.layer, encoder),
            Stack::Decoder => Slot::Decoder(self.layer, decoder),
        }
    }

    fn activation(self, encoder: EncoderActivation, decoder: DecoderActivation) -> ActivationSlot {
        match self.stack {
            Stack::Encoder => ActivationSlot::Encoder(self.layer, encoder),
            Stack::Decoder => ActivationSlot::Decoder(self.layer, decoder),
        }
    }

    #[inline(never)]
    fn attention(self, attention: Attention) -> AttentionSlots {
        use {
            DecoderActivation as DA, DecoderSlot as D, EncoderActivation as EA, EncoderSlot as E,
        };
        if attention == Attention::ToMemory {
            let slot = |slot| Slot::Decoder(self.layer, slot);
            let activation = |activation| ActivationSlot::Decoder(self.layer, activation);
            return AttentionSlots {
                norm: slot(D::Norm2),
                linear: [D::CrossQuery, D::CrossKey, D::CrossValue, D::CrossOutput].map(slot),
                heads: slot(D::CrossHeads),
                normed: activation(DA::Norm2),
                query: activation(DA::CrossQuery),
                context: activation(DA::CrossContext),
                sum: activation(DA::Sum2),
            };
        }
        AttentionSlots {
            norm: self.slot(E::Norm1, D::Norm1),
            linear: [
                self.slot(E::Query, D::Query),
                self.slot(E::Key, D::Key),
                self.slot(E::Value, D::Value),
                self.slot(E::Output, D::Output),
            ],
            heads: self.slot(E::Heads, D::Heads),
            normed: self.activation(EA::Norm1, DA::Norm1),
            query: self.activation(EA::Query, DA::Query),
            context: self.activation(EA::Context, DA::Context),
            sum: self.activation(EA::Sum1, DA::Sum1),
        }
    }

    /// Queries of these tokens, and their keys and values where there is a cache for them.
    #[inline(never)]
    pub fn project<P: Precision>(
        self,
        attention: Attention,
        tokens: &mut Tokens<'_, P>,
        mut cache: Option<&mut Cache<'_, P>>,
    ) {
        let slots = self.attention(attention);
        let norm = Norm::<P>::new(self.model, slots.norm, slots.normed);
        let query = QueryProjection::<P>::new(self.model, &slots);
        let key_value = KeyValueProjection::<P>::new(self.model, &slots);
        let (d_model, place) = (self.d_model(), self.model.config().norm);
        let Tokens { position, len, group, x, queries, work } = tokens;
        for chunk in chunks(0..*len, *group) {
            let x = rows_of(x, &chunk, d_model);
            let (x, inputs) = norm.before(place, (x, d_model), work);
            let input = P::input(x, [tokens_of(&chunk), d_model], inputs);
            let to = rows_mut(queries, &chunk, d_model);
            if let Some(cache) = &mut cache {
                key_value.remember(&input, position.saturating_add(chunk.start), cache, to);
            }
            query.forward(&input, to);
        }
    }

    /// Attention of these tokens' queries to the first `seen` positions of `cache`.
    #[inline(never)]
    pub fn attend<P: Precision>(
        self,
        attention: Attention,
        tokens: &mut Tokens<'_, P>,
        (cache, seen): (&Cache<'_, P>, usize),
        align: &mut impl Align<P>,
    ) {
        let slots = self.attention(attention);
        let norm = Norm::<P>::new(self.model, slots.norm, slots.normed);
        let d_model = self.d_model();
        let n_heads = usize::from(self.config().n_heads);
        let shape = HeadShape { n_heads, d_k: d_model.checked_div(n_heads).unwrap_or(0) };
        let attention = MultiHead::<P>::new(self.model, &slots, shape);
        let Tokens { len, group, x, queries, work, .. } = tokens;
        for chunk in chunks(0..*len, *group) {
            let contexts = rows_mut(queries, &chunk, d_model);
            let mut scratch = AttentionScratch::carve(work, seen);
            for query in contexts.chunks_exact_mut(d_model.max(1)) {
                attention.attend(query, (cache, seen), &mut scratch, |head, scratch| {
                    align.head(self.layer, head, scratch);
                });
            }
            let x = rows_mut(x, &chunk, d_model);
            attention.output(&P::input(contexts, [tokens_of(&chunk), d_model], work), x);
            self.after(&norm, x);
        }
    }

    /// The feed-forward sublayer of these tokens, and the norm after the last layer.
    #[inline(never)]
    pub fn feed_forward<P: Precision>(self, tokens: &mut Tokens<'_, P>) {
        use {
            DecoderActivation as DA, DecoderSlot as D, EncoderActivation as EA, EncoderSlot as E,
        };
        let norm = Norm::<P>::new(
            self.model,
            self.slot(E::Norm2, D::Norm3),
            self.activation(EA::Norm2, DA::Norm3),
        );
        let stack = self.config();
        let feed_forward = FeedForward::<P>::new(
            self.model,
            &stack,
            [self.slot(E::Linear1, D::Linear1), self.slot(E::Linear2, D::Linear2)],
            [self.activation(EA::Hidden, DA::Hidden), self.activation(EA::Sum2, DA::Sum3)],
        );
        let (d_model, place) = (self.d_model(), self.model.config().norm);
        let Tokens { len, group, x, work, .. } = tokens;
        let mut carver = Carver::new(work);
        let hidden = carver.take::<P::Activation>((*group).saturating_mul(stack.d_ff.into()));
        let work = carver.take_rest();
        for chunk in chunks(0..*len, *group) {
            let x = rows_mut(x, &chunk, d_model);
            let (input, inputs) = norm.before(place, (x, d_model), work);
            feed_forward.hidden((input, tokens_of(&chunk)), hidden, inputs);
            feed_forward.add((hidden, tokens_of(&chunk)), x, work);
            self.after(&norm, x);
        }
        self.final_norm::<P>(x);
    }

    /// Cross keys and values of these positions of `memory`; `inputs` is what products need.
    #[inline(never)]
    pub fn remember<P: Precision>(
        self,
        memory: &[P::Activation],
        positions: Range<usize>,
        (cache, group): (&mut Cache<'_, P>, usize),
        inputs: &mut [u8],
    ) {
        let slots = self.attention(Attention::ToMemory);
        let key_value = KeyValueProjection::<P>::new(self.model, &slots);
        let d_model = self.d_model();
        for chunk in chunks(positions, group) {
            let input =
                P::input(rows_of(memory, &chunk, d_model), [tokens_of(&chunk), d_model], inputs);
            key_value.remember(&input, chunk.start, cache, &mut []);
        }
    }

    /// The norm of a sublayer that comes after it.
    fn after<P: Precision>(self, norm: &Norm<'_, P>, x: &mut [P::Activation]) {
        if self.model.config().norm == NormPlace::Post {
            norm.forward_all_in_place(x, self.d_model());
        }
    }

    /// The norm after the last layer, where there is one.
    fn final_norm<P: Precision>(self, x: &mut [P::Activation]) {
        if !self.model.config().final_norm || self.layer.saturating_add(1) != self.config().n_layers
        {
            return;
        }
        let (slot, output) = match self.stack {
            Stack::Encoder => (Slot::EncoderNorm, ActivationSlot::Memory),
            Stack::Decoder => (Slot::DecoderNorm, ActivationSlot::DecoderFinal),
        };
        Norm::<P>::new(self.model, slot, output).forward_all_in_place(x, self.d_model());
    }
}
