//! The products of attention and softmax's powers with AVX2.

use core::arch::x86_64::*;

use super::avx2::{dots, rescale};
use crate::fixed::softmax::{EXP2, EXPONENT_BITS, TOP};
use crate::kernels::vectors;
use crate::precision::Rows;

/// Columns, or scores, at a time.
const LANES: usize = 8;

/// Runs `f`, compiled for these instructions.
///
/// # Safety
/// The processor must have them.
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Four keys at a time.
///
/// # Safety
/// The processor must have the instructions; there are as many keys as scores, and each and the query
/// have `cols` numbers.
#[target_feature(enable = "avx2")]
pub unsafe fn scores(keys: Rows<'_, i8>, query: &[i16], scores: &mut [i32]) {
    let data = keys.data.as_ptr();
    for (first, scores) in (0..keys.rows).step_by(4).zip(scores.chunks_mut(4)) {
        let last = scores.len() - 1;
        let starts =
            core::array::from_fn(|row| data.wrapping_add((first + row.min(last)) * keys.stride));
        // SAFETY: the caller's.
        let sums = unsafe { dots(starts, query.as_ptr(), keys.cols) };
        scores.iter_mut().zip(sums).for_each(|(score, sum)| *score = sum);
    }
}

/// Two rows of eight columns at a time.
///
/// # Safety
/// The processor must have the instructions; there are as many rows as probabilities, and each has as
/// many columns as `context`.
#[target_feature(enable = "avx2")]
pub unsafe fn context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    (multiplier, [low, high]): (i32, [i32; 2]),
    context: &mut [i16],
) {
    let (multiplier, lows, highs) =
        (_mm256_set1_epi32(multiplier), _mm256_set1_epi32(low), _mm256_set1_epi32(high));
    for (index, to) in context.chunks_mut(LANES).enumerate() {
        let col = index * LANES;
        let sums = match to.len() {
            LANES => {
                let start = values.data.as_ptr().wrapping_add(col);
                // SAFETY: the caller's.
                unsafe { weigh(start, values.stride, probabilities) }
            }
            _ => {
                let column = |j| vectors::column(&values, probabilities, col + j);
                let sums: [i32; LANES] = core::array::from_fn(column);
                // SAFETY: eight numbers.
                unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) }
            }
        };
        let values = _mm256_min_epi32(_mm256_max_epi32(rescale(sums, multiplier), lows), highs);
        let mut out = [0_i32; LANES];
        // SAFETY: eight numbers.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), values) };
        to.iter_mut().zip(out).for_each(|(to, value)| *to = value as i16);
    }
}

/// The weighted sum of eight columns.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn weigh(start: *const i8, stride: usize, probabilities: &[i16]) -> __m256i {
    // SAFETY: the caller's.
    let row = |t: usize| unsafe { _mm_loadl_epi64(start.add(t * stride).cast()) };
    let mut sum = _mm256_setzero_si256();
    let mut add = |a: __m128i, b: __m128i, [even, odd]: [i16; 2]| {
        let p = _mm256_set1_epi32(i32::from(odd) << 16 | i32::from(even as u16));
        let rows = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(rows, p));
    };
    let (pairs, rest) = probabilities.as_chunks::<2>();
    for (index, &p) in pairs.iter().enumerate() {
        add(row(2 * index), row(2 * index + 1), p);
    }
    if let &[p] = rest {
        add(row(2 * pairs.len()), _mm_setzero_si128(), [p, 0]);
    }
    sum
}

/// Eight powers at a time.
///
/// # Safety
/// The processor must have the instructions; there are as many probabilities as scores.
#[target_feature(enable = "avx2")]
pub unsafe fn exp2_all(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> u32 {
    let max = scores.iter().copied().max().unwrap_or(0);
    let maxima = _mm256_set1_epi32(max);
    let multiplier = _mm256_set1_epi32(multiplier);
    let mut sum = 0_u32;
    for (scores, out) in scores.chunks(LANES).zip(probabilities.chunks_mut(LANES)) {
        let mut padded = [max; LANES];
        padded.iter_mut().zip(scores).for_each(|(to, &score)| *to = score);
        // SAFETY: eight numbers.
        let scores = unsafe { _mm256_loadu_si256(padded.as_ptr().cast()) };
        let powers = exp2_neg(rescale(_mm256_sub_epi32(maxima, scores), multiplier));
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(padded.as_mut_ptr().cast(), powers) };
        for (to, power) in out.iter_mut().zip(padded) {
            *to = power as i16;
            sum = sum.wrapping_add(power as u32);
        }
    }
    sum
}

/// As softmax's own.
#[inline]
#[target_feature(enable = "avx2")]
fn exp2_neg(z: __m256i) -> __m256i {
    const FRACTION: i32 = (1 << EXPONENT_BITS) - 1;
    const TO_Q31: i32 = 31 - EXPONENT_BITS as i32;
    let whole = _mm256_srai_epi32::<{ EXPONENT_BITS as i32 }>(z);
    let most = _mm256_set1_epi32(15);
    // Unsigned: what is negative is larger than all others.
    let is_there = _mm256_cmpeq_epi32(_mm256_min_epu32(whole, most), whole);
    let fraction = _mm256_and_si256(z, _mm256_set1_epi32(FRACTION));
    let fraction = _mm256_slli_epi32::<TO_Q31>(fraction);
    let [c0, c1, c2, c3, c4] = EXP2.map(|c| _mm256_set1_epi32(c));
    let mut p = c4;
    for c in [c3, c2, c1, c0] {
        p = _mm256_add_epi32(c, rescale(p, fraction));
    }
    let half = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 14), whole);
    let shift = _mm256_add_epi32(whole, most);
    let power = _mm256_srav_epi32(_mm256_add_epi32(p, half), shift);
    _mm256_and_si256(_mm256_min_epi32(power, _mm256_set1_epi32(TOP)), is_there)
}
