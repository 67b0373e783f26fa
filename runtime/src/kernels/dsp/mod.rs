//! Cortex-M4, M7 and M33: two multiplications of 16 bits in one instruction. Made for paired rows and
//! weights of 4 bits.

mod code;
mod epilogue;
mod four_tokens;
#[cfg_attr(not(feature = "int4"), allow(unused_macros, unused_imports, reason = "no such weights"))]
mod nibbles;
mod paired;
mod product;
mod ready;
mod row_major;

use bytemuck::cast_slice_mut;
use model_format::layout::{BLOCK_ROWS, LinearInt, ONLY_LAYOUT, Packing};

use super::Input;
use epilogue::{BYTES, SUMS};
use product::Target;
pub use ready::{Ready, ready, scratch_len};
pub use row_major::dot4;

/// Most tokens of an input.
pub const TOKENS: usize = 4;
/// Rows of a block.
pub const ROWS: usize = 8;

/// Rows of a block; all that there is room for, where there is one token.
#[inline(always)]
pub fn rows(linear: &LinearInt<'_>, input: &Input<'_>) -> usize {
    match input.tokens == 1 && linear.known_packing() != Packing::RowMajor {
        true => ROWS * TOKENS,
        false => ROWS,
    }
}

/// The outputs of the rows from `first_row` on, a multiple of 4, for every token; those of rows past
/// the last are unspecified.
#[inline(always)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let left = linear.rows.saturating_sub(first_row).div_ceil(BLOCK_ROWS) * BLOCK_ROWS;
    let rows = [first_row, left.min(rows(linear, input))];
    let to = cast_slice_mut(out.as_flattened_mut());
    if product::multiply(linear, input, Target { rows, multiplier: 0, bounds: SUMS, out: to }) {
        return;
    }
    match linear.known_packing() {
        // Other layouts are not loaded, and these fit.
        _ if ONLY_LAYOUT.is_some() => (),
        Packing::RowMajor => row_major::block(linear, first_row, input, out),
        _ => row_major::any_block(linear, first_row, input, out),
    }
}

/// `out[token, row]`, saturated to `bounds`; `false`, and nothing done, where it cannot.
#[inline(always)]
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    bounds: [i32; 2],
    out: &mut [i16],
) -> bool {
    try_project_add(linear, input, 0, bounds, out)
}

/// The same, added to `stream` times `multiplier`.
#[inline(always)]
pub fn try_project_add(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: i32,
    bounds: [i32; 2],
    stream: &mut [i16],
) -> bool {
    let (rows, out) = ([0, linear.rows], cast_slice_mut(stream));
    product::multiply(linear, input, Target { rows, multiplier, bounds, out })
}

/// The same for keys and values.
#[inline(always)]
pub fn try_project_cached(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    out: &mut [i8],
    _: &mut [i16],
) -> bool {
    let (rows, out) = ([0, linear.rows], cast_slice_mut(out));
    product::multiply(linear, input, Target { rows, multiplier: 0, bounds: BYTES, out })
}
