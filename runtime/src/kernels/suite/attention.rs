//! `scores`, `exp2_all`, `try_context` and `moments`, on rows that lie among those of other heads.

use model_format::layout::Packing;
use model_format::numeric::rescale;

use super::super::{exp2_all, moments, scores, try_context, vectors};
use super::{Difference, Random};
use crate::precision::Rows;

const MAX_ROWS: usize = 9;
const MAX_COLS: usize = 21;
/// What no score is.
const UNTOUCHED: i32 = i32::MIN;
/// Distance between two rows.
const STRIDE: usize = MAX_COLS + 2;
/// Bytes that rows, and elements that vectors, are moved away from their alignment.
const OFFSETS: usize = 4;
const ROUNDS: usize = 3;
const BOUNDS: [[i32; 2]; 2] = [[-32768, 32767], [-16384, 16383]];

struct Operands {
    rows: [i8; MAX_ROWS * STRIDE + OFFSETS],
    x: [i16; MAX_COLS + OFFSETS],
}

impl Operands {
    fn randomize(&mut self, round: usize, random: &mut Random) {
        self.rows.iter_mut().for_each(|w| *w = random.weight());
        self.x.iter_mut().for_each(|x| *x = random.bits() as i16);
        if round == 0 {
            self.rows.fill(-127);
            self.x.fill(i16::MIN);
        }
    }

    /// What a kernel reads, and an independent sum.
    fn rows(&self, offset: usize, [rows, cols]: [usize; 2]) -> Rows<'_, i8> {
        // Not a byte more than the last row needs.
        let end = offset + (rows.saturating_sub(1)) * STRIDE + cols;
        Rows { data: &self.rows[offset..end], stride: STRIDE, rows, cols }
    }

    fn element(&self, offset: usize, row: usize, col: usize) -> i64 {
        i64::from(self.rows[offset + row * STRIDE + col])
    }

    fn agree(&self, offset: usize, shape: [usize; 2]) -> Result<u64, &'static str> {
        let [rows, cols] = shape;
        let cache = self.rows(offset, shape);
        let x = |at: usize| i64::from(self.x[offset + at]);
        // As many behind as kernels make at once stay as they are.
        let mut out = [UNTOUCHED; MAX_ROWS + 4];
        scores(cache, &self.x[offset..][..cols], &mut out[..rows]);
        if out[rows..].iter().any(|&score| score != UNTOUCHED) {
            return Err("scores");
        }
        for (row, &score) in out[..rows].iter().enumerate() {
            let sum: i64 = (0..cols).map(|col| self.element(offset, row, col) * x(col)).sum();
            if i64::from(score) != sum {
                return Err("scores");
            }
        }
        let multiplier = 0x0123_4567;
        for [low, high] in BOUNDS {
            let mut context = [0; MAX_COLS + 1];
            let (place, after) = context.split_at_mut(cols);
            let weights = &self.x[offset..][..rows];
            if !try_context(cache, weights, multiplier, [low, high], place) {
                continue;
            }
            for (col, &out) in place.iter().enumerate() {
                let sum: i64 = (0..rows).map(|row| self.element(offset, row, col) * x(row)).sum();
                if i32::from(out) != rescale(sum as i32, multiplier).clamp(low, high) {
                    return Err("context");
                }
            }
            if after[0] != 0 {
                return Err("context");
            }
        }
        Ok(2)
    }

    /// Powers of every size, of scores as far apart as they can be.
    fn powers_agree(&self, len: usize, shift: u32) -> bool {
        let mut scores = [0_i32; MAX_COLS];
        for (score, x) in scores.iter_mut().zip(self.x) {
            *score = i32::from(x).wrapping_mul(0x7FFF) >> shift;
        }
        let scores = &scores[..len];
        [0, 1 << 20, 0x0345_6789, i32::MAX >> 2].into_iter().all(|multiplier| {
            let (mut ours, mut truth) = ([0; MAX_COLS], [0; MAX_COLS]);
            let sum = exp2_all(scores, multiplier, &mut ours[..len]);
            sum == vectors::exp2_all(scores, multiplier, &mut truth[..len]) && ours == truth
        })
    }

    fn moments_agree(&self, offset: usize, len: usize) -> bool {
        let x = &self.x[offset..][..len];
        let sum: i64 = x.iter().map(|&x| i64::from(x)).sum();
        let squares: i64 = x.iter().map(|&x| i64::from(x) * i64::from(x)).sum();
        moments(x) == (sum as i32, squares)
    }
}

pub fn run() -> Result<u64, Difference> {
    let mut operands = Operands { rows: [0; _], x: [0; _] };
    let mut random = Random(0x2545_F491);
    let mut comparisons = 0;
    let shapes = (0..=MAX_ROWS).flat_map(|rows| (0..=MAX_COLS).map(move |cols| [rows, cols]));
    for (shape @ [rows, cols], round) in shapes.flat_map(|s| (0..ROUNDS).map(move |r| (s, r))) {
        let error =
            |kernel| Difference { kernel, packing: Packing::RowMajor, rows, cols, tokens: 1 };
        operands.randomize(round, &mut random);
        for offset in 0..OFFSETS {
            comparisons += operands.agree(offset, shape).map_err(error)? + 1;
            if !operands.moments_agree(offset, cols) {
                return Err(error("moments"));
            }
            if !operands.powers_agree(cols, (rows as u32 + 8 * offset as u32) % 32) {
                return Err(error("exp2_all"));
            }
        }
    }
    Ok(comparisons)
}
