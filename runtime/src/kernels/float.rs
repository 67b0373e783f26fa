//! Products of HalfFloat: every row is summed column after column, which makes the bits equal on every
//! target; vectors run across rows.

use core::ops::Range;

use model_format::layout::{Layout, LinearF16, ROWS16_BLOCK};

/// Rows of a block.
pub const ROWS: usize = ROWS16_BLOCK;
/// Most tokens that share the weights of a block.
pub const TOKENS: usize = super::TOKENS;

/// `each(token, row, W x + bias)` for these rows, several at a time; within a token ascending. `x` is
/// `[tokens, cols]`.
///
/// The tokens share a block while it is in the cache.
#[inline(always)]
pub fn for_each_block(
    linear: &LinearF16<'_>,
    rows: Range<usize>,
    (x, [tokens, cols]): (&[f32], [usize; 2]),
    mut each: impl FnMut(usize, usize, &[f32]),
) {
    #[cfg(kiloformer_x86)]
    if super::x86::try_products(linear, rows.clone(), (x, [tokens, cols]), &mut each) {
        return;
    }
    let mut sums = [0.0; ROWS];
    let mut first = rows.start;
    while first < rows.end {
        let end = first.saturating_add(ROWS.saturating_sub(first % ROWS)).min(rows.end);
        for token in 0..tokens {
            let start = token.saturating_mul(cols);
            let x = x.get(start..start.saturating_add(cols)).unwrap_or_default();
            block(linear, first..end, x, &mut sums);
            each(token, first, sums.get(..end.saturating_sub(first)).unwrap_or_default());
        }
        first = end;
    }
}

/// `W x + bias` of `rows`, at most [`ROWS`] of one block; the rest of `out` is unspecified.
#[inline(never)]
fn block(linear: &LinearF16<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32; ROWS]) {
    match linear.layout {
        Layout::SixteenRows => sixteen(linear, rows, x, out),
        _ => row_major(linear, rows, x, out),
    }
}

fn row_major(linear: &LinearF16<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32; ROWS]) {
    let cols = linear.cols;
    let (chunks, _) = out.as_chunks_mut::<4>();
    for (first, out) in rows.step_by(4).zip(chunks) {
        // Rows past the last are copies of it, so that the tail runs through the same loop.
        let row = |i: usize| {
            let row = first.saturating_add(i).min(linear.rows.saturating_sub(1));
            let start = row.saturating_mul(cols);
            linear.data.get(start..start.saturating_add(cols)).unwrap_or_default()
        };
        *out = dot4([row(0), row(1), row(2), row(3)], x, widen);
        for (out, &bias) in out.iter_mut().zip(linear.bias.get(first..).unwrap_or_default()) {
            *out += widen(bias);
        }
    }
}

fn sixteen(linear: &LinearF16<'_>, rows: Range<usize>, x: &[f32], out: &mut [f32; ROWS]) {
    let start = (rows.start / ROWS).saturating_mul(linear.block_len());
    let (columns, _) = linear.data.get(start..).unwrap_or_default().as_chunks::<ROWS>();
    let (weights, bias) = columns.split_at_checked(linear.cols).unwrap_or_default();
    let mut acc = sums(weights, x);
    let bias = bias.first().unwrap_or(&[0; ROWS]);
    for (acc, &bias) in acc.iter_mut().zip(bias) {
        *acc += widen(bias);
    }
    let wanted = acc.get(rows.start % ROWS..).unwrap_or_default();
    for (out, &sum) in out.iter_mut().zip(wanted) {
        *out = sum;
    }
}

#[cfg(kiloformer_vfp)]
use super::float_vfp::sums;

/// `W x` of sixteen rows: `columns` is `[cols, 16]`.
#[cfg(not(kiloformer_vfp))]
#[inline(always)]
fn sums(columns: &[[u16; ROWS]], x: &[f32]) -> [f32; ROWS] {
    let mut sums = [0.0_f32; ROWS];
    for (column, &x) in columns.iter().zip(x) {
        for (sum, &w) in sums.iter_mut().zip(column) {
            *sum += widen(w) * x;
        }
    }
    sums
}

/// `sum(row[c] * x[c])` for four rows in `f32`, each summed one column after the other.
///
/// `to_f32` widens a stored weight exactly. The order of the sum is part of the contract.
#[inline]
pub fn dot4<W: Copy>(rows: [&[W]; 4], x: &[f32], to_f32: impl Fn(W) -> f32) -> [f32; 4] {
    let [a, b, c, d] = rows;
    let mut acc = [0.0_f32; 4];
    for ((((&x, &a), &b), &c), &d) in x.iter().zip(a).zip(b).zip(c).zip(d) {
        let [sum_a, sum_b, sum_c, sum_d] = &mut acc;
        *sum_a += to_f32(a) * x;
        *sum_b += to_f32(b) * x;
        *sum_c += to_f32(c) * x;
        *sum_d += to_f32(d) * x;
    }
    acc
}

/// An `f16` bit pattern as `f32`, exact for every finite number.
///
/// Exponent and mantissa move to their places in an `f32`; the multiplication by 2^112 corrects the
/// exponent's bias, for subnormal numbers too. No branch, so loops over weights vectorize.
#[inline(always)]
pub fn widen(bits: u16) -> f32 {
    const BIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7FFF) << 13) * BIAS;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_rows_sum_in_column_order() {
        // 1e8 + 1 - 1e8 is 0 from the left and 1 in any other order.
        let row = [1.0_f32, 1.0, 1.0];
        let x = [1e8_f32, 1.0, -1e8];
        assert_eq!(dot4([&row; 4], &x, |w| w), [0.0; 4]);
    }
}
