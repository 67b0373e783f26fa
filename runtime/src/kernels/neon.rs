//! AArch64: NEON, which every such core has.

use core::arch::aarch64::*;
use core::arch::asm;

use model_format::layout::LinearInt;

use super::Input;
use super::eight_columns::{self, Vector};
pub use super::eight_columns::{DOTS, ROWS, TOKENS};
pub use super::reference::{Ready, ready, scratch_len, try_project, try_project_add};

/// See [`block`](super::block).
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    eight_columns::block::<Neon>(linear, first_row, input, out);
}

/// Four dot products with the same `x`.
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    eight_columns::dot4::<Neon>(rows, x)
}

/// Dot products of rows in memory.
#[inline(never)]
pub fn try_dots(
    data: &[i8],
    stride: usize,
    rows: usize,
    x: &[i16],
    sums: &mut [i32],
) -> Option<usize> {
    eight_columns::try_dots::<Neon>(data, stride, rows, x, sums)
}

enum Neon {}

impl Vector for Neon {
    type Operands = int16x8_t;
    type Sums = int32x4_t;

    #[inline(always)]
    fn zero() -> int32x4_t {
        // SAFETY: needs NEON only, which this file is compiled with.
        unsafe { vdupq_n_s32(0) }
    }

    // In assembly, since `LD1` takes any alignment of bytes where the compiler has been told that there is
    // none, and would read them one by one.
    #[inline(always)]
    unsafe fn weights(w: &mut *const i8) -> int16x8_t {
        let bytes: int8x8_t;
        // SAFETY: reads the eight weights.
        unsafe {
            asm!(
                "ld1 {{{bytes:v}.8b}}, [{w}], #8",
                bytes = out(vreg) bytes,
                w = inout(reg) *w,
                options(readonly, nostack, preserves_flags)
            );
            vmovl_s8(bytes)
        }
    }

    #[inline(always)]
    unsafe fn activations(x: &mut *const i16) -> int16x8_t {
        let halves: int16x8_t;
        // SAFETY: reads the eight activations.
        unsafe {
            asm!(
                "ld1 {{{halves:v}.8h}}, [{x}], #16",
                halves = out(vreg) halves,
                x = inout(reg) *x,
                options(readonly, nostack, preserves_flags)
            );
        }
        halves
    }

    #[inline(always)]
    fn masked(x: int16x8_t, mask: int16x8_t) -> int16x8_t {
        // SAFETY: needs NEON only.
        unsafe { vandq_s16(x, mask) }
    }

    #[inline(always)]
    fn multiply_add(sums: int32x4_t, w: int16x8_t, x: int16x8_t) -> int32x4_t {
        // SAFETY: needs NEON only.
        unsafe {
            let sums = vmlal_s16(sums, vget_low_s16(w), vget_low_s16(x));
            vmlal_high_s16(sums, w, x)
        }
    }

    #[inline(always)]
    fn totals([a, b, c, d]: [int32x4_t; 4]) -> int32x4_t {
        // SAFETY: needs NEON only.
        unsafe { vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)) }
    }

    #[inline(always)]
    fn rescale(sums: int32x4_t, bias: &[i32; 4], multipliers: &[i32; 4]) -> [i32; 4] {
        // SAFETY: reads the four elements of each array.
        let rescaled = unsafe {
            let sums = vaddq_s32(sums, vld1q_s32(bias.as_ptr()));
            let multipliers = vld1q_s32(multipliers.as_ptr());
            let low = vmull_s32(vget_low_s32(sums), vget_low_s32(multipliers));
            let high = vmull_high_s32(sums, multipliers);
            // A narrowing shift rounds half up, as the contract does.
            vrshrn_high_n_s64::<32>(vrshrn_n_s64::<32>(low), high)
        };
        Self::store(rescaled)
    }

    #[inline(always)]
    fn store(sums: int32x4_t) -> [i32; 4] {
        let mut lanes = [0; 4];
        // SAFETY: writes the four elements of the array.
        unsafe { vst1q_s32(lanes.as_mut_ptr(), sums) };
        lanes
    }
}
