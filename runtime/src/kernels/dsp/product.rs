//! Matrices in blocks of four rows, and where their products go.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Packing, TILE_COLS, TILE_LEN};

use super::super::Input;
use super::code::{self, Call};
use super::epilogue::Epilogue;
use super::ready::Ready;
use super::{TOKENS, four_tokens, nibbles};

/// Bytes of the biases and multipliers of a block.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;

/// Blocks of rows, and tokens that they are multiplied with.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// On a multiple of 4 bytes.
    weights: &'a [i8],
    block_len: usize,
    /// Those of which there are weights.
    rows: usize,
    size: Size,
    input: &'a Input<'a>,
}

/// Of a row, at least one.
#[derive(Clone, Copy)]
enum Size {
    /// Of paired rows; the input has as many of every token.
    Tiles(usize),
    /// Of weights of 4 bits; the input has as many columns, and is ready for them.
    Groups(usize),
}

impl<'a> Product<'a> {
    /// The blocks from that of `first_row` on; `None` where the packing or the memory is another.
    #[inline(always)]
    pub fn new(linear: &LinearInt<'a>, first_row: usize, input: &'a Input<'a>) -> Option<Self> {
        let tokens = input.tokens as u64;
        if input.tokens > TOKENS || linear.cols == 0 {
            return None;
        }
        let (size, has_tokens, weights_len) = match linear.packing {
            Packing::PairedRows => {
                let tiles = linear.cols.div_ceil(TILE_COLS);
                let has_tokens = tokens * tiles as u64 <= input.ready.tiles.len() as u64;
                (Size::Tiles(tiles), has_tokens, tiles as u64 * TILE_LEN as u64)
            }
            Packing::Nibbles => {
                let groups = linear.cols.div_ceil(GROUP_COLS);
                let has_tokens = linear.cols == input.cols && nibbles::is_ready(input);
                (
                    Size::Groups(groups),
                    has_tokens,
                    groups as u64 * 32 + groups.div_ceil(2) as u64 * 4,
                )
            }
            _ => return None,
        };
        let block_len = weights_len + CONSTANTS_LEN as u64;
        let blocks = linear.rows.div_ceil(BLOCK_ROWS) as u64;
        let weights = match first_row {
            0 => linear.data,
            _ => linear.data.get(first_row / BLOCK_ROWS * block_len as usize..)?,
        };
        let is_aligned = weights.as_ptr().addr().is_multiple_of(4);
        let rows = linear.rows.saturating_sub(first_row);
        // The columns of an input are in memory: a block's bytes are less than 2^34, of blocks there are
        // less than 2^30.
        let is_whole = blocks * block_len <= linear.data.len() as u64;
        let block_len = block_len as usize;
        (has_tokens && is_whole && is_aligned).then_some(Self {
            weights,
            block_len,
            rows,
            size,
            input,
        })
    }

    /// `out[token][row]`, rescaled.
    #[inline(always)]
    pub fn rescaled<const ROWS: usize>(&self, out: &mut [[i32; ROWS]; TOKENS]) {
        let blocks = self.rows.div_ceil(BLOCK_ROWS).min(ROWS / BLOCK_ROWS);
        if blocks == 0 {
            return;
        }
        let len = blocks * BLOCK_ROWS * size_of::<i32>();
        let stride = size_of::<[i32; ROWS]>();
        // SAFETY: `out` is of 32 bits, and every row of it has room for so many blocks of those there are,
        // at least one.
        unsafe { self.tokens(Epilogue::RESCALE, out.as_mut_ptr().cast(), stride, len) };
    }

    /// `out[token, row]` of all rows, saturated and perhaps added to; `false`, and nothing done, where
    /// `out` does not lie on words.
    #[inline(always)]
    pub fn saturated(self, epilogue: Epilogue, out: &mut [i16]) -> bool {
        let (rows, tokens) = (self.rows, self.input.tokens);
        let is_aligned =
            out.as_ptr().addr().is_multiple_of(4) && (tokens == 1 || rows.is_multiple_of(2));
        if !is_aligned || rows as u64 * tokens as u64 > out.len() as u64 {
            return false;
        }
        let whole = rows & !(BLOCK_ROWS - 1);
        if whole != 0 {
            // SAFETY: `out` has room for all rows of all tokens, these are whole blocks, at least one, and
            // every token's begin on words.
            unsafe { self.tokens(epilogue, out.as_mut_ptr().cast(), rows * 2, whole * 2) };
        }
        if whole != rows {
            self.last_rows(epilogue, out);
        }
        true
    }

    /// The rows of the last block: outputs of those past the last go nowhere.
    #[cold]
    #[inline(never)]
    fn last_rows(mut self, epilogue: Epilogue, out: &mut [i16]) {
        let start = self.rows / BLOCK_ROWS * self.block_len;
        self.weights = self.weights.get(start..).unwrap_or_default();
        let mut words = [[0_u32; BLOCK_ROWS / 2]; TOKENS];
        let rows = self.rows;
        let last = |token: usize| {
            let end = token.wrapping_add(1).wrapping_mul(rows);
            end.wrapping_sub(rows % BLOCK_ROWS)..end
        };
        for (token, words) in words.iter_mut().enumerate() {
            let block = bytemuck::cast_mut::<_, [i16; BLOCK_ROWS]>(words);
            let last = out.get(last(token)).unwrap_or_default();
            block.iter_mut().zip(last).for_each(|(to, from)| *to = *from);
        }
        let len = size_of::<[u32; BLOCK_ROWS / 2]>();
        // SAFETY: every row of `words` is outputs of the last block, which is there.
        unsafe { self.tokens(epilogue, words.as_mut_ptr().cast(), len, len) };
        for (token, words) in words.iter().enumerate().take(self.input.tokens) {
            let block = bytemuck::cast_ref::<_, [i16; BLOCK_ROWS]>(words);
            let last = out.get_mut(last(token)).unwrap_or_default();
            last.iter_mut().zip(block).for_each(|(to, from)| *to = *from);
        }
    }

    /// Outputs of the first blocks for all tokens, `stride` bytes from each to the next.
    ///
    /// # Safety
    /// `out` must have words of whole blocks of this epilogue, `len` bytes for each token, at least one
    /// block and of those there are.
    #[inline(always)]
    unsafe fn tokens(&self, epilogue: Epilogue, out: *mut u8, stride: usize, len: usize) {
        let (weights, input) = (self.weights.as_ptr(), self.input);
        let Ready { tiles: x, sums, .. } = &input.ready;
        for token in 0..input.tokens {
            let (size, x, start) = match self.size {
                Size::Tiles(tiles) if input.tokens == TOKENS => {
                    // SAFETY: the same, and `new` has checked the input.
                    return unsafe { self.four_tokens(tiles, epilogue, out, stride, len) };
                }
                Size::Tiles(tiles) => {
                    let x = x.as_ptr().wrapping_add(token * tiles).cast();
                    (tiles, x, sums.get(token).copied().unwrap_or(0) as usize)
                }
                Size::Groups(groups) => {
                    // SAFETY: `new` has checked the input, and this is one of its tokens.
                    let (x, starts) = unsafe { nibbles::groups(input, token) };
                    (groups.wrapping_neg(), x, starts.expose_provenance())
                }
            };
            let out = out.wrapping_add(token * stride);
            let (out, end) = (out.cast(), out.wrapping_add(len).cast());
            // SAFETY: `new` has checked the weights of all blocks and the columns of all tokens; these
            // are the outputs of one of them.
            unsafe { code::multiply(weights, x, size, &Call { epilogue, start, out, end }) };
        }
    }

    /// `tokens` of [`TOKENS`] tokens: rows 0 and 1 of all blocks, then rows 2 and 3.
    ///
    /// # Safety
    /// That of `tokens`; and the blocks must be of paired rows of so many tiles, as the input.
    #[inline(never)]
    unsafe fn four_tokens(
        &self,
        tiles: usize,
        epilogue: Epilogue,
        out: *mut u8,
        stride: usize,
        len: usize,
    ) {
        let two_rows = if epilogue.is_wide() { 8 } else { 4 };
        let epilogue = epilogue.for_four_tokens();
        let Ready { tiles: x, sums, .. } = self.input.ready;
        for half in 0..2 {
            let out = out.wrapping_add(half * two_rows);
            let call =
                four_tokens::Call { epilogue, out, stride, end: out.wrapping_add(len), sums };
            let weights = self.weights.as_ptr().wrapping_add(half * TILE_LEN / 2);
            // SAFETY: `new` has checked the weights of all blocks and the tiles of all tokens; the rest is
            // the caller's. The outputs of these two rows begin and end as many bytes later as they do in
            // their blocks.
            unsafe { four_tokens::multiply(weights, x.as_ptr(), tiles, &call) };
        }
    }
}
