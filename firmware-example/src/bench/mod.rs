//! Instructions of every operator of FixedPoint: each alone, in shapes of its own, and in the model.
//!
//! `:bench` prints `operator<TAB>packing<TAB>columns x rows<TAB>tokens<TAB>instructions of one call`.
//! Small operators are called many times between two readings of the counter, so that its steps divide
//! into single instructions.

mod operators;
mod products;
pub mod profile;

use core::hint::black_box;

use bytemuck::{cast_slice, cast_slice_mut};
use embedded_io::{Read, Write};
use runtime::StaticArena;
use runtime::kernels::{self, TOKENS};
use runtime::model_format::{Model, config::Precision, layout::LinearInt, layout::Packing};

use crate::{board, console::Console};

/// Columns and rows of the largest matrix.
const MAX_COLS: usize = 512;
const MAX_ROWS: usize = 2048;

/// Biases and multipliers of a row-major matrix, then weights, with those of blocks between them.
static WEIGHTS: StaticArena<{ MAX_COLS * MAX_ROWS + 2 * MAX_ROWS * 8 }> = StaticArena::new();
/// Activations that go in, `[TOKENS, MAX_COLS]`.
static INPUTS: StaticArena<{ TOKENS * MAX_COLS * 2 }> = StaticArena::new();
/// Activations that come out, `[TOKENS, MAX_ROWS]`.
static OUTPUTS: StaticArena<{ TOKENS * MAX_ROWS * 2 }> = StaticArena::new();
/// What is made of inputs.
static SCRATCH: StaticArena<{ kernels::scratch_len(TOKENS, MAX_COLS) }> = StaticArena::new();

/// Measures all of them; `model` gives formats and some constants.
pub fn run<S: Read + Write>(console: &mut Console<S>, model: &Model<'static>) {
    if model.header().precision != Precision::FixedPoint {
        return console.text("! the bench is for integer models").end_line();
    }
    let Some(mut operands) = Operands::take() else {
        return console.text("! the bench runs once").end_line();
    };
    products::run(console, model, &mut operands);
    operators::run(console, model, &mut operands);
}

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
        // In no packing does such a byte stand for the weight -128.
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

/// Calls between two readings, of an operator of less than [`LARGE`] elements or products.
const CALLS: u64 = 32;
/// From here on a step of the counter is less than a thousandth of one call.
const LARGE: usize = 16_384;

/// Instructions of one call of `work`, which does about so many products; without those of calling it.
fn cost(products: usize, work: &mut dyn FnMut()) -> u64 {
    let calls = if products < LARGE { CALLS } else { 1 };
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

const fn name(packing: Packing) -> &'static str {
    match packing {
        Packing::RowMajor => "row-major",
        Packing::PairedRows => "paired-rows",
        Packing::QuadRows => "quad-rows",
        Packing::Nibbles => "nibbles",
    }
}
