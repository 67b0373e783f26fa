//! Paired rows, four tokens: 13 instructions for 16 multiply-accumulates, and the weights are read once.
//!
//! Two rows at a time. A word of weights holds two columns of both; `UXTB16` takes the biased row out,
//! whose sums begin at -128 times those of x, and `SXTB16` with a rotation the other. x is interleaved:
//! for two columns, the words of the four tokens.

use core::arch::naked_asm;

use model_format::layout::TILE_LEN;

use super::epilogue::Epilogue;

/// What the code below is told besides its operands.
#[repr(C)]
pub struct Call {
    /// [`Epilogue::for_four_tokens`].
    pub epilogue: Epilogue,
    /// The first token's output of the first row.
    pub out: *mut u8,
    /// Bytes from token to token.
    pub stride: usize,
    /// Behind the first token's outputs.
    pub end: *mut u8,
    /// Of the columns of x.
    pub sums: [i32; 4],
}

/// Rows 0 and 1 of all blocks, then rows 2 and 3.
///
/// # Safety
/// That of [`two_rows`], with blocks.
pub unsafe fn multiply(weights: *const i8, x: *const [u32; 2], tiles: usize, mut call: Call) {
    let bytes = call.epilogue.four_token_bytes();
    // SAFETY: the outputs of the two last rows begin and end as many bytes later as they do in their blocks.
    unsafe {
        two_rows(weights, x, tiles, &call);
        call.out = call.out.wrapping_add(bytes);
        call.end = call.end.wrapping_add(bytes);
        two_rows(weights.wrapping_add(TILE_LEN / 2), x, tiles, &call);
    }
}

/// Two rows of every block, for four tokens:
/// `out[token][2 of 4 rows] = epilogue(rescale(bias + W x, multipliers))`.
///
/// r0 walks over the weights, r1 over x; r2 to r5 sum the biased row, r6 to r9 the other. The turns of the
/// loop are four tiles, and end as those of [`paired`](super::paired) do.
///
/// On the stack: what r1 to r9 begin with and the way into the loop; x at the last turn; the epilogue;
/// the output, the stride, the end; what comes after saturation to 16 bits, the multiplier of a stream,
/// 2; the first turn; a place for r0.
///
/// # Safety
/// `weights` must be blocks of `tiles` tiles on a multiple of 4 bytes, or 8 bytes behind that for rows 2
/// and 3; `x` must have `tiles` tiles of four tokens, at least one. From `out` to `end` there must be
/// outputs of whole blocks, at least one, and of those there are, and as many from each of the next
/// three strides on; on multiples of 4 bytes, if they are of 32 bits.
#[unsafe(naked)]
unsafe extern "C" fn two_rows(weights: *const i8, x: *const [u32; 2], tiles: usize, call: &Call) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r4-r11, lr}}",
        "ldm r3!, {{r4-r9}}",
        "adr.w r10, 6f",
        "add r4, r4, r10",
        "add r5, r5, r10",
        "rsb r10, r2, #0",
        "and r10, r10, #3",
        "mov r11, #104",
        "adr.w r12, 5f",
        "mla r12, r10, r11, r12",
        "add r12, r12, #1",
        "mov r11, #2",
        "push {{r5, r6, r11, r12, lr}}",
        "push {{r4, r7, r8, r9}}",
        "adr.w r10, 3f",
        "cmp r2, #4",
        "it ls",
        "addls r12, r10, #1",
        "add lr, r1, r2, lsl #5",
        "sub lr, lr, #128",
        "push {{r12, lr}}",
        "mov.w r6, #0",
        "ldm r3, {{r2, r3, r4, r5}}",
        "sub r2, r6, r2, lsl #7",
        "sub r3, r6, r3, lsl #7",
        "sub r4, r6, r4, lsl #7",
        "sub r5, r6, r5, lsl #7",
        "mov r7, r6",
        "mov r8, r6",
        "mov r9, r6",
        "push {{r1-r9}}",
        "2:",
        "ldm.w sp, {{r1-r9, pc}}",
        "3:",
        "cmp r1, r1",
        "ldr.w pc, [sp, #72]",
        "4:",
        "ldr.w r10, [sp, #40]",
        "cmp r1, r10",
        "5:",
        ".rept 4",
        "ldr r10, [r0], #4",
        "sxtb16 r11, r10, ror #8",
        "uxtb16 r10, r10",
        "ldrd r12, lr, [r1], #8",
        "smlad r2, r10, r12, r2",
        "smlad r6, r11, r12, r6",
        "smlad r3, r10, lr, r3",
        "smlad r7, r11, lr, r7",
        "ldrd r12, lr, [r1], #8",
        "smlad r4, r10, r12, r4",
        "smlad r8, r11, r12, r8",
        "smlad r5, r10, lr, r5",
        "smlad r9, r11, lr, r9",
        "ldr r10, [r0], #12",
        "sxtb16 r11, r10, ror #8",
        "uxtb16 r10, r10",
        "ldrd r12, lr, [r1], #8",
        "smlad r2, r10, r12, r2",
        "smlad r6, r11, r12, r6",
        "smlad r3, r10, lr, r3",
        "smlad r7, r11, lr, r7",
        "ldrd r12, lr, [r1], #8",
        "smlad r4, r10, r12, r4",
        "smlad r8, r11, r12, r8",
        "smlad r5, r10, lr, r5",
        "smlad r9, r11, lr, r9",
        ".endr",
        "bne.w 4b",
        // Behind the weights: the biases of the four rows, then the multipliers.
        "ldrd r10, r11, [r0], #16",
        "add r2, r2, r10",
        "add r3, r3, r10",
        "add r4, r4, r10",
        "add r5, r5, r10",
        "add r6, r6, r11",
        "add r7, r7, r11",
        "add r8, r8, r11",
        "add r9, r9, r11",
        "ldrd r10, r11, [r0], #16",
        "smmulr r2, r2, r10",
        "smmulr r3, r3, r10",
        "smmulr r4, r4, r10",
        "smmulr r5, r5, r10",
        "smmulr r6, r6, r11",
        "smmulr r7, r7, r11",
        "smmulr r8, r8, r11",
        "smmulr r9, r9, r11",
        "ldr.w pc, [sp, #44]",
        // Outputs of 32 bits.
        "ldrd r10, r11, [sp, #48]",
        "strd r2, r6, [r10]",
        "add.w r12, r10, r11",
        "strd r3, r7, [r12]",
        "add.w r12, r12, r11",
        "strd r4, r8, [r12]",
        "add.w r12, r12, r11",
        "strd r5, r9, [r12]",
        "add.w r10, r10, #16",
        "b.w 8f",
        // A stream: floor((m x / 2^16 + 2) / 4) is the rescale of x 2^14.
        "str.w r0, [sp, #76]",
        "ldrd r10, r11, [sp, #48]",
        "ldrd r12, lr, [sp, #64]",
        "ldr.w r1, [r10]",
        "smlawb r0, r12, r1, lr",
        "add.w r2, r2, r0, asr #2",
        "smlawt r0, r12, r1, lr",
        "add.w r6, r6, r0, asr #2",
        "ldr.w r1, [r10, r11]",
        "smlawb r0, r12, r1, lr",
        "add.w r3, r3, r0, asr #2",
        "smlawt r0, r12, r1, lr",
        "add.w r7, r7, r0, asr #2",
        "ldr.w r1, [r10, r11, lsl #1]",
        "add.w r10, r10, r11",
        "smlawb r0, r12, r1, lr",
        "add.w r4, r4, r0, asr #2",
        "smlawt r0, r12, r1, lr",
        "add.w r8, r8, r0, asr #2",
        "ldr.w r1, [r10, r11, lsl #1]",
        "smlawb r0, r12, r1, lr",
        "add.w r5, r5, r0, asr #2",
        "smlawt r0, r12, r1, lr",
        "add.w r9, r9, r0, asr #2",
        "ldr.w r0, [sp, #76]",
        // Saturation.
        "ssat r2, #16, r2",
        "ssat r6, #16, r6",
        "pkhbt r2, r2, r6, lsl #16",
        "ssat r3, #16, r3",
        "ssat r7, #16, r7",
        "pkhbt r3, r3, r7, lsl #16",
        "ssat r4, #16, r4",
        "ssat r8, #16, r8",
        "pkhbt r4, r4, r8, lsl #16",
        "ssat r5, #16, r5",
        "ssat r9, #16, r9",
        "pkhbt r5, r5, r9, lsl #16",
        "ldr.w pc, [sp, #60]",
        "6:",
        "usat16 r2, #14, r2",
        "usat16 r3, #14, r3",
        "usat16 r4, #14, r4",
        "usat16 r5, #14, r5",
        "b.w 7f",
        "ssat16 r2, #15, r2",
        "ssat16 r3, #15, r3",
        "ssat16 r4, #15, r4",
        "ssat16 r5, #15, r5",
        "b.w 7f",
        "usat16 r2, #15, r2",
        "usat16 r3, #15, r3",
        "usat16 r4, #15, r4",
        "usat16 r5, #15, r5",
        "b.w 7f",
        "7:",
        "ldrd r10, r11, [sp, #48]",
        "str r3, [r10, r11]",
        "str r4, [r10, r11, lsl #1]",
        "add r11, r11, r11, lsl #1",
        "str r5, [r10, r11]",
        "str r2, [r10], #8",
        "8:",
        "ldr.w r11, [sp, #56]",
        "str.w r10, [sp, #48]",
        "cmp r10, r11",
        "bne.w 2b",
        "add sp, #80",
        "pop {{r4-r11, pc}}",
    )
}
