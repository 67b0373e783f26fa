//! Row after row: attention's keys and values, and matrices of that packing.

use core::arch::naked_asm;

use model_format::layout::LinearInt;
use model_format::numeric::rescale;

use super::super::{Input, reference};
use super::{ROWS, TOKENS};

/// `block` of a matrix of this packing.
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let cols = linear.cols;
    let last = linear.rows.saturating_sub(1);
    for (token, out) in out.iter_mut().enumerate().take(input.tokens) {
        let x = input.token(token);
        let x = x.get(..cols).unwrap_or(x);
        let (blocks, _) = out.as_chunks_mut::<4>();
        for (first, out) in (first_row..linear.rows).step_by(4).zip(blocks) {
            // Rows past the last are the last again.
            let rows = [0, 1, 2, 3].map(|i| {
                let start = first.wrapping_add(i).min(last).wrapping_mul(cols);
                linear.data.get(start..start.wrapping_add(cols)).unwrap_or_default()
            });
            let bias = linear.bias.get(first..).unwrap_or_default();
            let multipliers = linear.multipliers.get(first..).unwrap_or_default();
            *out = dot4(rows, x);
            for (out, (bias, multiplier)) in out.iter_mut().zip(bias.iter().zip(multipliers)) {
                *out = rescale(bias.wrapping_add(*out), *multiplier);
            }
        }
    }
}

/// `block` of any packing, a few weights at a time.
#[cold]
#[inline(never)]
pub fn any_block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let out = out.as_flattened_mut().chunks_mut(super::rows(linear, input));
    for (token, out) in out.enumerate().take(input.tokens) {
        let x = input.token(token);
        for (row, out) in (first_row..linear.rows).zip(out) {
            let (bias, multiplier) = linear.constants(row);
            let sum = reference::dot_row(linear, row, x);
            *out = rescale(bias.wrapping_add(sum), multiplier);
        }
    }
}

/// Four dot products with the same `x`, four columns per turn.
///
/// A word of weights holds columns 0 to 3; `SXTB16` widens columns 0 and 2, with a rotation 1 and 3,
/// so `x` is regrouped once for the four rows. 27 instructions for 16 products.
#[inline(never)]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    let [a, b, c, d] = rows;
    let cols = x.len().min(a.len()).min(b.len()).min(c.len()).min(d.len());
    let whole = cols & !3;
    let mut acc = [0_i32; 4];
    if whole != 0 {
        let starts = [a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()];
        // SAFETY: `whole` is a multiple of 4, not 0, and at most the length of `x` and of each row.
        unsafe { dot4_whole(&starts, x.as_ptr(), whole, &mut acc) };
    }
    let x = x.get(whole..cols).unwrap_or_default();
    for (sum, row) in acc.iter_mut().zip(rows) {
        let row = row.get(whole..cols).unwrap_or_default();
        *sum = sum.wrapping_add(reference::dot(row, x));
    }
    acc
}

/// Adds the dot products of the first `cols` columns to `acc`.
///
/// # Safety
/// Every row and `x` must have `cols` elements, and `cols` must be a multiple of 4 and not 0. No
/// alignment is needed: only `LDR` reads, which these cores allow anywhere in normal memory.
#[unsafe(naked)]
unsafe extern "C" fn dot4_whole(
    rows: &[*const i8; 4],
    x: *const i16,
    cols: usize,
    acc: &mut [i32; 4],
) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r3-r11, lr}}",
        "add r2, r1, r2, lsl #1",
        "ldm r0, {{r0, r4, r5, r6}}",
        "mov r7, #0",
        "mov r8, #0",
        "mov r9, #0",
        "mov r10, #0",
        "2:",
        "ldr r11, [r1], #4",
        "ldr r12, [r1], #4",
        "pkhbt r3, r11, r12, lsl #16",
        "pkhtb r12, r12, r11, asr #16",
        "ldr lr, [r0], #4",
        "sxtb16 r11, lr",
        "sxtb16 lr, lr, ror #8",
        "smlad r7, r11, r3, r7",
        "smlad r7, lr, r12, r7",
        "ldr lr, [r4], #4",
        "sxtb16 r11, lr",
        "sxtb16 lr, lr, ror #8",
        "smlad r8, r11, r3, r8",
        "smlad r8, lr, r12, r8",
        "ldr lr, [r5], #4",
        "sxtb16 r11, lr",
        "sxtb16 lr, lr, ror #8",
        "smlad r9, r11, r3, r9",
        "smlad r9, lr, r12, r9",
        "ldr lr, [r6], #4",
        "sxtb16 r11, lr",
        "sxtb16 lr, lr, ror #8",
        "smlad r10, r11, r3, r10",
        "smlad r10, lr, r12, r10",
        "cmp r1, r2",
        "bne 2b",
        "pop {{r3}}",
        "stm r3, {{r7, r8, r9, r10}}",
        "pop {{r4-r11, pc}}",
    )
}
