//! The loops, in functions of their own: `asm!` lends neither r6 nor r7, and knows no vectors of this
//! extension.

use core::arch::naked_asm;
use core::mem::offset_of;

/// Whole groups of rows of a row-major matrix, and where their outputs go.
#[repr(C)]
pub struct Product {
    pub weights: *const i8,
    pub cols: usize,
    pub bias: *const i32,
    /// Where the biases of the last group end.
    pub bias_end: *const i32,
    pub multipliers: *const i32,
    pub x: *const i16,
    /// One `i16` a row, or one `i32`.
    pub out: *mut (),
    /// What an `i16` saturates to.
    pub bounds: [i32; 2],
    /// Multiplier of what `out` holds before.
    pub stream_multiplier: i32,
}

/// Adds eight columns of four rows, whose sums are in r4, r6, r8 and r10; the rows are at r0 to r3,
/// the activations at r5.
macro_rules! dot_loop {
    () => {
        "2:
        vldrh.u16 q0, [r5], #16
        vldrb.s16 q1, [r0], #8
        vmlava.s16 r4, q1, q0
        vldrb.s16 q1, [r1], #8
        vmlava.s16 r6, q1, q0
        vldrb.s16 q1, [r2], #8
        vmlava.s16 r8, q1, q0
        vldrb.s16 q1, [r3], #8
        vmlava.s16 r10, q1, q0
        letp lr, 2b"
    };
}

/// A function that multiplies group after group, rescales, and stores four outputs from q0 at r7.
///
/// `VRMULH` is the contract's rescale. q2 and q3 hold the bounds, q4 the multiplier of the stream.
macro_rules! product {
    ($name:ident, $what:literal, $before:literal, $store:literal, $after:literal $(, $($operands:tt)*)?) => {
        #[doc = $what]
        ///
        /// # Safety
        /// Every pointer of the product must be good for its whole groups of rows, at least one, and
        /// `cols` not 0. Elements of 2 and 4 bytes are aligned.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(product: &Product) {
            naked_asm!(
                ".cpu cortex-m55",
                "push {{r4-r12, lr}}",
                $before,
                "ldr r9, [r0, #{bias}]",
                "ldr r11, [r0, #{multipliers}]",
                "ldr r7, [r0, #{out}]",
                "ldr r5, [r0, #{x}]",
                "ldr r12, [r0, #{cols}]",
                "ldr r1, [r0, #{bias_end}]",
                "ldr r0, [r0, #{weights}]",
                "push {{r5, r12}}",
                "push {{r1, r2}}",
                "3:",
                "ldrd r4, r6, [r9], #8",
                "ldrd r8, r10, [r9], #8",
                "ldrd r5, r12, [sp, #8]",
                "add r1, r0, r12",
                "add r2, r1, r12",
                "add r3, r2, r12",
                "dlstp.16 lr, r12",
                "add r12, r3, r12",
                dot_loop!(),
                "mov r0, r12",
                "vmov q0[2], q0[0], r4, r8",
                "vmov q0[3], q0[1], r6, r10",
                "vldrw.u32 q1, [r11], #16",
                "vrmulh.s32 q0, q0, q1",
                $store,
                "ldr r1, [sp]",
                "cmp r9, r1",
                "bne 3b",
                "add sp, #16",
                $after,
                "pop {{r4-r12, pc}}",
                weights = const offset_of!(Product, weights),
                cols = const offset_of!(Product, cols),
                bias = const offset_of!(Product, bias),
                bias_end = const offset_of!(Product, bias_end),
                multipliers = const offset_of!(Product, multipliers),
                x = const offset_of!(Product, x),
                out = const offset_of!(Product, out),
                $($($operands)*)?
            )
        }
    };
}

product!(rescaled, "Writes `i32`.", "", "vstrw.32 q0, [r7], #16", "");
product!(
    saturated,
    "Writes `i16` between the bounds.",
    "ldrd r1, r2, [r0, #{bounds}]
    vdup.32 q2, r1
    vdup.32 q3, r2",
    "vmax.s32 q0, q0, q2
    vmin.s32 q0, q0, q3
    vstrh.32 q0, [r7], #8",
    "",
    bounds = const offset_of!(Product, bounds),
);
product!(
    added,
    "Adds to `i16`, between the bounds.",
    "vpush {{d8-d9}}
    ldrd r1, r2, [r0, #{bounds}]
    vdup.32 q2, r1
    vdup.32 q3, r2
    ldr r1, [r0, #{stream_multiplier}]
    vdup.32 q4, r1",
    "vldrh.s32 q1, [r7]
    vshl.i32 q1, q1, #14
    vrmulh.s32 q1, q1, q4
    vqadd.s32 q0, q0, q1
    vmax.s32 q0, q0, q2
    vmin.s32 q0, q0, q3
    vstrh.32 q0, [r7], #8",
    "vpop {{d8-d9}}",
    bounds = const offset_of!(Product, bounds),
    stream_multiplier = const offset_of!(Product, stream_multiplier),
);

/// Dot products of `rows` rows, `stride` apart, with `x`.
///
/// # Safety
/// Every row and `x` must have `cols` elements, `sums` `rows`, and neither may be 0.
#[unsafe(naked)]
pub unsafe extern "C" fn dots(
    data: *const i8,
    stride: usize,
    x: *const i16,
    cols: usize,
    rows: usize,
    sums: *mut i32,
) {
    naked_asm!(
        ".cpu cortex-m55",
        "push {{r4-r12, lr}}",
        "ldrd r11, r9, [sp, #40]",
        "mov r7, r1",
        "push {{r2, r3}}",
        "subs r11, #4",
        "blo 4f",
        "3:",
        "ldrd r5, r6, [sp]",
        "add r1, r0, r7",
        "add r2, r1, r7",
        "add r3, r2, r7",
        "add r12, r3, r7",
        "dlstp.16 lr, r6",
        "mov r4, #0",
        "mov r6, #0",
        "mov r8, #0",
        "mov r10, #0",
        dot_loop!(),
        "mov r0, r12",
        "stm r9!, {{r4, r6, r8, r10}}",
        "subs r11, #4",
        "bhs 3b",
        // One row after the other.
        "4:",
        "adds r11, #4",
        "beq 6f",
        "5:",
        "ldrd r5, r6, [sp]",
        "mov r1, r0",
        "mov r4, #0",
        "dlstp.16 lr, r6",
        "2:",
        "vldrh.u16 q0, [r5], #16",
        "vldrb.s16 q1, [r1], #8",
        "vmlava.s16 r4, q1, q0",
        "letp lr, 2b",
        "add r0, r7",
        "str r4, [r9], #4",
        "subs r11, #1",
        "bne 5b",
        "6:",
        "add sp, #8",
        "pop {{r4-r12, pc}}",
    )
}
