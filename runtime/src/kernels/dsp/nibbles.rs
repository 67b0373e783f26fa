//! Weights of 4 bits, one token: 163 instructions for two groups of 16 columns of four rows, 1.27 for a
//! multiply-accumulate.
//!
//! A word is eight columns of a row. `AND` with a shifted operand takes two of them out at once, 256 times
//! as large, and so it does with the factors of two groups: `SMLAW` leaves out the 2^16 of the product
//! of both. The sums of a group begin at -8 times that of its x, since stored weights are 8 too large.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt};

use super::super::Input;
use super::epilogue::Call;
use super::{code, ready};

/// Two columns, whose x is in `$x`, of four rows. r8 to r11 are their weights, r2 to r5 their sums; `$t`
/// is free, and `$a`, `$b`, `$c`, `$d` are what these products are added to.
macro_rules! two_columns {
    ($x:literal, $shift:literal, $t:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            two_columns!("r2", "r8", $x, $shift, $t, $a),
            two_columns!("r3", "r9", $x, $shift, $t, $b),
            two_columns!("r4", "r10", $x, $shift, $t, $c),
            two_columns!("r5", "r11", $x, $shift, $t, $d),
        )
    };
    ($sum:literal, $w:literal, $x:literal, $shift:literal, $t:literal, $a:literal) => {
        concat!(
            "and ", $t, ", r6, ", $w, $shift, "\nsmlad ", $sum, ", ", $t, ", ", $x, ", ", $a, "\n",
        )
    };
    ($x:literal, $shift:literal) => {
        two_columns!($x, $shift, "r7", "r2", "r3", "r4", "r5")
    };
}
pub(super) use two_columns;

/// A group: all sums begin with what r7 is, which is free after it.
macro_rules! group {
    () => {
        concat!(
            "ldm r0!, {{r8, r9, r10, r11}}\n",
            "ldrd r12, lr, [r1], #8\n",
            two_columns!("r12", ", lsl #8", "r5", "r7", "r7", "r7", "r7"),
            two_columns!("lr", ", lsl #4"),
            "ldrd r12, lr, [r1], #8\n",
            two_columns!("r12", ""),
            two_columns!("lr", ", lsr #4"),
            "ldm r0!, {{r8, r9, r10, r11}}\n",
            "ldrd r12, lr, [r1], #8\n",
            two_columns!("r12", ", lsl #8"),
            two_columns!("lr", ", lsl #4"),
            "ldrd r12, lr, [r1], #8\n",
            two_columns!("r12", ""),
            two_columns!("lr", ", lsr #4"),
        )
    };
}
pub(super) use group;

/// Two blocks' beginnings, for an even and for an odd number of groups; the turn of two groups; the end
/// of a block; and how the stack is made ready. Blocks add to it: where x is at the last turn, and the
/// addresses of the next starts and factors. Between groups the sums of the rows are in r9 to r12; a
/// group puts them on the stack behind the start of the next one and the factors of both, or behind
/// those that the group which went before took out, three of them and the first row's.
#[cfg(feature = "int4")]
macro_rules! nibbles {
    () => {
        concat!(
            "20:\n",
            "add.w r7, r7, r0\n",
            "push {{r4, r5, r7}}\n",
            "umull r9, r10, r2, r2\n",
            "umull r11, r12, r2, r2\n",
            "21:\n",
            "ldm.w sp, {{r2, r3, r4}}\n",
            "cmp r1, r2\n",
            "ldrd r7, r8, [r3], #8\n",
            "ldr lr, [r4], #4\n",
            "strd r3, r4, [sp, #4]\n",
            "push {{r8-r12, lr}}\n",
            group!(),
            "pop {{r7, r9-r12, lr}}\n",
            "and r8, r6, lr, lsl #8\n",
            "smlawb r9, r2, r8, r9\n",
            "and r2, r6, lr, lsl #4\n",
            "smlawb r10, r3, r2, r10\n",
            "and r3, r6, lr\n",
            "smlawb r11, r4, r3, r11\n",
            "and r4, r6, lr, lsr #4\n",
            "smlawb r12, r5, r4, r12\n",
            "22:\n",
            "push {{r2-r4, r8-r12}}\n",
            group!(),
            "pop {{r6-r12, lr}}\n",
            "smlawt r9, r2, r9, r10\n",
            "smlawt r10, r3, r6, r11\n",
            "smlawt r11, r4, r7, r12\n",
            "smlawt r12, r5, r8, lr\n",
            "mov r6, #0x0F000F00\n",
            "bne.w 21b\n",
            "pop {{r3, r4, r5}}\n",
            // Two shifts end on a multiple of 4; then come four multipliers of 8 bits, four biases of 16.
            "orr r0, r5, #2\n",
            "ldrb r6, [r0], #1\n",
            "ldrb r7, [r0], #1\n",
            "ldm.w r0!, {{r3, r4, lr}}\n",
            "mov r2, #1\n",
            "lsl.w r6, r2, r6\n",
            "smlabb r8, r4, r6, r9\n",
            "smlatb r9, r4, r6, r10\n",
            "smlabb r10, lr, r6, r11\n",
            "smlatb r11, lr, r6, r12\n",
            "uxtb r2, r3\n",
            "lsl.w r2, r2, r7\n",
            "ubfx r4, r3, #16, #8\n",
            "lsl.w r4, r4, r7\n",
            "lsr.w r5, r3, #24\n",
            "lsl.w r5, r5, r7\n",
            "ubfx r3, r3, #8, #8\n",
            "lsl.w r3, r3, r7\n",
            "b.w 9b\n",
            "23:\n",
            "cmp r7, #32\n",
            "add.w r7, r7, r0\n",
            "ldr r8, [r5], #4\n",
            "ldrh lr, [r7], #2\n",
            "push {{r4, r5, r7}}\n",
            "mov r7, r8\n",
            "umull r9, r10, r2, r2\n",
            "umull r11, r12, r2, r2\n",
            "lsl.w lr, lr, #16\n",
            "and r8, r6, lr, lsl #8\n",
            "and r2, r6, lr, lsl #4\n",
            "and r3, r6, lr\n",
            "and r4, r6, lr, lsr #4\n",
            "b.w 22b\n",
            "25:\n",
            "lsl r10, r8, #5\n",
            "mov r8, #2\n",
            "push {{r5, r6, r8, r12}}\n",
            "push {{r4, r7, r9}}\n",
            "add r4, r1, r10\n",
            "sub r4, r4, #64\n",
            "tst r10, #32\n",
            "adr.w r8, 20b\n",
            "adr.w r3, 23b\n",
            "it ne\n",
            "movne r8, r3\n",
            "add r8, r8, #1\n",
            "push {{r8, r12}}\n",
            "mov r5, r11\n",
            "mov r7, r10\n",
            "mov r6, #0x0F000F00\n",
            "mov r2, #0\n",
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
/// -8 times 256, twice.
const STARTS: u32 = 0xF800_F800;

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

/// Bytes of a block; more than there are where the input is not ready for it.
#[inline(never)]
pub fn block_len(linear: &LinearInt<'_>, input: &Input<'_>) -> usize {
    let groups = linear.cols.div_ceil(GROUP_COLS);
    // Constants end on a multiple of 4.
    let len = (groups * GROUP_LEN + CONSTANTS_LEN).next_multiple_of(4);
    if linear.cols == input.cols && is_ready(input) { len } else { usize::MAX }
}

/// All blocks, token by token.
///
/// # Safety
/// That of [`code::multiply`], with an input of at least one column and blocks of [`block_len`].
#[inline(never)]
pub unsafe fn multiply(weights: *const i8, input: &Input<'_>, call: &mut Call) {
    let groups = input.cols.div_ceil(GROUP_COLS);
    for token in 0..input.tokens {
        // SAFETY: the input is ready, and has this token; the rest is the caller's.
        unsafe {
            let (x, starts) = groups_of(input, token);
            call.start = starts.expose_provenance();
            code::multiply(weights, x, groups.wrapping_neg(), call);
        }
        call.out = call.out.wrapping_add(call.stride);
    }
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
    unsafe { ready::sum(columns.cast(), GROUP_COLS / 4, groups, starts, STARTS) };
    (columns, starts)
}
