//! Weights of 4 bits with AVX-512.
//!
//! One token: the lower and the upper halves of a word's bytes are four columns of a row each, unsigned as
//! `VPDPBUSD` wants them; the columns of `x`, cut into two signed bytes, are brought into their order once
//! for all rows. Several tokens, or one that cannot be cut: a word's halves hold the even and the odd
//! columns of a row, so that a shift and a mask give two columns as `i16`.

use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

use model_format::layout::BLOCK_ROWS;

use super::ROWS;
use super::avx512::{LARGE, PanelTile, first_lanes, rescale, sum_lanes};
use super::blocks_avx512::{load_cut, quarters};
use super::matrix::{GROUP_LEN, GROUP_TILES, Matrix, PADDED_CONSTANTS_LEN};
use crate::kernels::Input;

/// Bytes of eight columns of a block.
const SUB_BLOCK: usize = GROUP_LEN / 2;
/// Columns of two groups.
const COLS: usize = 32;

/// Most columns of an input that is cut.
pub const MOST_COLS: usize = 4096;

/// Columns of two groups, as one token is multiplied with them.
#[derive(Clone, Copy)]
struct Columns {
    /// High bytes: those of lower halves of weights, those of upper ones.
    high: [__m512i; 2],
    /// Low bytes.
    low: [__m512i; 2],
    /// What sums of high and of low products begin with: stored weights are 8 too large.
    begin: [__m512i; 2],
}

impl Columns {
    /// Those from two steps of a cut input, of which the second may be missing.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn of(first: [__m512i; 2], second: [__m512i; 2]) -> Self {
        // Columns 0, 4, 1, 5, 2, 6, 3, 7 of every eight.
        let ordered = |first, second| {
            let lower = _mm512_shuffle_i32x4::<0x88>(first, second);
            let upper = _mm512_shuffle_i32x4::<0xDD>(first, second);
            let both = _mm512_unpacklo_epi8(lower, upper);
            [_mm512_shuffle_epi32::<0x00>(both), _mm512_shuffle_epi32::<0x55>(both)]
        };
        let ([high, low], [second_high, second_low]) = (first, second);
        let (high, low) = (ordered(high, second_high), ordered(low, second_low));
        let zero = _mm512_setzero_si512();
        let begin = |[a, b]: [__m512i; 2]| {
            let excess = _mm512_set1_epi8(8);
            let sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, excess, a), excess, b);
            _mm512_sub_epi32(zero, sum)
        };
        Self { high, low, begin: [begin(high), begin(low)] }
    }
}

/// `each(row, outputs)` for sixteen rows at a time; what rows past the last give is of no use.
///
/// # Safety
/// The processor must have the instructions; the matrix has weights of 4 bits and at most [`MOST_COLS`]
/// columns, `range` no more rows than it, and the one token is cut.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn for_each(
    matrix: &Matrix<'_>,
    range: Range<usize>,
    input: &Input<'_>,
    mut each: impl FnMut(usize, __m512i),
) {
    let mut columns = MaybeUninit::<[Columns; MOST_COLS / COLS]>::uninit();
    let columns = columns.as_mut_ptr().cast::<Columns>();
    let (steps, cut) = (matrix.groups(), input.ready.x.as_ptr());
    // SAFETY: the caller's; there is room for all columns, and a cut input has whole steps of 16.
    unsafe {
        for step in (0..steps).step_by(2) {
            let second = match step + 1 < steps {
                true => load_cut(cut, step + 1),
                false => [_mm512_setzero_si512(); 2],
            };
            columns.add(step / 2).write(Columns::of(load_cut(cut, step), second));
        }
        let is_large = matrix.rows() * matrix.cols() > LARGE;
        for first in range.step_by(ROWS) {
            let sums = match is_large {
                true => sums::<true>(matrix, first, columns),
                false => sums::<false>(matrix, first, columns),
            };
            let [bias, multipliers] = constants(matrix, first);
            each(first, rescale(_mm512_add_epi32(sums, bias), multipliers));
        }
    }
}

/// Products of sixteen rows; the next ones are fetched where they are not likely to be in the cache
/// already.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums<const FETCH: bool>(
    matrix: &Matrix<'_>,
    first: usize,
    columns: *const Columns,
) -> __m512i {
    let groups = matrix.groups();
    let starts = matrix.block_starts(first);
    // Factors of rows 0 to 3 of the first group for its two halves, then of the second.
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28, 16, 20, 24, 28);
    let (nibbles, factor) = (_mm512_set1_epi8(15), _mm512_set1_epi32(15));
    let zero = _mm512_setzero_si512();
    let (mut high, mut low) = ([zero; 4], [zero; 4]);
    for pair in 0..groups.div_ceil(2) {
        let words = first_lanes((groups - 2 * pair).min(2) * GROUP_LEN / 4);
        // SAFETY: the caller's; the mask leaves out a second group where there is none. Behind the last
        // factors are constants, which then multiply zeros.
        unsafe {
            let x = columns.add(pair).read();
            for ((high, low), start) in high.iter_mut().zip(&mut low).zip(starts) {
                let from = start.add(2 * GROUP_LEN * pair);
                if FETCH {
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(4 * matrix.block_len()));
                }
                let words = _mm512_maskz_loadu_epi32(words, from.cast());
                let lower = _mm512_and_si512(words, nibbles);
                let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(words), nibbles);
                let dot = |begin, [a, b]: [__m512i; 2]| {
                    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(begin, lower, a), upper, b)
                };
                let [begin_high, begin_low] = x.begin;
                let factors = start.add(groups * GROUP_LEN + 4 * pair).cast::<i32>();
                let factors = _mm512_set1_epi32(factors.read_unaligned());
                let factors = _mm512_and_si512(_mm512_srlv_epi32(factors, shifts), factor);
                // Eight products of a weight and a byte are an `i16`, and the upper half of a factor is 0.
                *high = _mm512_dpwssd_epi32(*high, dot(begin_high, x.high), factors);
                *low = _mm512_dpwssd_epi32(*low, dot(begin_low, x.low), factors);
            }
        }
    }
    sum_lanes(core::array::from_fn(|i| _mm512_add_epi32(_mm512_slli_epi32::<8>(high[i]), low[i])))
}

/// Biases and multipliers of four blocks.
///
/// # Safety
/// As [`one`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn constants(matrix: &Matrix<'_>, first: usize) -> [__m512i; 2] {
    let at = matrix.block_len() - PADDED_CONSTANTS_LEN;
    // SAFETY: the caller's; a block is longer.
    let ends = unsafe { quarters(matrix.block_starts(first).map(|start| start.add(at))) };
    let pick = |places| _mm512_shuffle_epi8(ends, _mm512_broadcast_i32x4(places));
    let byte = |[a, b, c, d]: [i8; 4]| {
        pick(_mm_setr_epi8(a, -1, -1, -1, b, -1, -1, -1, c, -1, -1, -1, d, -1, -1, -1))
    };
    let bias = pick(_mm_setr_epi8(-1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15));
    [
        _mm512_sllv_epi32(_mm512_srai_epi32::<16>(bias), byte([2; 4])),
        _mm512_sllv_epi32(byte([4, 5, 6, 7]), byte([3; 4])),
    ]
}

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
