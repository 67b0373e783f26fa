//! Matrix times vectors in blocks of rows, each row summed column after column.

use core::ops::Range;

use model_format::layout::LinearF16;

use super::Input;
use crate::kernels::float::{self, dot4};
use crate::precision::Rows;

/// `each(token, row, W x + bias)` for these rows, several at a time; within a token ascending.
#[inline(always)]
pub fn for_each_block(
    linear: &LinearF16<'_>,
    rows: Range<usize>,
    input: &Input<'_>,
    each: impl FnMut(usize, usize, &[f32]),
) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.len().saturating_mul(input.tokens), input.cols);
    float::for_each_block(linear, rows, (input.x, [input.tokens, input.cols]), each);
}

/// `out[token, row] = epilogue(out[token, row], W[row] x + bias)`.
#[inline(always)]
pub fn write(
    linear: &LinearF16<'_>,
    input: &Input<'_>,
    out: &mut [f32],
    epilogue: impl Fn(f32, f32) -> f32,
) {
    for_each_block(linear, 0..linear.rows, input, |token, first, sums| {
        let start = token.saturating_mul(linear.rows).saturating_add(first);
        for (out, &sum) in out.get_mut(start..).unwrap_or_default().iter_mut().zip(sums) {
            *out = epilogue(*out, sum);
        }
    });
}

/// `out = sum(weights[row] rows[row])`, row after row.
pub fn weigh_rows(rows: Rows<'_, f32>, weights: &[f32], out: &mut [f32]) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.rows, rows.cols);
    #[cfg(kiloformer_x86)]
    if crate::kernels::x86::try_weigh_rows(rows, weights, out) {
        return;
    }
    out.fill(0.0);
    for (row, &weight) in weights.iter().enumerate() {
        for (out, &value) in out.iter_mut().zip(rows.row(row)) {
            *out += value * weight;
        }
    }
}

/// `out[row] = epilogue(rows[row] x)`.
#[inline(always)]
pub fn multiply_rows(
    mut rows: Rows<'_, f32>,
    x: &[f32],
    out: &mut [f32],
    epilogue: impl Fn(f32) -> f32,
) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.rows, rows.cols);
    #[cfg(kiloformer_x86)]
    if crate::kernels::x86::try_multiply_rows(rows, x, out) {
        return out.iter_mut().for_each(|sum| *sum = epilogue(*sum));
    }
    let mut out = out.iter_mut();
    let mut sums = [0.0; 4];
    while rows.rows > 0 {
        for (sum, out) in next_sums(&mut rows, x, &mut sums).iter().zip(&mut out) {
            *out = epilogue(*sum);
        }
    }
}

/// The products of the next four rows with `x` `[cols]`, or of those that are left; takes them off
/// `rows`. One piece of code for every epilogue.
#[inline(never)]
fn next_sums<'b>(rows: &mut Rows<'_, f32>, x: &[f32], sums: &'b mut [f32; 4]) -> &'b [f32] {
    let left = rows.rows;
    // Rows past the last are copies of it, so that the tail runs through the same loop.
    let row = |i: usize| rows.row(i.min(left.saturating_sub(1)));
    *sums = dot4([row(0), row(1), row(2), row(3)], x, |w| w);
    rows.rows = left.saturating_sub(4);
    rows.data = rows.data.get(rows.stride.saturating_mul(4)..).unwrap_or_default();
    sums.get(..left.min(4)).unwrap_or_default()
}
