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
struct EncoderLayer<'m, P: Precision> {
    place: NormPlace,
    norm1: Norm<'m, P>,
    attention: Attention<'m, P>,
    norm2: Norm<'m, P>,
    feed_forward: FeedForward<'m, P>,
}

impl<'m, P: Precision> EncoderLayer<'m, P> {
    fn new(model: &Model<'m>, layer: u16) -> Self {
        use {EncoderActivation as A, EncoderSlot as S};
        let config = model.config();
        let slot = |s| Slot::Encoder(layer, s);
        let activation = |a| ActivationSlot::Encoder(layer, a);
        let shape = HeadShape { n_heads: config.encoder.n_heads.into(), d_k: config.encoder_d_k() };
        let attention = AttentionSlots {
            linear: [S::Query, S::Key, S::Value, S::Output].map(slot),
            heads: slot(S::Heads),
            query: activation(A::Query),
            context: activation(A::Context),
            stream: ActivationSlot::encoder_stream(config, layer),
            sum: activation(A::Sum1),
        };
        let middle = match config.norm {
            NormPlace::Pre => activation(A::Sum1),
            NormPlace::Post => activation(A::Norm1),
        };
        Self {
            place: config.norm,
            norm1: Norm::new(model, slot(S::Norm1), activation(A::Norm1)),
            attention: Attention::new(model, &attention, shape),
            norm2: Norm::new(model, slot(S::Norm2), activation(A::Norm2)),
            feed_forward: FeedForward::new(
                model,
                [S::Linear1, S::Linear2].map(slot),
                activation(A::Hidden),
                [middle, activation(A::Sum2)],
            ),
        }
    }

    /// `stream` is `[len, d_model]`; `scratch` holds what the plan counted for one phase.
    fn forward(&self, stream: &mut [P::Activation], shape: Shape, scratch: &mut [u8]) {
        self.attend(stream, shape, scratch);
        let Shape { d_model, d_ff, .. } = shape;
        let mut carver = Carver::new(scratch);
        let normed = carver.take::<P::Activation>(d_model);
        let hidden = carver.take::<P::Activation>(d_ff);
        for x in stream.chunks_exact_mut(d_model.max(1)) {
            match self.place {
                NormPlace::Pre => {
                    self.norm2.forward(x, normed);
                    self.feed_forward.forward(normed, hidden, x);
                }
                NormPlace::Post => {
                    normed.copy_from(x);
                    self.feed_forward.forward(normed, hidden, x);
                    self.norm2.forward_in_place(x);
                }
            }
        }
    }

    fn attend(&self, stream: &mut [P::Activation], shape: Shape, scratch: &mut [u8]) {
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
            let x = match self.place {
                NormPlace::Pre => {
                    self.norm1.forward(x, normed);
                    &*normed
                }
                NormPlace::Post => x,
            };
            self.attention.query(x, query);
            self.attention.remember(x, position, &mut cache);
        }
        let mut rows = queries.chunks_exact(d_model.max(1));
        for x in stream.chunks_exact_mut(d_model.max(1)) {
            let query = rows.next().unwrap_or_default();
            self.attention.attend(query, &cache, len, &mut scratch, normed, x);
            if self.place == NormPlace::Post {
                self.norm1.forward_in_place(x);
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
        EncoderLayer::<P>::new(model, layer).forward(stream, shape, scratch);
    }
    if config.final_norm {
        let norm = Norm::<P>::new(model, Slot::EncoderNorm, ActivationSlot::Memory);
        for x in stream.chunks_exact_mut(d_model.max(1)) {
            norm.forward_in_place(x);
        }
    }
}

/// Embeds `ids`; how many there were.
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
