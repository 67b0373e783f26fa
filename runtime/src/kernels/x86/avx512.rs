//! AVX-512 with VNNI: sixteen sums in a register, two products of `i16` added to each by `VPDPWSSD`.

use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

use model_format::layout::{Packing, TILE_COLS, TILE_LEN};

use super::matrix::{Matrix, Unpacking};
use super::{Epilogue, ROWS, TAIL, TOKENS, blocks_avx512, nibbles_avx512};
use crate::kernels::Input;

/// Tiles that are unpacked at a time: 16 KiB, which stay in the first cache.
const PANEL_TILES: usize = 128;
/// Weights that do not stay in the first cache.
pub const LARGE: usize = 1 << 15;
/// Columns 0 and 1, and columns 2 and 3, of sixteen rows.
pub type PanelTile = [__m512i; 2];

/// Outputs of the rows from `first` on, for every token; zeros past the last row.
///
/// # Safety
/// The processor must have the instructions, and `input` must be ready for them.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn block(
    matrix: &Matrix<'_>,
    first: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    // SAFETY: the caller's; `out` is sixteen numbers for every token.
    unsafe {
        let mask = first_lanes(matrix.count(first));
        for_each(matrix, first..first + 1, input, |token, _, values| {
            if let Some(out) = out.get_mut(token) {
                let values = _mm512_maskz_mov_epi32(mask, values);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), values);
            }
        });
    }
}

/// `each(token, row, outputs)` for these rows, sixteen at a time.
///
/// # Safety
/// As [`block`]; there must be as many rows.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn blocks(
    matrix: &Matrix<'_>,
    range: Range<usize>,
    input: &Input<'_>,
    each: &mut impl FnMut(usize, usize, &[i32]),
) {
    let end = range.end;
    // SAFETY: the caller's.
    unsafe {
        for_each(matrix, range, input, |token, first, values| {
            let mut out = [0; ROWS];
            _mm512_storeu_si512(out.as_mut_ptr().cast(), values);
            each(token, first, out.get(..ROWS.min(end - first)).unwrap_or_default());
        });
    }
}

/// Outputs of all rows for every token, through `epilogue`, `[tokens, rows]`.
///
/// # Safety
/// As [`block`]; `out` must have room for all.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn project(
    matrix: &Matrix<'_>,
    input: &Input<'_>,
    (multiplier, [low, high]): Epilogue,
    out: &mut [i16],
) {
    let (low, high) = (_mm512_set1_epi32(low), _mm512_set1_epi32(high));
    let out = out.as_mut_ptr();
    let put = |token: usize, first: usize, mut values: __m512i| {
        let mask = first_lanes(matrix.count(first));
        // SAFETY: `out` is `[tokens, rows]`, and only lanes of rows that there are are touched.
        unsafe {
            let to = out.add(token * matrix.rows() + first);
            if let Some(multiplier) = multiplier {
                let old = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, to));
                let old = _mm512_slli_epi32::<14>(old);
                values = _mm512_add_epi32(values, rescale(old, _mm512_set1_epi32(multiplier)));
            }
            let values = _mm512_min_epi32(_mm512_max_epi32(values, low), high);
            _mm256_mask_storeu_epi16(to, mask, _mm512_cvtepi32_epi16(values));
        }
    };
    // SAFETY: the caller's.
    unsafe { for_each(matrix, 0..matrix.rows(), input, put) }
}

/// Outputs of all rows for every token as keys or values, `[tokens, rows]`.
///
/// # Safety
/// As [`project`].
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn project_cached(matrix: &Matrix<'_>, input: &Input<'_>, out: &mut [i8]) {
    let out = out.as_mut_ptr();
    let least = _mm_set1_epi8(-127);
    let put = |token: usize, first: usize, values: __m512i| {
        let mask = first_lanes(matrix.count(first));
        let values = _mm_max_epi8(_mm512_cvtsepi32_epi8(values), least);
        // SAFETY: as in `project`.
        unsafe { _mm_mask_storeu_epi8(out.add(token * matrix.rows() + first), mask, values) };
    };
    // SAFETY: the caller's.
    unsafe { for_each(matrix, 0..matrix.rows(), input, put) }
}

/// `each(token, first, outputs)` for these rows, sixteen at a time.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn for_each(
    matrix: &Matrix<'_>,
    range: Range<usize>,
    input: &Input<'_>,
    mut each: impl FnMut(usize, usize, __m512i),
) {
    // SAFETY: the caller's.
    unsafe {
        let first_token = |first, values| each(0, first, values);
        match matrix.packing() {
            Packing::PairedRows if input.ready.is_cut => {
                return blocks_avx512::for_each::<true>(matrix, range, input, first_token);
            }
            Packing::QuadRows if input.ready.is_cut => {
                return blocks_avx512::for_each::<false>(matrix, range, input, first_token);
            }
            Packing::Nibbles
                if input.ready.is_cut && matrix.cols() <= nibbles_avx512::MOST_COLS =>
            {
                return nibbles_avx512::for_each(matrix, range, input, first_token);
            }
            _ => {}
        }
        for first in range.step_by(ROWS) {
            rows(matrix, first, input, &mut each);
        }
    }
}

/// `each(token, first, outputs)` of the sixteen rows from `first` on.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows(
    matrix: &Matrix<'_>,
    first: usize,
    input: &Input<'_>,
    mut each: impl FnMut(usize, usize, __m512i),
) {
    // SAFETY: the caller's.
    unsafe {
        let [bias, multipliers] = constants(matrix, first);
        if input.tokens == 1 {
            let sums = one(matrix, first, input);
            return each(0, first, rescale(_mm512_add_epi32(sums, bias), multipliers));
        }
        let mut sums = MaybeUninit::<[__m512i; TOKENS]>::uninit();
        let sums = sums.as_mut_ptr().cast::<__m512i>();
        several(matrix, first, input, sums);
        for token in 0..input.tokens {
            let sums = sums.add(token).read();
            each(token, first, rescale(_mm512_add_epi32(sums, bias), multipliers));
        }
    }
}

/// `rescale` of every lane: the even ones, then the odd ones, as products of 64 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn rescale(values: __m512i, multipliers: __m512i) -> __m512i {
    let half = _mm512_set1_epi64(1 << 31);
    let odd_values = _mm512_srli_epi64::<32>(values);
    let odd_multipliers = _mm512_srli_epi64::<32>(multipliers);
    let even = _mm512_add_epi64(_mm512_mul_epi32(values, multipliers), half);
    let odd = _mm512_add_epi64(_mm512_mul_epi32(odd_values, odd_multipliers), half);
    // The upper halves of the even ones, over the lower halves of the odd ones.
    _mm512_mask_shuffle_epi32::<0xF5>(odd, 0x5555, even)
}

/// Biases and multipliers of the rows from `first` on; zeros past the last.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn constants(matrix: &Matrix<'_>, first: usize) -> [__m512i; 2] {
    let mask = first_lanes(matrix.count(first));
    // SAFETY: row-major constants are as many as rows; a block's follow its weights.
    unsafe {
        if matrix.packing() == Packing::RowMajor {
            return matrix.constants(first).map(|list| _mm512_maskz_loadu_epi32(mask, list));
        }
        if matrix.packing() == Packing::Nibbles {
            return nibbles_avx512::constants(matrix, first)
                .map(|list| _mm512_maskz_mov_epi32(mask, list));
        }
        let len = matrix.weights_len();
        let of = |start: *const i8| _mm256_loadu_si256(start.add(len).cast());
        let [a, b, c, d] = matrix.block_starts(first);
        let ab = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(of(a)), of(b));
        let cd = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(of(c)), of(d));
        let bias = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        let multipliers = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
        [bias, multipliers].map(|list| _mm512_maskz_mov_epi32(mask, list))
    }
}

/// Sixteen rows with one token.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn one(matrix: &Matrix<'_>, first: usize, input: &Input<'_>) -> __m512i {
    // SAFETY: the caller's; the starts of rows and blocks are those of `cols` columns each, and the
    // input's `x` is replicated for as many.
    unsafe {
        match matrix.packing() {
            Packing::RowMajor => {
                // The next rows, where they are not likely to be in the cache already.
                let is_large = matrix.rows() * matrix.cols() > LARGE;
                let ahead = if is_large { ROWS * matrix.cols() } else { 0 };
                dots(matrix.row_starts(first), input.x.as_ptr(), matrix.cols(), ahead)
            }
            Packing::PairedRows => one_of_blocks::<true>(matrix, first, input),
            Packing::QuadRows => one_of_blocks::<false>(matrix, first, input),
            Packing::Nibbles => nibbles_avx512::one(matrix, first, input),
        }
    }
}

/// A halfword of weights is one of an even row, biased, and one of an odd row; quad rows are brought
/// into that order, where both are biased.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn one_of_blocks<const PAIRED: bool>(
    matrix: &Matrix<'_>,
    first: usize,
    input: &Input<'_>,
) -> __m512i {
    let pairs =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    let low_bytes = _mm512_set1_epi16(0xFF);
    let starts = matrix.block_starts(first);
    let x = input.ready.x.as_ptr();
    let (mut even, mut odd) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
    let mut add = |weights: [__m512i; 4], x: __m512i| {
        for ((even, odd), weights) in even.iter_mut().zip(&mut odd).zip(weights) {
            let weights = if PAIRED { weights } else { _mm512_shuffle_epi8(weights, pairs) };
            let upper = match PAIRED {
                true => _mm512_srai_epi16::<8>(weights),
                false => _mm512_srli_epi16::<8>(weights),
            };
            *even = _mm512_dpwssd_epi32(*even, _mm512_and_si512(weights, low_bytes), x);
            *odd = _mm512_dpwssd_epi32(*odd, upper, x);
        }
    };
    let len = matrix.weights_len();
    let whole = len & !63;
    // SAFETY: every block has `len` bytes of weights, and `x` two bytes for each, rounded up to 64.
    unsafe {
        for at in (0..whole).step_by(64) {
            let weights = starts.map(|start| {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at + 4 * len));
                _mm512_loadu_si512(start.add(at).cast())
            });
            add(weights, _mm512_loadu_si512(x.add(at / 2).cast()));
        }
        if whole < len {
            let mask = first_lanes((len - whole) / 4);
            let weights =
                starts.map(|start| _mm512_maskz_loadu_epi32(mask, start.add(whole).cast()));
            add(weights, _mm512_loadu_si512(x.add(whole / 2).cast()));
        }
    }
    // Rows 0 and 2 of each block, then 1 and 3, each as two sums.
    let (even, odd) = (sum_lanes(even), sum_lanes(odd));
    let even = _mm512_add_epi32(even, _mm512_srli_epi64::<32>(even));
    let odd = _mm512_add_epi32(odd, _mm512_slli_epi64::<32>(odd));
    let sums = _mm512_mask_mov_epi32(even, 0xAAAA, odd);
    let bias = _mm512_set1_epi32(input.ready.sum.wrapping_mul(128));
    _mm512_mask_sub_epi32(sums, if PAIRED { 0x5555 } else { 0xFFFF }, sums, bias)
}

/// Products of sixteen rows of `cols` columns with `x`; what lies `ahead` of them is read soon.
///
/// # Safety
/// `x` and each row must have `cols` numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn dots(starts: [*const i8; ROWS], x: *const i16, cols: usize, ahead: usize) -> __m512i {
    let mut sums = [_mm512_setzero_si512(); ROWS];
    let whole = cols & !31;
    // SAFETY: the caller's; a mask leaves out what is past the last column.
    unsafe {
        for at in (0..whole).step_by(32) {
            let x = _mm512_loadu_si512(x.add(at).cast());
            for (sum, start) in sums.iter_mut().zip(starts) {
                let weights = _mm256_loadu_si256(start.add(at).cast());
                if ahead != 0 && at % 64 == 0 {
                    _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at + ahead));
                }
                *sum = _mm512_dpwssd_epi32(*sum, _mm512_cvtepi8_epi16(weights), x);
            }
        }
        if whole < cols {
            let mask = (1_u32 << (cols - whole)) - 1;
            let x = _mm512_maskz_loadu_epi16(mask, x.add(whole));
            for (sum, start) in sums.iter_mut().zip(starts) {
                let weights = _mm256_maskz_loadu_epi8(mask, start.add(whole));
                *sum = _mm512_dpwssd_epi32(*sum, _mm512_cvtepi8_epi16(weights), x);
            }
        }
    }
    sum_rows(&sums)
}

/// The sums of sixteen registers' lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_rows(rows: &[__m512i; ROWS]) -> __m512i {
    let (quads, _) = rows.as_chunks::<4>();
    let mut sums = [_mm512_setzero_si512(); 4];
    for (sum, &quad) in sums.iter_mut().zip(quads) {
        *sum = sum_quads(quad);
    }
    sum_lanes(sums)
}

/// The sums of the lanes of every quarter of four registers, one after the other.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn sum_quads([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// The sum of the four quarters of every register, one after the other.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn sum_lanes([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let halves = |a, b| {
        let (low, high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xEE>(a, b));
        _mm512_add_epi32(low, high)
    };
    let (ab, cd) = (halves(a, b), halves(c, d));
    let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(ab, cd), _mm512_shuffle_i32x4::<0xDD>(ab, cd));
    _mm512_add_epi32(even, odd)
}

/// A mask of the first `count` lanes, at most 16.
#[inline(always)]
pub fn first_lanes(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as __mmask16
}

/// Sixteen rows with several tokens: their sums, one register each.
///
/// # Safety
/// `sums` must have room for every token.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn several(matrix: &Matrix<'_>, first: usize, input: &Input<'_>, sums: *mut __m512i) {
    let (tiles, whole) = (matrix.tiles(), matrix.cols() / TILE_COLS);
    let mut panel = MaybeUninit::<[PanelTile; PANEL_TILES]>::uninit();
    let panel = panel.as_mut_ptr().cast::<PanelTile>();
    // SAFETY: the caller's; a panel has room for its tiles, and the tails of the input for one of each
    // token.
    unsafe {
        for token in 0..input.tokens {
            sums.add(token).write(_mm512_setzero_si512());
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
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_tokens(
    panel: *const PanelTile,
    tiles: usize,
    (x, stride): (*const i16, usize),
    tokens: usize,
    sums: *mut __m512i,
) {
    let mut token = 0;
    // SAFETY: the caller's; `token` never passes `tokens`.
    unsafe {
        while token < tokens {
            let (x, sums) = ((x.add(token * stride), stride), sums.add(token));
            token += match tokens - token {
                16.. => add_products::<16>(panel, tiles, x, sums),
                12.. => add_products::<12>(panel, tiles, x, sums),
                8.. => add_products::<8>(panel, tiles, x, sums),
                6.. => add_products::<6>(panel, tiles, x, sums),
                4.. => add_products::<4>(panel, tiles, x, sums),
                3.. => add_products::<3>(panel, tiles, x, sums),
                2.. => add_products::<2>(panel, tiles, x, sums),
                _ => add_products::<1>(panel, tiles, x, sums),
            };
        }
    }
}

/// As [`add_tokens`] for `N` tokens, whose number it answers.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_products<const N: usize>(
    panel: *const PanelTile,
    tiles: usize,
    (x, stride): (*const i16, usize),
    to: *mut __m512i,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        let mut sums: [__m512i; N] = core::array::from_fn(|token| to.add(token).read());
        for tile in 0..tiles {
            let [low, high] = panel.add(tile).read();
            let x = x.add(tile * TILE_COLS);
            for (token, sum) in sums.iter_mut().enumerate() {
                let pair = x.add(token * stride).cast::<i32>();
                let broadcast = |at| _mm512_set1_epi32(pair.add(at).read_unaligned());
                *sum = _mm512_dpwssd_epi32(*sum, low, broadcast(0));
                *sum = _mm512_dpwssd_epi32(*sum, high, broadcast(1));
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
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn unpack(matrix: &Matrix<'_>, first: usize, tiles: Range<usize>, panel: *mut PanelTile) {
    let packing = matrix.packing();
    if packing == Packing::Nibbles {
        // SAFETY: the caller's; a panel has room for whole groups.
        return unsafe { nibbles_avx512::unpack(matrix, first, tiles, panel) };
    }
    let Unpacking { flip, upper: [low, high] } = Unpacking::of(packing);
    // SAFETY: sixteen bytes each.
    let [flip, low, high] = [flip, low, high]
        .map(|bytes| unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())) });
    let put = |tile: usize, bytes: __m512i| {
        let bytes = _mm512_xor_si512(bytes, flip);
        let widen = |upper| _mm512_srai_epi16::<8>(_mm512_shuffle_epi8(bytes, upper));
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
            let ab = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
            put(to, _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(ab, c), d));
        }
    }
}

/// Tiles of four bytes of sixteen rows, four at a time.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn row_major_tiles(
    matrix: &Matrix<'_>,
    first: usize,
    tiles: Range<usize>,
    mut put: impl FnMut(usize, __m512i),
) {
    let starts = matrix.row_starts(first);
    let (begin, count) = (tiles.start, tiles.len());
    for tile in (0..count).step_by(4) {
        let col = (begin + tile) * TILE_COLS;
        let mask = first_lanes((matrix.cols() - col).min(16));
        let load = |row: usize| {
            let start = starts.get(row).copied().unwrap_or(starts[0]);
            // SAFETY: the mask leaves out what is past the last column.
            unsafe { _mm_maskz_loadu_epi8(mask, start.add(col)) }
        };
        let rows: [__m512i; 4] = core::array::from_fn(|row| {
            let ab = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(load(row)), load(row + 4));
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(ab, load(row + 8)), load(row + 12))
        });
        for (to, bytes) in (tile..count).zip(transposed(rows)) {
            put(to, bytes);
        }
    }
}

/// Quarter by quarter, the four words of four registers as a matrix, transposed.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}
