//! Around the decoder's layers: the embedding of one id before, the output after: hidden -> logits.

use core::ops::Range;

use model_format::Model;
use model_format::directory::Slot;

use crate::arena::Carver;
use crate::layers::{Embedding, rotate, start_rotation};
use crate::plan::{Plan, rotation_len};
use crate::precision::Precision;
use crate::profile::{self, Operator};
use crate::stack::{Run, Task};

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
    /// What the layers work on, over the keys and values of all positions before.
    pub run: Run<'a, P>,
    /// What a search has.
    search: &'a mut [u8],
    /// Sine and cosine of the position.
    rotation: &'a mut [[i32; 2]],
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
        let mut carver = Carver::new(arena);
        let cross = carver.take_bytes(plan.cross);
        let caches = carver.take_bytes(plan.caches());
        let search = carver.take_bytes(plan.search);
        let first = slot.wrapping_mul(plan.self_cache);
        Self {
            search,
            rotation: carver.take(rotation_len(model.config())),
            run: Run {
                task: Task::Decode,
                positions: position..position.wrapping_add(1),
                source_len,
                x: carver.take(model.config().d_model.into()),
                cross,
                caches: caches.get_mut(first..).unwrap_or_default(),
                work: carver.take_rest(),
            },
        }
    }

    /// Embeds `id`. Positions come one after the other, from 0 on; `moves` for the first beam of each.
    #[inline(never)]
    pub fn embed(self, model: &Model<'_>, id: u16, moves: bool) {
        let position = self.run.positions.start;
        match position {
            _ if !moves => (),
            0 => start_rotation(self.rotation),
            _ => profile::run(Operator::Positions, || {
                rotate(self.rotation, model.pairs(Slot::Frequencies));
            }),
        }
        Embedding::<P>::target(model).forward(id, position, self.rotation, self.run.x);
    }

    /// What the output projection reads once all layers are done.
    pub fn into_output(self) -> OutputInput<'a, P> {
        OutputInput { hidden: self.run.x, inputs: self.run.work, search: self.search }
    }
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
