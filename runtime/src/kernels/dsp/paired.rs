//! Paired rows, one token: 14 instructions for 16 multiply-accumulates.
//!
//! A halfword of weights is `256 b + (a + 128)`. `SMLALD` with it sums `256 B + A` in 64 bits, `SMLAD`
//! with its low byte sums A, where both begin at -128 times the sum of x; `B + floor(A / 256)` are the
//! bits from 8 on of the former.

use core::arch::naked_asm;

use model_format::layout::{BLOCK_ROWS, LinearInt, Packing, TILE_COLS, TILE_LEN};

use super::epilogue::Epilogue;
use super::ready::Ready;

/// Bytes of the biases and multipliers of a block.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;

/// Blocks of rows, and all tokens that they are multiplied with.
pub struct Paired<'a> {
    /// Whole blocks, on a multiple of 4 bytes.
    weights: &'a [i8],
    blocks: usize,
    /// Of a token, at least one, as many as the blocks have.
    tiles: usize,
    ready: &'a Ready<'a>,
}

impl<'a> Paired<'a> {
    /// The blocks from that of `first_row` on; `None` where the packing or the memory is another.
    #[inline(always)]
    pub fn new(linear: &LinearInt<'a>, first_row: usize, ready: &'a Ready<'a>) -> Option<Self> {
        let tiles = linear.cols.div_ceil(TILE_COLS);
        if linear.packing != Packing::PairedRows || ready.tiles.len() < tiles || tiles == 0 {
            return None;
        }
        // So many tiles of an input are in memory: twice their bytes are less than 2^33.
        let block_len = tiles as u64 * TILE_LEN as u64 + CONSTANTS_LEN as u64;
        let first = first_row / BLOCK_ROWS;
        let end = linear.rows.div_ceil(BLOCK_ROWS);
        let is_whole = end as u64 * block_len <= linear.data.len() as u64;
        let weights = linear.data.get(first.saturating_mul(block_len as usize)..)?;
        let is_aligned = weights.as_ptr().addr().is_multiple_of(4);
        (is_whole && is_aligned).then_some(Self {
            weights,
            blocks: end.saturating_sub(first),
            tiles,
            ready,
        })
    }

    /// Fills `out` with outputs of a token, for whole blocks; nothing where it asks for more than there
    /// are.
    #[inline(always)]
    pub fn multiply(&self, token: usize, epilogue: &Epilogue, out: &mut [u32]) {
        let words = if epilogue.is_wide { 4 } else { 2 };
        let x = self.ready.tiles.get(token.saturating_mul(self.tiles)..);
        let (Some(x), Some(&sum)) = (x, self.ready.sums.get(token)) else {
            return;
        };
        let blocks = out.len() / words;
        if x.len() < self.tiles || blocks > self.blocks || blocks == 0 || out.len() % words != 0 {
            return;
        }
        let out = out.as_mut_ptr_range();
        let &Epilogue { first, clamp, multiplier, .. } = epilogue;
        let call = Call { first, clamp, multiplier, sum, out: [out.start, out.end] };
        // SAFETY: the weights are blocks of `tiles` tiles, on a multiple of 4 bytes (`new`), at least as
        // many as `out` has, which is not empty; `x` has as many tiles, not none.
        unsafe { multiply(self.weights.as_ptr(), x.as_ptr(), self.tiles, &call) };
    }
}

/// What the code below is told besides its operands.
#[repr(C)]
struct Call {
    first: i32,
    clamp: i32,
    multiplier: i32,
    /// Of the columns of x.
    sum: i32,
    /// From, and to.
    out: [*mut u32; 2],
}

/// All blocks of a token: `out[4 rows] = epilogue(rescale(bias + W x, multipliers))`.
///
/// r0 walks over the weights, r1 over x; r2, r3, r4 sum rows 0 and 1, r5, r6, r7 rows 2 and 3. On the
/// stack: what r1 to r7 begin with and where the first turn of the loop enters, so that what is left is
/// a multiple of the turn's 8 tiles; the end of x; the epilogue; the outputs from and to; what comes
/// after the sum with a stream, the multiplier of the stream, 2.
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
        "mov r10, #2",
        "push {{r5, r6, r10}}",
        "push {{r4, r8, r9}}",
        "add r3, r1, r2, lsl #3",
        "adr.w r5, 3f",
        "rsbs r2, r2, #0",
        "and r2, r2, #7",
        "movs r4, #56",
        "mla r2, r2, r4, r5",
        "adds r2, #1",
        "push {{r2, r3}}",
        "rsbs r7, r7, #0",
        "lsls r2, r7, #7",
        "asrs r3, r7, #25",
        "mov r4, r2",
        "mov r5, r2",
        "mov r6, r3",
        "mov r7, r2",
        "push {{r1-r7}}",
        "2:",
        "ldm.w sp, {{r1-r7, pc}}",
        "3:",
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
        "ldr.w r8, [sp, #32]",
        "cmp r1, r8",
        "bne.w 3b",
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
        "add sp, #60",
        "pop {{r4-r11, pc}}",
    )
}
