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
fn for_each_dot(mut rows: Rows<'_, i8>, x: &[i16], mut each: impl FnMut(i32)) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(rows.rows, rows.cols);
    let x = x.get(..rows.cols).unwrap_or_default();
    let mut block = [0; 4];
    while rows.rows > 0 {
        for product in next_products(&mut rows, x, &mut block) {
            each(*product);
        }
    }
}

/// The products of the next four rows with `x` `[cols]`, or of those that are left; takes them off
/// `rows`. One piece of code for every epilogue.
#[inline(never)]
fn next_products<'b>(rows: &mut Rows<'_, i8>, x: &[i16], block: &'b mut [i32; 4]) -> &'b [i32] {
    let (stride, left) = (rows.stride, rows.rows);
    rows.rows = left.saturating_sub(4);
    let mut next = || {
        let row = rows.data.get(..x.len()).unwrap_or_default();
        rows.data = rows.data.get(stride..).unwrap_or_default();
        row
    };
    if left >= 4 {
        *block = dot4([next(), next(), next(), next()], x);
        return block;
    }
    let tail = block.get_mut(..left).unwrap_or_default();
    for product in tail.iter_mut() {
        *product = dot(next(), x);
    }
    tail
}
