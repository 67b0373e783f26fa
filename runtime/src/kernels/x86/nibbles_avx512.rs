//! Weights of 4 bits with AVX-512: a word's halves hold the even and the odd columns of a row, so that
//! a shift and a mask give two columns as `i16`.

use core::arch::x86_64::*;
use core::ops::Range;

use model_format::layout::BLOCK_ROWS;

use super::ROWS;
use super::avx512::{PanelTile, first_lanes, sum_lanes};
use super::matrix::{GROUP_LEN, GROUP_TILES, Matrix};
use crate::kernels::Input;

/// Bytes of eight columns of a block.
const SUB_BLOCK: usize = GROUP_LEN / 2;
/// Columns of two groups.
const COLS: usize = 32;

/// Pair `i` of every word.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(words: __m512i) -> [__m512i; 4] {
    let nibbles = _mm512_set1_epi32(0x000F_000F);
    [
        _mm512_and_si512(words, nibbles),
        _mm512_and_si512(_mm512_srli_epi32::<4>(words), nibbles),
        _mm512_and_si512(_mm512_srli_epi32::<8>(words), nibbles),
        _mm512_and_si512(_mm512_srli_epi32::<12>(words), nibbles),
    ]
}

/// Sixteen rows with one token, two groups at a time.
///
/// # Safety
/// As for all kernels of the file that calls it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn one(matrix: &Matrix<'_>, first: usize, input: &Input<'_>) -> __m512i {
    let (cols, groups) = (matrix.cols(), matrix.groups());
    let starts = matrix.block_starts(first);
    let factors = starts.map(|start| start.wrapping_add(groups * GROUP_LEN));
    // Factors of rows 0 to 3 of the first group for its two halves, then of the second.
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28, 16, 20, 24, 28);
    let (zero, excess) = (_mm512_setzero_si512(), _mm512_set1_epi16(-8));
    let mut sums = [zero; ROWS / BLOCK_ROWS];
    for group in (0..groups).step_by(2) {
        let col = group * COLS / 2;
        let columns = ((1_u64 << (cols - col).min(COLS)) - 1) as __mmask32;
        let words = first_lanes((groups - group).min(2) * GROUP_LEN / 4);
        // SAFETY: the masks leave out columns past the last and a second group where there is none;
        // behind the last factors are constants, which then multiply zeros.
        unsafe {
            let x = _mm512_maskz_loadu_epi16(columns, input.x.as_ptr().add(col));
            let x = [
                _mm512_shuffle_epi32::<0x00>(x),
                _mm512_shuffle_epi32::<0x55>(x),
                _mm512_shuffle_epi32::<0xAA>(x),
                _mm512_shuffle_epi32::<0xFF>(x),
            ];
            // Stored weights are 8 too large.
            let begin = x.iter().fold(zero, |sum, &x| _mm512_dpwssd_epi32(sum, excess, x));
            for ((sum, start), factors) in sums.iter_mut().zip(starts).zip(factors) {
                let from = start.add(group * GROUP_LEN);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(4 * matrix.block_len()));
                let weights = pairs(_mm512_maskz_loadu_epi32(words, from.cast()));
                let products = weights.into_iter().zip(x);
                let dot = products.fold(begin, |sum, (w, x)| _mm512_dpwssd_epi32(sum, w, x));
                let factors = factors.add(group * 2).cast::<i32>().read_unaligned();
                let factors = _mm512_srlv_epi32(_mm512_set1_epi32(factors), shifts);
                let factors = _mm512_and_si512(factors, _mm512_set1_epi32(15));
                *sum = _mm512_add_epi32(*sum, _mm512_mullo_epi32(dot, factors));
            }
        }
    }
    sum_lanes(sums)
}

/// Widens these tiles, which begin with a group, of the sixteen rows from `first` on.
///
/// # Safety
/// As [`one`]; `panel` must have room for whole groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn unpack(
    matrix: &Matrix<'_>,
    first: usize,
    tiles: Range<usize>,
    panel: *mut PanelTile,
) {
    let starts = matrix.block_starts(first);
    let first_group = tiles.start / GROUP_TILES;
    let shifts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4, 8, 12));
    for group in first_group..tiles.end.div_ceil(GROUP_TILES) {
        // SAFETY: the caller's; there are as many groups.
        unsafe {
            let factors = starts.map(|start| {
                let at = matrix.groups() * GROUP_LEN + group * 2;
                _mm_set1_epi32(start.add(at).cast::<u16>().read_unaligned().into())
            });
            let factors = _mm512_srlv_epi32(blocks(factors), shifts);
            let factors = _mm512_and_si512(factors, _mm512_set1_epi32(15));
            let factors = _mm512_or_si512(factors, _mm512_slli_epi32::<16>(factors));
            for half in 0..2 {
                let at = group * GROUP_LEN + half * SUB_BLOCK;
                let words = starts.map(|start| _mm_loadu_si128(start.add(at).cast()));
                let [a, b, c, d] = pairs(blocks(words)).map(|pair| {
                    _mm512_mullo_epi16(_mm512_sub_epi16(pair, _mm512_set1_epi16(8)), factors)
                });
                let to = panel.add((group - first_group) * GROUP_TILES + 2 * half);
                to.write([a, b]);
                to.add(1).write([c, d]);
            }
        }
    }
}

/// One quarter each.
#[inline]
#[target_feature(enable = "avx512f")]
fn blocks([a, b, c, d]: [__m128i; 4]) -> __m512i {
    let ab = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(ab, c), d)
}
