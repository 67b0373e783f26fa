//! The portable kernels, which define the truth.

use model_format::layout::{LinearInt, Packing};
use model_format::numeric::rescale;

use super::Input;

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
        for (row, out) in (first_row..).zip(out) {
            let (bias, multiplier) = linear.constants(row);
            *out = rescale(bias.wrapping_add(dot_row(linear, row, x)), multiplier);
        }
    }
}

/// The product of a row of any packing with `x`.
fn dot_row(linear: &LinearInt<'_>, row: usize, x: &[i16]) -> i32 {
    if linear.packing == Packing::RowMajor {
        return dot(linear.from_row(row), x.get(..linear.cols).unwrap_or(x));
    }
    let products = linear.row(row).zip(x);
    products.fold(0, |acc, (w, &x)| acc.wrapping_add(i32::from(w) * i32::from(x)))
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

/// `sum(row[c] * x[c])` over the shorter of both, modulo 2^32.
///
/// The check of a file proves that no sum leaves `i32`.
#[inline]
pub fn dot(row: &[i8], x: &[i16]) -> i32 {
    row.iter().zip(x).fold(0, |acc, (&w, &x)| acc.wrapping_add(i32::from(w) * i32::from(x)))
}

/// Four [`dot`]s with the same `x`.
#[cfg_attr(kiloformer_dsp, allow(dead_code, reason = "tests compare with it"))]
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
