//! The encoder: source ids -> `memory` `[source_len, d_model]`.

use model_format::Model;
use model_format::config::NormPlace;
use model_format::directory::{EncoderSlot, Slot};
use model_format::formats::{ActivationSlot, EncoderActivation};

use crate::arena::Carver;
use crate::layers::{
    Attention, AttentionSlots, Embedding, FeedForward, HeadShape, KvCache, Norm, rotate,
    start_rotation,
};
use crate::plan::rotation_len;
use crate::precision::{AttentionScratch, Precision};

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

    fn attention<P: Precision>(self) -> Attention<'m, P> {
        use {EncoderActivation as A, EncoderSlot as S};
        let config = self.model.config();
        let shape = HeadShape { n_heads: config.encoder.n_heads.into(), d_k: config.encoder_d_k() };
        let slots = AttentionSlots {
            linear: [S::Query, S::Key, S::Value, S::Output].map(|s| self.slot(s)),
            heads: self.slot(S::Heads),
            query: self.activation(A::Query),
            context: self.activation(A::Context),
            stream: ActivationSlot::encoder_stream(config, self.layer),
            sum: self.activation(A::Sum1),
        };
        Attention::new(self.model, &slots, shape)
    }

    /// `stream` is `[len, d_model]`; `scratch` holds what the plan counted for one phase.
    #[inline(never)]
    fn feed_forward<P: Precision>(
        self,
        stream: &mut [P::Activation],
        shape: Shape,
        scratch: &mut [u8],
    ) {
        use {EncoderActivation as A, EncoderSlot as S};
        let norm = self.norm::<P>(S::Norm2, A::Norm2);
        let middle = match self.place() {
            NormPlace::Pre => A::Sum1,
            NormPlace::Post => A::Norm1,
        };
        let feed_forward = FeedForward::<P>::new(
            self.model,
            [S::Linear1, S::Linear2].map(|s| self.slot(s)),
            self.activation(A::Hidden),
            [self.activation(middle), self.activation(A::Sum2)],
        );
        let Shape { d_model, d_ff, .. } = shape;
        let mut carver = Carver::new(scratch);
        let normed = carver.take::<P::Activation>(d_model);
        let hidden = carver.take::<P::Activation>(d_ff);
        for x in stream.chunks_exact_mut(d_model.max(1)) {
            match self.place() {
                NormPlace::Pre => {
                    norm.forward(x, normed);
                    feed_forward.forward(normed, hidden, x);
                }
                NormPlace::Post => {
                    normed.copy_from(x);
                    feed_forward.forward(normed, hidden, x);
                    norm.forward_in_place(x);
                }
            }
        }
    }

    /// As [`feed_forward`](Self::feed_forward).
    #[inline(never)]
    fn attend<P: Precision>(self, stream: &mut [P::Activation], shape: Shape, scratch: &mut [u8]) {
        let norm = self.norm::<P>(EncoderSlot::Norm1, EncoderActivation::Norm1);
        let attention = self.attention::<P>();
        let Shape { len, capacity, d_model, .. } = shape;
        let mut carver = Carver::new(scratch);
        let queries = carver.take::<P::Activation>(capacity.saturating_mul(d_model));
        let mut cache = KvCache {
            keys: carver.take::<P::Cached>(capacity.saturating_mul(d_model)),
            values: carver.take::<P::Cached>(capacity.saturating_mul(d_model)),
            capacity,
        };
        // The norm is dead once query, key and value are made: the context takes its place.
        let normed = carver.take::<P::Activation>(d_model);
        let mut scratch = AttentionScratch {
            scores: carver.take::<P::Score>(capacity),
            probabilities: carver.take::<P::Probability>(capacity),
        };
        // Not zipped: a zip of chunks divides by their length, which could panic for all it knows.
        let mut rows = queries.chunks_exact_mut(d_model.max(1));
        for (position, x) in stream.chunks_exact(d_model.max(1)).enumerate() {
            let query = rows.next().unwrap_or_default();
            let x = match self.place() {
                NormPlace::Pre => {
                    norm.forward(x, normed);
                    &*normed
                }
                NormPlace::Post => x,
            };
            attention.query(x, query);
            attention.remember(x, position, &mut cache);
        }
        let mut rows = queries.chunks_exact(d_model.max(1));
        for x in stream.chunks_exact_mut(d_model.max(1)) {
            let query = rows.next().unwrap_or_default();
            attention.attend(query, &cache, len, &mut scratch, normed, x);
            if self.place() == NormPlace::Post {
                norm.forward_in_place(x);
            }
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
struct Shape {
    /// Source positions of this run.
    len: usize,
    /// Source positions that the arena has room for.
    capacity: usize,
    d_model: usize,
    d_ff: usize,
}

/// Runs the encoder over `ids`, `len` of them: `memory` is `[capacity, d_model]`, its first `len`
/// rows written.
pub(crate) fn encode<P: Precision>(
    model: &Model<'_>,
    ids: impl Iterator<Item = u16>,
    capacity: usize,
    scratch: &mut [u8],
    memory: &mut [P::Activation],
) {
    let config = model.config();
    let d_model = usize::from(config.d_model);
    let len = embed::<P>(model, ids, scratch, memory);
    let shape = Shape { len, capacity, d_model, d_ff: config.encoder.d_ff.into() };
    let stream = memory.get_mut(..len.saturating_mul(d_model)).unwrap_or_default();
    for layer in 0..config.encoder.n_layers {
        let layer = EncoderLayer { model, layer };
        layer.attend::<P>(stream, shape, scratch);
        layer.feed_forward::<P>(stream, shape, scratch);
    }
    if config.final_norm {
        let norm = Norm::<P>::new(model, Slot::EncoderNorm, ActivationSlot::Memory);
        for x in stream.chunks_exact_mut(d_model.max(1)) {
            norm.forward_in_place(x);
        }
    }
}

/// Embeds `ids`; how many there were. On its own stack, which is gone when the layers run.
#[inline(never)]
fn embed<P: Precision>(
    model: &Model<'_>,
    ids: impl Iterator<Item = u16>,
    scratch: &mut [u8],
    memory: &mut [P::Activation],
) -> usize {
    let config = model.config();
    let rotation = Carver::new(scratch).take::<[i32; 2]>(rotation_len(config));
    let frequencies = model.pairs(Slot::Frequencies);
    start_rotation(rotation);
    let embedding = Embedding::<P>::source(model);
    let rows = memory.chunks_exact_mut(usize::from(config.d_model).max(1));
    let mut len = 0;
    for (id, out) in ids.zip(rows) {
        embedding.forward(id, len, rotation, out);
        rotate(rotation, frequencies);
        len += 1;
    }
    len
}
