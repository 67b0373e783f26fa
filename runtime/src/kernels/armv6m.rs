//! Cortex-M0 and M0+: eight registers that can multiply, 32 bits of every product.

use core::arch::naked_asm;

use super::quad::Task;
pub use super::quad::{
    ROWS, Ready, TOKENS, block, ready, scratch_len, try_context, try_project, try_project_add,
};

/// Two columns of four rows: 24 instructions for 8 products.
///
/// Weights at `r0`, `x` at `r1`; sums in `r8` to `r11`.
macro_rules! two_columns {
    () => {
        "
        ldmia r0!, {{r2, r3}}
        ldmia r1!, {{r4, r5}}
        lsrs r6, r2, #8
        muls r6, r4, r6
        add r9, r6
        lsrs r6, r2, #16
        muls r6, r4, r6
        add r10, r6
        lsrs r6, r2, #24
        muls r6, r4, r6
        add r11, r6
        muls r2, r4, r2
        add r8, r2
        lsrs r6, r3, #8
        muls r6, r5, r6
        add r9, r6
        lsrs r6, r3, #16
        muls r6, r5, r6
        add r10, r6
        lsrs r6, r3, #24
        muls r6, r5, r6
        add r11, r6
        muls r3, r5, r3
        add r8, r3
        "
    };
}

/// Output `$row` of a block in `r2`: its sum less 256 times the next one, plus the bias, rescaled.
///
/// Constants at `r0`; destroys `r3` to `r6`. The multiplication of 32 bits by 32 is made of halves:
/// neither sum of a product of halves and a carry leaves 32 bits, and `asrs` leaves the bit that
/// rounds in the carry flag.
macro_rules! output {
    ($row:literal, $sum:literal, $next:literal) => {
        concat!("mov r3, ", $next, "\nlsls r3, r3, #8\n", output!($row, $sum, "subs r2, r2, r3\n";))
    };
    ($row:literal, $sum:literal) => { output!($row, $sum, "";) };
    ($row:literal, $sum:literal, $unmix:literal;) => {
        concat!(
            "mov r2, ", $sum, "\n", $unmix,
            "ldr r3, [r0, #4 * ", $row, "]
            adds r2, r2, r3
            ldr r3, [r0, #4 * ", $row, " + 16]
            uxth r4, r2
            asrs r2, r2, #16
            uxth r5, r3
            asrs r3, r3, #16
            movs r6, r4
            muls r6, r5, r6
            lsrs r6, r6, #16
            muls r5, r2, r5
            adds r6, r6, r5
            muls r4, r3, r4
            muls r2, r3, r2
            uxth r3, r6
            asrs r6, r6, #16
            adds r2, r2, r6
            adds r4, r4, r3
            asrs r4, r4, #16
            adcs r2, r4
            "
        )
    };
}

/// Adds the stream at `r1` times its multiplier, which lies in halves on the stack: `adcs` rounds
/// `(x m / 2^16) / 4`, the rescale of `x 2^14`.
macro_rules! added {
    ($row:literal) => {
        concat!(
            "movs r4, #2 * ",
            $row,
            "
            ldrsh r3, [r1, r4]
            ldr r4, [sp, #24]
            muls r4, r3, r4
            asrs r4, r4, #16
            ldr r5, [sp, #28]
            muls r3, r5, r3
            adds r3, r3, r4
            asrs r3, r3, #2
            adcs r2, r3
            "
        )
    };
}

/// Saturates to `r7` below and `r12` above, and stores at `r1`.
macro_rules! saturated {
    ($row:literal) => {
        concat!(
            "cmp r2, r7
            bge 4f
            mov r2, r7
            4: cmp r2, r12
            ble 5f
            mov r2, r12
            5: strh r2, [r1, #2 * ",
            $row,
            "]
            "
        )
    };
}

/// Widens `x` up to `end` into `wide`; the sum.
///
/// # Safety
/// `x` must be one or more fours, and `wide` as many.
#[unsafe(naked)]
pub unsafe extern "C" fn widen(x: *const i16, end: *const i16, wide: *mut i32) -> i32 {
    naked_asm!(
        "push {{r4, r5, r6, r7}}",
        "movs r7, #0",
        "2:",
        "ldrh r3, [r0]",
        "ldrh r4, [r0, #2]",
        "ldrh r5, [r0, #4]",
        "ldrh r6, [r0, #6]",
        "sxth r3, r3",
        "sxth r4, r4",
        "sxth r5, r5",
        "sxth r6, r6",
        "stmia r2!, {{r3, r4, r5, r6}}",
        "adds r3, r3, r4",
        "adds r5, r5, r6",
        "adds r7, r7, r3",
        "adds r7, r7, r5",
        "adds r0, #8",
        "cmp r0, r1",
        "bne 2b",
        "movs r0, r7",
        "pop {{r4, r5, r6, r7}}",
        "bx lr",
    )
}

/// The outputs of `blocks` blocks, one after the other.
///
/// `r0` walks over the weights, `r1` over the input up to `r7`, two tiles a turn; an odd number of them
/// begins with the second. Sums are in `r8` to `r11`. On the stack: `task.finish`, the input from and to,
/// the least output; the end of the weights, the outputs, the halves of the multiplier. `r12` is the
/// greatest output.
///
/// # Safety
/// `task.ready` must be the starts of the sums and one or more whole tiles of `x`; `weights` `blocks`
/// blocks of as many columns, 1 or more, `task.block_len` bytes each with their constants; `out` as many
/// fours of the outputs that `task.finish` stores.
#[unsafe(naked)]
pub unsafe extern "C" fn multiply(weights: *const i32, blocks: usize, out: *mut u8, task: &Task) {
    naked_asm!(
        "push {{r4, r5, r6, r7, lr}}",
        "mov r4, r8",
        "mov r5, r9",
        "mov r6, r10",
        "mov r7, r11",
        "push {{r4, r5, r6, r7}}",
        "ldr r4, [r3, #20]",
        "mov r12, r4",
        "ldr r4, [r3, #12]",
        "muls r1, r4, r1",
        "adds r1, r1, r0",
        "ldr r5, [r3, #24]",
        "asrs r6, r5, #16",
        "uxth r5, r5",
        "push {{r1, r2, r5, r6}}",
        "ldr r7, [r3, #16]",
        "ldmia r3!, {{r4, r5, r6}}",
        "push {{r4, r5, r6, r7}}",
        "2:",
        "ldr r1, [sp, #4]",
        "ldr r7, [sp, #8]",
        "ldmia r1!, {{r2, r3, r4, r5}}",
        "mov r8, r2",
        "mov r9, r3",
        "mov r10, r4",
        "mov r11, r5",
        "subs r6, r7, r1",
        "lsls r6, r6, #27",
        "bmi 4f",
        "3:",
        two_columns!(),
        two_columns!(),
        "4:",
        two_columns!(),
        two_columns!(),
        "cmp r1, r7",
        "bne 3b",
        "ldr r1, [sp, #20]",
        "ldr r7, [sp, #12]",
        "ldr r2, [sp]",
        "blx r2",
        "str r1, [sp, #20]",
        "adds r0, #32",
        "ldr r2, [sp, #16]",
        "cmp r0, r2",
        "beq 5f",
        "b 2b",
        "5:",
        "add sp, #32",
        "pop {{r4, r5, r6, r7}}",
        "mov r8, r4",
        "mov r9, r5",
        "mov r10, r6",
        "mov r11, r7",
        "pop {{r4, r5, r6, r7, pc}}",
    )
}

/// Stores outputs of 16 bits, saturated.
///
/// This and the next two take the sums of a block, its constants at `r0` and the outputs at `r1` from
/// [`multiply`]; not to be called from Rust.
#[unsafe(naked)]
pub unsafe extern "C" fn saturate() {
    naked_asm!(
        output!("0", "r8", "r9"),
        saturated!("0"),
        output!("1", "r9", "r10"),
        saturated!("1"),
        output!("2", "r10", "r11"),
        saturated!("2"),
        output!("3", "r11"),
        saturated!("3"),
        "adds r1, #8",
        "bx lr",
    )
}

/// Stores outputs of 16 bits, added to what is there and saturated.
#[unsafe(naked)]
pub unsafe extern "C" fn add() {
    naked_asm!(
        output!("0", "r8", "r9"),
        added!("0"),
        saturated!("0"),
        output!("1", "r9", "r10"),
        added!("1"),
        saturated!("1"),
        output!("2", "r10", "r11"),
        added!("2"),
        saturated!("2"),
        output!("3", "r11"),
        added!("3"),
        saturated!("3"),
        "adds r1, #8",
        "bx lr",
    )
}

/// Stores outputs of 32 bits.
#[unsafe(naked)]
pub unsafe extern "C" fn store() {
    naked_asm!(
        output!("0", "r8", "r9"),
        "str r2, [r1]",
        output!("1", "r9", "r10"),
        "str r2, [r1, #4]",
        output!("2", "r10", "r11"),
        "str r2, [r1, #8]",
        output!("3", "r11"),
        "str r2, [r1, #12]",
        "adds r1, #16",
        "bx lr",
    )
}

/// Four dot products with the same `x`, one column a turn: 16 instructions for 4 products.
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    let [a, b, c, d] = rows;
    let cols = x.len().min(a.len()).min(b.len()).min(c.len()).min(d.len());
    let mut sums = [0; 4];
    if cols != 0 {
        let starts = [a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()];
        // SAFETY: `cols` is not 0 and at most the length of `x` and of each row.
        unsafe { dot4_whole(&starts, x.as_ptr(), cols, &mut sums) };
    }
    sums
}

/// The dot products of the first `cols` columns.
///
/// # Safety
/// Every row and `x` must have `cols` elements, and `cols` must not be 0.
#[unsafe(naked)]
unsafe extern "C" fn dot4_whole(
    rows: &[*const i8; 4],
    x: *const i16,
    cols: usize,
    sums: &mut [i32; 4],
) {
    naked_asm!(
        "push {{r4, r5, r6, r7, lr}}",
        "mov r4, r8",
        "mov r5, r9",
        "mov r6, r10",
        "mov r7, r11",
        "push {{r4, r5, r6, r7}}",
        "mov r12, r3",
        // Rows are read at their end plus r4, which counts up to 0; `x` at r5 plus r4, both of which
        // move one byte a column.
        "adds r5, r1, r2",
        "rsbs r4, r2, #0",
        "mov r7, r2",
        "ldm r0, {{r0, r1, r2, r3}}",
        "adds r0, r0, r7",
        "adds r1, r1, r7",
        "adds r2, r2, r7",
        "adds r3, r3, r7",
        "movs r6, #0",
        "mov r8, r6",
        "mov r9, r6",
        "mov r10, r6",
        "mov r11, r6",
        "2:",
        "ldrsh r7, [r5, r4]",
        "ldrsb r6, [r0, r4]",
        "muls r6, r7, r6",
        "add r8, r6",
        "ldrsb r6, [r1, r4]",
        "muls r6, r7, r6",
        "add r9, r6",
        "ldrsb r6, [r2, r4]",
        "muls r6, r7, r6",
        "add r10, r6",
        "ldrsb r6, [r3, r4]",
        "muls r6, r7, r6",
        "add r11, r6",
        "adds r5, #1",
        "adds r4, #1",
        "bne 2b",
        "mov r0, r8",
        "mov r1, r9",
        "mov r2, r10",
        "mov r3, r11",
        "mov r4, r12",
        "stmia r4!, {{r0, r1, r2, r3}}",
        "pop {{r4, r5, r6, r7}}",
        "mov r8, r4",
        "mov r9, r5",
        "mov r10, r6",
        "mov r11, r7",
        "pop {{r4, r5, r6, r7, pc}}",
    )
}

/// `sums[j] = sum(values[stride t + j] p[t])` for four columns, a row a turn.
///
/// # Safety
/// `p` must be from and to one or more elements, and every row have four columns.
#[unsafe(naked)]
pub unsafe extern "C" fn columns(
    values: *const i8,
    stride: usize,
    p: &[*const i16; 2],
    sums: &mut [i32; 4],
) {
    naked_asm!(
        "push {{r4, r5, r6, r7, lr}}",
        "mov r4, r8",
        "mov r5, r9",
        "mov r6, r10",
        "mov r7, r11",
        "push {{r3, r4, r5, r6, r7}}",
        "mov r8, r1",
        "ldmia r2!, {{r6, r7}}",
        "mov r12, r7",
        "mov r7, r6",
        "movs r1, #0",
        "movs r2, #1",
        "movs r3, #2",
        "movs r4, #3",
        "mov r9, r1",
        "mov r10, r1",
        "mov r11, r1",
        "mov lr, r1",
        "2:",
        "ldrsh r5, [r7, r1]",
        "ldrsb r6, [r0, r1]",
        "muls r6, r5, r6",
        "add r9, r6",
        "ldrsb r6, [r0, r2]",
        "muls r6, r5, r6",
        "add r10, r6",
        "ldrsb r6, [r0, r3]",
        "muls r6, r5, r6",
        "add r11, r6",
        "ldrsb r6, [r0, r4]",
        "muls r6, r5, r6",
        "add lr, r6",
        "add r0, r8",
        "adds r7, #2",
        "cmp r7, r12",
        "bne 2b",
        "mov r0, r9",
        "mov r1, r10",
        "mov r2, r11",
        "mov r3, lr",
        "pop {{r4}}",
        "stmia r4!, {{r0, r1, r2, r3}}",
        "pop {{r4, r5, r6, r7}}",
        "mov r8, r4",
        "mov r9, r5",
        "mov r10, r6",
        "mov r11, r7",
        "pop {{r4, r5, r6, r7, pc}}",
    )
}
