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
use crate::rows::{chunks, rows_mut, rows_of, tokens_of};
use layer::{Attention, Cache, Layer, Stack, Tokens};

/// What a stack works on.
pub(crate) struct Run<'a, P: Precision> {
    /// Positions of `x`: of the encoder all of the source, of the decoder that of the step.
    pub positions: Range<usize>,
    /// Positions of `memory`; decoder only.
    pub source_len: usize,
    /// The stream, `[positions, d_model]`.
    pub x: &'a mut [P::Activation],
    /// Keys and values of all layers, which a decoder keeps; an encoder has those of one layer in `work`.
    pub kept: Option<Caches<'a>>,
    /// The rest of the arena.
    pub work: &'a mut [u8],
}

/// Keys and values of all decoder layers.
pub(crate) struct Caches<'a> {
    /// Of cross-attention.
    pub cross: &'a mut [u8],
    /// Of self-attention, from those of the beam on.
    pub own: &'a mut [u8],
}

impl<P: Precision> Run<'_, P> {
    fn stack(&self) -> Stack {
        match self.kept {
            Some(_) => Stack::Decoder,
            None => Stack::Encoder,
        }
    }

    /// Runs the layers from `cursor` on as far as `budget` goes; whether they are done.
    pub fn advance(
        &mut self,
        (model, plan): (&Model<'_>, &Plan),
        cursor: &mut Cursor,
        budget: &mut impl Budget,
        align: &mut impl Align<P>,
    ) -> bool {
        let (config, stack) = (model.config(), self.stack());
        let costs = Costs::of(config);
        let (layers, attended) = match stack {
            Stack::Encoder => (&config.encoder, Part::FeedForward),
            Stack::Decoder if config.has_cross_attention() => (&config.decoder, Part::AttendMemory),
            Stack::Decoder => (&config.decoder, Part::FeedForward),
        };
        while cursor.layer < layers.n_layers {
            let layer = Layer { model, stack, layer: cursor.layer };
            let (cost, next) = match cursor.part {
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
    #[inline(never)]
    fn run(
        &mut self,
        layer: Layer<'_, '_>,
        plan: &Plan,
        (part, units): (Part, Range<usize>),
        align: &mut impl Align<P>,
    ) {
        let d_model = usize::from(layer.model.config().d_model);
        let [source, target] = plan.limits.lengths();
        let rows = if self.kept.is_some() { 1 } else { source };
        let mut carver = Carver::new(self.work);
        let (mut queries, mut cache) = (&mut [][..], Cache::<P> { keys: &mut [], values: &mut [] });
        let (attention, seen) = match part {
            Part::AttendMemory => (Attention::ToMemory, self.source_len),
            _ => (Attention::ToSelf, self.positions.end),
        };
        if part != Part::FeedForward {
            queries = carver.take(rows.saturating_mul(d_model));
            let place = (usize::from(layer.layer), d_model);
            cache = match (&mut self.kept, attention) {
                (None, _) => cache_from::<P>(&mut carver, (source, d_model)),
                (Some(caches), Attention::ToSelf) => layer_cache::<P>(caches.own, place, target),
                (Some(caches), Attention::ToMemory) => {
                    layer_cache::<P>(caches.cross, place, source)
                }
            };
        }
        let work = carver.take_rest();
        for chunk in chunks(units, group_len(P::TOKENS, rows)) {
            let mut tokens = Tokens {
                position: self.positions.start.saturating_add(chunk.start),
                len: tokens_of(&chunk),
                x: rows_mut(self.x, &chunk, d_model),
                queries: rows_mut(queries, &chunk, d_model),
                work: &mut *work,
            };
            match part {
                Part::Project => layer.project(attention, &mut tokens, Some(&mut cache)),
                Part::Attend => layer.attend(attention, &mut tokens, (&cache, seen), align),
                Part::AttendMemory => {
                    layer.project(attention, &mut tokens, None);
                    layer.attend(attention, &mut tokens, (&cache, seen), align);
                }
                Part::FeedForward => layer.feed_forward(&mut tokens),
            }
        }
    }
}

/// Cross keys and values of every layer, once per source, from `cursor` on as far as `budget` goes;
/// whether they are stored. `memory` is `[len, d_model]`, `low` what lies below it.
pub(crate) fn remember_memory<P: Precision>(
    (model, plan): (&Model<'_>, &Plan),
    cursor: &mut Cursor,
    budget: &mut impl Budget,
    (memory, len): (&[P::Activation], usize),
    low: &mut [u8],
) -> bool {
    let mut carver = Carver::new(low);
    let (cross, inputs) = (carver.take_bytes(plan.cross), carver.take_rest());
    let source = usize::from(plan.limits.source_len);
    while cursor.layer < model.config().decoder.n_layers {
        let layer = Layer { model, stack: Stack::Decoder, layer: cursor.layer };
        let place = (usize::from(cursor.layer), model.config().d_model.into());
        let mut cache = layer_cache::<P>(cross, place, source);
        let units = (len, Costs::of(model.config()).remember());
        let run = |positions: Range<usize>| {
            for chunk in chunks(positions, group_len(P::TOKENS, source)) {
                let rows = rows_of(memory, &chunk, model.config().d_model.into());
                let tokens = (rows, tokens_of(&chunk), chunk.start);
                layer.remember::<P>(tokens, &mut cache, inputs);
            }
        };
        if !cursor.advance(budget, units, run) {
            return false;
        }
        cursor.next(Part::Project);
    }
    true
}

/// Keys and values of one layer, in those of all layers.
fn layer_cache<P: Precision>(
    caches: &mut [u8],
    (layer, d_model): (usize, usize),
    capacity: usize,
) -> Cache<'_, P> {
    let len = capacity.saturating_mul(d_model);
    let layer_len = padded(len.saturating_mul(size_of::<P::Cached>())).saturating_mul(2);
    let caches = caches.get_mut(layer.saturating_mul(layer_len)..).unwrap_or_default();
    cache_from::<P>(&mut Carver::new(caches), (capacity, d_model))
}

/// Keys and values of `[capacity, d_model]` each.
fn cache_from<'a, P: Precision>(
    carver: &mut Carver<'a>,
    (capacity, d_model): (usize, usize),
) -> Cache<'a, P> {
    let len = capacity.saturating_mul(d_model);
    KvCache { keys: carver.take(len), values: carver.take(len) }
}
