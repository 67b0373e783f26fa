//! A row of a table of embeddings with AVX-512.

use core::arch::x86_64::*;

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Packing, TILE_LEN};

use super::avx512::rescale;
use super::matrix::GROUP_LEN;

/// Columns at a time: four tiles, or a group.
pub const COLS: usize = 16;

/// Shift of a weight that is brought to the scale of the output.
const SHIFT: u32 = 24;

/// Adds sixteen columns of row `row` from `column` on, a multiple of 16, times `multiplier`; what is past the
/// last column gets any number. `false`, and nothing done, where they do not lie together.
///
/// # Safety
/// The processor must have the instructions.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub unsafe fn add(
    table: &LinearInt<'_>,
    [row, column]: [usize; 2],
    multiplier: i32,
    sums: &mut [i32; COLS],
) -> bool {
    let start = (row / BLOCK_ROWS).saturating_mul(table.block_len());
    let block = table.data.get(start..).unwrap_or_default();
    let weights = match table.packing {
        Packing::RowMajor => None,
        Packing::PairedRows | Packing::QuadRows => tiles(block, column),
        Packing::Nibbles => group(block, [row % BLOCK_ROWS, column], table.cols),
    };
    let Some(weights) = weights else {
        return false;
    };
    let weights = match table.packing {
        Packing::PairedRows => picked::<true>(weights, row),
        Packing::QuadRows => picked::<false>(weights, row),
        _ => weights,
    };
    let products = rescale(weights, _mm512_set1_epi32(multiplier));
    // SAFETY: sixteen numbers.
    unsafe {
        let old = _mm512_loadu_si512(sums.as_ptr().cast());
        _mm512_storeu_si512(sums.as_mut_ptr().cast(), _mm512_add_epi32(old, products));
    }
    true
}

/// Four tiles of a block.
#[inline]
#[target_feature(enable = "avx512f")]
fn tiles(block: &[i8], column: usize) -> Option<__m512i> {
    let tiles: &[i8; 4 * TILE_LEN] = block.get(column * BLOCK_ROWS..)?.first_chunk()?;
    // SAFETY: 64 bytes.
    Some(unsafe { _mm512_loadu_si512(tiles.as_ptr().cast()) })
}

/// The weights of a row in four tiles, shifted.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn picked<const PAIRED: bool>(tiles: __m512i, row: usize) -> __m512i {
    let (first, step) = match PAIRED {
        true => (row % BLOCK_ROWS / 2 * 8 + row % 2, 2),
        false => (row % BLOCK_ROWS, 4),
    };
    // To the uppermost byte.
    let [a, b, c, d] =
        core::array::from_fn(|col| ((first + step * col) as i32) << SHIFT | 0x0080_8080);
    let places = _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d));
    let is_biased = !PAIRED || row.is_multiple_of(2);
    let flip = _mm512_set1_epi32(if is_biased { i32::MIN } else { 0 });
    _mm512_xor_si512(_mm512_shuffle_epi8(tiles, places), flip)
}

/// The weights of a row in a group of 4 bits times their factor, shifted.
#[inline]
#[target_feature(enable = "avx512f")]
fn group(block: &[i8], [row, column]: [usize; 2], cols: usize) -> Option<__m512i> {
    let (index, groups) = (column / GROUP_COLS, cols.div_ceil(GROUP_COLS));
    let bytes = |at: usize| Some(block.get(at..)?.first_chunk::<4>()?.map(|byte| byte as u8));
    let word =
        |half: usize| Some(i32::from_le_bytes(bytes(index * GROUP_LEN + 16 * half + 4 * row)?));
    // Two bytes, and two of what lies behind them.
    let factors = u32::from_le_bytes(bytes(groups * GROUP_LEN + 2 * index)?);
    let factor = (factors >> (4 * row) & 15) as i32;
    let (first, second) = (_mm512_set1_epi32(word(0)?), _mm512_set1_epi32(word(1)?));
    let words = _mm512_mask_mov_epi32(first, 0xFF00, second);
    let shifts = _mm512_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28, 0, 16, 4, 20, 8, 24, 12, 28);
    let stored = _mm512_and_si512(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi32(15));
    let weights = _mm512_sub_epi32(stored, _mm512_set1_epi32(8));
    Some(_mm512_mullo_epi32(weights, _mm512_set1_epi32(factor << SHIFT)))
}
