//! HalfFloat's attention with AVX-512: sixteen keys in a register, column after column, and sixteen columns
//! of values, row after row; a product and a sum are rounded one after the other, as everywhere.

use core::arch::x86_64::*;

use super::ROWS;
use super::avx512::first_lanes;
use crate::precision::Rows;

/// `out[row] = rows[row] x`.
///
/// # Safety
/// The processor must have the instructions; there are as many rows as outputs, at least one, and all of
/// them and `x` have `cols` numbers.
#[target_feature(enable = "avx512f")]
pub unsafe fn multiply(rows: Rows<'_, f32>, x: &[f32], out: &mut [f32]) {
    for (group, out) in out.chunks_mut(ROWS).enumerate() {
        let last = out.len() - 1;
        let first = rows.data.as_ptr().wrapping_add(group * ROWS * rows.stride);
        let starts: [*const f32; ROWS] =
            core::array::from_fn(|row| first.wrapping_add(row.min(last) * rows.stride));
        let mut sums = _mm512_setzero_ps();
        let mut col = 0;
        for x in x.chunks(ROWS) {
            let mask = first_lanes(x.len());
            let mut tile = [_mm512_setzero_ps(); ROWS];
            for (tile, row) in tile.iter_mut().zip(starts) {
                // SAFETY: the caller's; the mask leaves out what is past the last column.
                *tile = unsafe { _mm512_maskz_loadu_ps(mask, row.add(col)) };
            }
            let columns = transposed(tile);
            if let Ok(x) = <&[f32; ROWS]>::try_from(x) {
                for (column, &x) in columns.into_iter().zip(x) {
                    sums = _mm512_add_ps(sums, _mm512_mul_ps(column, _mm512_set1_ps(x)));
                }
            } else {
                for (column, &x) in columns.into_iter().zip(x) {
                    sums = _mm512_add_ps(sums, _mm512_mul_ps(column, _mm512_set1_ps(x)));
                }
            }
            col += ROWS;
        }
        // SAFETY: the mask leaves out what is past the last row.
        unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), first_lanes(out.len()), sums) };
    }
}

/// `out = sum(weights[row] rows[row])`.
///
/// # Safety
/// The processor must have the instructions; there are as many rows as weights, and all of them and `out`
/// have `cols` numbers.
#[target_feature(enable = "avx512f")]
pub unsafe fn weigh(rows: Rows<'_, f32>, weights: &[f32], out: &mut [f32]) {
    let mut col = 0;
    while col < out.len() {
        // SAFETY: the caller's.
        unsafe {
            col += match out.len() - col {
                0..=16 => weigh_some::<1>(&rows, col, weights, out),
                17..=32 => weigh_some::<2>(&rows, col, weights, out),
                _ => weigh_some::<4>(&rows, col, weights, out),
            };
        }
    }
}

/// `N` registers of columns from `col` on, or as many as there are; how many columns that is at most.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn weigh_some<const N: usize>(
    rows: &Rows<'_, f32>,
    col: usize,
    weights: &[f32],
    out: &mut [f32],
) -> usize {
    let left = |i: usize| out.len().saturating_sub(col + ROWS * i).min(ROWS);
    let masks: [__mmask16; N] = core::array::from_fn(|i| first_lanes(left(i)));
    let mut sums = [_mm512_setzero_ps(); N];
    for (row, &weight) in weights.iter().enumerate() {
        let start = rows.data.as_ptr().wrapping_add(row * rows.stride + col);
        let weight = _mm512_set1_ps(weight);
        for (i, (sum, mask)) in sums.iter_mut().zip(masks).enumerate() {
            // SAFETY: the caller's; the mask leaves out what is past the last column.
            let row = unsafe { _mm512_maskz_loadu_ps(mask, start.wrapping_add(ROWS * i)) };
            *sum = _mm512_add_ps(*sum, _mm512_mul_ps(row, weight));
        }
    }
    let start = out.as_mut_ptr().wrapping_add(col);
    for (i, (sum, mask)) in sums.into_iter().zip(masks).enumerate() {
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(start.wrapping_add(ROWS * i), mask, sum) };
    }
    ROWS * N
}

/// Sixteen rows of sixteen columns, transposed.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; ROWS]) -> [__m512; ROWS] {
    let mut columns = [_mm512_setzero_ps(); ROWS];
    // Column 4 l + i of four rows in quarter l of register i.
    let mut quads = [[_mm512_setzero_ps(); 4]; 4];
    let (fours, _) = rows.as_chunks::<4>();
    for (index, &[a, b, c, d]) in fours.iter().enumerate() {
        let pd = |ps| _mm512_castps_pd(ps);
        let (ab, cd) = (pd(_mm512_unpacklo_ps(a, b)), pd(_mm512_unpacklo_ps(c, d)));
        let (ab_high, cd_high) = (pd(_mm512_unpackhi_ps(a, b)), pd(_mm512_unpackhi_ps(c, d)));
        let four = [
            _mm512_unpacklo_pd(ab, cd),
            _mm512_unpackhi_pd(ab, cd),
            _mm512_unpacklo_pd(ab_high, cd_high),
            _mm512_unpackhi_pd(ab_high, cd_high),
        ];
        for (quad, four) in quads.iter_mut().zip(four) {
            quad[index] = _mm512_castpd_ps(four);
        }
    }
    for (i, quad) in quads.into_iter().enumerate() {
        let [a, b, c, d] = quad;
        let (even, even_high) =
            (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d));
        let (odd, odd_high) =
            (_mm512_shuffle_f32x4::<0xDD>(a, b), _mm512_shuffle_f32x4::<0xDD>(c, d));
        columns[i] = _mm512_shuffle_f32x4::<0x88>(even, even_high);
        columns[4 + i] = _mm512_shuffle_f32x4::<0x88>(odd, odd_high);
        columns[8 + i] = _mm512_shuffle_f32x4::<0xDD>(even, even_high);
        columns[12 + i] = _mm512_shuffle_f32x4::<0xDD>(odd, odd_high);
    }
    columns
}

/// `out = e^(scores - max)`, with the bits of `libm::expf`.
///
/// # Safety
/// The processor must have the instructions; there are as many outputs as scores.
#[target_feature(enable = "avx512f")]
pub unsafe fn powers(scores: &[f32], out: &mut [f32]) {
    let least = _mm512_set1_ps(f32::NEG_INFINITY);
    // SAFETY: the mask leaves out what is past the end.
    let load = |scores: &[f32]| unsafe {
        _mm512_mask_loadu_ps(least, first_lanes(scores.len()), scores.as_ptr())
    };
    // What is not a number is the first operand, and left out.
    let most = scores.chunks(ROWS).fold(least, |most, scores| _mm512_max_ps(load(scores), most));
    let max = _mm512_reduce_max_ps(most);
    for (scores, out) in scores.chunks(ROWS).zip(out.chunks_mut(ROWS)) {
        let x = _mm512_sub_ps(load(scores), _mm512_set1_ps(max));
        let mask = first_lanes(scores.len());
        let is_in = _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(mask, x, _mm512_set1_ps(LEAST_NORMAL))
            & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(x, _mm512_setzero_ps());
        if is_in == mask {
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, exp(x)) };
        } else {
            out.iter_mut().zip(scores).for_each(|(out, score)| *out = libm::expf(score - max));
        }
    }
}

/// From here to 0 no power is subnormal.
const LEAST_NORMAL: f32 = -87.0;

/// `e^x` from [`LEAST_NORMAL`] to 0: libm's steps, which choose by the size of `x`, side by side.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    let of = |bits| _mm512_set1_ps(f32::from_bits(bits));
    // 0.5 ln 2, 1.5 ln 2 and 2^-14; ln 2 in two parts, and its inverse.
    let [half_ln2, ln2_and_half, small] = [0x3EB1_7218, 0x3F85_1592, 0x3900_0000].map(of);
    let [ln2_high, ln2_low, inverse] = [0x3F31_7200, 0x35BF_BE8E, 0x3FB8_AA3B].map(of);
    let (one, two) = (_mm512_set1_ps(1.0), _mm512_set1_ps(2.0));
    let size = _mm512_abs_ps(x);
    let is_above = |limit| _mm512_cmp_ps_mask::<_CMP_GT_OQ>(size, limit);
    let whole = _mm512_sub_ps(_mm512_mul_ps(inverse, x), _mm512_set1_ps(0.5));
    let k = _mm512_maskz_mov_epi32(is_above(half_ln2), _mm512_set1_epi32(-1));
    let k = _mm512_mask_cvttps_epi32(k, is_above(ln2_and_half), whole);
    let float_k = _mm512_cvtepi32_ps(k);
    let high = _mm512_sub_ps(x, _mm512_mul_ps(float_k, ln2_high));
    let low = _mm512_mul_ps(float_k, ln2_low);
    let rest = _mm512_sub_ps(high, low);
    let square = _mm512_mul_ps(rest, rest);
    // 0.16666625 and -0.0027667333.
    let [p1, p2] = [0x3E2A_AA8F, 0xBB35_5215].map(of);
    let polynomial = _mm512_add_ps(p1, _mm512_mul_ps(square, p2));
    let c = _mm512_sub_ps(rest, _mm512_mul_ps(square, polynomial));
    let quotient = _mm512_div_ps(_mm512_mul_ps(rest, c), _mm512_sub_ps(two, c));
    let y = _mm512_add_ps(one, _mm512_add_ps(_mm512_sub_ps(quotient, low), high));
    let y = _mm512_mask_mov_ps(_mm512_add_ps(one, x), is_above(small), y);
    let scale = _mm512_slli_epi32::<23>(_mm512_add_epi32(k, _mm512_set1_epi32(127)));
    _mm512_mul_ps(y, _mm512_castsi512_ps(scale))
}
