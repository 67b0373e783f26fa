//! Attention of all heads in one go with AVX-512 VNNI: a register has 64 columns, which are four heads of
//! 16, two of 32 or one of 64, and goes through scores, softmax and context with them side by side.
//!
//! Scores: a key plus 128 is the unsigned byte that `VPDPBUSD` wants, and the query is cut into
//! `256 high + low`, both signed. Context: a probability is cut into two unsigned bytes, and the values are
//! the signed ones. Both take four columns or rows at a time, where `VPDPWSSD` takes two of twice the size.

use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::avx512::{rescale, sum_quads};
use super::blocks_avx512::TOO_LARGE;
use super::vectors_avx512::exp2_neg;
use crate::fixed::softmax::TOP;

/// Columns of a register.
const COLS: usize = 64;
/// Columns of a quarter of it.
const PART: usize = 16;
/// Most positions, in fours.
const MOST_FOURS: usize = 128;

/// What the heads attend to, and what is made of their sums.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// The first key and the first value.
    pub starts: [*const i8; 2],
    /// Distance between two keys, or two values.
    pub stride: usize,
    /// Keys and values.
    pub len: usize,
    /// Multiplier of the scores of every head, and that of its context before the division.
    pub heads: &'a [[i32; 2]],
    /// Columns of a head.
    pub d_k: usize,
    pub bounds: [i32; 2],
}

/// The contexts in the place of the queries `x`; `false`, and nothing written, where heads are not parts of
/// a register, a number of the queries cannot be cut or there are too many positions.
///
/// # Safety
/// The processor must have the instructions. There are at least one key and value, each and `x` with as
/// many columns as all heads.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn attend(attention: &Attention<'_>, x: &mut [i16]) -> bool {
    let fits = matches!(attention.d_k, 16 | 32 | 64) && attention.len.div_ceil(4) <= MOST_FOURS;
    if !fits || !is_small(x) {
        return false;
    }
    let heads = COLS / attention.d_k;
    for (index, x) in x.chunks_mut(COLS).enumerate() {
        let [keys, values] = attention.starts.map(|start| start.wrapping_add(COLS * index));
        let rows = |start| Strip { start, stride: attention.stride, mask: first_bytes(x.len()) };
        let (keys, values) = (rows(keys), rows(values));
        let multipliers = attention.heads.get(heads * index..).unwrap_or_default();
        let mut weights = MaybeUninit::<[__m512i; MOST_FOURS]>::uninit();
        let weights = weights.as_mut_ptr().cast::<__m512i>();
        let fours = attention.len.div_ceil(4);
        // SAFETY: the caller's; there is room for all weights.
        unsafe {
            let queries = cut(x);
            let most = match attention.d_k {
                16 => scores::<1>(&keys, attention.len, queries, weights),
                32 => scores::<2>(&keys, attention.len, queries, weights),
                _ => scores::<4>(&keys, attention.len, queries, weights),
            };
            let [scale, context] = spread(multipliers, attention.d_k);
            let sums = powers((weights, fours), most, scale, attention.len);
            let multiplier = divided(context, sums);
            let sums = weighted(&values, weights, attention.len);
            store(sums.map(|sum| rescale(sum, multiplier)), attention.bounds, x);
        }
    }
    true
}

/// Whether all numbers can be cut into two signed bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn is_small(x: &[i16]) -> bool {
    let mut most = _mm512_set1_epi16(i16::MIN);
    for x in x.chunks(COLS / 2) {
        // SAFETY: the mask leaves out what is past the end.
        let x = unsafe { _mm512_maskz_loadu_epi16(first_bytes(x.len()) as __mmask32, x.as_ptr()) };
        most = _mm512_max_epi16(most, x);
    }
    _mm512_cmpge_epi16_mask(most, _mm512_set1_epi16(TOO_LARGE)) == 0
}

/// A mask of the first `count`, at most 64.
#[inline(always)]
fn first_bytes(count: usize) -> __mmask64 {
    u64::MAX.wrapping_shr(64_usize.wrapping_sub(count) as u32)
}

/// 64 columns of rows, or as many as the mask has.
struct Strip {
    start: *const i8,
    stride: usize,
    mask: __mmask64,
}

impl Strip {
    /// Four of the `len` rows from `first` on; the last one where there are no more.
    #[inline]
    #[target_feature(enable = "avx512bw")]
    unsafe fn four(&self, first: usize, len: usize) -> [__m512i; 4] {
        let start = self.start.wrapping_add(first * self.stride);
        let left = len - first - 1;
        let starts = match left {
            3.. => core::array::from_fn(|row| start.wrapping_add(row * self.stride)),
            _ => core::array::from_fn(|row| start.wrapping_add(row.min(left) * self.stride)),
        };
        // SAFETY: the caller's.
        starts.map(|row| unsafe { _mm512_maskz_loadu_epi8(self.mask, row) })
    }
}

/// High and low bytes of up to 64 numbers; zeros behind them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn cut(x: &[i16]) -> [__m512i; 2] {
    let mask = first_bytes(x.len());
    // SAFETY: the masks leave out what is past the end.
    let [a, b] = unsafe {
        let start = x.as_ptr();
        let upper = (mask >> 32) as __mmask32;
        [
            _mm512_maskz_loadu_epi16(mask as __mmask32, start),
            _mm512_maskz_loadu_epi16(upper, start.wrapping_add(COLS / 2)),
        ]
    };
    let bytes = |a, b| {
        let low = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(a));
        _mm512_inserti64x4::<1>(low, _mm512_cvtepi16_epi8(b))
    };
    let half = _mm512_set1_epi16(128);
    let high = |x| _mm512_srai_epi16::<8>(_mm512_add_epi16(x, half));
    [bytes(high(a), high(b)), bytes(a, b)]
}

/// Scores of four positions a register, those of a head in every one of its `PARTS` quarters; the largest
/// of each quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn scores<const PARTS: usize>(
    keys: &Strip,
    len: usize,
    [query_high, query_low]: [__m512i; 2],
    to: *mut __m512i,
) -> __m512i {
    let bias = _mm512_set1_epi8(i8::MIN);
    let zero = _mm512_setzero_si512();
    let begin = |query| _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, bias, query));
    let (begin_high, begin_low) = (begin(query_high), begin(query_low));
    let least = _mm512_set1_epi32(i32::MIN);
    let mut most = least;
    for first in (0..len).step_by(4) {
        // SAFETY: the caller's.
        unsafe {
            let sums = keys.four(first, len).map(|key| {
                let key = _mm512_xor_si512(key, bias);
                let high = _mm512_dpbusd_epi32(begin_high, key, query_high);
                let low = _mm512_dpbusd_epi32(begin_low, key, query_low);
                _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
            });
            let mut sums = sum_quads(sums);
            if PARTS > 1 {
                sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4::<0b10_11_00_01>(sums, sums));
            }
            if PARTS > 2 {
                sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4::<0b01_00_11_10>(sums, sums));
            }
            let sums = _mm512_mask_mov_epi32(least, of_each(len - first), sums);
            most = _mm512_max_epi32(most, sums);
            to.add(first / 4).write(sums);
        }
    }
    let most = _mm512_max_epi32(most, _mm512_shuffle_epi32::<0b10_11_00_01>(most));
    _mm512_max_epi32(most, _mm512_shuffle_epi32::<0b01_00_11_10>(most))
}

/// A mask of the first `count` of every quarter.
#[inline(always)]
fn of_each(count: usize) -> __mmask16 {
    match count {
        4.. => 0xFFFF,
        3 => 0x7777,
        2 => 0x3333,
        _ => 0x1111,
    }
}

/// The numbers of the heads, in all lanes of their columns.
#[inline(always)]
fn spread(heads: &[[i32; 2]], d_k: usize) -> [[i32; 4]; 2] {
    let of = |part: usize| heads.get(part * PART / d_k).copied().unwrap_or_default();
    let parts: [[i32; 2]; 4] = core::array::from_fn(of);
    [parts.map(|[scale, _]| scale), parts.map(|[_, context]| context)]
}

/// A number for every quarter.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(numbers: [i32; 4]) -> __m512i {
    let [a, b, c, d] = numbers;
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(_mm_setr_epi32(a, b, c, d)))
}

/// Probabilities in the place of the scores, and their sums by quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn powers(
    (weights, fours): (*mut __m512i, usize),
    most: __m512i,
    multipliers: [i32; 4],
    len: usize,
) -> [u32; 4] {
    let multipliers = quarters(multipliers);
    let mut sums = _mm512_setzero_si512();
    for four in 0..fours {
        // SAFETY: the caller's.
        unsafe {
            let at = weights.add(four);
            let z = rescale(_mm512_sub_epi32(most, at.read()), multipliers);
            let powers = _mm512_maskz_mov_epi32(of_each(len - 4 * four), exp2_neg(z));
            sums = _mm512_add_epi32(sums, powers);
            at.write(powers);
        }
    }
    let sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32::<0b10_11_00_01>(sums));
    let sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32::<0b01_00_11_10>(sums));
    let first = _mm512_maskz_compress_epi32(0x1111, sums);
    let mut list = [0_u32; 4];
    // SAFETY: four numbers.
    unsafe { _mm_storeu_si128(list.as_mut_ptr().cast(), _mm512_castsi512_si128(first)) };
    list
}

/// `multiplier * 2^15 / sum`, rounded half up: `softmax::context_multiplier` in one division.
#[inline]
#[target_feature(enable = "avx512f")]
fn divided(multipliers: [i32; 4], sums: [u32; 4]) -> __m512i {
    let divided = |(multiplier, sum): (i32, u32)| {
        let sum = u64::from(sum.max(TOP as u32));
        let scaled = (u64::from(multiplier.unsigned_abs()) << 15) + sum / 2;
        scaled.checked_div(sum).unwrap_or(0) as i32
    };
    let [a, b, c, d] = multipliers;
    let [e, f, g, h] = sums;
    quarters([(a, e), (b, f), (c, g), (d, h)].map(divided))
}

/// The weighted sums of 64 columns: of every quarter four in each register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn weighted(values: &Strip, weights: *const __m512i, len: usize) -> [__m512i; 4] {
    let every_fourth = _mm_setr_epi8(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    let low_bytes = _mm512_broadcast_i32x4(every_fourth);
    let high_bytes = _mm512_add_epi8(low_bytes, _mm512_set1_epi8(1));
    let (mut high, mut low) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
    for first in (0..len).step_by(4) {
        // SAFETY: the caller's.
        unsafe {
            let weights = weights.add(first / 4).read();
            let weights_high = _mm512_shuffle_epi8(weights, high_bytes);
            let weights_low = _mm512_shuffle_epi8(weights, low_bytes);
            let columns = by_column(values.four(first, len));
            for ((high, low), values) in high.iter_mut().zip(&mut low).zip(columns) {
                *high = _mm512_dpbusd_epi32(*high, weights_high, values);
                *low = _mm512_dpbusd_epi32(*low, weights_low, values);
            }
        }
    }
    core::array::from_fn(|i| _mm512_add_epi32(_mm512_slli_epi32::<8>(high[i]), low[i]))
}

/// Bytes of four rows side by side: of every quarter four columns in each register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn by_column([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    let (cd, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab, cd),
        _mm512_unpackhi_epi16(ab, cd),
        _mm512_unpacklo_epi16(ab_high, cd_high),
        _mm512_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// Writes the first of 64 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store([a, b, c, d]: [__m512i; 4], [low, high]: [i32; 2], to: &mut [i16]) {
    let (low, high) = (_mm512_set1_epi16(low as i16), _mm512_set1_epi16(high as i16));
    let narrowed = |a, b| _mm512_min_epi16(_mm512_max_epi16(_mm512_packs_epi32(a, b), low), high);
    let (even, odd) = (narrowed(a, b), narrowed(c, d));
    let first = _mm512_permutex2var_epi64(even, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), odd);
    let second =
        _mm512_permutex2var_epi64(even, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), odd);
    let mask = first_bytes(to.len());
    let start = to.as_mut_ptr();
    // SAFETY: the masks leave out what is past the end.
    unsafe {
        _mm512_mask_storeu_epi16(start, mask as __mmask32, first);
        let upper = (mask >> 32) as __mmask32;
        _mm512_mask_storeu_epi16(start.wrapping_add(COLS / 2), upper, second);
    }
}
