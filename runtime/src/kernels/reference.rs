//! The portable kernels, which define the truth.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Nibbles, Packing};
use model_format::numeric::rescale;

use super::Input;
use crate::slices::CopyFrom;

/// Most tokens of an input.
pub const TOKENS: usize = 1;
/// Rows of a block.
pub const ROWS: usize = 4;

/// Nothing is made of an input.
pub type Ready<'x> = ();

/// No memory is needed for that.
pub const fn scratch_len(_tokens: usize, _cols: usize) -> usize {
    0
}

/// See [`Ready`].
pub fn ready<'x>(_x: &'x [i16], _shape: [usize; 2], _scratch: &'x mut [u8]) {}

/// The outputs of the rows from `first_row` on, a multiple of 4, for every token; those of rows past
/// the last are zeros.
#[inline(never)]
pub fn block<const ROWS: usize, const TOKENS: usize>(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    for (token, out) in out.iter_mut().enumerate().take(input.tokens) {
        let x = input.token(token);
        if linear.packing == Packing::Nibbles {
            nibbles(linear, first_row, x, out);
            continue;
        }
        for (row, out) in (first_row..).zip(out) {
            let (bias, multiplier) = linear.constants(row);
            *out = rescale(bias.wrapping_add(dot_row(linear, row, x)), multiplier);
        }
    }
}

/// `block` of weights of 4 bits, for one token.
fn nibbles(linear: &LinearInt<'_>, first_row: usize, x: &[i16], out: &mut [i32]) {
    for (row, out) in (first_row..).step_by(BLOCK_ROWS).zip(out.chunks_mut(BLOCK_ROWS)) {
        let [biases, multipliers] = linear.block_constants(row);
        let sums = nibble_sums(&linear.nibbles(row), x);
        for ((out, sum), (bias, multiplier)) in
            out.iter_mut().zip(sums).zip(biases.into_iter().zip(multipliers))
        {
            *out = rescale(bias.wrapping_add(sum), multiplier);
        }
    }
}

/// The products of four rows with `x`.
fn nibble_sums(block: &Nibbles<'_>, x: &[i16]) -> [i32; BLOCK_ROWS] {
    let mut sums = [0_i32; BLOCK_ROWS];
    for ((group, factors), x) in block.groups.iter().zip(block.factors).zip(x.chunks(GROUP_COLS)) {
        let mut dots = [0_i32; BLOCK_ROWS];
        // Not zipped: that divides by their length, which could panic for all a compiler sees.
        let mut halves = x.chunks(8);
        for words in group {
            let x = halves.next().unwrap_or_default();
            let padded;
            let x = match x.first_chunk() {
                Some(x) => x,
                None => {
                    padded = pad(x);
                    &padded
                }
            };
            for (dot, &word) in dots.iter_mut().zip(words) {
                *dot += nibble_dot(word, x);
            }
        }
        for (row, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
            let factor = i32::from(factors >> (4 * row) & 15);
            *sum = sum.wrapping_add(dot.wrapping_mul(factor));
        }
    }
    sums
}

/// Fewer than eight columns, and zeros.
#[cold]
fn pad(x: &[i16]) -> [i16; 8] {
    let mut padded = [0; 8];
    padded.copy_from(x);
    padded
}

/// The product of the eight numbers of a word with `x`; without a loop, which would take as long as the
/// products.
#[inline(always)]
fn nibble_dot(stored: u32, &[a, b, c, d, e, f, g, h]: &[i16; 8]) -> i32 {
    // Stored weights are 8 too large: two's complement but for the sign.
    let word = (stored ^ 0x8888_8888) as i32;
    let product = |shift: u32, x: i16| (word << (28 - shift) >> 28) * i32::from(x);
    let even = product(0, a) + product(4, c) + product(8, e) + product(12, g);
    let odd = product(16, b) + product(20, d) + product(24, f) + product(28, h);
    even + odd
}

/// Columns of a row of tiles at a time.
const UNPACKED: usize = 16;

/// The product of a row of any packing with `x`.
pub fn dot_row(linear: &LinearInt<'_>, row: usize, x: &[i16]) -> i32 {
    if linear.packing == Packing::RowMajor {
        return dot(linear.from_row(row), x.get(..linear.cols).unwrap_or(x));
    }
    let mut sum = 0_i32;
    for (index, x) in x.chunks(UNPACKED).enumerate() {
        let mut weights = [0; UNPACKED];
        linear.copy_weights(row, index * UNPACKED, &mut weights);
        sum = sum.wrapping_add(dot(&weights, x));
    }
    sum
}

/// Not in one go.
#[inline(always)]
pub fn try_project(_: &LinearInt<'_>, _: &Input<'_>, _: [i32; 2], _: &mut [i16]) -> bool {
    false
}

/// Not in one go.
#[inline(always)]
pub fn try_project_add(
    _: &LinearInt<'_>,
    _: &Input<'_>,
    _: i32,
    _: [i32; 2],
    _: &mut [i16],
) -> bool {
    false
}

/// Dot products at once.
pub const DOTS: usize = 4;

/// Not in one go.
#[inline(always)]
pub fn try_dots(_: &[i8], _: usize, _: usize, _: &[i16], _: &mut [i32]) -> Option<usize> {
    None
}

/// `sum(row[c] * x[c])` over the shorter of both, modulo 2^32.
///
/// The check of a file proves that no sum leaves `i32`.
#[inline]
pub fn dot(row: &[i8], x: &[i16]) -> i32 {
    row.iter().zip(x).fold(0, |acc, (&w, &x)| acc.wrapping_add(i32::from(w) * i32::from(x)))
}

/// Four [`dot`]s with the same `x`.
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    rows.map(|row| dot(row, x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn identity_rows_select_columns() {
        let x: Vec<i16> = (0..9).map(|i| i * 1000 - 4000).collect();
        for c in 0..x.len() {
            let mut row = [0_i8; 9];
            row[c] = 1;
            assert_eq!(dot(&row, &x), i32::from(x[c]));
            assert_eq!(dot4([&row; 4], &x), [i32::from(x[c]); 4]);
        }
    }

    #[test]
    fn extremes_of_both_operands_are_exact() {
        let (w, x) = ([127_i8; 516], [i16::MIN; 516]);
        assert_eq!(i64::from(dot(&w, &x)), -(127 * 32768 * 516));
        let w = [-127_i8; 516];
        assert_eq!(i64::from(dot(&w, &x)), 127 * 32768 * 516);
    }
}
