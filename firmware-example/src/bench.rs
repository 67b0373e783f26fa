//! Instructions of every operator of FixedPoint, each alone and in shapes of its own.
//!
//! A line is `operator<TAB>packing<TAB>columns x rows<TAB>tokens<TAB>instructions of one call`; what has
//! no packing or tokens shows a dash. Small operators are called many times between two readings of the
//! counter, so that its ticks (5 instructions on the MPS2 boards) divide into single instructions.

use core::hint::black_box;

use bytemuck::{cast_slice, cast_slice_mut};
use embedded_io::{Read, Write};
use runtime::kernels::{self, Block, Input, ROWS, TOKENS};
use runtime::model_format::{
    Model, NormI32,
    directory::Slot,
    formats::{ActivationSlot, DecoderActivation},
    layout::{LinearInt, Packing},
};
use runtime::{FixedPoint, Precision, StaticArena, bench};

use crate::{board, console::Console};

/// Inputs and outputs of the matrices: those of CMSIS-NN's comparison, and those of the model that ships.
const SHAPES: [[usize; 2]; 9] = [
    [64, 64],
    [128, 128],
    [128, 512],
    [512, 128],
    [256, 1024],
    [512, 2048],
    [80, 80],
    [80, 160],
    [160, 80],
];
const MAX_COLS: usize = 512;
const MAX_ROWS: usize = 2048;

/// The shape whose cheapest packing is the one that all is measured in.
const DECIDING_SHAPE: [usize; 2] = [128, 128];
const PACKINGS: [(Packing, &str); 3] = [
    (Packing::RowMajor, "row-major"),
    (Packing::PairedRows, "paired-rows"),
    (Packing::QuadRows, "quad-rows"),
];

/// Biases and multipliers of a row-major matrix, then weights, with those of blocks between them.
static WEIGHTS: StaticArena<{ MAX_COLS * MAX_ROWS + 2 * MAX_ROWS * 8 }> = StaticArena::new();
/// Activations that go in, `[TOKENS, MAX_COLS]`.
static INPUTS: StaticArena<{ TOKENS * MAX_COLS * 2 }> = StaticArena::new();
/// Activations that come out, `[TOKENS, MAX_ROWS]`.
static OUTPUTS: StaticArena<{ TOKENS * MAX_ROWS * 2 }> = StaticArena::new();
/// What is made of inputs.
static SCRATCH: StaticArena<{ kernels::scratch_len(TOKENS, MAX_COLS) }> = StaticArena::new();

/// Memory of the operators.
struct Operands {
    weights: &'static [i32],
    inputs: &'static [i16],
    outputs: &'static mut [i16],
    scratch: &'static mut [u8],
}

impl Operands {
    /// Random ones; `None` after the first time.
    fn take() -> Option<Self> {
        let weights = WEIGHTS.take()?;
        let inputs = INPUTS.take()?;
        let mut random = Random(0x1234_5678);
        // No weight of any packing has a byte that stands for -128.
        weights.iter_mut().for_each(|w| *w = (random.byte() & 0x7f).max(1) | random.byte() & 0x80);
        inputs.iter_mut().for_each(|x| *x = random.byte());
        Some(Self {
            weights: cast_slice(weights),
            inputs: cast_slice(inputs),
            outputs: cast_slice_mut(OUTPUTS.take()?),
            scratch: SCRATCH.take()?,
        })
    }

    /// A matrix of any numbers.
    fn matrix(&self, packing: Packing, [cols, rows]: [usize; 2]) -> LinearInt<'static> {
        let (constants, weights) = self.weights.split_at(2 * MAX_ROWS);
        let (bias, multipliers) = constants.split_at(MAX_ROWS);
        LinearInt {
            packing,
            rows,
            cols,
            data: cast_slice(weights),
            bias: bias.get(..rows).unwrap_or_default(),
            multipliers: multipliers.get(..rows).unwrap_or_default(),
        }
    }
}

/// Xorshift (Marsaglia 2003).
struct Random(u32);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        (self.0 >> 13) as u8
    }
}

/// Calls between two readings of an operator of less than [`LARGE`] multiply-accumulates.
const CALLS: u64 = 32;
/// From here on a tick is less than a thousandth of one call.
const LARGE: usize = 16_384;

/// Instructions of one call of `work`, which does about so many multiply-accumulates; without those of
/// calling it.
fn cost(macs: usize, work: &mut dyn FnMut()) -> u64 {
    let calls = if macs < LARGE { CALLS } else { 1 };
    let empty = count(calls, &mut || ());
    (count(calls, work).saturating_sub(empty) + calls / 2) / calls
}

#[inline(never)]
fn count(calls: u64, work: &mut dyn FnMut()) -> u64 {
    let begin = board::count();
    for _ in 0..calls {
        black_box(&mut *work)();
    }
    board::count().wrapping_sub(begin)
}

/// Measures all of them; `model` gives formats and its own constants.
pub fn run<S: Read + Write>(console: &mut Console<S>, model: &Model<'static>) {
    let Some(mut operands) = Operands::take() else {
        return console.text("! the bench runs once").end_line();
    };
    let best = matrices(console, model, &mut operands);
    console.text("best packing ").text(best).end_line();
    attention(console, &mut operands);
    softmax(console, &mut operands);
    layer_norm(console, model, &mut operands);
    embedding(console, model, &mut operands);
    logits(console, model, &mut operands);
}

fn line<S: Read + Write>(
    console: &mut Console<S>,
    [operator, packing]: [&str; 2],
    [cols, rows]: [usize; 2],
    tokens: usize,
    cost: u64,
) {
    console.text(operator).text("\t").text(packing).text("\t").number(cols as u64).text(" x ");
    console.number(rows as u64).text("\t").number(tokens as u64).text("\t").number(cost).end_line();
}

/// Every operator of a matrix, row-major and in the packing that is cheapest here, whose name it gives.
fn matrices<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) -> &'static str {
    let mut measure =
        |packing, shape, tokens| Product { packing, shape, tokens }.project(model, operands);
    let costs = PACKINGS.map(|(packing, _)| measure(packing, DECIDING_SHAPE, 1));
    let cheapest = PACKINGS.into_iter().zip(costs).min_by_key(|(_, cost)| *cost);
    let (best, name) = cheapest.map_or(PACKINGS[0], |(packing, _)| packing);
    for shape in SHAPES {
        for (packing, name) in [(Packing::RowMajor, "row-major"), (best, name)] {
            for tokens in [1, TOKENS] {
                let product = Product { packing, shape, tokens };
                for (operator, cost) in product.costs(model, operands) {
                    line(console, [operator, name], shape, tokens, cost);
                }
                if TOKENS == 1 {
                    break;
                }
            }
            if best == Packing::RowMajor {
                break;
            }
        }
    }
    name
}

/// A matrix times vectors.
#[derive(Clone, Copy)]
struct Product {
    packing: Packing,
    shape: [usize; 2],
    tokens: usize,
}

impl Product {
    fn costs(self, model: &Model<'_>, operands: &mut Operands) -> [(&'static str, u64); 3] {
        [
            ("raw", self.blocks(operands)),
            ("full", self.project(model, operands)),
            ("add", self.project_add(model, operands)),
        ]
    }

    fn macs(self) -> usize {
        let [cols, rows] = self.shape;
        cols * rows * self.tokens
    }

    /// The kernel alone, block after block.
    fn blocks(self, operands: &mut Operands) -> u64 {
        let [cols, rows] = self.shape;
        let matrix = operands.matrix(self.packing, self.shape);
        let input = Input::new(operands.inputs, [self.tokens, cols], operands.scratch);
        let mut block: Block = [[0; ROWS]; TOKENS];
        cost(self.macs(), &mut || {
            for first in (0..rows).step_by(ROWS) {
                kernels::block(&matrix, first, &input, &mut block);
            }
        })
    }

    /// Input made ready, products, saturation.
    fn project(self, model: &Model<'_>, operands: &mut Operands) -> u64 {
        let [cols, _] = self.shape;
        let matrix = operands.matrix(self.packing, self.shape);
        let range = FixedPoint::range(model, ActivationSlot::DecoderFinal);
        let Operands { inputs, outputs, scratch, .. } = operands;
        cost(self.macs(), &mut || {
            let input = FixedPoint::input(inputs, [self.tokens, cols], scratch);
            FixedPoint::project(&matrix, &input, range, outputs);
        })
    }

    /// The same, added to a stream.
    fn project_add(self, model: &Model<'_>, operands: &mut Operands) -> u64 {
        let [cols, _] = self.shape;
        let matrix = operands.matrix(self.packing, self.shape);
        let sum = ActivationSlot::Decoder(0, DecoderActivation::Sum1);
        let residual = FixedPoint::residual(model, sum);
        let Operands { inputs, outputs, scratch, .. } = operands;
        cost(self.macs(), &mut || {
            let input = FixedPoint::input(inputs, [self.tokens, cols], scratch);
            FixedPoint::project_add(&matrix, &input, residual, outputs);
        })
    }
}

/// The products of one head, over this many positions of `d_k` 8: keys and values.
const POSITIONS: usize = 20;
const D_K: usize = 8;
const N_HEADS: usize = 10;

fn attention<S: Read + Write>(console: &mut Console<S>, operands: &mut Operands) {
    let data = cast_slice(operands.weights);
    let (out, _) = operands.outputs.as_chunks_mut::<2>();
    let out: &mut [i32] = cast_slice_mut(out);
    // Keys lie among those of the other heads; values are transposed.
    for (rows, cols, stride) in [(POSITIONS, D_K, D_K * N_HEADS), (D_K, POSITIONS, POSITIONS)] {
        let matrix = bench::Rows { data, stride, rows, cols };
        let cost = cost(rows * cols, &mut || bench::products(matrix, operands.inputs, out));
        line(console, ["attention", "-"], [cols, rows], 1, cost);
    }
}

fn softmax<S: Read + Write>(console: &mut Console<S>, operands: &mut Operands) {
    // Scores of 22 bits and this multiplier give exponents of up to 8: no probability is 0 at once.
    const MULTIPLIER: i32 = 1 << 24;
    for len in [8, 20, 64] {
        let mut scores = [0_i32; 64];
        for (score, word) in scores.iter_mut().zip(operands.weights) {
            *score = word >> 10;
        }
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
    for d_model in [64, 80, 128] {
        let (gamma, beta) = operands.weights.split_at(d_model);
        let norm = NormI32 { eps: 1, gamma, beta: beta.get(..d_model).unwrap_or_default() };
        let x = operands.inputs.get(..d_model).unwrap_or_default();
        let cost = cost(d_model, &mut || {
            FixedPoint::layer_norm(&norm, x, range, operands.outputs);
        });
        line(console, ["layer-norm", "-"], [d_model, 1], 1, cost);
    }
}

/// The look-up of a token of the model, and its position.
fn embedding<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) {
    let d_model = usize::from(model.config().d_model);
    let table = FixedPoint::embedding(model, Slot::TargetEmbedding, ActivationSlot::DecoderEmbed);
    let frequencies = model.pairs(Slot::Frequencies);
    let (pairs, _) = operands.weights.as_chunks::<2>();
    let rotation = pairs.get(..d_model / 2).unwrap_or_default();
    let out = operands.outputs.get_mut(..d_model).unwrap_or_default();
    let look_up = cost(d_model, &mut || {
        let position = bench::Position::Sinusoidal { rotation, interleaved: false };
        FixedPoint::embed(&table, 5, &position, out);
    });
    line(console, ["embedding", "-"], [d_model, 1], 1, look_up);
    let mut state = [[0_i32; 2]; MAX_COLS / 2];
    let state = state.get_mut(..d_model / 2).unwrap_or_default();
    let rotate = cost(d_model, &mut || bench::rotate(state, frequencies));
    line(console, ["rotation", "-"], [d_model, 1], 1, rotate);
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
        let input = FixedPoint::input(inputs, [1, linear.cols], scratch);
        FixedPoint::project_logits(&linear, 0..linear.rows, &input, |row, logit| {
            if logit > largest.1 {
                largest = (row, logit);
            }
        });
    });
    black_box(largest);
    let name = PACKINGS.iter().find(|(packing, _)| *packing == linear.packing);
    let name = name.map_or("-", |(_, name)| name);
    line(console, ["logits", name], [linear.cols, linear.rows], 1, cost);
}
