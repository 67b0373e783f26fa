//! Which code multiplies what.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Packing, TILE_COLS, TILE_LEN};

use super::super::Input;
use super::epilogue::Call;
use super::ready::Ready;
use super::{TOKENS, code, four_tokens, nibbles};

/// Bytes of the biases and multipliers of a block of bytes.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;
/// Bytes of two shifts, four multipliers and four biases, of weights of 4 bits.
const NIBBLE_CONSTANTS_LEN: usize = 2 + BLOCK_ROWS * 3;
/// Bytes of the weights of a group of 4 bits and of its factors.
const GROUP_LEN: usize = BLOCK_ROWS * GROUP_COLS / 2 + 2;
/// Tiles of more columns than any input has, of which a block's bytes are less than 2^31.
const MANY_TILES: usize = 1 << 26;

/// Multiplies `blocks` blocks of four rows, from that of `first_row` on, with all tokens; `false`, and
/// nothing done, where the packing or the memory is not what the code is made for.
///
/// # Safety
/// `call` must have outputs of so many blocks by its epilogue, at least one, for the first of the input's
/// tokens and, strides further, for each of the others.
#[inline(never)]
pub unsafe fn multiply(
    linear: &LinearInt<'_>,
    [first_row, blocks]: [usize; 2],
    input: &Input<'_>,
    mut call: Call,
) -> bool {
    let (tokens, cols) = (input.tokens, linear.cols);
    let Ready { tiles: x, sums, .. } = &input.ready;
    // 0 where the number of columns is absurd.
    let tiles = cols.wrapping_add(TILE_COLS - 1) / TILE_COLS;
    if tiles.wrapping_sub(1) >= MANY_TILES || tokens > TOKENS {
        return false;
    }
    let (has_tokens, block_len) = match linear.packing {
        Packing::PairedRows => (tokens * tiles <= x.len(), tiles * TILE_LEN + CONSTANTS_LEN),
        Packing::Nibbles if cfg!(feature = "int4") => {
            let len = cols.div_ceil(GROUP_COLS) * GROUP_LEN + NIBBLE_CONSTANTS_LEN;
            // Constants end on a multiple of 4.
            (cols == input.cols && nibbles::is_ready(input), len.next_multiple_of(4))
        }
        _ => return false,
    };
    let first = first_row / BLOCK_ROWS;
    let len = (first as u64 + blocks as u64).wrapping_mul(block_len as u64);
    let weights = linear.data.as_ptr().wrapping_add(first.wrapping_mul(block_len));
    if !has_tokens || len > linear.data.len() as u64 || !weights.addr().is_multiple_of(4) {
        return false;
    }
    if tokens == TOKENS && linear.packing == Packing::PairedRows {
        call.start = sums.as_ptr().expose_provenance();
        // SAFETY: all weights of these blocks are there, on a multiple of 4; so are the tiles of four
        // tokens; the rest is the caller's.
        unsafe { four_tokens::multiply(weights, x.as_ptr(), tiles, &call) };
        return true;
    }
    for token in 0..tokens {
        let (size, x) = match linear.packing {
            Packing::Nibbles if cfg!(feature = "int4") => {
                // SAFETY: the input is ready, and this is one of its tokens.
                let (x, starts) = unsafe { nibbles::groups(input, token) };
                call.start = starts.expose_provenance();
                (cols.div_ceil(GROUP_COLS).wrapping_neg(), x)
            }
            _ => {
                call.start = sums.get(token).copied().unwrap_or(0) as usize;
                (tiles, x.as_ptr().wrapping_add(token * tiles).cast())
            }
        };
        // SAFETY: all weights of these blocks are there, on a multiple of 4; so are the columns of all
        // tokens; the rest is the caller's.
        unsafe { code::multiply(weights, x, size, &call) };
        call.out = call.out.wrapping_add(call.stride);
        call.end = call.end.wrapping_add(call.stride);
    }
    true
}
