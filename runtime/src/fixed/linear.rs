//! Matrix times vector in blocks of four rows, with the epilogue of the caller.

use core::ops::Range;

use model_format::layout::LinearI8;
use model_format::numeric::rescale;

use crate::kernels::{dot, dot4};
use crate::precision::Rows;

/// The matrix of these rows alone.
pub fn rows<'m>(linear: &LinearI8<'m>, rows: Range<usize>) -> LinearI8<'m> {
    let first = rows.start.saturating_mul(linear.cols);
    let end = rows.end.saturating_mul(linear.cols);
    LinearI8 {
        rows: rows.len(),
        weights: linear.weights.get(first..end).unwrap_or_default(),
        bias: linear.bias.get(rows.clone()).unwrap_or_default(),
        multipliers: linear.multipliers.get(rows).unwrap_or_default(),
        ..*linear
    }
}

/// `each(row, rescale(bias + W[row] x, multiplier))`, rows ascending.
#[inline(always)]
pub fn for_each_row(linear: &LinearI8<'_>, x: &[i16], mut each: impl FnMut(usize, i32)) {
    let mut rows = (0..).zip(linear.bias.iter().zip(linear.multipliers));
    for_each_acc(linear, x, |acc| {
        if let Some((row, (&bias, &multiplier))) = rows.next() {
            each(row, rescale(acc.wrapping_add(bias), multiplier));
        }
    });
}

/// `out[row] = epilogue(out[row], rescale(bias + W[row] x, multiplier))`.
#[inline(always)]
pub fn write(
    linear: &LinearI8<'_>,
    x: &[i16],
    out: &mut [i16],
    epilogue: impl Fn(i16, i32) -> i16,
) {
    let mut rows = out.iter_mut().zip(linear.bias.iter().zip(linear.multipliers));
    for_each_acc(linear, x, |acc| {
        if let Some((out, (&bias, &multiplier))) = rows.next() {
            *out = epilogue(*out, rescale(acc.wrapping_add(bias), multiplier));
        }
    });
}

/// The raw accumulators of a matrix, rows ascending.
#[inline(always)]
fn for_each_acc(linear: &LinearI8<'_>, x: &[i16], each: impl FnMut(i32)) {
    let rows = Rows {
        data: linear.weights,
        stride: linear.cols,
        rows: linear.rows,
        cols: linear.cols.min(x.len()),
    };
    for_each_dot(rows, x, each);
}

/// `out[row] = epilogue(rows[row] x)`.
#[inline(always)]
pub fn multiply_rows<T>(rows: Rows<'_, i8>, x: &[i16], out: &mut [T], epilogue: impl Fn(i32) -> T) {
    let mut out = out.iter_mut();
    for_each_dot(rows, x, |acc| {
        if let Some(out) = out.next() {
            *out = epilogue(acc);
        }
    });
}

#[inline(always)]
fn for_each_dot(rows: Rows<'_, i8>, x: &[i16], mut each: impl FnMut(i32)) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.rows, rows.cols);
    let blocks = rows.rows & !3;
    for first in (0..blocks).step_by(4) {
        let block =
            [rows.row(first), rows.row(first + 1), rows.row(first + 2), rows.row(first + 3)];
        dot4(block, x).into_iter().for_each(&mut each);
    }
    for row in blocks..rows.rows {
        each(dot(rows.row(row), x));
    }
}
