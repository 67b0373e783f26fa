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
use model_format::layout::{BLOCK_ROWS, LinearInt, Packing};

use super::{Input, LAYOUT};
use epilogue::{Call, Epilogue};
pub use ready::{Ready, ready, scratch_len};
pub use row_major::dot4;

/// Most tokens of an input.
pub const TOKENS: usize = 4;
/// Rows of a block.
pub const ROWS: usize = 8;

/// The outputs of the rows from `first_row` on, a multiple of 4, for every token; those of rows past
/// the last are unspecified.
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let left = linear.rows.saturating_sub(first_row).div_ceil(BLOCK_ROWS);
    let blocks = left.min(ROWS / BLOCK_ROWS);
    let to = out.as_mut_ptr().cast::<u8>();
    let call = Call::new(Epilogue::RESCALE, to, [size_of::<[i32; ROWS]>(), blocks << 4], 4);
    let multiply = || {
        // SAFETY: a row of `out` has room for the 32 bits of each row of these blocks, and there is one
        // for every token that `multiply` admits.
        unsafe { product::multiply(linear, [first_row, blocks], input, call) }
    };
    if left != 0 && multiply() {
        return;
    }
    match linear.packing {
        // Other layouts are not loaded, and these fit.
        _ if LAYOUT.is_some() => (),
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
    project(linear, input, None, bounds, cast_slice_mut(out))
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
    project(linear, input, Some(multiplier), bounds, cast_slice_mut(stream))
}

/// The same for keys and values.
#[inline(always)]
pub fn try_project_cached(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    out: &mut [i8],
    _: &mut [i16],
) -> bool {
    project(linear, input, None, Epilogue::BYTES, cast_slice_mut(out))
}

#[inline(never)]
fn project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: Option<i32>,
    bounds: [i32; 2],
    out: &mut [u8],
) -> bool {
    let Some((epilogue, log2_len)) = Epilogue::new(multiplier, bounds) else {
        return false;
    };
    // Outputs are stored by words, and by blocks.
    let (rows, to) = (linear.rows, out.as_mut_ptr());
    let blocks = rows / BLOCK_ROWS;
    let stride = blocks << log2_len;
    let has_room = input.tokens as u64 * stride as u64 <= out.len() as u64;
    if !has_room || rows == 0 || !(rows | to.addr()).is_multiple_of(BLOCK_ROWS) {
        return false;
    }
    let call = Call::new(epilogue, to, [stride, stride], log2_len);
    // SAFETY: `out` has room for all rows of all tokens, which are whole blocks, and begins on a word.
    unsafe { product::multiply(linear, [0, blocks], input, call) }
}
