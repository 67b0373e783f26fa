//! `i8` weights, `i16` activations, integers only: the numeric contract.

mod activation;
pub(crate) mod linear;
mod norm;
pub(crate) mod softmax;
#[cfg(test)]
mod tests;

use core::ops;

use model_format::Model;
use model_format::NormI32;
use model_format::config::{Activation, Precision as Stored};
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;
use model_format::layout::LinearInt;
use model_format::numeric::rescale;
use model_format::residual_multiplier;

use crate::kernels::{self, Input, vectors};
use crate::precision::{AttentionScratch, HeadCache, Position, Precision};
use crate::profile::{self, Operator};

/// Integer arithmetic: the same bits on every processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedPoint;

/// What an `i16` tensor saturates to.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    low: i32,
    high: i32,
    frac_bits: u32,
    #[cfg(feature = "saturation-counts")]
    tensor: usize,
}

impl Range {
    #[inline(never)]
    fn of(model: &Model<'_>, slot: ActivationSlot) -> Self {
        let format = model.formats().get(slot);
        let limit = i32::try_from(format.max_abs()).unwrap_or(0).min(1 << 15);
        Self {
            low: -limit,
            high: limit - 1,
            frac_bits: u32::from(format.frac_bits.unsigned_abs()),
            #[cfg(feature = "saturation-counts")]
            tensor: crate::saturation::activation_index(model.config(), slot),
        }
    }

    /// Keys and values of the tensor at `slot`.
    fn of_cache(_model: &Model<'_>, _slot: Slot) -> Self {
        Self {
            low: -127,
            high: 127,
            frac_bits: 0,
            #[cfg(feature = "saturation-counts")]
            tensor: crate::saturation::cache_index(_model.config(), _slot),
        }
    }

    /// Least and largest value.
    fn bounds(self) -> [i32; 2] {
        [self.low, self.high]
    }

    /// Nearest value of the range; `low <= high` by construction.
    #[inline(always)]
    fn saturate(self, value: i32) -> i16 {
        // A ReLU's zeros are its work, not saturations.
        #[cfg(feature = "saturation-counts")]
        if (value < self.low && self.low < 0) || value > self.high {
            crate::saturation::count(self.tensor);
        }
        value.max(self.low).min(self.high) as i16
    }

    /// `x = saturate(compute(x, constant))` in place.
    ///
    /// Most tensors saturate to all of `i16`, which is one instruction; the others are narrowed after.
    #[inline(always)]
    fn finish<C>(
        self,
        x: &mut [i16],
        constants: impl Iterator<Item = C>,
        compute: impl Fn(i16, C) -> i32,
    ) {
        if COUNTS_SATURATIONS {
            for (x, constant) in x.iter_mut().zip(constants) {
                *x = self.saturate(compute(*x, constant));
            }
            return;
        }
        const TOP: i32 = i16::MAX as i32;
        for (x, constant) in x.iter_mut().zip(constants) {
            *x = compute(*x, constant).clamp(-TOP - 1, TOP) as i16;
        }
        if self.bounds() != [-TOP - 1, TOP] {
            for x in x {
                *x = self.saturate((*x).into());
            }
        }
    }
}

/// Kernels that saturate by themselves do not count.
const COUNTS_SATURATIONS: bool = cfg!(feature = "saturation-counts");

/// How a residual stream enters a sum.
#[derive(Debug, Clone, Copy)]
pub struct Residual {
    multiplier: i32,
    range: Range,
}

/// Shift of an `i16` operand whose scale may be 0.5 or more.
const RESIDUAL_SHIFT: u32 = 14;
/// Shift of an `i8` operand whose scale may be 0.5 or more.
const EMBEDDING_SHIFT: u32 = 24;

/// A table of embeddings with the multipliers of the look-up.
#[derive(Debug, Clone, Copy)]
pub struct Embedding<'m> {
    table: LinearInt<'m>,
    /// Those of the look-up where the table's own are the output's.
    multipliers: Option<&'m [i32]>,
    range: Range,
    /// Right shift from Q30 to the output.
    position_shift: u32,
}

/// Columns of an embedding at a time.
const EMBED_COLS: usize = 16;

impl Embedding<'_> {
    /// Row `id` and its multiplier.
    fn row(&self, id: usize) -> (usize, i32) {
        let multiplier = match self.multipliers {
            Some(multipliers) => multipliers.get(id).copied().unwrap_or(0),
            None => self.table.constants(id).1,
        };
        (id, multiplier)
    }

    /// Adds columns of a [`row`](Self::row) from `column` on to `sums`, in the format of the output.
    ///
    /// Not inlined: a table and learned positions share it.
    #[inline(never)]
    fn add_row(&self, (id, multiplier): (usize, i32), column: usize, sums: &mut [i32; EMBED_COLS]) {
        if kernels::try_add_row(&self.table, [id, column], multiplier, sums) {
            return;
        }
        let mut weights = [0; EMBED_COLS];
        self.table.copy_weights(id, column, &mut weights);
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum += rescale(i32::from(weight) << EMBEDDING_SHIFT, multiplier);
        }
    }

    /// Adds a wave of Q30, at most 2^30 in magnitude; so is half a unit of the output at most 2^29.
    fn add_wave(&self, q30: &i32, sum: &mut i32) {
        *sum += q30.wrapping_add(1 << (self.position_shift - 1)) >> self.position_shift;
    }

    /// Adds columns of the positions of `rotation` from `column` on.
    fn add_waves(
        &self,
        rotation: &[[i32; 2]],
        is_interleaved: bool,
        column: usize,
        sums: &mut [i32],
    ) {
        if is_interleaved {
            let waves = rotation.as_flattened().get(column..).unwrap_or_default();
            waves.iter().zip(sums).for_each(|(wave, sum)| self.add_wave(wave, sum));
            return;
        }
        for (column, sum) in (column..).zip(sums) {
            // Sines, then cosines.
            let (index, half) = match column.checked_sub(rotation.len()) {
                Some(index) => (index, 1),
                None => (column, 0),
            };
            if let Some(wave) = rotation.get(index).and_then(|pair| pair.get(half)) {
                self.add_wave(wave, sum);
            }
        }
    }
}

impl Precision for FixedPoint {
    const STORED: Stored = Stored::FixedPoint;
    const TOKENS: usize = kernels::TOKENS;
    type Activation = i16;
    type Cached = i8;
    type Score = i32;
    type Probability = i16;
    type Logit = i32;
    type Input<'x> = Input<'x>;
    type Linear<'m> = LinearInt<'m>;
    type Norm<'m> = NormI32<'m>;
    type Heads<'m> = &'m [[i32; 2]];
    type Embedding<'m> = Embedding<'m>;
    type Range = Range;
    type Residual = Residual;

    fn linear<'m>(model: &Model<'m>, slot: Slot) -> LinearInt<'m> {
        model.linear_int(slot)
    }

    fn norm<'m>(model: &Model<'m>, slot: Slot) -> NormI32<'m> {
        model.norm_i32(slot)
    }

    fn heads<'m>(model: &Model<'m>, slot: Slot) -> &'m [[i32; 2]] {
        model.pairs(slot)
    }

    fn embedding<'m>(model: &Model<'m>, slot: Slot, output: ActivationSlot) -> Embedding<'m> {
        let table = model.linear_int(slot);
        let is_tied = slot == Slot::TargetEmbedding && model.config().output.is_tied();
        let multipliers = is_tied.then(|| model.multipliers(Slot::TargetEmbeddingScale));
        let format = model.formats().get(output);
        let position_shift =
            30_u32.saturating_add_signed(-i32::from(format.frac_bits)).clamp(1, 30);
        Embedding { table, multipliers, range: Range::of(model, output), position_shift }
    }

    fn range(model: &Model<'_>, output: ActivationSlot) -> Range {
        Range::of(model, output)
    }

    fn cache_range(model: &Model<'_>, slot: Slot) -> Range {
        Range::of_cache(model, slot)
    }

    fn residual(model: &Model<'_>, sum: ActivationSlot) -> Residual {
        let formats = model.formats();
        let stream = sum.stream(model.config()).map(|stream| formats.get(stream));
        let multiplier = stream.and_then(|stream| residual_multiplier(stream, formats.get(sum)));
        let multiplier = multiplier.unwrap_or(0);
        Residual { multiplier, range: Range::of(model, sum) }
    }

    fn embed(
        embedding: &Embedding<'_>,
        id: usize,
        position: &Position<'_, '_, Self>,
        out: &mut [i16],
    ) {
        let word = embedding.row(id);
        let learned = match position {
            Position::Learned { table, position } => table.row(*position),
            Position::Sinusoidal { .. } => (0, 0),
        };
        for (index, out) in out.chunks_mut(EMBED_COLS).enumerate() {
            let column = index * EMBED_COLS;
            let mut sums = [0; EMBED_COLS];
            embedding.add_row(word, column, &mut sums);
            match position {
                Position::Learned { table, .. } => table.add_row(learned, column, &mut sums),
                Position::Sinusoidal { rotation, interleaved } => {
                    embedding.add_waves(rotation, *interleaved, column, &mut sums);
                }
            }
            embedding.range.finish(out, sums.iter(), |_, &sum| sum);
        }
    }

    #[inline(always)]
    fn input<'x>(x: &'x [i16], shape: [usize; 2], scratch: &'x mut [u8]) -> Input<'x> {
        profile::run(Operator::Input, || Input::new(x, shape, scratch))
    }

    fn project(linear: &LinearInt<'_>, input: &Input<'_>, range: Range, out: &mut [i16]) {
        if !COUNTS_SATURATIONS && kernels::try_project(linear, input, range.bounds(), out) {
            linear::count_macs(linear.rows, input);
        } else {
            project_in_blocks(linear, input, range, Target::Plain(out));
        }
    }

    fn project_activated(
        linear: &LinearInt<'_>,
        input: &Input<'_>,
        activation: Activation,
        range: Range,
        out: &mut [i16],
    ) {
        match activation {
            Activation::Relu => Self::project(linear, input, Range { low: 0, ..range }, out),
            _ => project_in_blocks(linear, input, range, Target::Gated(out, activation)),
        }
    }

    fn project_add(
        linear: &LinearInt<'_>,
        input: &Input<'_>,
        Residual { multiplier, range }: Residual,
        stream: &mut [i16],
    ) {
        let bounds = range.bounds();
        if !COUNTS_SATURATIONS
            && kernels::try_project_add(linear, input, multiplier, bounds, stream)
        {
            linear::count_macs(linear.rows, input);
        } else {
            project_in_blocks(linear, input, range, Target::Stream(stream, multiplier));
        }
    }

    fn project_cached(
        linear: &LinearInt<'_>,
        input: &Input<'_>,
        range: Range,
        out: &mut [i8],
        room: &mut [i16],
    ) {
        if !COUNTS_SATURATIONS && kernels::try_project_cached(linear, input, out, room) {
            linear::count_macs(linear.rows, input);
        } else {
            project_in_blocks(linear, input, range, Target::Cached(out));
        }
    }

    fn project_logits(
        linear: &LinearInt<'_>,
        rows: ops::Range<usize>,
        input: &Input<'_>,
        mut sink: impl FnMut(usize, &[i32]),
    ) {
        // So that no kernel multiplies rows of its block that nobody wants.
        let linear = &LinearInt { rows: linear.rows.min(rows.end), ..*linear };
        linear::for_each_block(linear, rows, input, |_, first, outputs| sink(first, outputs));
    }

    fn mean(rows: &[i16], out: &mut [i16]) {
        let d_model = out.len().max(1);
        let len = rows.len().checked_div(d_model).unwrap_or(0) as i32;
        for (column, out) in out.iter_mut().enumerate() {
            let column = rows.get(column..).unwrap_or_default().iter().step_by(d_model);
            let sum = column.fold(0_i32, |sum, &x| sum.wrapping_add(i32::from(x)));
            // Rounded half up: floor((2 sum + len) / (2 len)). A mean of i16 is an i16.
            let doubled = sum.wrapping_mul(2).wrapping_add(len);
            *out = doubled.checked_div_euclid(len.wrapping_mul(2)).unwrap_or(0) as i16;
        }
    }

    #[inline(never)]
    fn layer_norm(norm: &NormI32<'_>, range: Range, x: &mut [i16]) {
        let statistics = norm::Statistics::of(x, norm.eps);
        let constants = norm.gamma.iter().zip(norm.beta);
        kernels::wide(
            #[inline(always)]
            || match statistics.is_plain() {
                true => range.finish(x, constants, |x, (&gamma, &beta)| {
                    rescale(statistics.normalize_plain(x), gamma).saturating_add(beta)
                }),
                false => range.finish(x, constants, |x, (&gamma, &beta)| {
                    rescale(statistics.normalize(x), gamma).saturating_add(beta)
                }),
            },
        );
    }

    fn weights(scratch: AttentionScratch<'_, Self>) -> &[u16] {
        let (probabilities, weights) = scratch.into_weights();
        softmax::weights(probabilities, weights);
        weights
    }

    #[inline(always)]
    fn attend_all(
        heads: &&[[i32; 2]],
        d_k: usize,
        x: &mut [i16],
        cache: HeadCache<'_, i8>,
        range: Range,
    ) -> bool {
        // A profile has scores, softmax and context apart.
        let is_done = !COUNTS_SATURATIONS
            && !cfg!(feature = "profile")
            && kernels::try_attend(cache, (heads, d_k), range.bounds(), x);
        #[cfg(feature = "mac-counts")]
        if is_done {
            crate::macs::count(2 * cache.keys.rows, x.len());
        }
        is_done
    }

    fn attend(
        heads: &&[[i32; 2]],
        head: usize,
        x: &mut [i16],
        cache: HeadCache<'_, i8>,
        scratch: &mut AttentionScratch<'_, Self>,
        range: Range,
    ) {
        let [score, context_multiplier] = heads.get(head).copied().unwrap_or_default();
        let AttentionScratch { scores, probabilities } = scratch;
        #[cfg(feature = "mac-counts")]
        crate::macs::count(2 * scores.len(), x.len());
        profile::run(Operator::Scores, || kernels::scores(cache.keys, x, scores));
        let multiplier = profile::run(Operator::Softmax, || {
            let sum = kernels::exp2_all(scores, score, probabilities);
            softmax::context_multiplier(context_multiplier, sum)
        });
        profile::run(Operator::Context, || {
            let (values, bounds) = (cache.values, range.bounds());
            if COUNTS_SATURATIONS
                || !kernels::try_context(values, probabilities, multiplier, bounds, x)
            {
                let saturate = |value| range.saturate(value);
                vectors::context(values, probabilities, multiplier, saturate, x);
            }
        });
    }
}

/// Where outputs of a product that no kernel makes in one go are written, and what becomes of them.
enum Target<'a> {
    /// They are saturated.
    Plain(&'a mut [i16]),
    /// Saturated, of keys and values.
    Cached(&'a mut [i8]),
    /// Added to a stream times the multiplier.
    Stream(&'a mut [i16], i32),
    /// Made smooth; in a build without feature `gated` there are none.
    Gated(&'a mut [i16], Activation),
}

/// Blocks of rows one after another. One function for all targets, not inlined: for the code and the
/// stack that the blocks take.
#[inline(never)]
fn project_in_blocks(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    range: Range,
    mut target: Target<'_>,
) {
    linear::for_each_block(linear, 0..linear.rows, input, |token, first, outputs| {
        let start = token.saturating_mul(linear.rows).saturating_add(first);
        match &mut target {
            Target::Plain(out) => write(out, start, outputs, |_, value| range.saturate(value)),
            Target::Cached(out) => {
                write(out, start, outputs, |_, value| range.saturate(value) as i8);
            }
            Target::Stream(stream, multiplier) => write(stream, start, outputs, |old, value| {
                let kept = rescale(i32::from(old) << RESIDUAL_SHIFT, *multiplier);
                range.saturate(value.saturating_add(kept))
            }),
            Target::Gated(out, activation) => write(out, start, outputs, |_, value| {
                range.saturate(match cfg!(feature = "gated") {
                    true => activation::smooth(*activation, value, range.frac_bits),
                    false => value,
                })
            }),
        }
    });
}

/// `out[start..] = epilogue(out[start..], outputs)`.
#[inline(always)]
fn write<T: Copy>(out: &mut [T], start: usize, outputs: &[i32], epilogue: impl Fn(T, i32) -> T) {
    for (out, &output) in out.get_mut(start..).unwrap_or_default().iter_mut().zip(outputs) {
        *out = epilogue(*out, output);
    }
}
