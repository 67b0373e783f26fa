//! The parts of one layer of either stack, on as many tokens as products take together: in the decoder
//! the one of the step.

use model_format::Model;
use model_format::config::{NormPlace, StackConfig};
use model_format::directory::{DecoderSlot, EncoderSlot, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation, EncoderActivation};

use crate::align::Align;
use crate::arena::Carver;
use crate::layers::{
    AttentionSlots, FeedForwardSlots, HeadShape, KvCache, MultiHead, NormSlots, feed_forward,
    norm_before, norm_in_place, project_output, project_query, remember,
};
use crate::precision::{AttentionScratch, Precision};

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
    /// The stream, `[len, d_model]`.
    pub x: &'a mut [P::Activation],
    /// Queries, which become contexts: `[len, d_model]`; empty where there is no attention yet.
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
                norm: (slot(D::Norm2), activation(DA::Norm2)),
                linear: [D::CrossQuery, D::CrossKey, D::CrossValue, D::CrossOutput].map(slot),
                heads: slot(D::CrossHeads),
                query: activation(DA::CrossQuery),
                context: activation(DA::CrossContext),
                sum: activation(DA::Sum2),
            };
        }
        AttentionSlots {
            norm: (self.slot(E::Norm1, D::Norm1), self.activation(EA::Norm1, DA::Norm1)),
            linear: [
                self.slot(E::Query, D::Query),
                self.slot(E::Key, D::Key),
                self.slot(E::Value, D::Value),
                self.slot(E::Output, D::Output),
            ],
            heads: self.slot(E::Heads, D::Heads),
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
        cache: Option<&mut Cache<'_, P>>,
    ) {
        let slots = self.attention(attention);
        let (model, d_model) = (self.model, self.d_model());
        let Tokens { position, len, x, queries, work } = tokens;
        let (x, inputs) = norm_before::<P>(model, slots.norm, x, work);
        let input = P::input(x, [*len, d_model], inputs);
        if let Some(cache) = cache {
            remember::<P>(model, &slots, (&input, *position), cache, queries);
        }
        project_query::<P>(model, &slots, &input, queries);
    }

    /// Attention of these tokens' queries to the first `seen` positions of `cache`.
    #[inline(never)]
    pub fn attend<P: Precision, A: Align<P>>(
        self,
        attention: Attention,
        tokens: &mut Tokens<'_, P>,
        (cache, seen): (&Cache<'_, P>, usize),
        align: &mut A,
    ) {
        let slots = self.attention(attention);
        let d_model = self.d_model();
        let n_heads = usize::from(self.config().n_heads);
        let d_k = match self.stack {
            Stack::Encoder => self.model.config().encoder_d_k(),
            Stack::Decoder => self.model.config().decoder_d_k(),
        };
        let shape = HeadShape { n_heads, d_k };
        let heads = MultiHead::<P>::new(self.model, &slots, shape);
        let Tokens { len, x, queries, work, .. } = tokens;
        let mut scratch = AttentionScratch::carve(work, seen);
        for query in queries.chunks_exact_mut(d_model.max(1)) {
            let cache = (cache, seen);
            if A::SEES && attention == Attention::ToMemory {
                heads.attend_seen(query, cache, &mut scratch, |head, scratch| {
                    align.head(self.layer, head, scratch);
                });
            } else {
                heads.attend(query, cache, &mut scratch);
            }
        }
        let contexts = P::input(queries, [*len, d_model], work);
        project_output::<P>(self.model, &slots, &contexts, x);
        self.after::<P>(slots.norm, x);
    }

    /// The feed-forward sublayer of these tokens, and the norm after the last layer.
    #[inline(never)]
    pub fn feed_forward<P: Precision>(self, tokens: &mut Tokens<'_, P>) {
        use {
            DecoderActivation as DA, DecoderSlot as D, EncoderActivation as EA, EncoderSlot as E,
        };
        let norm = (self.slot(E::Norm2, D::Norm3), self.activation(EA::Norm2, DA::Norm3));
        let slots = FeedForwardSlots {
            linear: [self.slot(E::Linear1, D::Linear1), self.slot(E::Linear2, D::Linear2)],
            hidden: self.activation(EA::Hidden, DA::Hidden),
            sum: self.activation(EA::Sum2, DA::Sum3),
        };
        let (model, d_model) = (self.model, self.d_model());
        let d_ff = usize::from(self.config().d_ff);
        let Tokens { len, x, work, .. } = tokens;
        let mut carver = Carver::new(work);
        let hidden = carver.take::<P::Activation>((*len).wrapping_mul(d_ff));
        let work = carver.take_rest();
        let (input, inputs) = norm_before::<P>(model, norm, x, work);
        feed_forward::hidden::<P>(model, &slots, (input, [*len, d_model]), hidden, inputs);
        feed_forward::add::<P>(model, &slots, (hidden, [*len, d_ff]), x, work);
        self.after::<P>(norm, x);
        self.final_norm::<P>(x);
    }

    /// Cross keys and values of these tokens, rows of `memory`.
    #[inline(never)]
    pub fn remember<P: Precision>(self, tokens: &mut Tokens<'_, P>, cache: &mut Cache<'_, P>) {
        let slots = self.attention(Attention::ToMemory);
        let Tokens { position, len, x, work, .. } = tokens;
        let input = P::input(x, [*len, self.d_model()], work);
        remember::<P>(self.model, &slots, (&input, *position), cache, &mut []);
    }

    /// The norm of a sublayer that comes after it.
    fn after<P: Precision>(self, norm: NormSlots, x: &mut [P::Activation]) {
        if self.model.config().norm == NormPlace::Post {
            norm_in_place::<P>(self.model, norm, x);
        }
    }

    /// The norm after the last layer, where there is one.
    fn final_norm<P: Precision>(self, x: &mut [P::Activation]) {
        if !self.model.config().final_norm || self.layer.wrapping_add(1) != self.config().n_layers {
            return;
        }
        let norm = match self.stack {
            Stack::Encoder => (Slot::EncoderNorm, ActivationSlot::Memory),
            Stack::Decoder => (Slot::DecoderNorm, ActivationSlot::DecoderFinal),
        };
        norm_in_place::<P>(self.model, norm, x);
    }
}
