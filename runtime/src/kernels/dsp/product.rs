//! Which code multiplies what.

use model_format::layout::{BLOCK_ROWS, LinearInt, Packing, TILE_LEN};

use super::super::Input;
use super::epilogue::{Call, Epilogue, SUMS_HALF};
use super::ready::{Ready, minus_sum};
use super::{ROWS, TOKENS, code, four_tokens, nibbles};

/// Bytes of the biases and multipliers of a block of bytes.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;

/// What is asked for: outputs, and what becomes of them.
pub struct Target<'o> {
    /// The first row and how many there are, both multiples of 4.
    pub rows: [usize; 2],
    /// Of a stream; 0 where there is none.
    pub multiplier: i32,
    pub bounds: [i32; 2],
    /// Those of each token after those of the one before; sums a [`Block`](super::super::Block).
    pub out: &'o mut [u8],
}

/// Multiplies with all tokens; `false`, and nothing done, where the packing or the memory is not what the
/// code is made for.
#[inline(never)]
pub fn multiply(linear: &LinearInt<'_>, input: &Input<'_>, target: Target<'_>) -> bool {
    let Ready { tiles: x, count: tiles, start, .. } = input.ready;
    let tokens = input.tokens;
    // No more than overflow below.
    let is_there =
        || tiles != 0 && linear.cols == input.cols && tiles <= linear.data.len() / TILE_LEN;
    let block_len = match linear.known_packing() {
        Packing::PairedRows if is_there() => tiles * TILE_LEN + CONSTANTS_LEN,
        Packing::Nibbles if cfg!(feature = "int4") => nibbles::block_len(linear, input),
        _ => return false,
    };
    let Some((weights, mut call)) = target.find(linear, block_len, tokens) else {
        return false;
    };
    if cfg!(feature = "int4") && linear.known_packing() == Packing::Nibbles {
        // SAFETY: `find` has found the weights and the outputs, for which the input is ready.
        unsafe { nibbles::multiply(weights, input, &mut call) };
        return true;
    }
    call.start = start;
    // SAFETY: `find` has found the weights and the outputs; the input is ready, so that there are as many
    // tiles of its tokens, one to four, and their sums.
    unsafe {
        match tokens {
            1 => code::multiply(weights, x.cast(), tiles, &call),
            TOKENS => four_tokens::multiply(weights, x, tiles, &call),
            _ => multiply_each(weights, input, &mut call),
        }
    }
    true
}

/// Two or three tokens.
///
/// # Safety
/// That of [`code::multiply`].
#[inline(never)]
unsafe fn multiply_each(weights: *const i8, input: &Input<'_>, call: &mut Call) {
    let Ready { tiles: mut x, count, .. } = input.ready;
    for _ in 0..input.tokens {
        // SAFETY: so many tokens have so many tiles; the rest is the caller's.
        unsafe {
            call.start = minus_sum(x, count) as usize;
            code::multiply(weights, x.cast(), count, call);
        }
        x = x.wrapping_add(count);
        call.out = call.out.wrapping_add(call.stride);
    }
}

impl Target<'_> {
    /// The weights, blocks of so many bytes on a multiple of 4, and the outputs of all tokens, at least
    /// a block of each, on a multiple of 4; `None` where either is not so.
    #[inline(always)]
    pub fn find(
        self,
        linear: &LinearInt<'_>,
        block_len: usize,
        tokens: usize,
    ) -> Option<(*const i8, Call)> {
        let Self { rows: [first_row, rows], multiplier, bounds, out } = self;
        let (first, blocks) = (first_row / BLOCK_ROWS, rows / BLOCK_ROWS);
        let len = (first + blocks) as u64 * block_len as u64;
        if len > linear.data.len() as u64 {
            return None;
        }
        let weights = linear.data.as_ptr().wrapping_add(first * block_len);
        let (epilogue, half) = Epilogue::new(multiplier, bounds)?;
        // Weights of that many blocks are in memory: these are less than 2^27.
        let len = blocks * 2 * half;
        let stride = if half == SUMS_HALF { len.max(size_of::<[i32; ROWS]>()) } else { len };
        let call = Call { epilogue, out: out.as_mut_ptr(), stride, len, half, start: 0 };
        let places = rows | call.out.addr() | weights.addr();
        let is_placed = blocks != 0 && places.is_multiple_of(BLOCK_ROWS);
        (is_placed && tokens * stride <= out.len()).then_some((weights, call))
    }
}
