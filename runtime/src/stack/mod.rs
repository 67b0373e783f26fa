//! A stack of layers, part by part, so that a caller may stop in between; and what it works on.

mod layer;

use core::ops::Range;

use model_format::Model;

use crate::align::Align;
use crate::arena::Carver;
use crate::budget::{Budget, Costs, Cursor, Part};
use crate::layers::KvCache;
use crate::plan::{Plan, group_len, padded};
use crate::precision::Precision;
use crate::slices::{chunks, rows_mut, tokens_of};
use layer::{Attention, Cache, Layer, Stack, Tokens};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// The encoder's layers, on all positions of the source.
    Encode,
    /// Cross keys and values of every decoder layer, once per source.
    Remember,
    /// The decoder's layers, on the position of the step.
    Decode,
}

/// What a stack works on.
pub(crate) struct Run<'a, P: Precision> {
    pub task: Task,
    /// Positions of `x`.
    pub positions: Range<usize>,
    /// Positions of `memory`; of the decoder alone.
    pub source_len: usize,
    /// The stream, or `memory`, `[positions, d_model]`.
    pub x: &'a mut [P::Activation],
    /// Cross keys and values of all decoder layers.
    pub cross: &'a mut [u8],
    /// Keys and values of self-attention of all decoder layers, from those of the beam on; an encoder has
    /// those of one layer in `work`.
    pub caches: &'a mut [u8],
    /// The rest of the arena.
    pub work: &'a mut [u8],
}

impl<P: Precision> Run<'_, P> {
    /// Runs the layers from `cursor` on as far as `budget` goes; whether they are done.
    pub fn advance(
        &mut self,
        (model, plan): (&Model<'_>, &Plan),
        cursor: &mut Cursor,
        budget: &mut impl Budget,
        align: &mut impl Align<P>,
    ) -> bool {
        let config = model.config();
        let costs = Costs::of(config);
        let (stack, layers) = match self.task {
            Task::Encode => (Stack::Encoder, &config.encoder),
            Task::Remember | Task::Decode => (Stack::Decoder, &config.decoder),
        };
        let attended = match stack == Stack::Decoder && config.has_cross_attention() {
            true => Part::AttendMemory,
            false => Part::FeedForward,
        };
        while cursor.layer < layers.n_layers {
            let layer = Layer { model, stack, layer: cursor.layer };
            let (cost, next) = match cursor.part {
                Part::Project if self.task == Task::Remember => (costs.remember(), Part::Project),
                Part::Project => (costs.project(), Part::Attend),
                Part::Attend => (costs.attend(self.positions.end), attended),
                Part::AttendMemory => (costs.attend_memory(self.source_len), Part::FeedForward),
                Part::FeedForward => (costs.feed_forward(layers), Part::Project),
            };
            let (part, units) = (cursor.part, tokens_of(&self.positions));
            let run = |units| self.run(layer, plan, (part, units), align);
            if !cursor.advance(budget, (units, cost), run) {
                return false;
            }
            cursor.next(next);
        }
        true
    }

    /// One part of a layer for these of the tokens.
    #[inline(always)]
    fn run(
        &mut self,
        layer: Layer<'_, '_>,
        plan: &Plan,
        (part, units): (Part, Range<usize>),
        align: &mut impl Align<P>,
    ) {
        let d_model = usize::from(layer.model.config().d_model);
        let rows = self.rows(plan);
        let (task, first, end) = (self.task, self.positions.start, self.positions.end);
        let source_len = self.source_len;
        let (x, Buffers { queries, mut cache, work }) = self.carve(layer, plan, part);
        for chunk in chunks(units, group_len(P::TOKENS, rows)) {
            let mut tokens = Tokens {
                position: first.wrapping_add(chunk.start),
                len: tokens_of(&chunk),
                x: rows_mut(x, &chunk, d_model),
                queries: rows_mut(queries, &chunk, d_model),
                work: &mut *work,
            };
            use Attention::{ToMemory, ToSelf};
            match part {
                Part::Project if task == Task::Remember => layer.remember(&mut tokens, &mut cache),
                Part::Project => layer.project(ToSelf, &mut tokens, Some(&mut cache)),
                Part::Attend => layer.attend(ToSelf, &mut tokens, (&cache, end), align),
                Part::AttendMemory => {
                    layer.project(ToMemory, &mut tokens, None);
                    layer.attend(ToMemory, &mut tokens, (&cache, source_len), align);
                }
                Part::FeedForward => layer.feed_forward(&mut tokens),
            }
        }
    }

    /// Rows that a part works on at most.
    fn rows(&self, plan: &Plan) -> usize {
        match self.task {
            Task::Decode => 1,
            Task::Encode | Task::Remember => plan.limits.source_len.into(),
        }
    }

    /// The stream, and what a part of a layer has besides.
    #[inline(always)]
    fn carve(
        &mut self,
        layer: Layer<'_, '_>,
        plan: &Plan,
        part: Part,
    ) -> (&mut [P::Activation], Buffers<'_, P>) {
        let d_model = usize::from(layer.model.config().d_model);
        let [source, target] = plan.limits.lengths();
        let place = (usize::from(layer.layer), d_model);
        let rows = self.rows(plan);
        let mut carver = Carver::new(self.work);
        let mut queries = &mut [][..];
        if part != Part::FeedForward && self.task != Task::Remember {
            queries = carver.take(rows.wrapping_mul(d_model));
        }
        let cache = match (part, self.task) {
            (Part::FeedForward, _) => KvCache { keys: &mut [], values: &mut [] },
            (_, Task::Encode) => cache_from::<P>(&mut carver, (source, d_model)),
            (_, Task::Remember) | (Part::AttendMemory, _) => {
                layer_cache::<P>(self.cross, place, source)
            }
            (_, Task::Decode) => layer_cache::<P>(self.caches, place, target),
        };
        (self.x, Buffers { queries, cache, work: carver.take_rest() })
    }
}

/// What a part of a layer has besides the stream.
struct Buffers<'a, P: Precision> {
    /// Queries, which become contexts, `[rows, d_model]`; empty where there is no attention.
    queries: &'a mut [P::Activation],
    /// Keys and values of the layer, of self- or of cross-attention; empty in feed-forward.
    cache: Cache<'a, P>,
    /// What is left.
    work: &'a mut [u8],
}

/// Keys and values of one layer, in those of all layers.
fn layer_cache<P: Precision>(
    caches: &mut [u8],
    (layer, d_model): (usize, usize),
    capacity: usize,
) -> Cache<'_, P> {
    let len = capacity.wrapping_mul(d_model);
    let layer_len = padded(len.wrapping_mul(size_of::<P::Cached>())).wrapping_mul(2);
    let caches = caches.get_mut(layer.wrapping_mul(layer_len)..).unwrap_or_default();
    cache_from::<P>(&mut Carver::new(caches), (capacity, d_model))
}

/// Keys and values of `[capacity, d_model]` each.
fn cache_from<'a, P: Precision>(
    carver: &mut Carver<'a>,
    (capacity, d_model): (usize, usize),
) -> Cache<'a, P> {
    let len = capacity.wrapping_mul(d_model);
    KvCache { keys: carver.take(len), values: carver.take(len) }
}
