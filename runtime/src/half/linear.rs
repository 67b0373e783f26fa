//! Matrix times vector in blocks of four rows, each row summed column after column.

use core::ops::Range;

use model_format::layout::LinearF16;

use super::math::widen;
use crate::kernels::dot4_f32;
use crate::precision::Rows;

/// The matrix of these rows alone.
pub fn rows<'m>(linear: &LinearF16<'m>, rows: Range<usize>) -> LinearF16<'m> {
    let first = rows.start.saturating_mul(linear.cols);
    let end = rows.end.saturating_mul(linear.cols);
    LinearF16 {
        rows: rows.len(),
        weights: linear.weights.get(first..end).unwrap_or_default(),
        bias: linear.bias.get(rows).unwrap_or_default(),
        ..*linear
    }
}

/// `each(row, W[row] x + bias)`, rows ascending.
#[inline(always)]
pub fn for_each_row(linear: &LinearF16<'_>, x: &[f32], mut each: impl FnMut(usize, f32)) {
    let rows = Rows {
        data: linear.weights,
        stride: linear.cols,
        rows: linear.rows,
        cols: linear.cols.min(x.len()),
    };
    let mut bias = (0..).zip(linear.bias);
    for_each_dot(rows, x, widen, |sum| {
        if let Some((row, &bias)) = bias.next() {
            each(row, sum + widen(bias));
        }
    });
}

/// `out[row] = epilogue(rows[row] x)`.
#[inline(always)]
pub fn multiply_rows(
    rows: Rows<'_, f32>,
    x: &[f32],
    out: &mut [f32],
    epilogue: impl Fn(f32) -> f32,
) {
    let mut out = out.iter_mut();
    for_each_dot(
        rows,
        x,
        |w| w,
        |sum| {
            if let Some(out) = out.next() {
                *out = epilogue(sum);
            }
        },
    );
}

#[inline(always)]
fn for_each_dot<W: Copy>(
    mut rows: Rows<'_, W>,
    x: &[f32],
    to_f32: impl Fn(W) -> f32 + Copy,
    mut each: impl FnMut(f32),
) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.rows, rows.cols);
    let mut block = [0.0; 4];
    while rows.rows > 0 {
        for sum in next_sums(&mut rows, x, to_f32, &mut block) {
            each(*sum);
        }
    }
}

/// The products of the next four rows with `x` `[cols]`, or of those that are left; takes them off
/// `rows`. One piece of code for every epilogue.
#[inline(never)]
fn next_sums<'b, W: Copy>(
    rows: &mut Rows<'_, W>,
    x: &[f32],
    to_f32: impl Fn(W) -> f32 + Copy,
    block: &'b mut [f32; 4],
) -> &'b [f32] {
    let left = rows.rows;
    // Rows past the last are copies of it, so that the tail runs through the same loop.
    let row = |i: usize| rows.row(i.min(left.saturating_sub(1)));
    *block = dot4_f32([row(0), row(1), row(2), row(3)], x, to_f32);
    rows.rows = left.saturating_sub(4);
    rows.data = rows.data.get(rows.stride.saturating_mul(4)..).unwrap_or_default();
    block.get(..left.min(4)).unwrap_or_default()
}
