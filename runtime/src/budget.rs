//! How much work is done before the caller is asked again.
//!
//! Work is counted in multiply-accumulates of matrix products: those of linear layers and of
//! attention. What goes along with them (embedding, LayerNorm, softmax, residual sums) is not counted.
//! A unit is never divided: one position through one [`Part`] of a layer, or four rows of the output.

use core::ops::Range;

use model_format::config::{ModelConfig, StackConfig};

use crate::plan::{Limits, max};

/// Multiply-accumulates that may still be done.
pub(crate) trait Budget {
    /// Pays for as many of `units` as there is budget for, each at `cost`; how many that is.
    fn take(&mut self, units: usize, cost: u32) -> usize;
}

/// No bound; its code is that of a plain loop.
pub(crate) struct Unlimited;

impl Budget for Unlimited {
    fn take(&mut self, units: usize, _: u32) -> usize {
        units
    }
}

/// This many.
pub(crate) struct Macs(pub u32);

impl Budget for Macs {
    fn take(&mut self, units: usize, cost: u32) -> usize {
        let affordable = self.0.checked_div(cost).unwrap_or(u32::MAX) as usize;
        let units = units.min(affordable);
        self.0 = self.0.saturating_sub(cost.saturating_mul(units as u32));
        units
    }
}

/// What a layer does in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Queries, keys and values of self-attention; or keys and values of cross-attention.
    Project,
    /// Self-attention and its output projection.
    Attend,
    /// Cross-attention; decoders only.
    AttendMemory,
    /// The feed-forward sublayer.
    FeedForward,
}

/// The next unit of a stack of layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    pub layer: u16,
    pub part: Part,
    /// Units of the part that are done.
    pub done: usize,
}

impl Cursor {
    pub const START: Self = Self { layer: 0, part: Part::Project, done: 0 };

    /// To the part that follows, of the next layer where that is the first.
    pub fn next(&mut self, part: Part) {
        self.layer = self.layer.saturating_add((part == Part::Project).into());
        self.part = part;
        self.done = 0;
    }

    /// Runs as many of the part's `units`, each of `cost`, as `budget` has for; whether that was all
    /// that is left of them.
    #[inline(always)]
    pub fn advance(
        &mut self,
        budget: &mut impl Budget,
        (units, cost): (usize, u32),
        run: impl FnOnce(Range<usize>),
    ) -> bool {
        let begin = self.done;
        let taken = budget.take(units.saturating_sub(begin), cost);
        if taken > 0 {
            self.done = begin.saturating_add(taken);
            run(begin..self.done);
        }
        self.done >= units
    }
}

/// Rows of the output in one unit.
pub(crate) const OUTPUT_ROWS: usize = 4;

/// What units cost, in multiply-accumulates.
#[derive(Clone, Copy)]
pub(crate) struct Costs {
    d_model: u32,
    square: u32,
}

impl Costs {
    pub const fn of(config: &ModelConfig) -> Self {
        let d_model = config.d_model as u32;
        Self { d_model, square: d_model * d_model }
    }

    pub const fn project(&self) -> u32 {
        self.square.saturating_mul(3)
    }

    /// Scores and context over `len` positions, and the output projection.
    pub const fn attend(&self, len: usize) -> u32 {
        self.square.saturating_add(self.d_model.saturating_mul(2).saturating_mul(len as u32))
    }

    /// As [`attend`](Self::attend), with the query.
    pub const fn attend_memory(&self, len: usize) -> u32 {
        self.square.saturating_add(self.attend(len))
    }

    pub const fn feed_forward(&self, stack: &StackConfig) -> u32 {
        self.d_model.saturating_mul(2).saturating_mul(stack.d_ff as u32)
    }

    /// Cross key and value of one position of `memory`.
    pub const fn remember(&self) -> u32 {
        self.square.saturating_mul(2)
    }

    pub const fn output(&self) -> u32 {
        self.d_model * OUTPUT_ROWS as u32
    }
}

/// The largest unit of a model with sequences up to `limits`.
pub(crate) const fn largest_unit(config: &ModelConfig, limits: Limits) -> u32 {
    let costs = Costs::of(config);
    let (source, target) = (limits.source_len as usize, limits.target_len as usize);
    let mut largest = costs.output() as usize;
    if config.has_encoder() {
        largest = max(largest, costs.attend(source) as usize);
        largest = max(largest, costs.project() as usize);
        largest = max(largest, costs.feed_forward(&config.encoder) as usize);
    }
    if config.has_decoder() {
        largest = max(largest, costs.attend(target) as usize);
        largest = max(largest, costs.project() as usize);
        largest = max(largest, costs.feed_forward(&config.decoder) as usize);
    }
    if config.has_cross_attention() {
        largest = max(largest, costs.attend_memory(source) as usize);
    }
    largest as u32
}
