//! What the cores without a multiplication of two halves have in common: `QuadRows` weights, a word
//! of them times one activation.
//!
//! With `w` a word of four rows, the sums of `w x`, `(w >> 8) x`, `(w >> 16) x` and `(w >> 24) x`
//! modulo 2^32 need no masks: row i is `sum_i - 256 sum_(i+1)`, less 128 times the sum of `x` for the
//! bias of the bytes. That last part is where the sums start, so it costs nothing.

use model_format::layout::{BLOCK_ROWS, LinearInt, Packing, TILE_COLS};
use model_format::numeric::rescale;

use super::isa::{Bounds, dot4, outputs, project, widen};
pub use super::reference::{ROWS, TOKENS, try_project_add};
use super::{Input, reference};

/// Biases and multipliers behind the weights of a block.
const CONSTANTS: usize = 2 * BLOCK_ROWS;

/// Where the sums of four rows start, then `x` widened, with zeros up to a whole tile; empty without
/// columns.
pub type Ready<'x> = &'x [i32];

/// Bytes of a [`Ready`] for every token.
pub const fn scratch_len(tokens: usize, cols: usize) -> usize {
    padded(cols).saturating_add(BLOCK_ROWS).saturating_mul(4).saturating_mul(tokens)
}

/// Columns up to a whole tile.
const fn padded(cols: usize) -> usize {
    cols.saturating_add(TILE_COLS - 1) & !(TILE_COLS - 1)
}

/// Widens the first token; empty where `scratch` is too short or not on a multiple of 4.
pub fn ready<'x>(x: &[i16], [_, cols]: [usize; 2], scratch: &'x mut [u8]) -> Ready<'x> {
    let scratch = bytemuck::try_cast_slice_mut::<u8, i32>(scratch).unwrap_or_default();
    let ready = scratch.get_mut(..padded(cols).saturating_add(BLOCK_ROWS)).unwrap_or_default();
    let Some((starts, wide)) = ready.split_first_chunk_mut::<BLOCK_ROWS>() else { return &[] };
    let whole = cols & !(TILE_COLS - 1);
    let (Some((x, rest)), true) = (x.split_at_checked(whole), wide.len() >= whole) else {
        return &[];
    };
    let mut sum = 0_i32;
    if !x.is_empty() {
        let ends = x.as_ptr_range();
        // SAFETY: `x` is one or more whole tiles, and `wide` at least as long.
        sum = unsafe { widen(ends.start, ends.end, wide.as_mut_ptr()) };
    }
    if whole != cols {
        let last = wide.get_mut(whole..).unwrap_or_default();
        last.fill(0);
        for (wide, &x) in last.iter_mut().zip(rest).take(cols - whole) {
            *wide = x.into();
            sum = sum.wrapping_add(x.into());
        }
    }
    // start_i - 256 start_(i+1) = -128 sum
    let mut start = 0_i32;
    for to in starts.iter_mut().rev() {
        start = (start << 8).wrapping_sub(sum << 7);
        *to = start;
    }
    if cols == 0 { &[] } else { ready }
}

/// The words of the next `blocks` blocks from `first_row` on, if the kernels can multiply them with
/// `input`: all there, aligned, and as many columns as were made ready.
#[inline(always)]
fn words<'a>(
    linear: &LinearInt<'a>,
    (first_row, blocks): (usize, usize),
    input: &Input<'_>,
) -> Option<&'a [i32]> {
    let cols = input.ready.len().checked_sub(BLOCK_ROWS)?;
    if linear.packing != Packing::QuadRows || padded(linear.cols) != cols {
        return None;
    }
    let words = bytemuck::try_cast_slice(linear.from_row(first_row)).ok()?;
    // Of halves, because a check for an overflow costs a long multiplication.
    let block = u16::try_from(cols.saturating_add(CONSTANTS)).ok()?;
    words.get(..usize::from(block).wrapping_mul(u16::try_from(blocks).ok()?.into()))
}

/// Outputs of the rows from `first_row` on, a multiple of 4.
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let [out] = out;
    if let Some(words) = words(linear, (first_row, 1), input) {
        let ready = input.ready.as_ptr_range();
        // SAFETY: `words` is a whole block of as many columns, 1 or more, as `ready` has behind its starts.
        unsafe { outputs(words.as_ptr(), ready.start, ready.end, out) }
    } else if linear.packing == Packing::RowMajor && linear.rows.saturating_sub(first_row) >= ROWS {
        row_major(linear, first_row, input.token(0), out);
    } else {
        reference::block(linear, first_row, input, core::array::from_mut(out));
    }
}

/// The same for four rows that are there, row after row in memory.
#[inline(always)]
fn row_major(linear: &LinearInt<'_>, first_row: usize, x: &[i16], out: &mut [i32; ROWS]) {
    let row =
        |i| linear.from_row(first_row.saturating_add(i)).get(..linear.cols).unwrap_or_default();
    let sums = dot4([row(0), row(1), row(2), row(3)], x);
    for ((out, sum), row) in out.iter_mut().zip(sums).zip(first_row..) {
        let (bias, multiplier) = linear.constants(row);
        *out = rescale(bias.wrapping_add(sum), multiplier);
    }
}

/// The whole product, saturated to `low..=high`.
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    [low, high]: [i32; 2],
    out: &mut [i16],
) -> bool {
    let blocks = linear.rows / ROWS;
    let (whole, rest) = out.split_at_mut_checked(blocks.saturating_mul(ROWS)).unwrap_or_default();
    let Some(words) = words(linear, (0, blocks), input) else { return false };
    if !whole.is_empty() {
        let bounds = Bounds {
            x_end: input.ready.as_ptr_range().end,
            out_end: whole.as_ptr_range().end,
            high,
            low,
        };
        // SAFETY: `words` are as many blocks of as many columns, 1 or more of each, as `whole` has fours and
        // `ready` has behind its starts.
        unsafe { project(words.as_ptr(), input.ready.as_ptr(), whole.as_mut_ptr(), &bounds) }
    }
    let mut last = [[0; ROWS]; TOKENS];
    if !linear.rows.is_multiple_of(ROWS) {
        block(linear, linear.rows - linear.rows % ROWS, input, &mut last);
    }
    for (out, &value) in rest.iter_mut().zip(last.as_flattened()) {
        *out = value.max(low).min(high) as i16;
    }
    true
}
