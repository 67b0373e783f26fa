//! Cortex-M3: a multiplication and a sum in one instruction, of 32 bits.

use core::arch::naked_asm;

use super::quad::Task;
pub use super::quad::{
    ROWS, Ready, TOKENS, block, ready, scratch_len, try_context, try_project, try_project_add,
};

/// One column of four rows: weights in `$w`, which it destroys, and `x` in `$x`.
macro_rules! column {
    ($w:literal, $x:literal) => {
        concat!(
            "mla r2, ",
            $w,
            ", ",
            $x,
            ", r2\nlsr.w ",
            $w,
            ", ",
            $w,
            ", #8\n",
            "mla r3, ",
            $w,
            ", ",
            $x,
            ", r3\nlsr.w ",
            $w,
            ", ",
            $w,
            ", #8\n",
            "mla r4, ",
            $w,
            ", ",
            $x,
            ", r4\nlsr.w ",
            $w,
            ", ",
            $w,
            ", #8\n",
            "mla r5, ",
            $w,
            ", ",
            $x,
            ", r5\n",
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
        "ldrsh r3, [r0], #2",
        "ldrsh r4, [r0], #2",
        "ldrsh r5, [r0], #2",
        "ldrsh r6, [r0], #2",
        "stmia r2!, {{r3, r4, r5, r6}}",
        "add r3, r3, r4",
        "add r5, r5, r6",
        "add r7, r7, r3",
        "add r7, r7, r5",
        "cmp r0, r1",
        "bne 2b",
        "mov r0, r7",
        "pop {{r4, r5, r6, r7}}",
        "bx lr",
    )
}

/// The outputs of `blocks` blocks, one after the other: 30 instructions for 16 products.
///
/// `r0` walks over the weights, `r1` over the input, four tiles a turn; the first turn enters where as many
/// are left as make a multiple of four. Sums are in `r2` to `r5`. On the stack: the end of the input,
/// `task.finish`, the start of the input, where the first turn enters; the end of the weights, the
/// outputs; bounds and multiplier.
///
/// # Safety
/// `task.ready` must be the starts of the sums and one or more whole tiles of `x`; `weights` `blocks`
/// blocks of as many columns, 1 or more, `task.block_len` bytes each with their constants; `out` as many
/// fours of the outputs that `task.finish` stores.
#[unsafe(naked)]
pub unsafe extern "C" fn multiply(weights: *const i32, blocks: usize, out: *mut u8, task: &Task) {
    naked_asm!(
        "push {{r4-r11, lr}}",
        "ldm r3, {{r5, r6, r7, r8, r9, r10, r11}}",
        "mla r1, r1, r8, r0",
        "push {{r1, r2, r9, r10, r11}}",
        "sub r4, r6, r7",
        "add r4, r4, #16",
        "ubfx r4, r4, #4, #2",
        "mov r8, #120",
        "adr.w r9, 3f",
        "mla r8, r4, r8, r9",
        "add r8, r8, #1",
        "mov r4, r7",
        "mov r7, r8",
        "push {{r4, r5, r6, r7}}",
        "2:",
        "ldr r1, [sp, #8]",
        "ldm r1!, {{r2, r3, r4, r5}}",
        "ldr.w pc, [sp, #12]",
        ".p2align 2",
        "3:",
        ".rept 4",
        "ldm.w r0!, {{r6, r7, r8, r9}}",
        "ldm.w r1!, {{r10, r11, r12, lr}}",
        column!("r6", "r10"),
        column!("r7", "r11"),
        column!("r8", "r12"),
        column!("r9", "lr"),
        ".endr",
        "ldr r6, [sp]",
        "cmp r1, r6",
        "bne.w 3b",
        "ldr r1, [sp, #20]",
        "ldrd r10, r11, [sp, #24]",
        "ldr lr, [sp, #4]",
        "blx lr",
        "str r1, [sp, #20]",
        "ldr r6, [sp, #16]",
        "cmp r0, r6",
        "bne.w 2b",
        "add sp, #36",
        "pop {{r4-r11, pc}}",
    )
}

/// The outputs of a block in `r2` to `r5`: sums less 256 times the next ones, plus biases, rescaled.
macro_rules! outputs {
    () => {
        "
        sub r2, r2, r3, lsl #8
        sub r3, r3, r4, lsl #8
        sub r4, r4, r5, lsl #8
        ldm r0!, {{r6, r7, r8, r9}}
        add r2, r2, r6
        add r3, r3, r7
        add r4, r4, r8
        add r5, r5, r9
        ldm r0!, {{r6, r7, r8, r9}}
        smull r12, r2, r2, r6
        add r2, r2, r12, lsr #31
        smull r12, r3, r3, r7
        add r3, r3, r12, lsr #31
        smull r12, r4, r4, r8
        add r4, r4, r12, lsr #31
        smull r12, r5, r5, r9
        add r5, r5, r12, lsr #31
        "
    };
}

/// Adds the stream at `r1` times the multiplier in `r6`.
macro_rules! added {
    ($row:literal, $value:literal) => {
        concat!(
            "ldrsh r7, [r1, #2 * ",
            $row,
            "]\n",
            "lsl r7, r7, #14\n",
            "smull r7, r8, r7, r6\n",
            "add ",
            $value,
            ", ",
            $value,
            ", r8\n",
            "add ",
            $value,
            ", ",
            $value,
            ", r7, lsr #31\n",
        )
    };
}

/// Saturates to `r10` below and `r11` above, and stores at `r1`.
macro_rules! saturated {
    ($value:literal) => {
        concat!(
            "cmp ",
            $value,
            ", r10\nit lt\nmovlt ",
            $value,
            ", r10\n",
            "cmp ",
            $value,
            ", r11\nit gt\nmovgt ",
            $value,
            ", r11\n",
            "strh ",
            $value,
            ", [r1], #2\n",
        )
    };
}

/// Stores outputs of 16 bits, saturated.
///
/// This and the next two take the sums of a block, its constants at `r0` and the outputs at `r1` from
/// [`multiply`]; not to be called from Rust.
#[unsafe(naked)]
pub unsafe extern "C" fn saturate() {
    naked_asm!(
        outputs!(),
        saturated!("r2"),
        saturated!("r3"),
        saturated!("r4"),
        saturated!("r5"),
        "bx lr",
    )
}

/// Stores outputs of 16 bits, added to what is there and saturated.
#[unsafe(naked)]
pub unsafe extern "C" fn add() {
    naked_asm!(
        outputs!(),
        "ldr r6, [sp, #32]",
        added!("0", "r2"),
        added!("1", "r3"),
        added!("2", "r4"),
        added!("3", "r5"),
        saturated!("r2"),
        saturated!("r3"),
        saturated!("r4"),
        saturated!("r5"),
        "bx lr",
    )
}

/// Stores outputs of 32 bits.
#[unsafe(naked)]
pub unsafe extern "C" fn store() {
    naked_asm!(outputs!(), "stm r1!, {{r2, r3, r4, r5}}", "bx lr")
}

/// Four dot products with the same `x`.
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    let [a, b, c, d] = rows;
    let cols = x.len().min(a.len()).min(b.len()).min(c.len()).min(d.len());
    let starts = [a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()];
    let mut sums = [0; 4];
    // SAFETY: `cols` is at most the length of `x` and of each row.
    unsafe { dot4_whole(&starts, x.as_ptr(), cols, &mut sums) };
    sums
}

/// One column of four rows in memory: 9 instructions for 4 products.
macro_rules! row_major {
    () => {
        "
        ldrsh r12, [r1], #2
        ldrsb r11, [r0], #1
        mla r7, r11, r12, r7
        ldrsb r11, [r4], #1
        mla r8, r11, r12, r8
        ldrsb r11, [r5], #1
        mla r9, r11, r12, r9
        ldrsb r11, [r6], #1
        mla r10, r11, r12, r10
        "
    };
}

/// The dot products of the first `cols` columns, four a turn while there are so many.
///
/// # Safety
/// Every row and `x` must have `cols` elements.
#[unsafe(naked)]
unsafe extern "C" fn dot4_whole(
    rows: &[*const i8; 4],
    x: *const i16,
    cols: usize,
    sums: &mut [i32; 4],
) {
    naked_asm!(
        "push {{r3-r11, lr}}",
        "add lr, r1, r2, lsl #1",
        "bic r2, r2, #3",
        "add r2, r1, r2, lsl #1",
        "ldm r0, {{r0, r4, r5, r6}}",
        "mov r7, #0",
        "mov r8, #0",
        "mov r9, #0",
        "mov r10, #0",
        "cmp r1, r2",
        "beq 3f",
        "2:",
        row_major!(),
        row_major!(),
        row_major!(),
        row_major!(),
        "cmp r1, r2",
        "bne 2b",
        "3:",
        "cmp r1, lr",
        "beq 5f",
        "4:",
        row_major!(),
        "cmp r1, lr",
        "bne 4b",
        "5:",
        "pop {{r3}}",
        "stm r3, {{r7, r8, r9, r10}}",
        "pop {{r4-r11, pc}}",
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
        "push {{r3-r9, lr}}",
        "ldm r2, {{r2, r3}}",
        "mov r4, #0",
        "mov r5, #0",
        "mov r6, #0",
        "mov r7, #0",
        "2:",
        "ldrsh r12, [r2], #2",
        "ldrsb r8, [r0]",
        "ldrsb r9, [r0, #1]",
        "mla r4, r8, r12, r4",
        "ldrsb r8, [r0, #2]",
        "mla r5, r9, r12, r5",
        "ldrsb r9, [r0, #3]",
        "mla r6, r8, r12, r6",
        "mla r7, r9, r12, r7",
        "add r0, r0, r1",
        "cmp r2, r3",
        "bne 2b",
        "pop {{r3}}",
        "stm r3, {{r4, r5, r6, r7}}",
        "pop {{r4-r9, pc}}",
    )
}
