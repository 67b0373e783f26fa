//! Weights of 4 bits, one token: 169 instructions for two groups of 16 columns of four rows, 1.32 for a
//! multiply-accumulate.
//!
//! A word is eight columns of a row. `AND` with a shifted operand takes two of them out at once. The sums
//! of a group begin at -8 times that of its x, since stored weights are 8 too large; times their factors
//! they go to the sums of the rows, which lie on the stack.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Packing};

use super::super::Input;
use super::product::Target;
use super::{code, ready};

/// Two columns, whose x is in `$x`, of four rows. r7 to r10 are their weights, r2 to r5 their sums, the
/// first three of which are what `$a`, `$b` and `$c` are and these products.
macro_rules! two_columns {
    ($x:literal, $shift:literal, $a:literal, $b:literal, $c:literal) => {
        concat!(
            "and r11, r6, r8",
            $shift,
            "\n",
            "smlad r3, r11, ",
            $x,
            ", ",
            $a,
            "\n",
            "and r11, r6, r9",
            $shift,
            "\n",
            "smlad r4, r11, ",
            $x,
            ", ",
            $b,
            "\n",
            "and r11, r6, r10",
            $shift,
            "\n",
            "smlad r5, r11, ",
            $x,
            ", ",
            $c,
            "\n",
            "and r11, r6, r7",
            $shift,
            "\n",
            "smlad r2, r11, ",
            $x,
            ", r2\n",
        )
    };
}
pub(super) use two_columns;

/// Half of a group.
macro_rules! eight_columns {
    ($a:literal, $b:literal, $c:literal) => {
        concat!(
            "ldm r0!, {{r7, r8, r9, r10}}\n",
            "ldrd r12, lr, [r1], #8\n",
            two_columns!("r12", "", $a, $b, $c),
            two_columns!("lr", ", lsr #4", "r3", "r4", "r5"),
            "ldrd r12, lr, [r1], #8\n",
            two_columns!("r12", ", lsr #8", "r3", "r4", "r5"),
            two_columns!("lr", ", lsr #12", "r3", "r4", "r5"),
        )
    };
}
pub(super) use eight_columns;

/// A group: all sums begin with what r2 is.
macro_rules! group {
    () => {
        concat!(eight_columns!("r2", "r2", "r2"), eight_columns!("r3", "r4", "r5"))
    };
}
pub(super) use group;

/// Two blocks' beginnings, for an even and for an odd number of groups; the turn of two groups; the end
/// of a block; and how the stack is made ready. Blocks add to it: the sums of the rows, the factors of
/// the turn, the start of its second group, and the addresses of the next starts and factors.
#[cfg(feature = "int4")]
macro_rules! nibbles {
    () => {
        concat!(
            "20:\n",
            "ldrd r8, r9, [sp, #64]\n",
            "add r9, r9, r0\n",
            "push {{r2-r9}}\n",
            "21:\n",
            "ldr.w r8, [sp, #64]\n",
            "cmp r1, r8\n",
            "ldrd r8, r9, [sp, #24]\n",
            "ldrd r2, r11, [r8], #8\n",
            "ldr r10, [r9], #4\n",
            "strd r8, r9, [sp, #24]\n",
            "strd r10, r11, [sp, #16]\n",
            group!(),
            "ldm.w sp, {{r7-r12}}\n",
            "and lr, r11, #15\n",
            "mla r7, r2, lr, r7\n",
            "ubfx lr, r11, #4, #4\n",
            "mla r8, r3, lr, r8\n",
            "ubfx lr, r11, #8, #4\n",
            "mla r9, r4, lr, r9\n",
            "ubfx lr, r11, #12, #4\n",
            "mla r10, r5, lr, r10\n",
            "stm.w sp, {{r7-r10}}\n",
            "mov r2, r12\n",
            "22:\n",
            group!(),
            "ldm.w sp, {{r7-r11}}\n",
            "ubfx lr, r11, #16, #4\n",
            "mla r7, r2, lr, r7\n",
            "ubfx lr, r11, #20, #4\n",
            "mla r8, r3, lr, r8\n",
            "ubfx lr, r11, #24, #4\n",
            "mla r9, r4, lr, r9\n",
            "lsr lr, r11, #28\n",
            "mla r10, r5, lr, r10\n",
            "stm.w sp, {{r7-r10}}\n",
            "bne.w 21b\n",
            "ldr.w r0, [sp, #28]\n",
            "pop {{r8-r11}}\n",
            "add sp, #16\n",
            // Two shifts end on a multiple of 4; then come four multipliers of 8 bits, four biases of 16.
            "orr r0, r0, #2\n",
            "ldrb r6, [r0], #1\n",
            "ldrb r7, [r0], #1\n",
            "ldm.w r0!, {{r5, r12, lr}}\n",
            "mov r2, #1\n",
            "lsl.w r6, r2, r6\n",
            "smlabb r8, r12, r6, r8\n",
            "smlatb r9, r12, r6, r9\n",
            "smlabb r10, lr, r6, r10\n",
            "smlatb r11, lr, r6, r11\n",
            "uxtb r2, r5\n",
            "lsl.w r2, r2, r7\n",
            "ubfx r3, r5, #8, #8\n",
            "lsl.w r3, r3, r7\n",
            "ubfx r4, r5, #16, #8\n",
            "lsl.w r4, r4, r7\n",
            "lsr.w r5, r5, #24\n",
            "lsl.w r5, r5, r7\n",
            "b.w 9b\n",
            "23:\n",
            "ldrd r8, r9, [sp, #64]\n",
            "add r9, r9, r0\n",
            "push {{r2-r9}}\n",
            "ldr r2, [r8], #4\n",
            "ldrh r10, [r9], #2\n",
            "lsl r10, r10, #16\n",
            "strd r8, r9, [sp, #24]\n",
            "str r10, [sp, #16]\n",
            "ldr r11, [sp, #100]\n",
            "cmp r11, #32\n",
            "b.w 22b\n",
            "25:\n",
            "mov r10, r11\n",
            "lsl r11, r8, #5\n",
            "push {{r10, r11}}\n",
            "mov r8, #2\n",
            "push {{r5, r6, r8, r12}}\n",
            "push {{r4, r7, r9}}\n",
            "add r12, r1, r11\n",
            "sub r12, r12, #64\n",
            "tst r11, #32\n",
            "adr.w r11, 20b\n",
            "adr.w r3, 23b\n",
            "it ne\n",
            "movne r11, r3\n",
            "add r11, r11, #1\n",
            "push {{r11, r12}}\n",
            "mov r2, #0\n",
            "mov r3, r2\n",
            "mov r4, r2\n",
            "mov r5, r2\n",
            "mov r6, #0x000F000F\n",
            "push {{r1-r7}}\n",
            "b.w 2b\n",
        )
    };
}
/// Nothing comes here.
#[cfg(not(feature = "int4"))]
macro_rules! nibbles {
    () => {
        "25:\nudf #0\n"
    };
}
pub(super) use nibbles;

/// Bytes of the weights of a group and of its factors.
const GROUP_LEN: usize = BLOCK_ROWS * GROUP_COLS / 2 + 2;
/// Bytes of two shifts, four multipliers and four biases.
const CONSTANTS_LEN: usize = 2 + BLOCK_ROWS * 3;
/// -8 twice.
const MINUS_EIGHT: u32 = 0xFFF8_FFF8;

/// Bytes of scratch for one token: the starts of its groups, and its columns where they do not fill the
/// last.
pub const fn scratch_len(cols: usize) -> usize {
    let groups = cols.div_ceil(GROUP_COLS);
    let copy =
        if cols.is_multiple_of(GROUP_COLS) { 0 } else { groups.saturating_mul(GROUP_COLS * 2) };
    groups.saturating_mul(4).saturating_add(copy)
}

/// Whether an input has all its tokens, and they and what is spare of its scratch suffice for [`groups_of`].
fn is_ready(input: &Input<'_>) -> bool {
    let (x, spare) = (input.x, input.ready.spare);
    let is_whole = input.cols.is_multiple_of(GROUP_COLS);
    let addresses = spare.as_ptr().addr() | if is_whole { x.as_ptr().addr() } else { 0 };
    let has_tokens = input.tokens as u64 * input.cols as u64 <= x.len() as u64;
    has_tokens && spare.len() >= scratch_len(input.cols) && addresses.is_multiple_of(4)
}

/// [`product::multiply`](super::product::multiply) of weights of 4 bits.
#[inline(never)]
pub fn multiply(linear: &LinearInt<'_>, input: &Input<'_>, target: Target<'_>) -> bool {
    let groups = linear.cols.div_ceil(GROUP_COLS);
    // Constants end on a multiple of 4.
    let block_len = (groups * GROUP_LEN + CONSTANTS_LEN).next_multiple_of(4);
    let is_packed = linear.packing == Packing::Nibbles && linear.cols == input.cols;
    if !is_packed || groups == 0 || !is_ready(input) {
        return false;
    }
    let Some((weights, mut call)) = target.find(linear, block_len, input.tokens) else {
        return false;
    };
    for token in 0..input.tokens {
        // SAFETY: the input is ready, and has this token; `find` has found the weights and the outputs.
        unsafe {
            let (x, starts) = groups_of(input, token);
            call.start = starts.expose_provenance();
            code::multiply(weights, x, groups.wrapping_neg(), &call);
        }
        call.out = call.out.wrapping_add(call.stride);
    }
    true
}

/// The columns of a token in whole groups, and the starts of those.
///
/// # Safety
/// The input must be ready and have this token, with at least one column.
#[inline(always)]
unsafe fn groups_of(input: &Input<'_>, token: usize) -> (*const u32, *const i32) {
    let groups = input.cols.div_ceil(GROUP_COLS);
    let x = input.token(token);
    let starts = input.ready.spare.as_ptr().cast::<i32>().cast_mut();
    let columns = if input.cols.is_multiple_of(GROUP_COLS) {
        x.as_ptr().cast::<u32>()
    } else {
        let copy = starts.wrapping_add(groups).cast::<i16>();
        for column in 0..groups.wrapping_mul(GROUP_COLS) {
            let x = x.get(column).copied().unwrap_or(0);
            // SAFETY: what is spare is cells, on a multiple of 4 bytes, and has room for the starts and these
            // columns (`is_ready`).
            unsafe { copy.wrapping_add(column).write(x) };
        }
        copy.cast_const().cast::<u32>()
    };
    // SAFETY: `columns` are so many groups of four tiles, at least one, on a multiple of 4 bytes
    // (`is_ready`); what is spare begins with room for their sums, and nothing else uses it meanwhile.
    unsafe { ready::sum(columns.cast(), GROUP_COLS / 4, groups, starts, MINUS_EIGHT) };
    (columns, starts)
}
