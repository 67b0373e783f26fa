//! The decoder: one id -> hidden `[d_model]`, over the keys and values of all positions before, part by
//! part of a layer, so that a caller may stop in between; and the output: hidden -> logits.

use core::ops::Range;

use model_format::Model;
use model_format::directory::Slot;

use crate::align::Align;
use crate::arena::Carver;
use crate::budget::{Budget, Costs, Cursor, Part};
use crate::decoder_layer::{Cache, DecoderLayer, Step};
use crate::layers::{Embedding, KvCache, rotate, start_rotation};
use crate::plan::{Plan, padded, rotation_len};
use crate::precision::Precision;
use crate::profile::{self, Operator};

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

/// What the output projection works on.
pub(crate) struct OutputInput<'a, P: Precision> {
    /// What it reads, `[d_model]`.
    pub hidden: &'a [P::Activation],
    /// What products need.
    pub inputs: &'a mut [u8],
    /// What a search has.
    pub search: &'a mut [u8],
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
            step: Step { position, source_len, x: carver.take(d_model), work: carver.take_rest() },
        }
    }

    /// Embeds `id`. Positions come one after the other, from 0 on; `moves` for the first beam of each.
    #[inline(never)]
    pub fn embed(&mut self, model: &Model<'_>, id: u16, moves: bool) {
        match self.step.position {
            _ if !moves => (),
            0 => start_rotation(self.rotation),
            _ => profile::run(Operator::Positions, || {
                rotate(self.rotation, model.pairs(Slot::Frequencies));
            }),
        }
        let embedding = Embedding::<P>::target(model);
        embedding.forward(id, self.step.position, self.rotation, self.step.x);
    }

    /// What the output projection reads once all layers are done.
    pub fn into_output(self) -> OutputInput<'a, P> {
        OutputInput { hidden: self.step.x, inputs: self.step.work, search: self.search }
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
/// whether they are stored. `memory` is `[len, d_model]`, `low` what lies below it.
pub(crate) fn remember_memory<P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    cursor: &mut Cursor,
    budget: &mut impl Budget,
    memory: &[P::Activation],
    low: &mut [u8],
) -> bool {
    let mut carver = Carver::new(low);
    let (cross, inputs) = (carver.take(plan.cross), carver.take_rest());
    let d_model = usize::from(model.config().d_model);
    let len = memory.len().checked_div(d_model).unwrap_or(0);
    while cursor.layer < model.config().decoder.n_layers {
        let layer = DecoderLayer { model, layer: cursor.layer };
        let place = (usize::from(cursor.layer), d_model);
        let mut cache = layer_cache::<P>(cross, place, plan.limits.source_len.into());
        let units = (len, Costs::of(model.config()).remember());
        let run = |range| layer.remember::<P>(memory, range, &mut cache, inputs);
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

/// Pushes the logits of these rows of the output into `sink`, ids ascending, some from an id on.
#[inline(never)]
pub(crate) fn project_logits<P: Precision>(
    model: &Model<'_>,
    (hidden, inputs): (&[P::Activation], &mut [u8]),
    rows: Range<usize>,
    mut sink: impl FnMut(u16, &[P::Logit]),
) {
    let slot = match model.config().output.is_tied() {
        true => Slot::TargetEmbedding,
        false => Slot::Output,
    };
    let input = P::input(hidden, [1, model.config().d_model.into()], inputs);
    let linear = P::linear(model, slot);
    profile::run(Operator::Logits, || {
        P::project_logits(&linear, rows, &input, |row, logits| sink(row as u16, logits));
    });
}
