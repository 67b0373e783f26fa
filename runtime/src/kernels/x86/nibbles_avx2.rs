//! Weights of 4 bits with AVX2: a word's halves hold the even and the odd columns of a row, so that a
//! shift and a mask give two columns as `i16`.

use core::arch::x86_64::*;
use core::ops::Range;

use model_format::layout::{BLOCK_ROWS, GROUP_COLS};

use super::ROWS;
use super::avx2::{PanelTile, Sums};
use super::matrix::{GROUP_LEN, GROUP_TILES, Matrix, PADDED_CONSTANTS_LEN};
use crate::kernels::Input;

/// Bytes of eight columns of a block.
const SUB_BLOCK: usize = GROUP_LEN / 2;

/// Pair `i` of every word.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(words: __m256i) -> [__m256i; 4] {
    let nibbles = _mm256_set1_epi32(0x000F_000F);
    [
        _mm256_and_si256(words, nibbles),
        _mm256_and_si256(_mm256_srli_epi32::<4>(words), nibbles),
        _mm256_and_si256(_mm256_srli_epi32::<8>(words), nibbles),
        _mm256_and_si256(_mm256_srli_epi32::<12>(words), nibbles),
    ]
}

/// Sixteen rows with one token, a group at a time.
///
/// # Safety
/// As for all kernels of the file that calls it.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn one(matrix: &Matrix<'_>, first: usize, input: &Input<'_>) -> Sums {
    let (cols, groups) = (matrix.cols(), matrix.groups());
    let starts = matrix.block_starts(first);
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12);
    let (zero, excess) = (_mm256_setzero_si256(), _mm256_set1_epi16(-8));
    let add = |sum, a, b| _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    let mut sums = [zero; ROWS / BLOCK_ROWS];
    for group in 0..groups {
        // SAFETY: the caller's; columns past the last are left out.
        unsafe {
            let x = columns(input.x.as_ptr(), group * GROUP_COLS, cols);
            let x = [
                _mm256_shuffle_epi32::<0x00>(x),
                _mm256_shuffle_epi32::<0x55>(x),
                _mm256_shuffle_epi32::<0xAA>(x),
                _mm256_shuffle_epi32::<0xFF>(x),
            ];
            // Stored weights are 8 too large.
            let begin = x.iter().fold(zero, |sum, &x| add(sum, excess, x));
            for (sum, start) in sums.iter_mut().zip(starts) {
                let from = start.add(group * GROUP_LEN);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(4 * matrix.block_len()));
                let weights = pairs(_mm256_loadu_si256(from.cast()));
                let dot = weights.into_iter().zip(x).fold(begin, |sum, (w, x)| add(sum, w, x));
                let factors = start.add(groups * GROUP_LEN + group * 2).cast::<u16>();
                let factors = _mm256_set1_epi32(factors.read_unaligned().into());
                let factors = _mm256_srlv_epi32(factors, shifts);
                let factors = _mm256_and_si256(factors, _mm256_set1_epi32(15));
                *sum = _mm256_add_epi32(*sum, _mm256_mullo_epi32(dot, factors));
            }
        }
    }
    let [a, b, c, d] = sums
        .map(|sum| _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum)));
    [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]
}

/// Biases and multipliers of four blocks.
///
/// # Safety
/// As [`one`].
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn constants(matrix: &Matrix<'_>, first: usize) -> [Sums; 2] {
    let at = matrix.block_len() - PADDED_CONSTANTS_LEN;
    // SAFETY: the caller's; a block is longer.
    let of = |start: *const i8| unsafe { _mm_loadu_si128(start.add(at).cast()) };
    let [a, b, c, d] = matrix.block_starts(first).map(of);
    let [[bias_low, low], [bias_high, high]] = [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]
        .map(|ends| {
            let pick = |places| _mm256_shuffle_epi8(ends, _mm256_broadcastsi128_si256(places));
            let byte = |[a, b, c, d]: [i8; 4]| {
                pick(_mm_setr_epi8(a, -1, -1, -1, b, -1, -1, -1, c, -1, -1, -1, d, -1, -1, -1))
            };
            let bias =
                pick(_mm_setr_epi8(-1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15));
            [
                _mm256_sllv_epi32(_mm256_srai_epi32::<16>(bias), byte([2; 4])),
                _mm256_sllv_epi32(byte([4, 5, 6, 7]), byte([3; 4])),
            ]
        });
    [[bias_low, bias_high], [low, high]]
}

/// Sixteen columns from `col` on, zeros past the last.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns(x: *const i16, col: usize, cols: usize) -> __m256i {
    // SAFETY: the caller's: `x` has `cols` numbers, more than `col`.
    unsafe {
        let from = x.add(col);
        if cols - col >= GROUP_COLS {
            return _mm256_loadu_si256(from.cast());
        }
        let mut padded = [0_i16; GROUP_COLS];
        from.copy_to_nonoverlapping(padded.as_mut_ptr(), cols - col);
        _mm256_loadu_si256(padded.as_ptr().cast())
    }
}

/// Widens these tiles, which begin with a group, of the sixteen rows from `first` on.
///
/// # Safety
/// As [`one`]; `panel` must have room for whole groups.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn unpack(
    matrix: &Matrix<'_>,
    first: usize,
    tiles: Range<usize>,
    panel: *mut PanelTile,
) {
    let [a, b, c, d] = matrix.block_starts(first);
    let first_group = tiles.start / GROUP_TILES;
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12);
    for group in first_group..tiles.end.div_ceil(GROUP_TILES) {
        let to = panel.wrapping_add((group - first_group) * GROUP_TILES);
        for (rows, [low, high]) in [[a, b], [c, d]].into_iter().enumerate() {
            let factor = |start: *const i8| {
                let at = matrix.groups() * GROUP_LEN + group * 2;
                // SAFETY: the caller's; there are as many groups.
                _mm_set1_epi32(unsafe { start.add(at).cast::<u16>().read_unaligned() }.into())
            };
            let factors = _mm256_set_m128i(factor(high), factor(low));
            let factors = _mm256_srlv_epi32(factors, shifts);
            let factors = _mm256_and_si256(factors, _mm256_set1_epi32(15));
            let factors = _mm256_or_si256(factors, _mm256_slli_epi32::<16>(factors));
            for half in 0..2 {
                let at = group * GROUP_LEN + half * SUB_BLOCK;
                // SAFETY: as above; there is room for the tiles of a group.
                unsafe {
                    let words = |start: *const i8| _mm_loadu_si128(start.add(at).cast());
                    let words = _mm256_set_m128i(words(high), words(low));
                    for (pair, weights) in pairs(words).into_iter().enumerate() {
                        let weights = _mm256_sub_epi16(weights, _mm256_set1_epi16(8));
                        let weights = _mm256_mullo_epi16(weights, factors);
                        let tile = to.add(2 * half + pair / 2).cast::<__m256i>();
                        tile.add(pair % 2 * 2 + rows).write(weights);
                    }
                }
            }
        }
    }
}
