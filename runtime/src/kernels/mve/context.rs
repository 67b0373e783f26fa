//! The weighted sum of attention's values: eight columns of a row in 7 instructions.

use core::arch::naked_asm;
use core::mem::offset_of;

use crate::precision::Rows;

/// Values and their weights, and where the sums go.
#[repr(C)]
struct Sum {
    values: *const i8,
    stride: usize,
    weights: *const i16,
    rows: usize,
    cols: usize,
    multiplier: i32,
    bounds: [i32; 2],
    out: *mut i16,
}

/// See [`vectors::context`](super::super::vectors::context).
#[inline]
pub fn try_context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    multiplier: i32,
    bounds: [i32; 2],
    context: &mut [i16],
) -> bool {
    let (rows, cols) = (probabilities.len(), context.len());
    let reach = rows.saturating_sub(1).saturating_mul(values.stride).saturating_add(cols);
    if rows == 0 || cols == 0 || reach > values.data.len() {
        return false;
    }
    let sum = Sum {
        values: values.data.as_ptr(),
        stride: values.stride,
        weights: probabilities.as_ptr(),
        rows,
        cols,
        multiplier,
        bounds,
        out: context.as_mut_ptr(),
    };
    // SAFETY: the last row has been seen to end within the values; every row has a weight, every column
    // an output; there are some of both.
    unsafe { weighted_sum(&sum) };
    true
}

/// # Safety
/// There must be `rows` rows of `cols` values and `rows` weights, room for `cols` outputs, and neither
/// may be 0.
#[unsafe(naked)]
unsafe extern "C" fn weighted_sum(sum: &Sum) {
    naked_asm!(
        ".cpu cortex-m55",
        "push {{r4-r10, lr}}",
        "ldr r1, [r0, #{values}]",
        "ldr r2, [r0, #{stride}]",
        "ldr r3, [r0, #{weights}]",
        "ldr r4, [r0, #{rows}]",
        "ldr r5, [r0, #{cols}]",
        "ldr r6, [r0, #{multiplier}]",
        "ldrd r8, r9, [r0, #{bounds}]",
        "ldr r7, [r0, #{out}]",
        "subs r5, #8",
        "blo 4f",
        "3:",
        "mov r0, r1",
        "mov r10, r3",
        "vmov.i32 q2, #0",
        "vmov.i32 q3, #0",
        "dls lr, r4",
        "2:",
        "ldrsh r12, [r10], #2",
        "vldrb.s32 q0, [r0]",
        "vmla.i32 q2, q0, r12",
        "vldrb.s32 q1, [r0, #4]",
        "vmla.i32 q3, q1, r12",
        "add r0, r2",
        "le lr, 2b",
        "vdup.32 q0, r6",
        "vrmulh.s32 q2, q2, q0",
        "vrmulh.s32 q3, q3, q0",
        "vdup.32 q0, r8",
        "vmax.s32 q2, q2, q0",
        "vmax.s32 q3, q3, q0",
        "vdup.32 q0, r9",
        "vmin.s32 q2, q2, q0",
        "vmin.s32 q3, q3, q0",
        "vstrh.32 q2, [r7], #8",
        "vstrh.32 q3, [r7], #8",
        "adds r1, #8",
        "subs r5, #8",
        "bhs 3b",
        // Up to four columns at a time; those past the last are neither read nor written.
        "4:",
        "adds r5, #8",
        "beq 6f",
        "5:",
        "vctp.32 r5",
        "mov r0, r1",
        "mov r10, r3",
        "vmov.i32 q2, #0",
        "dls lr, r4",
        "2:",
        "ldrsh r12, [r10], #2",
        "vpst",
        "vldrbt.s32 q0, [r0]",
        "vmla.i32 q2, q0, r12",
        "add r0, r2",
        "le lr, 2b",
        "vdup.32 q0, r6",
        "vrmulh.s32 q2, q2, q0",
        "vdup.32 q0, r8",
        "vmax.s32 q2, q2, q0",
        "vdup.32 q0, r9",
        "vmin.s32 q2, q2, q0",
        "vpst",
        "vstrht.32 q2, [r7], #8",
        "adds r1, #4",
        "subs r5, #4",
        "bgt 5b",
        "6:",
        "pop {{r4-r10, pc}}",
        values = const offset_of!(Sum, values),
        stride = const offset_of!(Sum, stride),
        weights = const offset_of!(Sum, weights),
        rows = const offset_of!(Sum, rows),
        cols = const offset_of!(Sum, cols),
        multiplier = const offset_of!(Sum, multiplier),
        bounds = const offset_of!(Sum, bounds),
        out = const offset_of!(Sum, out),
    )
}
