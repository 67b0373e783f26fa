//! Cortex-M52, M55 and M85: Helium, the M-profile vector extension.
//!
//! Four rows share the activations, eight columns a turn: 10 instructions for 32 products. The loop
//! is tail-predicated, so that any number of columns runs through it; nothing past a row is read.

mod asm;
mod context;
mod nibbles;

use model_format::layout::{LinearInt, Packing};
use model_format::numeric::rescale;

use super::Input;
use super::reference;
pub use super::reference::{Ready, TOKENS, dot4, ready, scratch_len};
use asm::{Product, added, dots, rescaled, saturated};
pub use context::try_context;

/// Rows of a block.
pub const ROWS: usize = 16;
/// Rows in memory at once.
pub const DOTS: usize = 16;
/// Rows that share the activations.
const GROUP: usize = 4;

impl Product {
    /// `rows` rows from `first_row` on, a multiple of 4 and not 0. `None` where this file is not made
    /// for the matrix.
    #[inline(always)]
    fn of(
        linear: &LinearInt<'_>,
        first_row: usize,
        rows: usize,
        input: &Input<'_>,
    ) -> Option<Self> {
        let cols = linear.cols;
        if linear.packing != Packing::RowMajor
            || rows == 0
            || !rows.is_multiple_of(GROUP)
            || cols == 0
        {
            return None;
        }
        let end = first_row.checked_add(rows)?;
        let weights = linear.data.get(first_row.checked_mul(cols)?..end.checked_mul(cols)?)?;
        let bias = linear.bias.get(first_row..end)?.as_ptr_range();
        Some(Self {
            weights: weights.as_ptr(),
            cols,
            bias: bias.start,
            bias_end: bias.end,
            multipliers: linear.multipliers.get(first_row..end)?.as_ptr(),
            x: input.x.get(..cols)?.as_ptr(),
            out: core::ptr::null_mut(),
            bounds: [0; 2],
            stream_multiplier: 0,
        })
    }
}

/// Rows that are in whole groups.
const fn whole(rows: usize) -> usize {
    rows & !(GROUP - 1)
}

/// See [`block`](super::block).
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let [out] = out;
    let rows = linear.rows.saturating_sub(first_row).min(ROWS);
    let whole = whole(rows);
    match Product::of(linear, first_row, whole, input) {
        Some(product) => {
            let product = Product { out: out.as_mut_ptr().cast(), ..product };
            // SAFETY: `Product::of` has seen all operands; `whole` is at most the length of `out`.
            unsafe { rescaled(&product) };
            if whole < rows {
                rest(linear, first_row.saturating_add(whole), input, out.get_mut(whole..rows));
            }
        }
        None if nibbles::block(linear, first_row, input, out) => {}
        None => reference::block(linear, first_row, input, core::array::from_mut(out)),
    }
}

/// The rows from `first_row` on that are no whole group.
#[inline(never)]
fn rest(linear: &LinearInt<'_>, first_row: usize, input: &Input<'_>, out: Option<&mut [i32]>) {
    for (row, out) in (first_row..).zip(out.unwrap_or_default()) {
        let mut one = [[0]];
        reference::block(linear, row, input, &mut one);
        let [[output]] = one;
        *out = output;
    }
}

/// A whole product, saturated to `bounds`.
#[inline(never)]
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    bounds: [i32; 2],
    out: &mut [i16],
) -> bool {
    let whole = whole(linear.rows);
    let (Some(product), Some(out)) =
        (Product::of(linear, 0, whole, input), out.get_mut(..linear.rows))
    else {
        return false;
    };
    let product = Product { out: out.as_mut_ptr().cast(), bounds, ..product };
    // SAFETY: `Product::of` has seen all operands; `out` has `linear.rows` elements.
    unsafe { saturated(&product) };
    let mut outputs = [0; GROUP];
    let tail = out.get_mut(whole..).unwrap_or_default();
    rest(linear, whole, input, outputs.get_mut(..tail.len()));
    for (out, output) in tail.iter_mut().zip(outputs) {
        *out = output.max(bounds[0]).min(bounds[1]) as i16;
    }
    true
}

/// A whole product added to a stream that is rescaled by `multiplier`, saturated to `bounds`.
#[inline(never)]
pub fn try_project_add(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: i32,
    bounds: [i32; 2],
    stream: &mut [i16],
) -> bool {
    let whole = whole(linear.rows);
    let (Some(product), Some(stream)) =
        (Product::of(linear, 0, whole, input), stream.get_mut(..linear.rows))
    else {
        return false;
    };
    let out = stream.as_mut_ptr().cast();
    let product = Product { out, bounds, stream_multiplier: multiplier, ..product };
    // SAFETY: `Product::of` has seen all operands; `stream` has `linear.rows` elements.
    unsafe { added(&product) };
    let mut outputs = [0; GROUP];
    let tail = stream.get_mut(whole..).unwrap_or_default();
    rest(linear, whole, input, outputs.get_mut(..tail.len()));
    for (old, output) in tail.iter_mut().zip(outputs) {
        let kept = rescale(i32::from(*old) << 14, multiplier);
        *old = output.saturating_add(kept).max(bounds[0]).min(bounds[1]) as i16;
    }
    true
}

/// Dot products of the next rows in memory with `x`, at least one and at most `sums.len()`; `None`
/// where `rows` is 0 or `data` too short.
#[inline]
pub fn try_dots(
    data: &[i8],
    stride: usize,
    rows: usize,
    x: &[i16],
    sums: &mut [i32],
) -> Option<usize> {
    let (cols, rows) = (x.len(), rows.min(sums.len()));
    let before_last = rows.checked_sub(1)?.checked_mul(stride)?;
    if cols == 0 || before_last.checked_add(cols)? > data.len() {
        return None;
    }
    // SAFETY: the last row ends within `data`, `x` has `cols` elements and `sums` at least `rows`;
    // neither is 0.
    unsafe { dots(data.as_ptr(), stride, x.as_ptr(), cols, rows, sums.as_mut_ptr()) };
    Some(rows)
}
