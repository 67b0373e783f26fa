//! `block` and the products in one go, with every packing.

use model_format::layout::{LinearInt, Packing};

use super::super::{
    Block, Input, ROWS, TOKENS, block, reference, rows, scratch_len, try_project, try_project_add,
    try_project_cached,
};
use super::matrix::{MAX_OFFSET, MAX_ROWS, Matrix, PACKINGS};
use super::{Difference, EXTREMES, MAX_COLS, Random};

/// Least and largest values of a product: those of both widths, of a ReLU before them, and others.
const BOUNDS: [[i32; 2]; 5] =
    [[-32768, 32767], [0, 32767], [-16384, 16383], [0, 16383], [-1000, 77]];
/// Multipliers of a residual stream.
const RESIDUALS: [i32; 3] = [1 << 18, i32::MAX, -12_345_678];
/// Elements behind the outputs, which must stay as they are.
const BEHIND: usize = ROWS;
/// Whether every number of tokens is tried in every shape.
const FEW_TOKENS: bool = TOKENS <= 4;
const SCRATCH_WORDS: usize = most_scratch().div_ceil(4);

/// Not always that of the most columns: tails may need copies.
const fn most_scratch() -> usize {
    let (mut most, mut cols) = (0, 0);
    while cols <= MAX_COLS {
        let len = scratch_len(TOKENS, cols);
        if len > most {
            most = len;
        }
        cols += 1;
    }
    most
}

struct Operands {
    matrix: Matrix,
    /// With room for an element before it, which moves it away from its alignment.
    x: [i16; MAX_COLS * TOKENS + 1],
    scratch: [u32; SCRATCH_WORDS],
    random: Random,
    comparisons: u64,
}

#[inline(never)]
pub fn run() -> Result<u64, Difference> {
    let mut operands = Operands {
        matrix: Matrix::new(),
        x: [0; MAX_COLS * TOKENS + 1],
        scratch: [0; SCRATCH_WORDS],
        random: Random(0x2545_F491),
        comparisons: 0,
    };
    for rows in 1..=MAX_ROWS {
        // Blocks of more rows repeat what is done to fewer: not in all widths.
        for cols in (1..=MAX_COLS).filter(|cols| rows <= 8 || (rows + cols).is_multiple_of(7)) {
            (operands.matrix.rows, operands.matrix.cols) = (rows, cols);
            operands.check_shape()?;
        }
    }
    Ok(operands.comparisons)
}

impl Operands {
    fn check_shape(&mut self) -> Result<(), Difference> {
        for (w, x) in EXTREMES {
            self.extremes(w, x);
            self.check_some()?;
        }
        self.identity();
        self.check_some()?;
        self.randomize();
        let all: [usize; TOKENS] = core::array::from_fn(|token| token + 1);
        if FEW_TOKENS { self.check(&all) } else { self.check_some() }
    }

    /// With one token and as many as there may be; where those are many, with a number that differs
    /// from shape to shape.
    fn check_some(&mut self) -> Result<(), Difference> {
        let drawn = 1 + self.random.bits() as usize % TOKENS;
        self.check(&[1, if FEW_TOKENS { TOKENS } else { drawn }])
    }

    /// The largest sums that a checked file allows, of either sign.
    fn extremes(&mut self, w: i8, x: i16) {
        self.matrix.weights_mut().fill(w);
        self.x.fill(x);
        let sum = i64::from(w) * i64::from(i16::MIN) * self.matrix.cols as i64;
        let left = (i64::from(i32::MAX) - sum.abs()) as i32;
        for row in 0..MAX_ROWS {
            self.matrix.bias[row] = if (w < 0) == (x < 0) { left } else { -left };
            self.matrix.multipliers[row] = [i32::MAX, i32::MIN, 1, -1][row % 4];
        }
    }

    /// Row r selects a column, and gives it back exactly.
    fn identity(&mut self) {
        let Self { matrix, x, random, .. } = self;
        let (rows, cols) = (matrix.rows, matrix.cols);
        let shift = random.bits() as usize % cols;
        matrix.weights_mut().fill(0);
        for row in 0..rows {
            matrix.weights_mut()[row * cols + (row + shift) % cols] = 64;
        }
        matrix.bias.fill(0);
        matrix.multipliers.fill(1 << 26);
        x.fill_with(|| random.bits() as i16);
    }

    fn randomize(&mut self) {
        let Self { matrix, x, random, .. } = self;
        matrix.weights_mut().fill_with(|| random.weight());
        x.fill_with(|| random.bits() as i16);
        matrix.bias.fill_with(|| random.bits() as i32 >> 8);
        // Products of the range of an i16 are as likely as larger ones.
        matrix.multipliers.fill_with(|| random.bits() as i32 >> (random.bits() % 16));
    }

    /// Every kernel, with every packing, these numbers of tokens and every alignment.
    fn check(&mut self, tokens: &[usize]) -> Result<(), Difference> {
        for packing in PACKINGS {
            if packing == Packing::Nibbles {
                self.matrix.round_to_nibbles();
            }
            for (index, &tokens) in tokens.iter().enumerate() {
                self.matrix.pack(packing, index & MAX_OFFSET);
                // Both alignments, where that many comparisons do not take a minute.
                let drawn = self.random.bits() as usize % 2;
                for x_offset in if FEW_TOKENS { 0..2 } else { drawn..drawn + 1 } {
                    let Self { matrix, x, scratch, random, .. } = self;
                    let (rows, cols) = (matrix.rows, matrix.cols);
                    let x = &x[x_offset..][..tokens * cols];
                    let scratch = bytemuck::cast_slice_mut(scratch);
                    let len = scratch_len(tokens, cols);
                    let input = Input::new(x, [tokens, cols], &mut scratch[..len]);
                    let truth = truth(matrix, x, tokens);
                    let products = Products { linear: matrix.linear(packing), input, truth };
                    let different = |kernel| Difference { kernel, packing, rows, cols, tokens };
                    products.agree(random, x_offset).map_err(different)?;
                    self.comparisons += 1;
                }
            }
        }
        Ok(())
    }
}

/// Of every token, every row before saturation.
fn truth(matrix: &Matrix, x: &[i16], tokens: usize) -> [[i32; MAX_ROWS]; TOKENS] {
    let mut truth = [[0; MAX_ROWS]; TOKENS];
    for (x, truth) in x.chunks_exact(matrix.cols).zip(&mut truth).take(tokens) {
        let constants = matrix.bias.iter().zip(&matrix.multipliers);
        let rows = matrix.weights().chunks_exact(matrix.cols).zip(constants);
        for ((row, (&bias, &multiplier)), truth) in rows.zip(truth) {
            let products = row.iter().zip(x).map(|(&w, &x)| i64::from(w) * i64::from(x));
            let sum = products.sum::<i64>() + i64::from(bias);
            *truth = ((sum * i64::from(multiplier) + (1 << 31)) >> 32) as i32;
        }
    }
    truth
}

/// A matrix, an input, and what they make.
struct Products<'a> {
    linear: LinearInt<'a>,
    input: Input<'a>,
    truth: [[i32; MAX_ROWS]; TOKENS],
}

impl Products<'_> {
    /// Else the name of the kernel that differs.
    fn agree(&self, random: &mut Random, out_offset: usize) -> Result<(), &'static str> {
        let name = |agrees: bool, name| if agrees { Ok(()) } else { Err(name) };
        name(self.blocks_agree(block, rows(&self.linear, &self.input)), "block")?;
        name(self.blocks_agree(reference::block, ROWS), "reference::block")?;
        for bounds in BOUNDS {
            let project = |out: &mut [i16]| try_project(&self.linear, &self.input, bounds, out);
            let epilogue = |_, value: i32| value.clamp(bounds[0], bounds[1]);
            name(self.outputs_agree(random, out_offset, project, epilogue), "try_project")?;
        }
        for (bounds, residual) in BOUNDS.into_iter().zip(RESIDUALS.into_iter().cycle()) {
            let project =
                |out: &mut [i16]| try_project_add(&self.linear, &self.input, residual, bounds, out);
            let epilogue = |old: i16, value: i32| {
                let kept = (i64::from(old) * (1 << 14) * i64::from(residual) + (1 << 31)) >> 32;
                (i64::from(value) + kept).clamp(bounds[0].into(), bounds[1].into()) as i32
            };
            name(self.outputs_agree(random, out_offset, project, epilogue), "try_project_add")?;
        }
        name(self.cached_agree(random, out_offset), "try_project_cached")
    }

    /// Whether blocks of so many rows are right.
    fn blocks_agree(
        &self,
        block: impl Fn(&LinearInt<'_>, usize, &Input<'_>, &mut Block),
        step: usize,
    ) -> bool {
        let mut out = [[0; ROWS]; TOKENS];
        (0..self.linear.rows).step_by(step).all(|first| {
            block(&self.linear, first, &self.input, &mut out);
            let rows = first..self.linear.rows.min(first + step);
            let tokens = out.as_flattened().chunks(step).zip(&self.truth).take(self.input.tokens);
            tokens.into_iter().all(|(out, truth)| out[..rows.len()] == truth[rows.clone()])
        })
    }

    /// Whether a product in one go is right, and writes nothing but its outputs; nothing at all where
    /// it leaves the work to others.
    fn outputs_agree(
        &self,
        random: &mut Random,
        offset: usize,
        project: impl Fn(&mut [i16]) -> bool,
        epilogue: impl Fn(i16, i32) -> i32,
    ) -> bool {
        let len = self.linear.rows * self.input.tokens;
        let mut before = [0; 1 + MAX_ROWS * TOKENS + BEHIND];
        before[..1 + len + BEHIND].fill_with(|| random.bits() as i16);
        let mut after = before;
        if !project(&mut after[offset..][..len]) {
            return before == after;
        }
        let truth = self.truth.iter().flat_map(|truth| &truth[..self.linear.rows]);
        for (old, &value) in before[offset..][..len].iter_mut().zip(truth) {
            *old = epilogue(*old, value) as i16;
        }
        before == after
    }

    /// The same for keys and values, whose memory begins so many elements behind a word.
    fn cached_agree(&self, random: &mut Random, offset: usize) -> bool {
        let len = self.linear.rows * self.input.tokens;
        let mut before = [0; 1 + (MAX_ROWS * TOKENS + BEHIND).div_ceil(4)];
        before.fill_with(|| random.bits());
        let (mut after, mut room) = (before, [0; MAX_ROWS * TOKENS]);
        let before: &mut [i8] = bytemuck::cast_slice_mut(&mut before);
        let after: &mut [i8] = bytemuck::cast_slice_mut(&mut after);
        let (out, room) = (&mut after[offset..][..len], &mut room[..len]);
        if try_project_cached(&self.linear, &self.input, out, room) {
            let truth = self.truth.iter().flat_map(|truth| &truth[..self.linear.rows]);
            for (old, &value) in before[offset..][..len].iter_mut().zip(truth) {
                *old = value.clamp(-127, 127) as i8;
            }
        }
        before == after
    }
}
