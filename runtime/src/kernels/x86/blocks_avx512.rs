//! One token and blocks of rows with AVX-512 VNNI: four products of bytes added to each sum by
//! `VPDPBUSD`.
//!
//! A weight plus 128 is the unsigned byte that the instruction wants, and stored so but for the odd ones
//! of paired rows; `x` is cut into `256 high + low`, both signed bytes.

use core::arch::x86_64::*;
use core::ops::Range;

use super::ROWS;
use super::avx512::{first_lanes, rescale, sum_lanes};
use super::matrix::{CONSTANTS_LEN, Matrix};
use crate::kernels::Input;

/// Columns that a register takes.
const COLS: usize = 16;
/// Numbers of the input for so many columns: a register of high bytes, and one of low ones.
const CUT_LEN: usize = 4 * COLS;

/// The first number whose high byte would be 128.
pub const TOO_LARGE: i16 = 0x7F80;

/// Writes high and low bytes of `x`, every four columns four times, and zeros up to whole registers;
/// answers the sum of `x`. `None` where a number cannot be cut or `to` is too short.
///
/// # Safety
/// The processor must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn cut(x: &[i16], to: &mut [i16]) -> Option<i32> {
    let (parts, _) = to.as_chunks_mut::<CUT_LEN>();
    if parts.len() < x.len().div_ceil(COLS) {
        return None;
    }
    let words = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let (mut most, mut sum) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (to, x) in parts.iter_mut().zip(x.chunks(COLS)) {
        // SAFETY: the mask leaves out what is past the end; `to` is two registers.
        unsafe {
            let x = _mm256_maskz_loadu_epi16(first_lanes(x.len()), x.as_ptr());
            most = _mm256_max_epi16(most, x);
            sum = _mm256_dpwssd_epi32(sum, x, _mm256_set1_epi16(1));
            let high = _mm256_srai_epi16::<8>(_mm256_add_epi16(x, _mm256_set1_epi16(128)));
            let spread = |x| {
                let bytes = _mm512_castsi128_si512(_mm256_cvtepi16_epi8(x));
                _mm512_permutexvar_epi32(words, bytes)
            };
            let to = to.as_mut_ptr();
            _mm512_storeu_si512(to.cast(), spread(high));
            _mm512_storeu_si512(to.add(CUT_LEN / 2).cast(), spread(x));
        }
    }
    let is_small = _mm256_cmpge_epi16_mask(most, _mm256_set1_epi16(TOO_LARGE)) == 0;
    is_small.then(|| _mm512_reduce_add_epi32(_mm512_zextsi256_si512(sum)))
}

/// `each(row, outputs)` for sixteen rows at a time; what rows past the last give is of no use.
///
/// # Safety
/// The processor must have the instructions; the matrix has blocks of rows of `i8`, paired where `PAIRED`,
/// `range` no more rows than it, and the one token is cut.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn for_each<const PAIRED: bool>(
    matrix: &Matrix<'_>,
    range: Range<usize>,
    input: &Input<'_>,
    mut each: impl FnMut(usize, __m512i),
) {
    let excess = _mm512_set1_epi32(input.ready.sum.wrapping_mul(-128));
    let cut = input.ready.x.as_ptr();
    let block_len = matrix.block_len();
    for first in range.step_by(ROWS) {
        let starts = matrix.block_starts(first);
        // SAFETY: the caller's; a cut input has whole registers for all columns.
        unsafe {
            let sums = if matrix.cols() == 4 * COLS {
                sums_of_64::<PAIRED>(starts, cut)
            } else {
                sums::<PAIRED>(starts, block_len, cut)
            };
            let ends = starts.map(|start| start.add(block_len - CONSTANTS_LEN / 2));
            each(first, rescale(_mm512_add_epi32(sums, excess), quarters(ends)));
        }
    }
}

/// One quarter each.
///
/// # Safety
/// Sixteen bytes of each can be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn quarters([a, b, c, d]: [*const i8; 4]) -> __m512i {
    // SAFETY: the caller's: sixteen bytes each.
    unsafe {
        let [a, b, c, d] = [a, b, c, d].map(|at| _mm_loadu_si128(at.cast()));
        let ab = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(ab, c), d)
    }
}

/// Sixteen rows of 64 columns: biases and products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums_of_64<const PAIRED: bool>(starts: [*const i8; 4], cut: *const i16) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = Sums::<PAIRED>::of_biases(starts.map(|start| start.add(16 * COLS)));
        for step in 0..4 {
            let weights = starts.map(|start| _mm512_loadu_si512(start.add(64 * step).cast()));
            sums.add(weights, load_cut(cut, step));
        }
        sums.total()
    }
}

/// Sixteen rows of any number of columns: biases and products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums<const PAIRED: bool>(
    starts: [*const i8; 4],
    block_len: usize,
    cut: *const i16,
) -> __m512i {
    let len = block_len - CONSTANTS_LEN;
    // SAFETY: every block has `len` bytes of weights; the mask leaves out what is past them.
    unsafe {
        let mut sums = Sums::<PAIRED>::of_biases(starts.map(|start| start.add(len)));
        for step in 0..len / 64 {
            let weights = starts.map(|start| _mm512_loadu_si512(start.add(64 * step).cast()));
            sums.add(weights, load_cut(cut, step));
        }
        if !len.is_multiple_of(64) {
            let mask = first_lanes(len % 64 / 4);
            let last = len / 64;
            let weights = starts.map(|at| _mm512_maskz_loadu_epi32(mask, at.add(64 * last).cast()));
            sums.add(weights, load_cut(cut, last));
        }
        sums.total()
    }
}

/// High and low bytes of the columns of a step.
///
/// # Safety
/// There are as many steps.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn load_cut(cut: *const i16, step: usize) -> [__m512i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let at = cut.add(CUT_LEN * step);
        [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(CUT_LEN / 2).cast())]
    }
}

/// Sums of four blocks: in every quarter of a register one for each of four rows.
struct Sums<const PAIRED: bool> {
    high: [__m512i; 4],
    low: [__m512i; 4],
}

impl<const PAIRED: bool> Sums<PAIRED> {
    /// The biases, four of each block.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn of_biases(biases: [*const i8; 4]) -> Self {
        // SAFETY: the caller's.
        let low = biases.map(|at| unsafe { _mm512_zextsi128_si512(_mm_loadu_si128(at.cast())) });
        Self { high: [_mm512_setzero_si512(); 4], low }
    }

    /// Adds four tiles of each block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn add(&mut self, weights: [__m512i; 4], [high, low]: [__m512i; 2]) {
        // To four columns of each row.
        let columns = _mm512_broadcast_i32x4(match PAIRED {
            true => _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15),
            false => _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
        });
        let unbiased = _mm512_set1_epi16(i16::MIN);
        for ((sum, low_sum), weights) in self.high.iter_mut().zip(&mut self.low).zip(weights) {
            let weights = if PAIRED { _mm512_xor_si512(weights, unbiased) } else { weights };
            let weights = _mm512_shuffle_epi8(weights, columns);
            *sum = _mm512_dpbusd_epi32(*sum, weights, high);
            *low_sum = _mm512_dpbusd_epi32(*low_sum, weights, low);
        }
    }

    /// Sixteen sums, modulo 2^32.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn total(self) -> __m512i {
        let [h0, h1, h2, h3] = self.high.map(|sum| _mm512_slli_epi32::<8>(sum));
        let [l0, l1, l2, l3] = self.low;
        sum_lanes([
            _mm512_add_epi32(h0, l0),
            _mm512_add_epi32(h1, l1),
            _mm512_add_epi32(h2, l2),
            _mm512_add_epi32(h3, l3),
        ])
    }
}
