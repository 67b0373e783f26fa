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
    rows: Rows<'_, W>,
    x: &[f32],
    to_f32: impl Fn(W) -> f32 + Copy,
    mut each: impl FnMut(f32),
) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.rows, rows.cols);
    for first in (0..rows.rows).step_by(4) {
        // Rows past the last are copies of it, so that the tail runs through the same loop.
        let row = |i: usize| rows.row((first + i).min(rows.rows.saturating_sub(1)));
        let sums = dot4_f32([row(0), row(1), row(2), row(3)], x, to_f32);
        sums.into_iter().take(rows.rows - first).for_each(&mut each);
    }
}
