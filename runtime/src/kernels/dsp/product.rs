//! Which code multiplies what.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Packing, TILE_COLS, TILE_LEN};

use super::super::Input;
use super::code::{self, Call};
use super::epilogue::Epilogue;
use super::ready::Ready;
use super::{TOKENS, four_tokens, nibbles};

/// Bytes of the biases and multipliers of a block of bytes.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;
/// Bytes of two shifts, four multipliers and four biases, of weights of 4 bits.
const NIBBLE_CONSTANTS_LEN: usize = 2 + BLOCK_ROWS * 3;
/// Bytes of the weights of a group of 4 bits.
const GROUP_LEN: usize = BLOCK_ROWS * GROUP_COLS / 2;

/// Multiplies `blocks` blocks of four rows, from that of `first_row` on, with all tokens; `false`, and
/// nothing done, where the packing or the memory is not what the code is made for.
///
/// # Safety
/// `out` must have words for the outputs of so many blocks by this epilogue, at least one, for each of
/// the input's tokens, `stride` bytes from each to the next.
#[inline(never)]
pub unsafe fn multiply(
    linear: &LinearInt<'_>,
    [first_row, blocks]: [usize; 2],
    input: &Input<'_>,
    epilogue: &Epilogue,
    out: *mut u8,
    stride: usize,
) -> bool {
    let tokens = input.tokens;
    let tiles = linear.cols.div_ceil(TILE_COLS);
    let groups = linear.cols.div_ceil(GROUP_COLS);
    let (has_tokens, block_len) = match linear.packing {
        Packing::PairedRows => (
            tokens as u64 * tiles as u64 <= input.ready.tiles.len() as u64,
            tiles as u64 * TILE_LEN as u64 + CONSTANTS_LEN as u64,
        ),
        Packing::Nibbles if cfg!(feature = "int4") => (
            linear.cols == input.cols && nibbles::is_ready(input),
            // Constants end on a multiple of 4.
            (groups as u64 * (GROUP_LEN + 2) as u64 + NIBBLE_CONSTANTS_LEN as u64)
                .next_multiple_of(4),
        ),
        _ => return false,
    };
    if !has_tokens || tokens > TOKENS || tiles == 0 {
        return false;
    }
    // The columns of the input are in memory: a block's bytes are less than 2^33.
    let first = first_row / BLOCK_ROWS;
    let end = first as u64 + blocks as u64;
    if end > u64::from(u32::MAX / BLOCK_ROWS as u32) || end * block_len > linear.data.len() as u64 {
        return false;
    }
    let weights = linear.data.as_ptr().wrapping_add(first * block_len as usize);
    if !weights.addr().is_multiple_of(4) {
        return false;
    }
    let len = blocks << epilogue.log2_len();
    let Ready { tiles: x, sums, .. } = &input.ready;
    if tokens == TOKENS && linear.packing == Packing::PairedRows {
        let call = four_tokens::Call {
            epilogue: epilogue.for_four_tokens(),
            out,
            stride,
            end: out.wrapping_add(len),
            sums: *sums,
        };
        // SAFETY: all weights of these blocks are there, on a multiple of 4; so are the tiles of four
        // tokens; the rest is the caller's.
        unsafe { four_tokens::multiply(weights, x.as_ptr(), tiles, call) };
        return true;
    }
    for token in 0..tokens {
        let (size, x, start) = match linear.packing {
            Packing::Nibbles if cfg!(feature = "int4") => {
                // SAFETY: the input is ready, and this is one of its tokens.
                let (x, starts) = unsafe { nibbles::groups(input, token) };
                (groups.wrapping_neg(), x, starts.expose_provenance())
            }
            _ => {
                let sum = sums.get(token).copied().unwrap_or(0);
                (tiles, x.as_ptr().wrapping_add(token * tiles).cast(), sum as usize)
            }
        };
        let out = out.wrapping_add(token * stride);
        let (out, end) = (out.cast(), out.wrapping_add(len).cast());
        // SAFETY: all weights of these blocks are there, on a multiple of 4; so are the columns of all
        // tokens; the rest is the caller's.
        unsafe { code::multiply(weights, x, size, &Call { epilogue: *epilogue, start, out, end }) };
    }
    true
}
