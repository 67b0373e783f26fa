//! `f16` weights, `f32` arithmetic, in an order of operations that gives the same bits everywhere.

mod linear;
mod math;
#[cfg(test)]
mod tests;

use core::ops::Range;

use model_format::config::{Activation, Precision as Stored};
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;
use model_format::layout::LinearF16;
use model_format::{Model, NormF16};

use crate::kernels::float::{TOKENS, widen};
use crate::precision::{AttentionScratch, HeadCache, Position, Precision};
use linear::{for_each_block, multiply_rows, weigh_rows, write};
use math::{activate, exp, sqrt};

/// Floating-point arithmetic for cores with an FPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfFloat;

/// LayerNorm weights and epsilon.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'m> {
    weights: NormF16<'m>,
    eps: f32,
}

/// A table of embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Embedding<'m> {
    table: LinearF16<'m>,
    /// What its rows are multiplied by.
    scale: f32,
}

/// Activations that matrices are multiplied with.
#[derive(Debug, Clone, Copy)]
pub struct Input<'x> {
    x: &'x [f32],
    tokens: usize,
    cols: usize,
}

const Q30: f32 = 1.0 / (1 << 30) as f32;

impl Precision for HalfFloat {
    const STORED: Stored = Stored::HalfFloat;
    const TOKENS: usize = TOKENS;
    type Activation = f32;
    type Cached = f32;
    type Score = f32;
    type Probability = f32;
    type Logit = f32;
    type Input<'x> = Input<'x>;
    type Linear<'m> = LinearF16<'m>;
    type Norm<'m> = Norm<'m>;
    type Heads<'m> = ();
    type Embedding<'m> = Embedding<'m>;
    type Range = ();
    type Residual = ();

    fn linear<'m>(model: &Model<'m>, slot: Slot) -> LinearF16<'m> {
        model.linear_f16(slot)
    }

    fn norm<'m>(model: &Model<'m>, slot: Slot) -> Norm<'m> {
        Norm { weights: model.norm_f16(slot), eps: model.config().layer_norm_eps }
    }

    fn heads<'m>(_: &Model<'m>, _: Slot) {}

    fn embedding<'m>(model: &Model<'m>, slot: Slot, _: ActivationSlot) -> Embedding<'m> {
        let table = model.linear_f16(slot);
        let scale = match model.config().scale_embedding {
            true => sqrt(table.cols as f32),
            false => 1.0,
        };
        Embedding { table, scale }
    }

    fn range(_: &Model<'_>, _: ActivationSlot) {}

    fn cache_range(_: &Model<'_>, _: Slot) {}

    fn residual(_: &Model<'_>, _: ActivationSlot) {}

    fn embed(
        embedding: &Embedding<'_>,
        id: usize,
        position: &Position<'_, '_, Self>,
        out: &mut [f32],
    ) {
        for (out, w) in out.iter_mut().zip(embedding.table.row(id)) {
            *out = widen(w) * embedding.scale;
        }
        match position {
            Position::Learned { table, position } => {
                for (out, w) in out.iter_mut().zip(table.table.row(*position)) {
                    *out += widen(w);
                }
            }
            Position::Sinusoidal { rotation, interleaved: true } => {
                for (out, &wave) in out.iter_mut().zip(rotation.iter().flatten()) {
                    *out += wave as f32 * Q30;
                }
            }
            Position::Sinusoidal { rotation, interleaved: false } => {
                let sines = rotation.iter().map(|[sin, _]| sin);
                let waves = sines.chain(rotation.iter().map(|[_, cos]| cos));
                for (out, &wave) in out.iter_mut().zip(waves) {
                    *out += wave as f32 * Q30;
                }
            }
        }
    }

    fn input<'x>(x: &'x [f32], [tokens, cols]: [usize; 2], _: &'x mut [u8]) -> Input<'x> {
        Input { x, tokens, cols }
    }

    fn project(linear: &LinearF16<'_>, input: &Input<'_>, _: (), out: &mut [f32]) {
        write(linear, input, out, |_, value| value);
    }

    fn project_activated(
        linear: &LinearF16<'_>,
        input: &Input<'_>,
        activation: Activation,
        _: (),
        out: &mut [f32],
    ) {
        write(linear, input, out, |_, value| activate(activation, value));
    }

    fn project_add(linear: &LinearF16<'_>, input: &Input<'_>, _: (), stream: &mut [f32]) {
        write(linear, input, stream, |old, value| old + value);
    }

    fn project_cached(
        linear: &LinearF16<'_>,
        input: &Input<'_>,
        _: (),
        out: &mut [f32],
        _: &mut [f32],
    ) {
        write(linear, input, out, |_, value| value);
    }

    fn project_logits(
        linear: &LinearF16<'_>,
        rows: Range<usize>,
        input: &Input<'_>,
        mut sink: impl FnMut(usize, &[f32]),
    ) {
        for_each_block(linear, rows, input, |_, first, logits| sink(first, logits));
    }

    fn mean(rows: &[f32], out: &mut [f32]) {
        let d_model = out.len().max(1);
        let len = rows.len().checked_div(d_model).unwrap_or(0) as f32;
        for (column, out) in out.iter_mut().enumerate() {
            let column = rows.get(column..).unwrap_or_default().iter().step_by(d_model);
            *out = column.fold(0.0, |sum, x| sum + x) / len;
        }
    }

    fn layer_norm(norm: &Norm<'_>, _: (), x: &mut [f32]) {
        let (mean, scale) = statistics(x, norm.eps);
        let constants = norm.weights.gamma.iter().zip(norm.weights.beta);
        for (x, (&gamma, &beta)) in x.iter_mut().zip(constants) {
            *x = (*x - mean) * scale * widen(gamma) + widen(beta);
        }
    }

    fn weights(scratch: AttentionScratch<'_, Self>) -> &[u16] {
        let (probabilities, weights) = scratch.into_weights();
        let scale = 32768.0 / probabilities.iter().fold(0.0, |sum, p| sum + p);
        for (weight, p) in weights.iter_mut().zip(probabilities) {
            *weight = (p * scale + 0.5) as u16;
        }
        weights
    }

    fn attend(
        (): &(),
        _: usize,
        x: &mut [f32],
        cache: HeadCache<'_, f32>,
        scratch: &mut AttentionScratch<'_, Self>,
        (): (),
    ) {
        let AttentionScratch { scores, probabilities } = scratch;
        let scale = 1.0 / sqrt(x.len() as f32);
        multiply_rows(cache.keys, x, scores, |acc| acc * scale);
        let inverse = 1.0 / powers(scores, probabilities);
        weigh_rows(cache.values, probabilities, x);
        x.iter_mut().for_each(|x| *x *= inverse);
    }
}

/// `out = e^(scores - max)`, and their sum.
#[inline(always)]
fn powers(scores: &[f32], out: &mut [f32]) -> f32 {
    #[cfg(kiloformer_x86)]
    if crate::kernels::x86::try_powers(scores, out) {
        return out.iter().fold(0.0, |sum, power| sum + power);
    }
    let mut max = f32::NEG_INFINITY;
    for &score in scores {
        if score > max {
            max = score;
        }
    }
    let mut sum = 0.0;
    for (out, &score) in out.iter_mut().zip(scores) {
        *out = exp(score - max);
        sum += *out;
    }
    sum
}

/// Mean, and `1 / sqrt(variance + eps)` (Ba et al. 2016, eq. 4).
fn statistics(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = x.iter().fold(0.0, |sum, x| sum + x) / n;
    let variance = x.iter().fold(0.0, |sum, x| sum + (x - mean) * (x - mean)) / n;
    (mean, 1.0 / sqrt(variance + eps))
}
