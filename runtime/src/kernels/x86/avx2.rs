//! AVX2: eight sums in a register, two products of `i16` added to each by `VPMADDWD` and `VPADDD`.

use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

use model_format::layout::{BLOCK_ROWS, Packing, TILE_COLS, TILE_LEN};

use super::matrix::{Matrix, Unpacking};
use super::{Epilogue, ROWS, TAIL, TOKENS, nibbles_avx2};
use crate::kernels::Input;

/// Tiles that are unpacked at a time: 16 KiB, which stay in the first cache.
const PANEL_TILES: usize = 128;
/// Sixteen rows.
pub type Sums = [__m256i; 2];
/// Columns 0 and 1, and columns 2 and 3, of sixteen rows.
pub type PanelTile = [Sums; 2];

/// Outputs of the rows from `first` on, for every token; zeros past the last row.
///
/// # Safety
/// The processor must have the instructions, and `input` must be ready for them.
#[target_feature(enable = "avx2")]
pub unsafe fn block(
    matrix: &Matrix<'_>,
    first: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    // SAFETY: the caller's; `out` is sixteen numbers for every token.
    unsafe {
        rows(matrix, first, input, |token, values: Sums| {
            if let Some(out) = out.get_mut(token) {
                store(out.as_mut_ptr(), values);
            }
        });
    }
}

/// `each(token, row, outputs)` for these rows, sixteen at a time.
///
/// # Safety
/// As [`block`]; there must be as many rows.
#[target_feature(enable = "avx2")]
pub unsafe fn blocks(
    matrix: &Matrix<'_>,
    range: Range<usize>,
    input: &Input<'_>,
    each: &mut impl FnMut(usize, usize, &[i32]),
) {
    for first in range.clone().step_by(ROWS) {
        let count = ROWS.min(range.end - first);
        let mut put = |token: usize, values: Sums| {
            let mut out = [0; ROWS];
            // SAFETY: sixteen numbers.
            unsafe { store(out.as_mut_ptr(), values) };
            each(token, first, out.get(..count).unwrap_or_default());
        };
        // SAFETY: the caller's.
        unsafe { rows(matrix, first, input, &mut put) };
    }
}

/// Outputs of all rows for every token, through `epilogue`, `[tokens, rows]`.
///
/// # Safety
/// As [`block`]; `out` must have room for all.
#[target_feature(enable = "avx2")]
pub unsafe fn project(
    matrix: &Matrix<'_>,
    input: &Input<'_>,
    (multiplier, [low, high]): Epilogue,
    out: &mut [i16],
) {
    let (low, high) = (_mm256_set1_epi32(low), _mm256_set1_epi32(high));
    let out = out.as_mut_ptr();
    for first in (0..matrix.rows()).step_by(ROWS) {
        let count = matrix.count(first);
        let put = |token: usize, mut values: Sums| {
            // SAFETY: `out` is `[tokens, rows]`, and only rows that there are are touched.
            unsafe {
                let to = out.add(token * matrix.rows() + first);
                if let Some(multiplier) = multiplier {
                    let multiplier = _mm256_set1_epi32(multiplier);
                    for (values, old) in values.iter_mut().zip(load_halfwords(to, count)) {
                        let old = _mm256_slli_epi32::<14>(old);
                        *values = _mm256_add_epi32(*values, rescale(old, multiplier));
                    }
                }
                let [a, b] = values.map(|v| _mm256_min_epi32(_mm256_max_epi32(v, low), high));
                store_halfwords(to, count, _mm256_packs_epi32(a, b));
            }
        };
        // SAFETY: the caller's.
        unsafe { rows(matrix, first, input, put) };
    }
}

/// The first `count` of sixteen halfwords, as words.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_halfwords(from: *const i16, count: usize) -> Sums {
    let mut halfwords = [0_i16; ROWS];
    // SAFETY: the caller's: `count` can be read, at most 16.
    unsafe {
        let from = match count {
            ROWS => from,
            _ => {
                from.copy_to_nonoverlapping(halfwords.as_mut_ptr(), count);
                halfwords.as_ptr()
            }
        };
        [from, from.add(8)].map(|from| _mm256_cvtepi16_epi32(_mm_loadu_si128(from.cast())))
    }
}

/// Stores the first `count` of sixteen halfwords, whose quarters lie as packing leaves them.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_halfwords(to: *mut i16, count: usize, packed: __m256i) {
    let packed = _mm256_permute4x64_epi64::<0xD8>(packed);
    // SAFETY: the caller's: `count` can be written, at most 16.
    unsafe {
        if count == ROWS {
            return _mm256_storeu_si256(to.cast(), packed);
        }
        let mut halfwords = [0_i16; ROWS];
        _mm256_storeu_si256(halfwords.as_mut_ptr().cast(), packed);
        halfwords.as_ptr().copy_to_nonoverlapping(to, count);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const i32) -> Sums {
    // SAFETY: the caller's: sixteen numbers.
    unsafe { [from, from.add(8)].map(|from| _mm256_loadu_si256(from.cast())) }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(to: *mut i32, [low, high]: Sums) {
    // SAFETY: the caller's: sixteen numbers.
    unsafe {
        _mm256_storeu_si256(to.cast(), low);
        _mm256_storeu_si256(to.add(8).cast(), high);
    }
}

/// `each(token, outputs)` of the sixteen rows from `first` on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn rows(
    matrix: &Matrix<'_>,
    first: usize,
    input: &Input<'_>,
    mut each: impl FnMut(usize, Sums),
) {
    // SAFETY: the caller's.
    unsafe {
        let [bias, multipliers] = constants(matrix, first);
        let finish = |[a, b]: Sums| {
            let [bias_a, bias_b] = bias;
            let [multipliers_a, multipliers_b] = multipliers;
            [
                rescale(_mm256_add_epi32(a, bias_a), multipliers_a),
                rescale(_mm256_add_epi32(b, bias_b), multipliers_b),
            ]
        };
        if input.tokens == 1 {
            return each(0, finish(one(matrix, first, input)));
        }
        let mut sums = MaybeUninit::<[Sums; TOKENS]>::uninit();
        let sums = sums.as_mut_ptr().cast::<Sums>();
        several(matrix, first, input, sums);
        for token in 0..input.tokens {
            each(token, finish(sums.add(token).read()));
        }
    }
}

/// `rescale` of every lane: the even ones, then the odd ones, as products of 64 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub fn rescale(values: __m256i, multipliers: __m256i) -> __m256i {
    let half = _mm256_set1_epi64x(1 << 31);
    let odd_values = _mm256_srli_epi64::<32>(values);
    let odd_multipliers = _mm256_srli_epi64::<32>(multipliers);
    let even = _mm256_add_epi64(_mm256_mul_epi32(values, multipliers), half);
    let odd = _mm256_add_epi64(_mm256_mul_epi32(odd_values, odd_multipliers), half);
    _mm256_blend_epi32::<0xAA>(_mm256_srli_epi64::<32>(even), odd)
}

/// Biases and multipliers of four blocks of bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block_constants(matrix: &Matrix<'_>, first: usize) -> [Sums; 2] {
    let len = matrix.weights_len();
    // SAFETY: the caller's; a block's constants follow its weights.
    let of = |start: *const i8| unsafe { _mm256_loadu_si256(start.add(len).cast()) };
    let [a, b, c, d] = matrix.block_starts(first).map(of);
    [
        [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x20>(c, d)],
        [_mm256_permute2x128_si256::<0x31>(a, b), _mm256_permute2x128_si256::<0x31>(c, d)],
    ]
}

/// Biases and multipliers of the rows from `first` on; zeros past the last.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn constants(matrix: &Matrix<'_>, first: usize) -> [Sums; 2] {
    let mut lists = [[0_i32; ROWS]; 2];
    let count = matrix.count(first);
    let [bias, multipliers] = &mut lists;
    // SAFETY: row-major constants are as many as rows; a block's follow its weights.
    unsafe {
        if matrix.packing() == Packing::RowMajor {
            let [from_bias, from_multipliers] = matrix.constants(first);
            if count == ROWS {
                return [load(from_bias), load(from_multipliers)];
            }
            from_bias.copy_to_nonoverlapping(bias.as_mut_ptr(), count);
            from_multipliers.copy_to_nonoverlapping(multipliers.as_mut_ptr(), count);
            return [load(bias.as_ptr()), load(multipliers.as_ptr())];
        }
        let [bias, multipliers] = match matrix.packing() {
            Packing::Nibbles => nibbles_avx2::constants(matrix, first),
            _ => block_constants(matrix, first),
        };
        let rows = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let masked = |[low, high]: Sums| {
            let left = _mm256_set1_epi32(count as i32);
            let in_high = _mm256_sub_epi32(left, _mm256_set1_epi32(8));
            [
                _mm256_and_si256(low, _mm256_cmpgt_epi32(left, rows)),
                _mm256_and_si256(high, _mm256_cmpgt_epi32(in_high, rows)),
            ]
        };
        [masked(bias), masked(multipliers)]
    }
}

/// Sixteen rows with one token.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn one(matrix: &Matrix<'_>, first: usize, input: &Input<'_>) -> Sums {
    // SAFETY: the caller's; the starts of rows and blocks are those of `cols` columns each, and the
    // input's `x` is replicated for as many.
    unsafe {
        match matrix.packing() {
            Packing::RowMajor => {
                let mut sums = [[0; BLOCK_ROWS]; ROWS / BLOCK_ROWS];
                let starts = matrix.row_starts(first);
                let (quads, _) = starts.as_chunks::<BLOCK_ROWS>();
                for (sums, &starts) in sums.iter_mut().zip(quads) {
                    *sums = dots(starts, input.x.as_ptr(), matrix.cols());
                }
                load(sums.as_ptr().cast())
            }
            Packing::PairedRows => one_of_blocks::<true>(matrix, first, input),
            Packing::QuadRows => one_of_blocks::<false>(matrix, first, input),
            Packing::Nibbles => nibbles_avx2::one(matrix, first, input),
        }
    }
}

/// A halfword of weights is one of an even row, biased, and one of an odd row; quad rows are brought
/// into that order, where both are biased.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn one_of_blocks<const PAIRED: bool>(
    matrix: &Matrix<'_>,
    first: usize,
    input: &Input<'_>,
) -> Sums {
    let pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
    ));
    let low_bytes = _mm256_set1_epi16(0xFF);
    let starts = matrix.block_starts(first);
    let x = input.ready.x.as_ptr();
    let (mut even, mut odd) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    let mut add = |weights: [__m256i; 4], x: __m256i| {
        for ((even, odd), weights) in even.iter_mut().zip(&mut odd).zip(weights) {
            let weights = if PAIRED { weights } else { _mm256_shuffle_epi8(weights, pairs) };
            let upper = match PAIRED {
                true => _mm256_srai_epi16::<8>(weights),
                false => _mm256_srli_epi16::<8>(weights),
            };
            let lower = _mm256_and_si256(weights, low_bytes);
            *even = _mm256_add_epi32(*even, _mm256_madd_epi16(lower, x));
            *odd = _mm256_add_epi32(*odd, _mm256_madd_epi16(upper, x));
        }
    };
    let len = matrix.weights_len();
    let whole = len & !31;
    // SAFETY: every block has `len` bytes of weights, and `x` two bytes for each, rounded up to 64.
    unsafe {
        for at in (0..whole).step_by(32) {
            let weights = starts.map(|start| {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at + 4 * len));
                _mm256_loadu_si256(start.add(at).cast())
            });
            add(weights, _mm256_loadu_si256(x.add(at / 2).cast()));
        }
        if whole < len {
            let weights = starts
                .map(|start| _mm256_zextsi128_si256(_mm_loadu_si128(start.add(whole).cast())));
            add(weights, _mm256_loadu_si256(x.add(whole / 2).cast()));
        }
    }
    let bias = _mm_set1_epi32(input.ready.sum.wrapping_mul(128));
    let bias = if PAIRED { _mm_blend_epi32::<0b1010>(bias, _mm_setzero_si128()) } else { bias };
    let mut sums = [_mm_setzero_si128(); 4];
    for ((sums, even), odd) in sums.iter_mut().zip(even).zip(odd) {
        // Rows 0, 2, 1, 3.
        let rows = _mm256_hadd_epi32(even, odd);
        let rows = _mm_add_epi32(_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows));
        *sums = _mm_sub_epi32(_mm_shuffle_epi32::<0xD8>(rows), bias);
    }
    let [a, b, c, d] = sums;
    [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]
}

/// Products of four rows of `cols` columns with `x`.
///
/// # Safety
/// `x` and each row must have `cols` numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn dots(
    starts: [*const i8; BLOCK_ROWS],
    x: *const i16,
    cols: usize,
) -> [i32; BLOCK_ROWS] {
    let mut sums = [_mm256_setzero_si256(); BLOCK_ROWS];
    let mut add = |weights: [__m128i; BLOCK_ROWS], x: __m256i| {
        for (sum, weights) in sums.iter_mut().zip(weights) {
            let products = _mm256_madd_epi16(_mm256_cvtepi8_epi16(weights), x);
            *sum = _mm256_add_epi32(*sum, products);
        }
    };
    let (whole, eighths) = (cols & !15, cols & !7);
    // SAFETY: the caller's.
    unsafe {
        for at in (0..whole).step_by(16) {
            let weights = starts.map(|start| _mm_loadu_si128(start.add(at).cast()));
            add(weights, _mm256_loadu_si256(x.add(at).cast()));
        }
        if whole < eighths {
            let weights = starts.map(|start| _mm_loadl_epi64(start.add(whole).cast()));
            add(weights, _mm256_zextsi128_si256(_mm_loadu_si128(x.add(whole).cast())));
        }
        let [a, b, c, d] = sums;
        let rows = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        let rows = _mm_add_epi32(_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows));
        let mut sums = [0_i32; BLOCK_ROWS];
        _mm_storeu_si128(sums.as_mut_ptr().cast(), rows);
        for col in eighths..cols {
            let x = i32::from(x.add(col).read());
            for (sum, start) in sums.iter_mut().zip(starts) {
                *sum = sum.wrapping_add(i32::from(start.add(col).read()) * x);
            }
        }
        sums
    }
}

/// Sixteen rows with several tokens: their sums.
///
/// # Safety
/// `sums` must have room for every token.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn several(matrix: &Matrix<'_>, first: usize, input: &Input<'_>, sums: *mut Sums) {
    let (tiles, whole) = (matrix.tiles(), matrix.cols() / TILE_COLS);
    let mut panel = MaybeUninit::<[PanelTile; PANEL_TILES]>::uninit();
    let panel = panel.as_mut_ptr().cast::<PanelTile>();
    // SAFETY: the caller's; a panel has room for its tiles, and the tails of the input for one of each
    // token.
    unsafe {
        for token in 0..input.tokens {
            sums.add(token).write([_mm256_setzero_si256(); 2]);
        }
        for begin in (0..tiles).step_by(PANEL_TILES) {
            let end = (begin + PANEL_TILES).min(tiles);
            unpack(matrix, first, begin..end, panel);
            let whole = end.min(whole);
            let x = input.x.as_ptr().add(begin * TILE_COLS);
            add_tokens(panel, whole - begin, (x, matrix.cols()), input.tokens, sums);
            if whole < end {
                let x = input.ready.x.as_ptr();
                add_tokens(panel.add(whole - begin), 1, (x, TAIL), input.tokens, sums);
            }
        }
    }
}

/// Adds the products of a panel's tiles with every token to its sums; tokens are `stride` apart.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_tokens(
    panel: *const PanelTile,
    tiles: usize,
    (x, stride): (*const i16, usize),
    tokens: usize,
    sums: *mut Sums,
) {
    let mut token = 0;
    // SAFETY: the caller's; `token` never passes `tokens`.
    unsafe {
        while token < tokens {
            let (x, sums) = ((x.add(token * stride), stride), sums.add(token));
            token += match tokens - token {
                4.. => add_products::<4>(panel, tiles, x, sums),
                2.. => add_products::<2>(panel, tiles, x, sums),
                _ => add_products::<1>(panel, tiles, x, sums),
            };
        }
    }
}

/// As [`add_tokens`] for `N` tokens, whose number it answers.
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn add_products<const N: usize>(
    panel: *const PanelTile,
    tiles: usize,
    (x, stride): (*const i16, usize),
    to: *mut Sums,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        let mut sums: [Sums; N] = core::array::from_fn(|token| to.add(token).read());
        for tile in 0..tiles {
            let x = x.add(tile * TILE_COLS).cast::<i32>();
            for (half, [a, b]) in panel.add(tile).read().into_iter().enumerate() {
                for (token, [sum_a, sum_b]) in sums.iter_mut().enumerate() {
                    let pair = x.byte_add(2 * token * stride).add(half).read_unaligned();
                    let pair = _mm256_set1_epi32(pair);
                    *sum_a = _mm256_add_epi32(*sum_a, _mm256_madd_epi16(a, pair));
                    *sum_b = _mm256_add_epi32(*sum_b, _mm256_madd_epi16(b, pair));
                }
            }
        }
        for (token, sum) in sums.into_iter().enumerate() {
            to.add(token).write(sum);
        }
    }
    N
}

/// Widens these tiles of the sixteen rows from `first` on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unpack(matrix: &Matrix<'_>, first: usize, tiles: Range<usize>, panel: *mut PanelTile) {
    let packing = matrix.packing();
    if packing == Packing::Nibbles {
        // SAFETY: the caller's; a panel has room for whole groups.
        return unsafe { nibbles_avx2::unpack(matrix, first, tiles, panel) };
    }
    let Unpacking { flip, upper: [low, high] } = Unpacking::of(packing);
    // SAFETY: sixteen bytes each.
    let [flip, low, high] = [flip, low, high].map(|bytes| unsafe {
        _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()))
    });
    let put = |tile: usize, bytes: Sums| {
        let bytes = bytes.map(|bytes| _mm256_xor_si256(bytes, flip));
        let widen =
            |upper| bytes.map(|bytes| _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, upper)));
        // SAFETY: the caller's: there is room for every tile.
        unsafe { panel.add(tile).write([widen(low), widen(high)]) };
    };
    // SAFETY: the caller's; every block has all tiles, and a row is read up to its last column.
    unsafe {
        if packing == Packing::RowMajor {
            return row_major_tiles(matrix, first, tiles, put);
        }
        let starts = matrix.block_starts(first);
        for (to, tile) in tiles.enumerate() {
            let [a, b, c, d] =
                starts.map(|start| _mm_loadu_si128(start.add(tile * TILE_LEN).cast()));
            put(to, [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]);
        }
    }
}

/// Tiles of four bytes of sixteen rows, four at a time.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn row_major_tiles(
    matrix: &Matrix<'_>,
    first: usize,
    tiles: Range<usize>,
    mut put: impl FnMut(usize, Sums),
) {
    let starts = matrix.row_starts(first);
    let (begin, count) = (tiles.start, tiles.len());
    for tile in (0..count).step_by(4) {
        let col = (begin + tile) * TILE_COLS;
        let left = matrix.cols() - col;
        let load = |row: usize| {
            let start = starts.get(row).copied().unwrap_or(starts[0]);
            // SAFETY: nothing past the last column is read.
            unsafe {
                let from = start.add(col);
                if left >= TILE_LEN {
                    return _mm_loadu_si128(from.cast());
                }
                let mut bytes = [0_i8; TILE_LEN];
                from.copy_to_nonoverlapping(bytes.as_mut_ptr(), left);
                _mm_loadu_si128(bytes.as_ptr().cast())
            }
        };
        let quads = |row: usize| -> [__m256i; 4] {
            let words =
                core::array::from_fn(|i| _mm256_set_m128i(load(row + i + 4), load(row + i)));
            transposed(words)
        };
        for (to, (a, b)) in (tile..count).zip(quads(0).into_iter().zip(quads(8))) {
            put(to, [a, b]);
        }
    }
}

/// Half by half, the four words of four registers as a matrix, transposed.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}
