//! WebAssembly with `simd128`.

use core::arch::wasm32::*;

use model_format::layout::LinearInt;
use model_format::numeric::rescale;

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
    eight_columns::block::<Simd128>(linear, first_row, input, out);
}

/// Four dot products with the same `x`.
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    eight_columns::dot4::<Simd128>(rows, x)
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
    eight_columns::try_dots::<Simd128>(data, stride, rows, x, sums)
}

enum Simd128 {}

impl Vector for Simd128 {
    type Operands = v128;
    type Sums = v128;

    #[inline(always)]
    fn zero() -> v128 {
        i32x4_splat(0)
    }

    #[inline(always)]
    unsafe fn weights(w: &mut *const i8) -> v128 {
        let at = *w;
        *w = at.wrapping_add(8);
        // SAFETY: reads the eight weights, on any alignment.
        unsafe { i16x8_load_extend_i8x8(at) }
    }

    #[inline(always)]
    unsafe fn activations(x: &mut *const i16) -> v128 {
        let at = *x;
        *x = at.wrapping_add(8);
        // SAFETY: reads the eight activations, on any alignment.
        unsafe { v128_load(at.cast()) }
    }

    #[inline(always)]
    fn masked(x: v128, mask: v128) -> v128 {
        v128_and(x, mask)
    }

    #[inline(always)]
    fn multiply_add(sums: v128, w: v128, x: v128) -> v128 {
        i32x4_add(sums, i32x4_dot_i16x8(w, x))
    }

    #[inline(always)]
    fn totals([a, b, c, d]: [v128; 4]) -> v128 {
        let pairs = |a, b| {
            let (even, odd) =
                (i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b));
            i32x4_add(even, odd)
        };
        pairs(pairs(a, b), pairs(c, d))
    }

    #[inline(always)]
    fn rescale(sums: v128, bias: &[i32; 4], multipliers: &[i32; 4]) -> [i32; 4] {
        let mut out = Self::store(sums);
        for ((out, bias), multiplier) in out.iter_mut().zip(bias).zip(multipliers) {
            *out = rescale(bias.wrapping_add(*out), *multiplier);
        }
        out
    }

    #[inline(always)]
    fn store(sums: v128) -> [i32; 4] {
        [
            i32x4_extract_lane::<0>(sums),
            i32x4_extract_lane::<1>(sums),
            i32x4_extract_lane::<2>(sums),
            i32x4_extract_lane::<3>(sums),
        ]
    }
}
