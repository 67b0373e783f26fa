//! Paired rows, one token: 14 instructions for 16 multiply-accumulates.
//!
//! A halfword of weights is `256 b + (a + 128)`. `SMLALD` with it sums `256 B + A` in 64 bits, `SMLAD`
//! with its low byte sums A, where both begin at -128 times the sum of x; `B + floor(A / 256)` are the
//! bits from 8 on of the former.

use core::arch::naked_asm;

use model_format::layout::{BLOCK_ROWS, LinearInt, Packing, TILE_COLS, TILE_LEN};

use super::super::Input;
use super::TOKENS;
use super::epilogue::Epilogue;
use super::four_tokens;
use super::ready::Ready;

/// Bytes of the biases and multipliers of a block.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;

/// Blocks of rows, and tokens that they are multiplied with.
#[derive(Clone, Copy)]
pub struct Paired<'a> {
    /// Blocks of `tiles` tiles, on a multiple of 4 bytes.
    weights: &'a [i8],
    rows: usize,
    /// At least one.
    tiles: usize,
    /// At least so many tiles of so many tokens.
    ready: &'a Ready<'a>,
    tokens: usize,
}

impl<'a> Paired<'a> {
    /// The blocks from that of `first_row` on; `None` where the packing or the memory is another.
    #[inline(always)]
    pub fn new(linear: &LinearInt<'a>, first_row: usize, input: &'a Input<'_>) -> Option<Self> {
        let tiles = linear.cols.div_ceil(TILE_COLS);
        let (ready, tokens) = (&input.ready, input.tokens);
        if linear.packing != Packing::PairedRows
            || tokens > TOKENS
            || tiles == 0
            || tokens as u64 * tiles as u64 > ready.tiles.len() as u64
        {
            return None;
        }
        // So many tiles of an input are in memory: twice their bytes are less than 2^33.
        let block_len = tiles as u64 * TILE_LEN as u64 + CONSTANTS_LEN as u64;
        let blocks = linear.rows.div_ceil(BLOCK_ROWS) as u64;
        let weights = match first_row {
            0 => linear.data,
            _ => linear.data.get(first_row / BLOCK_ROWS * block_len as usize..)?,
        };
        let is_aligned = weights.as_ptr().addr().is_multiple_of(4);
        let rows = linear.rows.saturating_sub(first_row);
        let is_whole = blocks * block_len <= linear.data.len() as u64;
        (is_whole && is_aligned).then_some(Self { weights, rows, tiles, ready, tokens })
    }

    /// `out[token][row]`, rescaled.
    #[inline(always)]
    pub fn rescaled<const ROWS: usize>(&self, out: &mut [[i32; ROWS]; TOKENS]) {
        let blocks = self.rows.div_ceil(BLOCK_ROWS).min(ROWS / BLOCK_ROWS);
        if blocks == 0 {
            return;
        }
        let len = blocks * BLOCK_ROWS * size_of::<i32>();
        // SAFETY: `out` is of 32 bits, and every row of it has room for so many blocks of those there are,
        // at least one.
        unsafe {
            self.tokens(Epilogue::RESCALE, out.as_mut_ptr().cast(), size_of::<[i32; ROWS]>(), len)
        };
    }

    /// `out[token, row]` of all rows, saturated and perhaps added to; `false`, and nothing done, where
    /// `out` does not lie on words.
    #[inline(always)]
    pub fn saturated(self, epilogue: Epilogue, out: &mut [i16]) -> bool {
        let Self { rows, tokens, .. } = self;
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
        let start = self.rows / BLOCK_ROWS * (self.tiles * TILE_LEN + CONSTANTS_LEN);
        self.weights = self.weights.get(start..).unwrap_or_default();
        let mut words = [[0_u32; BLOCK_ROWS / 2]; TOKENS];
        for (words, token) in words.iter_mut().zip(out.chunks_exact_mut(self.rows.max(1))) {
            let (_, last) = token.as_chunks_mut::<BLOCK_ROWS>();
            let block = bytemuck::cast_mut::<_, [i16; BLOCK_ROWS]>(words);
            block.iter_mut().zip(last).for_each(|(to, from)| *to = *from);
        }
        let len = size_of::<[u32; BLOCK_ROWS / 2]>();
        // SAFETY: every row of `words` is outputs of the last block, which is there.
        unsafe { self.tokens(epilogue, words.as_mut_ptr().cast(), len, len) };
        for (words, token) in words.iter().zip(out.chunks_exact_mut(self.rows.max(1))) {
            let (_, last) = token.as_chunks_mut::<BLOCK_ROWS>();
            let block = bytemuck::cast_ref::<_, [i16; BLOCK_ROWS]>(words);
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
        if self.tokens == TOKENS {
            // SAFETY: the same.
            return unsafe { self.four_tokens(epilogue, out, stride, len) };
        }
        for token in 0..self.tokens {
            let out = out.wrapping_add(token * stride);
            // SAFETY: these are the outputs of one of the tokens.
            unsafe { self.multiply(token, epilogue, out.cast(), out.wrapping_add(len).cast()) };
        }
    }

    /// `tokens` of [`TOKENS`] tokens: rows 0 and 1 of all blocks, then rows 2 and 3.
    ///
    /// # Safety
    /// That of `tokens`.
    #[inline(never)]
    unsafe fn four_tokens(&self, epilogue: Epilogue, out: *mut u8, stride: usize, len: usize) {
        let two_rows = if epilogue.is_wide() { 8 } else { 4 };
        let epilogue = epilogue.for_four_tokens();
        for half in 0..2 {
            let out = out.wrapping_add(half * two_rows);
            let (end, sums) = (out.wrapping_add(len), self.ready.sums);
            let call = four_tokens::Call { epilogue, out, stride, end, sums };
            let weights = self.weights.as_ptr().wrapping_add(half * TILE_LEN / 2);
            // SAFETY: `new` has checked the weights of all blocks and the tiles of all tokens; the rest is
            // the caller's. The outputs of these two rows begin and end as many bytes later as they do in
            // their blocks.
            unsafe { four_tokens::multiply(weights, self.ready.tiles.as_ptr(), self.tiles, &call) };
        }
    }

    /// Outputs of the first blocks.
    ///
    /// # Safety
    /// `out` to `end` must be words of whole blocks of this epilogue, at least one, and of those there
    /// are; `token` one of the tokens.
    #[inline(always)]
    unsafe fn multiply(&self, token: usize, epilogue: Epilogue, out: *mut u32, end: *mut u32) {
        let Ready { tiles: x, sums } = self.ready;
        let x = x.as_ptr().wrapping_add(token * self.tiles);
        let sum = sums.get(token).copied().unwrap_or(0);
        let call = Call { epilogue, sum, out, end };
        // SAFETY: `new` has checked the weights of all blocks and the tiles of all tokens; the rest is
        // the caller's.
        unsafe { multiply(self.weights.as_ptr(), x, self.tiles, &call) };
    }
}

/// What the code below is told besides its operands.
#[repr(C)]
struct Call {
    epilogue: Epilogue,
    /// Of the columns of x.
    sum: i32,
    out: *mut u32,
    end: *mut u32,
}

/// All blocks of a token: `out[4 rows] = epilogue(rescale(bias + W x, multipliers))`.
///
/// r0 walks over the weights, r1 over x; r2, r3, r4 sum rows 0 and 1, r5, r6, r7 rows 2 and 3. The first
/// of a block's turns enters the loop where a multiple of 8 tiles is left. "Equal" says of a turn that it
/// is the last: nothing in it changes the flags, and only what comes between two turns compares.
///
/// On the stack: what r1 to r7 begin with and the way into the loop; x at the last turn; the epilogue;
/// the outputs from and to; what comes after a sum with a stream, the stream's multiplier, 2; the first
/// turn.
///
/// # Safety
/// `weights` must be blocks of `tiles` tiles on a multiple of 4 bytes, as many as `out` has, at least
/// one; `x` must have `tiles` tiles, at least one.
#[unsafe(naked)]
unsafe extern "C" fn multiply(weights: *const i8, x: *const [u32; 2], tiles: usize, call: &Call) {
    naked_asm!(
        "push {{r4-r11, lr}}",
        "ldm r3, {{r4-r9}}",
        "adr.w r3, 6f",
        "add r4, r4, r3",
        "add r5, r5, r3",
        "rsb r10, r2, #0",
        "and r10, r10, #7",
        "mov r3, #56",
        "adr.w r12, 5f",
        "mla r11, r10, r3, r12",
        "add r11, r11, #1",
        "mov r10, #2",
        "push {{r5, r6, r10, r11}}",
        "push {{r4, r8, r9}}",
        "adr.w r12, 3f",
        "cmp r2, #8",
        "it ls",
        "addls r11, r12, #1",
        "add r12, r1, r2, lsl #3",
        "sub r12, r12, #64",
        "push {{r11, r12}}",
        "rsb.w r7, r7, #0",
        "lsl.w r2, r7, #7",
        "asr.w r3, r7, #25",
        "mov r4, r2",
        "mov r5, r2",
        "mov r6, r3",
        "mov r7, r2",
        "push {{r1-r7}}",
        "2:",
        "ldm.w sp, {{r1-r7, pc}}",
        "3:",
        "cmp r1, r1",
        "ldr.w pc, [sp, #60]",
        "4:",
        "ldr.w r8, [sp, #32]",
        "cmp r1, r8",
        "5:",
        ".rept 8",
        "ldm.w r0!, {{r8, r9, r10, r11}}",
        "ldrd r12, lr, [r1], #8",
        "smlald r2, r3, r8, r12",
        "uxtb16 r8, r8",
        "smlald r2, r3, r9, lr",
        "uxtb16 r9, r9",
        "smlald r5, r6, r10, r12",
        "uxtb16 r10, r10",
        "smlald r5, r6, r11, lr",
        "uxtb16 r11, r11",
        "smlad r4, r8, r12, r4",
        "smlad r4, r9, lr, r4",
        "smlad r7, r10, r12, r7",
        "smlad r7, r11, lr, r7",
        ".endr",
        "bne.w 4b",
        "ldm.w r0!, {{r8, r9, r10, r11}}",
        "add r9, r9, r2, lsr #8",
        "add r9, r9, r3, lsl #24",
        "sub r9, r9, r4, asr #8",
        "add r8, r8, r4",
        "add r11, r11, r5, lsr #8",
        "add r11, r11, r6, lsl #24",
        "sub r11, r11, r7, asr #8",
        "add r10, r10, r7",
        "ldm.w r0!, {{r2, r3, r4, r5}}",
        "smmulr r2, r8, r2",
        "smmulr r3, r9, r3",
        "smmulr r4, r10, r4",
        "smmulr r5, r11, r5",
        "ldr.w pc, [sp, #36]",
        // A stream: floor((m x / 2^16 + 2) / 4) is the rescale of x 2^14.
        "ldr.w r6, [sp, #40]",
        "ldrd r8, r9, [sp, #52]",
        "ldrd r6, r7, [r6]",
        "smlawb r10, r8, r6, r9",
        "add.w r2, r2, r10, asr #2",
        "smlawt r10, r8, r6, r9",
        "add.w r3, r3, r10, asr #2",
        "smlawb r10, r8, r7, r9",
        "add.w r4, r4, r10, asr #2",
        "smlawt r10, r8, r7, r9",
        "add.w r5, r5, r10, asr #2",
        "ldr.w pc, [sp, #48]",
        // Outputs of 32 bits.
        "ldrd r8, r9, [sp, #40]",
        "stm.w r8!, {{r2, r3, r4, r5}}",
        "b.w 8f",
        "6:",
        "usat r2, #14, r2",
        "usat r3, #14, r3",
        "usat r4, #14, r4",
        "usat r5, #14, r5",
        "b.w 7f",
        "ssat r2, #15, r2",
        "ssat r3, #15, r3",
        "ssat r4, #15, r4",
        "ssat r5, #15, r5",
        "b.w 7f",
        "usat r2, #15, r2",
        "usat r3, #15, r3",
        "usat r4, #15, r4",
        "usat r5, #15, r5",
        "b.w 7f",
        "ssat r2, #16, r2",
        "ssat r3, #16, r3",
        "ssat r4, #16, r4",
        "ssat r5, #16, r5",
        "7:",
        "pkhbt r2, r2, r3, lsl #16",
        "pkhbt r4, r4, r5, lsl #16",
        "ldrd r8, r9, [sp, #40]",
        "stm.w r8!, {{r2, r4}}",
        "8:",
        "str.w r8, [sp, #40]",
        "cmp r8, r9",
        "bne.w 2b",
        "add sp, #64",
        "pop {{r4-r11, pc}}",
    )
}
