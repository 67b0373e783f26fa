//! RV32IM: registers enough for sixteen rows at once.

use core::arch::naked_asm;

use super::quad::Task;
pub use super::quad::{
    ROWS, Ready, TOKENS, block, ready, scratch_len, try_context, try_project, try_project_add,
};

/// Widens four elements at `a0` and stores them at `a2`; adds them to `a7`.
macro_rules! widen_four {
    ($first:literal) => {
        concat!(
            "lh a3, 2 * ",
            $first,
            "(a0)\n",
            "lh a4, 2 * ",
            $first,
            " + 2(a0)\n",
            "lh a5, 2 * ",
            $first,
            " + 4(a0)\n",
            "lh a6, 2 * ",
            $first,
            " + 6(a0)\n",
            "sw a3, 4 * ",
            $first,
            "(a2)\n",
            "sw a4, 4 * ",
            $first,
            " + 4(a2)\n",
            "sw a5, 4 * ",
            $first,
            " + 8(a2)\n",
            "sw a6, 4 * ",
            $first,
            " + 12(a2)\n",
            "add a3, a3, a4\n",
            "add a5, a5, a6\n",
            "add a7, a7, a3\n",
            "add a7, a7, a5\n",
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
        "li a7, 0",
        "sub a3, a1, a0",
        "andi a3, a3, 8",
        "beqz a3, 2f",
        "addi a0, a0, -8",
        "addi a2, a2, -16",
        "j 3f",
        "2:",
        widen_four!("0"),
        "3:",
        widen_four!("4"),
        "addi a0, a0, 16",
        "addi a2, a2, 32",
        "bne a0, a1, 2b",
        "mv a0, a7",
        "ret",
    )
}

/// Adds the products of four rows in one column, weights at `$weights`, to four sums.
macro_rules! four_rows {
    ($column:literal, $weights:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            "lw a4, 4 * ",
            $column,
            "(",
            $weights,
            ")\n",
            "mul a5, a4, a3\nsrli a4, a4, 8\nadd ",
            $a,
            ", ",
            $a,
            ", a5\n",
            "mul a5, a4, a3\nsrli a4, a4, 8\nadd ",
            $b,
            ", ",
            $b,
            ", a5\n",
            "mul a5, a4, a3\nsrli a4, a4, 8\nadd ",
            $c,
            ", ",
            $c,
            ", a5\n",
            "mul a5, a4, a3\nadd ",
            $d,
            ", ",
            $d,
            ", a5\n",
        )
    };
}

/// One column of one block: sums in `t1` to `t4`.
macro_rules! narrow {
    ($column:literal) => {
        concat!(
            "lw a3, 4 * ", $column, "(a2)\n",
            four_rows!($column, "s0", "t1", "t2", "t3", "t4"),
        )
    };
}

/// One column of four blocks: 49 instructions for 16 products.
macro_rules! wide {
    ($column:literal) => {
        concat!(
            narrow!($column),
            four_rows!($column, "s1", "t5", "t6", "s2", "s3"),
            four_rows!($column, "a0", "s4", "s5", "s6", "s7"),
            four_rows!($column, "a1", "s8", "s9", "s10", "s11"),
        )
    };
}

/// The outputs of `blocks` blocks, one after the other, sixteen rows at a time while there are so many.
///
/// `s0`, `s1`, `a0` and `a1` walk over four blocks, `a2` over the input up to `ra`; sums are in `t1` to `t6`
/// and `s2` to `s11`. `a6` walks over the outputs; `a7` and `t0` are their bounds.
///
/// # Safety
/// `task.ready` must be the starts of the sums and one or more whole tiles of `x`; `weights` `blocks`
/// blocks of as many columns, 1 or more, `task.block_len` bytes each with their constants; `out` as many
/// fours of the outputs that `task.finish` stores.
#[unsafe(naked)]
pub unsafe extern "C" fn multiply(weights: *const i32, blocks: usize, out: *mut u8, task: &Task) {
    naked_asm!(
        ".option push",
        ".option arch, +m, +c",
        "addi sp, sp, -64",
        "sw ra, 60(sp)",
        "sw s0, 56(sp)",
        "sw s1, 52(sp)",
        "sw s2, 48(sp)",
        "sw s3, 44(sp)",
        "sw s4, 40(sp)",
        "sw s5, 36(sp)",
        "sw s6, 32(sp)",
        "sw s7, 28(sp)",
        "sw s8, 24(sp)",
        "sw s9, 20(sp)",
        "sw s10, 16(sp)",
        "sw s11, 12(sp)",
        "sw a3, 8(sp)",
        "mv s0, a0",
        "mv a6, a2",
        "lw a7, 16(a3)",
        "lw t0, 20(a3)",
        "addi a1, a1, -4",
        "bltz a1, 4f",
        "2:",
        "sw a1, 4(sp)",
        "lw a2, 4(a3)",
        "lw ra, 8(a3)",
        "lw a4, 12(a3)",
        "add s1, s0, a4",
        "add a0, s1, a4",
        "add a1, a0, a4",
        "lw t1, 0(a2)",
        "lw t2, 4(a2)",
        "lw t3, 8(a2)",
        "lw t4, 12(a2)",
        "mv t5, t1",
        "mv t6, t2",
        "mv s2, t3",
        "mv s3, t4",
        "mv s4, t1",
        "mv s5, t2",
        "mv s6, t3",
        "mv s7, t4",
        "mv s8, t1",
        "mv s9, t2",
        "mv s10, t3",
        "mv s11, t4",
        "addi a2, a2, 16",
        "sub a4, ra, a2",
        "andi a4, a4, 16",
        "beqz a4, 3f",
        "addi s0, s0, -16",
        "addi s1, s1, -16",
        "addi a0, a0, -16",
        "addi a1, a1, -16",
        "addi a2, a2, -16",
        "j 8f",
        "3:",
        wide!("0"),
        wide!("1"),
        wide!("2"),
        wide!("3"),
        "8:",
        wide!("4"),
        wide!("5"),
        wide!("6"),
        wide!("7"),
        "addi s0, s0, 32",
        "addi s1, s1, 32",
        "addi a0, a0, 32",
        "addi a1, a1, 32",
        "addi a2, a2, 32",
        "bne a2, ra, 3b",
        "lw a3, 8(sp)",
        "lw ra, 24(a3)",
        "lw a3, 0(a3)",
        "jalr a2, 0(a3)",
        "mv t1, t5",
        "mv t2, t6",
        "mv t3, s2",
        "mv t4, s3",
        "mv s0, s1",
        "jalr a2, 0(a3)",
        "mv t1, s4",
        "mv t2, s5",
        "mv t3, s6",
        "mv t4, s7",
        "mv s0, a0",
        "jalr a2, 0(a3)",
        "mv t1, s8",
        "mv t2, s9",
        "mv t3, s10",
        "mv t4, s11",
        "mv s0, a1",
        "jalr a2, 0(a3)",
        "addi s0, s0, 32",
        "lw a1, 4(sp)",
        "lw a3, 8(sp)",
        "addi a1, a1, -4",
        "bgez a1, 2b",
        "4:",
        "addi s1, a1, 4",
        "beqz s1, 7f",
        "5:",
        "lw a2, 4(a3)",
        "lw ra, 8(a3)",
        "lw t1, 0(a2)",
        "lw t2, 4(a2)",
        "lw t3, 8(a2)",
        "lw t4, 12(a2)",
        "addi a2, a2, 16",
        "6:",
        narrow!("0"),
        narrow!("1"),
        narrow!("2"),
        narrow!("3"),
        "addi s0, s0, 16",
        "addi a2, a2, 16",
        "bne a2, ra, 6b",
        "lw a3, 8(sp)",
        "lw ra, 24(a3)",
        "lw a3, 0(a3)",
        "jalr a2, 0(a3)",
        "addi s0, s0, 32",
        "lw a3, 8(sp)",
        "addi s1, s1, -1",
        "bnez s1, 5b",
        "7:",
        "lw ra, 60(sp)",
        "lw s0, 56(sp)",
        "lw s1, 52(sp)",
        "lw s2, 48(sp)",
        "lw s3, 44(sp)",
        "lw s4, 40(sp)",
        "lw s5, 36(sp)",
        "lw s6, 32(sp)",
        "lw s7, 28(sp)",
        "lw s8, 24(sp)",
        "lw s9, 20(sp)",
        "lw s10, 16(sp)",
        "lw s11, 12(sp)",
        "addi sp, sp, 64",
        "ret",
        ".option pop",
    )
}

/// The output of a row: its sum less 256 times the next one, plus the bias, rescaled.
macro_rules! output {
    ($row:literal, $sum:literal, $next:literal) => {
        concat!("slli a4, ", $next, ", 8\nsub ", $sum, ", ", $sum, ", a4\n", output!($row, $sum))
    };
    ($row:literal, $sum:literal) => {
        concat!(
            "lw a4, 4 * ",
            $row,
            "(s0)\n",
            "lw a5, 4 * ",
            $row,
            " + 16(s0)\n",
            "add a4, a4, ",
            $sum,
            "\n",
            "mulh ",
            $sum,
            ", a4, a5\n",
            "mul a4, a4, a5\n",
            "srli a4, a4, 31\n",
            "add ",
            $sum,
            ", ",
            $sum,
            ", a4\n",
        )
    };
}

/// The same, saturated to `a7` below and `t0` above, and stored at `a6`.
macro_rules! saturated {
    ($row:literal, $sum:literal) => {
        concat!(
            "bge ",
            $sum,
            ", a7, 2f\nmv ",
            $sum,
            ", a7\n2:\n",
            "ble ",
            $sum,
            ", t0, 3f\nmv ",
            $sum,
            ", t0\n3:\n",
            "sh ",
            $sum,
            ", 2 * ",
            $row,
            "(a6)\n",
        )
    };
}

/// Adds the stream at `a6` times the multiplier in `ra`.
macro_rules! added {
    ($row:literal, $sum:literal) => {
        concat!(
            "lh a4, 2 * ",
            $row,
            "(a6)\n",
            "slli a4, a4, 14\n",
            "mulh a5, a4, ra\n",
            "mul a4, a4, ra\n",
            "srli a4, a4, 31\n",
            "add ",
            $sum,
            ", ",
            $sum,
            ", a5\n",
            "add ",
            $sum,
            ", ",
            $sum,
            ", a4\n",
        )
    };
}

/// Stores outputs of 16 bits, saturated.
///
/// This and the next two take the sums of a block in `t1` to `t4` and its constants at `s0`, and return to
/// `a2`; not to be called from Rust.
#[unsafe(naked)]
pub unsafe extern "C" fn saturate() {
    naked_asm!(
        ".option push",
        ".option arch, +m, +c",
        output!("0", "t1", "t2"),
        saturated!("0", "t1"),
        output!("1", "t2", "t3"),
        saturated!("1", "t2"),
        output!("2", "t3", "t4"),
        saturated!("2", "t3"),
        output!("3", "t4"),
        saturated!("3", "t4"),
        "addi a6, a6, 8",
        "jr a2",
        ".option pop",
    )
}

/// Stores outputs of 16 bits, added to what is there and saturated.
#[unsafe(naked)]
pub unsafe extern "C" fn add() {
    naked_asm!(
        ".option push",
        ".option arch, +m, +c",
        output!("0", "t1", "t2"),
        added!("0", "t1"),
        saturated!("0", "t1"),
        output!("1", "t2", "t3"),
        added!("1", "t2"),
        saturated!("1", "t2"),
        output!("2", "t3", "t4"),
        added!("2", "t3"),
        saturated!("2", "t3"),
        output!("3", "t4"),
        added!("3", "t4"),
        saturated!("3", "t4"),
        "addi a6, a6, 8",
        "jr a2",
        ".option pop",
    )
}

/// Stores outputs of 32 bits.
#[unsafe(naked)]
pub unsafe extern "C" fn store() {
    naked_asm!(
        ".option push",
        ".option arch, +m, +c",
        output!("0", "t1", "t2"),
        "sw t1, 0(a6)",
        output!("1", "t2", "t3"),
        "sw t2, 4(a6)",
        output!("2", "t3", "t4"),
        "sw t3, 8(a6)",
        output!("3", "t4"),
        "sw t4, 12(a6)",
        "addi a6, a6, 16",
        "jr a2",
        ".option pop",
    )
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

/// One column of four rows in memory: 13 instructions for 4 products.
macro_rules! column {
    ($column:literal) => {
        concat!(
            "lh a2, 2 * ",
            $column,
            "(a1)\n",
            "lb a4, ",
            $column,
            "(t0)\nmul a4, a4, a2\nadd t3, t3, a4\n",
            "lb a4, ",
            $column,
            "(t1)\nmul a4, a4, a2\nadd t4, t4, a4\n",
            "lb a4, ",
            $column,
            "(t2)\nmul a4, a4, a2\nadd t5, t5, a4\n",
            "lb a4, ",
            $column,
            "(a0)\nmul a4, a4, a2\nadd t6, t6, a4\n",
        )
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
        ".option push",
        ".option arch, +m, +c",
        "slli a6, a2, 1",
        "add a6, a6, a1",
        "andi a7, a2, -4",
        "slli a7, a7, 1",
        "add a7, a7, a1",
        "lw t0, 0(a0)",
        "lw t1, 4(a0)",
        "lw t2, 8(a0)",
        "lw a0, 12(a0)",
        "li t3, 0",
        "li t4, 0",
        "li t5, 0",
        "li t6, 0",
        "beq a1, a7, 3f",
        "2:",
        column!("0"),
        column!("1"),
        column!("2"),
        column!("3"),
        "addi t0, t0, 4",
        "addi t1, t1, 4",
        "addi t2, t2, 4",
        "addi a0, a0, 4",
        "addi a1, a1, 8",
        "bne a1, a7, 2b",
        "3:",
        "beq a1, a6, 5f",
        "4:",
        column!("0"),
        "addi t0, t0, 1",
        "addi t1, t1, 1",
        "addi t2, t2, 1",
        "addi a0, a0, 1",
        "addi a1, a1, 2",
        "bne a1, a6, 4b",
        "5:",
        "sw t3, 0(a3)",
        "sw t4, 4(a3)",
        "sw t5, 8(a3)",
        "sw t6, 12(a3)",
        "ret",
        ".option pop",
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
        ".option push",
        ".option arch, +m, +c",
        "lw a4, 0(a2)",
        "lw a5, 4(a2)",
        "li t0, 0",
        "li t1, 0",
        "li t2, 0",
        "li t3, 0",
        "2:",
        "lh a2, 0(a4)",
        "lb a6, 0(a0)",
        "lb a7, 1(a0)",
        "mul a6, a6, a2",
        "add t0, t0, a6",
        "lb a6, 2(a0)",
        "mul a7, a7, a2",
        "add t1, t1, a7",
        "lb a7, 3(a0)",
        "mul a6, a6, a2",
        "add t2, t2, a6",
        "mul a7, a7, a2",
        "add t3, t3, a7",
        "add a0, a0, a1",
        "addi a4, a4, 2",
        "bne a4, a5, 2b",
        "sw t0, 0(a3)",
        "sw t1, 4(a3)",
        "sw t2, 8(a3)",
        "sw t3, 12(a3)",
        "ret",
        ".option pop",
    )
}
