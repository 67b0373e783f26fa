//! What is no matrix times a vector of activations.

use core::hint::black_box;

use bytemuck::cast_slice;
use embedded_io::{Read, Write};
use runtime::kernels::Input;
use runtime::model_format::{
    Model, NormI32, config::Positions, directory::Slot, formats::ActivationSlot,
};
use runtime::{FixedPoint, Precision, bench};

use super::{MAX_COLS, Operands, cost, line, name};
use crate::console::Console;

/// One head's positions, its width, and how many there are: those of the model that ships.
const POSITIONS: usize = 8;
const D_K: usize = 20;
const N_HEADS: usize = 4;
/// Scores that one softmax takes.
const LENS: [usize; 3] = [POSITIONS, 20, 64];
/// Elements that one LayerNorm takes.
const WIDTHS: [usize; 3] = [64, 80, 128];
/// A token of every vocabulary.
const TOKEN: usize = 5;

pub fn run<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) {
    attention(console, operands);
    softmax(console, operands);
    layer_norm(console, model, operands);
    embedding(console, model, operands);
    logits(console, model, operands);
}

/// One head: products with keys, and the weighted sum of values.
fn attention<S: Read + Write>(console: &mut Console<S>, operands: &mut Operands) {
    let data = cast_slice(operands.weights);
    let mut scores = [0_i32; POSITIONS];
    // Its keys and values lie among those of the other heads.
    let rows = bench::Rows { data, stride: D_K * N_HEADS, rows: POSITIONS, cols: D_K };
    let query = operands.inputs.get(..D_K).unwrap_or_default();
    let products = POSITIONS * D_K;
    let spent = cost(products, &mut || bench::scores(rows, query, &mut scores));
    line(console, ["scores", "-"], [D_K, POSITIONS], 1, spent);
    let probabilities = operands.inputs.get(..POSITIONS).unwrap_or_default();
    let context = operands.outputs.get_mut(..D_K).unwrap_or_default();
    let multiplier = 1 << 20;
    let spent = cost(products, &mut || bench::context(rows, probabilities, multiplier, context));
    line(console, ["context", "-"], [POSITIONS, D_K], 1, spent);
}

fn softmax<S: Read + Write>(console: &mut Console<S>, operands: &mut Operands) {
    // With scores of 22 bits the exponents are between 0 and 8: no probability is 0 at once.
    const MULTIPLIER: i32 = 1 << 24;
    let mut scores = [0_i32; LENS[LENS.len() - 1]];
    for (score, word) in scores.iter_mut().zip(operands.weights) {
        *score = word >> 10;
    }
    for len in LENS {
        let scores = scores.get(..len).unwrap_or_default();
        let cost = cost(len, &mut || {
            black_box(bench::softmax(scores, MULTIPLIER, operands.outputs));
        });
        line(console, ["softmax", "-"], [len, 1], 1, cost);
    }
}

fn layer_norm<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) {
    let range = FixedPoint::range(model, ActivationSlot::DecoderFinal);
    for width in WIDTHS {
        let (gamma, beta) = operands.weights.split_at(width);
        let norm = NormI32 { eps: 1, gamma, beta: beta.get(..width).unwrap_or_default() };
        let x = operands.inputs.get(..width).unwrap_or_default();
        let out = operands.outputs.get_mut(..width).unwrap_or_default();
        let cost = cost(width, &mut || {
            out.copy_from_slice(x);
            FixedPoint::layer_norm(&norm, range, out);
        });
        line(console, ["layer-norm", "-"], [width, 1], 1, cost);
    }
}

/// The look-up of a token of the model and the sum with its position; the step to the next position.
fn embedding<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) {
    let d_model = usize::from(model.config().d_model);
    let table = FixedPoint::embedding(model, Slot::TargetEmbedding, ActivationSlot::DecoderEmbed);
    let frequencies = model.pairs(Slot::Frequencies);
    let interleaved = model.config().positions == Positions::SinusoidalInterleaved;
    let (pairs, _) = operands.weights.as_chunks::<2>();
    let rotation = pairs.get(..d_model / 2).unwrap_or_default();
    let out = operands.outputs.get_mut(..d_model).unwrap_or_default();
    let look_up = cost(d_model, &mut || {
        let position = bench::Position::Sinusoidal { rotation, interleaved };
        FixedPoint::embed(&table, TOKEN, &position, out);
    });
    line(console, ["embedding", "-"], [d_model, 1], 1, look_up);
    let mut state = [[0_i32; 2]; MAX_COLS / 2];
    let state = state.get_mut(..d_model / 2).unwrap_or_default();
    let rotate = cost(d_model, &mut || bench::rotate(state, frequencies));
    line(console, ["positions", "-"], [d_model, 1], 1, rotate);
}

/// The output projection of the model and the choice of the largest logit.
fn logits<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) {
    let slot = match model.config().output.is_tied() {
        true => Slot::TargetEmbedding,
        false => Slot::Output,
    };
    let linear = FixedPoint::linear(model, slot);
    let Operands { inputs, scratch, .. } = operands;
    let mut largest = (0, i32::MIN);
    let cost = cost(linear.rows * linear.cols, &mut || {
        let input = Input::new(inputs, [1, linear.cols], scratch);
        FixedPoint::project_logits(&linear, 0..linear.rows, &input, |first, logits| {
            for (row, &logit) in (first..).zip(logits) {
                if logit > largest.1 {
                    largest = (row, logit);
                }
            }
        });
    });
    black_box(largest);
    line(console, ["logits", name(linear.packing)], [linear.cols, linear.rows], 1, cost);
}
