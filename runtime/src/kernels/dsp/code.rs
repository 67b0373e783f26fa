//! The loop over blocks of four rows, for one token; [`paired`](super::paired) and
//! [`nibbles`](super::nibbles) are what it sums with.

use core::arch::naked_asm;

use super::epilogue::Call;
use super::nibbles::nibbles;
#[cfg(feature = "int4")]
use super::nibbles::{group, two_columns};
use super::paired::turn;

/// All blocks of a token: `out[4 rows] = epilogue(rescale(bias + W x, multipliers))`. `size` is the number
/// of tiles of paired rows; of weights of 4 bits that of groups, negated.
///
/// r0 walks over the weights, r1 over x; r2, r3, r4 sum rows 0 and 1, r5, r6, r7 rows 2 and 3. The first
/// of a block's turns enters the loop where a multiple of 8 tiles is left. "Equal" says of a turn that it
/// is the last: nothing in it changes the flags, and only what comes between two turns compares.
///
/// On the stack: what r1 to r7 begin with and the way into the loop; x at the last turn; the epilogue;
/// the outputs from and to; what comes after a sum with a stream, the stream's multiplier, 2; the first
/// turn; of weights of 4 bits the starts and the bytes of a block's groups.
///
/// # Safety
/// `weights` must be blocks of this size on a multiple of 4 bytes, as many as there are outputs from
/// `out` to `end`, at least one; `x` must have as many columns as they have, at least one tile or group,
/// on a multiple of 4 bytes; and there must be as many starts as groups.
#[unsafe(naked)]
pub unsafe extern "C" fn multiply(weights: *const i8, x: *const u32, size: usize, call: &Call) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r4-r11, lr}}",
        "ldm r3, {{r4-r11}}",
        "adr.w r3, 6f",
        "sxtah r4, r3, r4",
        "sxtah r5, r3, r5",
        "add r9, r9, r7",
        "rsbs r8, r2, #0",
        "bpl.w 25f",
        "and r8, r8, #7",
        "mov r3, #56",
        "adr.w r12, 5f + 1",
        "mla r10, r8, r3, r12",
        "mov r8, #2",
        "push {{r5, r6, r8, r10}}",
        "push {{r4, r7, r9}}",
        "adr.w r12, 3f",
        "cmp r2, #8",
        "it ls",
        "addls r10, r12, #1",
        "add r12, r1, r2, lsl #3",
        "sub r12, r12, #64",
        "push {{r10, r12}}",
        "lsl.w r2, r11, #7",
        "asr.w r3, r11, #25",
        "mov r4, r2",
        "push {{r2-r4}}",
        "push {{r1-r4}}",
        "2:",
        "ldm.w sp, {{r1-r7, pc}}",
        "3:",
        "cmp r1, r1",
        "ldr.w pc, [sp, #60]",
        "4:",
        "ldr.w r8, [sp, #32]",
        "cmp r1, r8",
        "5:",
        turn!(),
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
        "9:",
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
        // Bytes. A difference that saturates leaves out -128.
        "ssat r2, #8, r2",
        "ssat r3, #8, r3",
        "ssat r4, #8, r4",
        "ssat r5, #8, r5",
        "bfi r2, r3, #8, #8",
        "bfi r4, r5, #8, #8",
        "pkhbt r2, r2, r4, lsl #16",
        "mov.w r3, #0x01010101",
        "qsub8 r2, r2, r3",
        "sadd8 r2, r2, r3",
        "ldrd r8, r9, [sp, #40]",
        "str.w r2, [r8], #4",
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
        nibbles!(),
    )
}
