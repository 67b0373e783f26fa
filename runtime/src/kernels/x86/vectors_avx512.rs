//! The products of attention and softmax's powers with AVX-512.

use core::arch::x86_64::*;

use super::ROWS;
use super::avx512::{dots, first_lanes, rescale};
use crate::fixed::softmax::{EXP2, EXPONENT_BITS, TOP};
use crate::precision::Rows;

/// Runs `f`, compiled for these instructions.
///
/// # Safety
/// The processor must have them.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Sixteen keys at a time.
///
/// # Safety
/// The processor must have the instructions; there are as many keys as scores, and each and the query
/// have `cols` numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn scores(keys: Rows<'_, i8>, query: &[i16], scores: &mut [i32]) {
    let data = keys.data.as_ptr();
    for (first, scores) in (0..keys.rows).step_by(ROWS).zip(scores.chunks_mut(ROWS)) {
        let last = scores.len() - 1;
        let starts =
            core::array::from_fn(|row| data.wrapping_add((first + row.min(last)) * keys.stride));
        // SAFETY: the caller's; a mask leaves out what is past the last score.
        unsafe {
            let sums = dots(starts, query.as_ptr(), keys.cols, 0);
            _mm512_mask_storeu_epi32(scores.as_mut_ptr(), first_lanes(scores.len()), sums);
        }
    }
}

/// Two rows of 32 columns at a time, or of the 16 or fewer that are left.
///
/// # Safety
/// The processor must have the instructions; there are as many rows as probabilities, and each has as
/// many columns as `context`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    (multiplier, [low, high]): (i32, [i32; 2]),
    context: &mut [i16],
) {
    let multiplier = _mm512_set1_epi32(multiplier);
    let (low, high) = (_mm512_set1_epi32(low), _mm512_set1_epi32(high));
    let put = |to: &mut [i16], sums: __m512i| {
        let values = _mm512_min_epi32(_mm512_max_epi32(rescale(sums, multiplier), low), high);
        let mask = first_lanes(to.len().min(ROWS));
        // SAFETY: the mask leaves out what is past the end.
        unsafe { _mm256_mask_storeu_epi16(to.as_mut_ptr(), mask, _mm512_cvtepi32_epi16(values)) }
    };
    for (index, to) in context.chunks_mut(2 * ROWS).enumerate() {
        let start = values.data.as_ptr().wrapping_add(index * 2 * ROWS);
        // SAFETY: the caller's.
        unsafe {
            if to.len() <= ROWS {
                put(to, weigh_16(start, values.stride, probabilities, to.len()));
                continue;
            }
            let [sums, more] = weigh_32(start, values.stride, probabilities, to.len());
            let (to, rest) = to.split_at_mut(ROWS);
            put(to, sums);
            put(rest, more);
        }
    }
}

/// Two probabilities in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair(p: &[i16; 2]) -> __m512i {
    let [even, odd] = p.map(|p| u32::from(p as u16));
    _mm512_set1_epi32((even | odd << 16) as i32)
}

/// The weighted sum of `cols` columns, at most 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn weigh_16(start: *const i8, stride: usize, probabilities: &[i16], cols: usize) -> __m512i {
    let mask = first_lanes(cols);
    // SAFETY: the caller's; the mask leaves out what is past the last column.
    let row = |t: usize| unsafe { _mm_maskz_loadu_epi8(mask, start.add(t * stride)) };
    let widened = |a: __m128i, b: __m128i| {
        let low = _mm256_castsi128_si256(_mm_unpacklo_epi8(a, b));
        _mm512_cvtepi8_epi16(_mm256_inserti128_si256::<1>(low, _mm_unpackhi_epi8(a, b)))
    };
    let (pairs, rest) = probabilities.as_chunks::<2>();
    let mut sums = [_mm512_setzero_si512(); 2];
    for (index, p) in pairs.iter().enumerate() {
        let [sum, other] = sums;
        let rows = widened(row(2 * index), row(2 * index + 1));
        sums = [other, _mm512_dpwssd_epi32(sum, rows, pair(p))];
    }
    let [mut sum, other] = sums;
    if let &[p] = rest {
        let rows = widened(row(2 * pairs.len()), _mm_setzero_si128());
        sum = _mm512_dpwssd_epi32(sum, rows, pair(&[p, 0]));
    }
    _mm512_add_epi32(sum, other)
}

/// The weighted sums of `cols` columns, at most 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn weigh_32(
    start: *const i8,
    stride: usize,
    probabilities: &[i16],
    cols: usize,
) -> [__m512i; 2] {
    let mask = ((1_u64 << cols) - 1) as __mmask32;
    // SAFETY: the caller's; the mask leaves out what is past the last column.
    let row = |t: usize| unsafe { _mm256_maskz_loadu_epi8(mask, start.add(t * stride)) };
    let (pairs, rest) = probabilities.as_chunks::<2>();
    // Columns 0 to 7 and 16 to 23; 8 to 15 and 24 to 31.
    let (mut low, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let mut add = |a: __m256i, b: __m256i, p: &[i16; 2]| {
        let p = pair(p);
        low = _mm512_dpwssd_epi32(low, _mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(a, b)), p);
        high = _mm512_dpwssd_epi32(high, _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(a, b)), p);
    };
    for (index, p) in pairs.iter().enumerate() {
        add(row(2 * index), row(2 * index + 1), p);
    }
    if let &[p] = rest {
        add(row(2 * pairs.len()), _mm256_setzero_si256(), &[p, 0]);
    }
    [_mm512_shuffle_i64x2::<0x44>(low, high), _mm512_shuffle_i64x2::<0xEE>(low, high)]
}

/// Sixteen powers at a time.
///
/// # Safety
/// The processor must have the instructions; there are as many probabilities as scores.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn exp2_all(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> u32 {
    let least = _mm512_set1_epi32(i32::MIN);
    // SAFETY: the mask leaves out what is past the end.
    let load =
        |scores: &[i32], mask| unsafe { _mm512_mask_loadu_epi32(least, mask, scores.as_ptr()) };
    let mut max = least;
    for scores in scores.chunks(ROWS) {
        max = _mm512_max_epi32(max, load(scores, first_lanes(scores.len())));
    }
    let max = _mm512_set1_epi32(_mm512_reduce_max_epi32(max));
    let multiplier = _mm512_set1_epi32(multiplier);
    let mut sum = _mm512_setzero_si512();
    for (scores, out) in scores.chunks(ROWS).zip(probabilities.chunks_mut(ROWS)) {
        let mask = first_lanes(scores.len());
        let z = rescale(_mm512_sub_epi32(max, load(scores, mask)), multiplier);
        let powers = _mm512_maskz_mov_epi32(mask, exp2_neg(z));
        sum = _mm512_add_epi32(sum, powers);
        // SAFETY: as above.
        unsafe {
            _mm256_mask_storeu_epi16(out.as_mut_ptr(), mask, _mm512_cvtepi32_epi16(powers));
        }
    }
    _mm512_reduce_add_epi32(sum) as u32
}

/// As softmax's own.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn exp2_neg(z: __m512i) -> __m512i {
    const FRACTION: i32 = (1 << EXPONENT_BITS) - 1;
    const TO_Q31: u32 = 31 - EXPONENT_BITS;
    let whole = _mm512_srai_epi32::<EXPONENT_BITS>(z);
    let is_there = _mm512_cmple_epu32_mask(whole, _mm512_set1_epi32(15));
    let fraction = _mm512_and_si512(z, _mm512_set1_epi32(FRACTION));
    let fraction = _mm512_slli_epi32::<TO_Q31>(fraction);
    let even = polynomial(fraction);
    let odd = polynomial(_mm512_srli_epi64::<32>(fraction));
    // The upper halves of both.
    let p = _mm512_mask_shuffle_epi32::<0xF5>(odd, 0x5555, even);
    // Shifted twice: what the first shift drops cannot carry.
    let power = _mm512_add_epi32(_mm512_srlv_epi32(p, whole), _mm512_set1_epi32(1 << 14));
    _mm512_maskz_min_epi32(is_there, _mm512_srli_epi32::<15>(power), _mm512_set1_epi32(TOP))
}

/// The powers of the even lanes' fractions, in the upper halves of 64 bits; each coefficient is added
/// before the product is rounded.
#[inline]
#[target_feature(enable = "avx512f")]
fn polynomial(fraction: __m512i) -> __m512i {
    let [c0, c1, c2, c3, c4] = EXP2.map(i64::from);
    let mut p = _mm512_set1_epi64(c4 << 32);
    for c in [c3, c2, c1, c0] {
        let rounding = _mm512_set1_epi64((c << 32) + (1 << 31));
        p = _mm512_mul_epi32(_mm512_srli_epi64::<32>(p), fraction);
        p = _mm512_add_epi64(p, rounding);
    }
    p
}
