//! Matrix times vectors in blocks of rows, with the epilogue of the caller.

use core::ops::Range;

use model_format::layout::LinearInt;

use crate::kernels::{self, Block, DOTS, Input, ROWS, TOKENS, dot, dot4, try_dots};
use crate::precision::Rows;

/// Tells feature `mac-counts` of a product with so many rows.
#[inline(always)]
pub fn count_macs(_rows: usize, _input: &Input<'_>) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(_rows.saturating_mul(_input.tokens), _input.cols);
}

/// `each(token, row, outputs)` for the blocks of these rows, ascending; `rows` start on a multiple of 4.
#[inline(always)]
pub fn for_each_block(
    linear: &LinearInt<'_>,
    rows: Range<usize>,
    input: &Input<'_>,
    mut each: impl FnMut(usize, usize, &[i32]),
) {
    count_macs(rows.len(), input);
    let mut block: Block = [[0; ROWS]; TOKENS];
    let end = rows.end.min(linear.rows);
    // So that no kernel multiplies rows of its block that nobody wants.
    let linear = &LinearInt { rows: end, ..*linear };
    let mut first = rows.start;
    while first < end {
        kernels::block(linear, first, input, &mut block);
        let count = end.saturating_sub(first).min(ROWS);
        for (token, outputs) in block.iter().enumerate().take(input.tokens) {
            each(token, first, outputs.get(..count).unwrap_or_default());
        }
        first = first.saturating_add(ROWS);
    }
}

/// `each(token, row, output)` for these rows; within a token ascending.
#[inline(always)]
pub fn for_each_row(
    linear: &LinearInt<'_>,
    rows: Range<usize>,
    input: &Input<'_>,
    mut each: impl FnMut(usize, usize, i32),
) {
    for_each_block(linear, rows, input, |token, first, outputs| {
        for (row, &output) in (first..).zip(outputs) {
            each(token, row, output);
        }
    });
}

/// `out[token, row] = epilogue(out[token, row], output)`.
#[inline(always)]
pub fn write(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    out: &mut [i16],
    epilogue: impl Fn(i16, i32) -> i16,
) {
    for_each_block(linear, 0..linear.rows, input, |token, first, outputs| {
        let start = token.saturating_mul(linear.rows).saturating_add(first);
        for (out, &output) in out.get_mut(start..).unwrap_or_default().iter_mut().zip(outputs) {
            *out = epilogue(*out, output);
        }
    });
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
    let mut block = [0; DOTS];
    while rows.rows > 0 {
        for product in next_products(&mut rows, x, &mut block) {
            each(*product);
        }
    }
}

/// The products of the next rows with `x` `[cols]`: four, or those that are left, or as many as the
/// kernels take in one go; takes them off `rows`. One piece of code for every epilogue.
#[inline(never)]
fn next_products<'b>(rows: &mut Rows<'_, i8>, x: &[i16], block: &'b mut [i32; DOTS]) -> &'b [i32] {
    let (stride, left) = (rows.stride, rows.rows);
    if let Some(count) = try_dots(rows.data, stride, left, x, block) {
        rows.rows = left.saturating_sub(count);
        rows.data = rows.data.get(stride.saturating_mul(count)..).unwrap_or_default();
        return block.get(..count).unwrap_or_default();
    }
    rows.rows = left.saturating_sub(4);
    let mut next = || {
        let row = rows.data.get(..x.len()).unwrap_or_default();
        rows.data = rows.data.get(stride..).unwrap_or_default();
        row
    };
    if left < 4 {
        let tail = block.get_mut(..left).unwrap_or_default();
        for product in tail.iter_mut() {
            *product = dot(next(), x);
        }
        return tail;
    }
    let Some(four) = block.first_chunk_mut::<4>() else { return &[] };
    *four = dot4([next(), next(), next(), next()], x);
    four
}
