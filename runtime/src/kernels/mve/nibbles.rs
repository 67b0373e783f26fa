//! Weights of 4 bits: 62 instructions for a group of 16 columns of four rows.
//!
//! A word is eight columns of a row. Four copies of it, shifted by 0, 4, 8 and 12 bits, have them in
//! order in their halves. The sums of a group begin at -8 times that of its x, since stored weights are
//! 8 too large; times their factors they go to the sums of the rows.

use core::arch::naked_asm;
use core::mem::offset_of;

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, Group, LinearInt, Packing};

use super::super::Input;

/// What is at the end of a block.
#[repr(C)]
struct Constants {
    bias_shift: u8,
    multiplier_shift: u8,
    multipliers: [u8; BLOCK_ROWS],
    biases: [i16; BLOCK_ROWS],
}

/// Four rows, and where their outputs go.
#[repr(C)]
struct Rows {
    groups: *const Group,
    factors: *const u16,
    constants: *const Constants,
    x: *const i16,
    cols: usize,
    out: *mut [i32; BLOCK_ROWS],
}

/// Outputs from `first_row` on; `false`, and any outputs, where there are no weights of 4 bits.
#[inline(never)]
pub fn block(linear: &LinearInt<'_>, first_row: usize, input: &Input<'_>, out: &mut [i32]) -> bool {
    let (cols, len) = (linear.cols, linear.block_len());
    let groups = cols.div_ceil(GROUP_COLS);
    let Some(x) = input.x.get(..cols) else { return false };
    let least = groups.saturating_mul(size_of::<Group>() + 2);
    let Some(constants_at) = len.checked_sub(size_of::<Constants>()) else { return false };
    if linear.packing != Packing::Nibbles || cols == 0 || constants_at < least {
        return false;
    }
    let mut blocks = linear.from_row(first_row);
    let (fours, _) = out.as_chunks_mut();
    for (_, out) in (first_row..linear.rows).step_by(BLOCK_ROWS).zip(fours) {
        let Some((block, rest)) = blocks.split_at_checked(len) else { return false };
        blocks = rest;
        let start = block.as_ptr();
        let rows = Rows {
            groups: start.cast(),
            factors: start.wrapping_add(groups.wrapping_mul(size_of::<Group>())).cast(),
            constants: start.wrapping_add(constants_at).cast(),
            x: x.as_ptr(),
            cols,
            out,
        };
        if !rows.groups.is_aligned() || !rows.constants.is_aligned() {
            return false;
        }
        // SAFETY: the block holds a group and its factors for every 16 columns of `x`, of which there
        // are some, and the constants; its start and its constants have been seen to be aligned.
        unsafe { rescaled(&rows) };
    }
    true
}

/// Adds the products of a row to a sum of the group; its eight weights are in `$word`.
macro_rules! row {
    ($sum:literal, $word:literal, $x:literal) => {
        concat!(
            "vdup.32 q2, ",
            $word,
            "\nvshl.u32 q2, q2, q3\nvand q2, q2, q4\nvmlava.s16 ",
            $sum,
            ", q2, ",
            $x,
            "\n"
        )
    };
}

/// Eight columns of four rows, whose sums are in r4, r6, r8 and r10.
macro_rules! half_group {
    ($x:literal) => {
        concat!(
            "ldrd r12, lr, [r0], #8\n",
            row!("r4", "r12", $x),
            row!("r6", "lr", $x),
            "ldrd r12, lr, [r0], #8\n",
            row!("r8", "r12", $x),
            row!("r10", "lr", $x),
        )
    };
}

/// Activations past the last column are zeros, and are not read.
///
/// # Safety
/// There must be a group and its factors for every 16 columns, `cols` elements of `x`, and `cols` must
/// not be 0. All is aligned.
#[unsafe(naked)]
unsafe extern "C" fn rescaled(rows: &Rows) {
    naked_asm!(
        ".cpu cortex-m55",
        "push {{r0, r4-r12, lr}}",
        "sub sp, #4",
        "vpush {{d8-d9}}",
        "mov r4, #0",
        "vddup.u32 q3, r4, #4",
        "vmov.i16 q4, #15",
        "mov r5, #0",
        "mov r7, #0",
        "mov r9, #0",
        "mov r11, #0",
        "ldr r1, [r0, #{x}]",
        "ldr r2, [r0, #{factors}]",
        "ldr r3, [r0, #{cols}]",
        "ldr r0, [r0, #{groups}]",
        "2:",
        "vctp.16 r3",
        "vpst",
        "vldrht.u16 q0, [r1], #16",
        "sub r3, #8",
        "usat r12, #31, r3",
        "vctp.16 r12",
        "vpst",
        "vldrht.u16 q1, [r1], #16",
        "vaddv.s16 r4, q0",
        "vaddva.s16 r4, q1",
        "mov r12, #0",
        "sub r4, r12, r4, lsl #3",
        "mov r6, r4",
        "mov r8, r4",
        "mov r10, r4",
        half_group!("q0"),
        half_group!("q1"),
        "ldrh r12, [r2], #2",
        "ubfx lr, r12, #0, #4",
        "mla r5, r4, lr, r5",
        "ubfx lr, r12, #4, #4",
        "mla r7, r6, lr, r7",
        "ubfx lr, r12, #8, #4",
        "mla r9, r8, lr, r9",
        "ubfx lr, r12, #12, #4",
        "mla r11, r10, lr, r11",
        "subs r3, #8",
        "bgt 2b",
        "ldr r0, [sp, #20]",
        "ldr r1, [r0, #{out}]",
        "ldr r2, [r0, #{constants}]",
        "vmov q0[2], q0[0], r5, r9",
        "vmov q0[3], q0[1], r7, r11",
        "ldrb r3, [r2, #{bias_shift}]",
        "vldrh.s32 q1, [r2, #{biases}]",
        "vshl.s32 q1, r3",
        "vadd.i32 q0, q0, q1",
        "ldrb r3, [r2, #{multiplier_shift}]",
        "vldrb.u32 q1, [r2, #{multipliers}]",
        "vshl.u32 q1, r3",
        "vrmulh.s32 q0, q0, q1",
        "vstrw.32 q0, [r1]",
        "vpop {{d8-d9}}",
        "add sp, #4",
        "pop {{r0, r4-r12, pc}}",
        groups = const offset_of!(Rows, groups),
        factors = const offset_of!(Rows, factors),
        x = const offset_of!(Rows, x),
        cols = const offset_of!(Rows, cols),
        constants = const offset_of!(Rows, constants),
        bias_shift = const offset_of!(Constants, bias_shift),
        multiplier_shift = const offset_of!(Constants, multiplier_shift),
        multipliers = const offset_of!(Constants, multipliers),
        biases = const offset_of!(Constants, biases),
        out = const offset_of!(Rows, out),
    )
}
