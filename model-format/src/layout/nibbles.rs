//! Weights of 4 bits.
//!
//! A row is a sum over groups of 16 columns, each with a small whole factor: the row keeps one
//! multiplier, and the accumulator stays exact. Blocks of four rows, as in the other packings; but the
//! constants, which would be a tenth of a small model, have 16 and 8 bits with a shift for each block.

use super::int::BLOCK_ROWS;
use super::{cast, split};

/// Columns of a group.
pub const GROUP_COLS: usize = 16;
/// Largest magnitude of a weight of 4 bits.
pub const MAX_NIBBLE: i8 = 7;
/// Largest factor of a group; the least is 1. A weight times its factor is an `i8`.
pub const MAX_FACTOR: u8 = 15;
/// What a stored weight is more than the weight.
const BIAS: i8 = 8;

/// A group of four rows: two times eight columns. Word r holds row r, of whose columns 2i is in the
/// bits from 4i on and 2i + 1 in those from 16 + 4i on; each is a weight + 8, so 1 to 15.
pub type Group = [[u32; BLOCK_ROWS]; 2];

/// Most bits that the biases of a block are shifted by.
pub const MAX_BIAS_SHIFT: u8 = 14;
/// Most bits that the multipliers of a block are shifted by.
pub const MAX_MULTIPLIER_SHIFT: u8 = 23;

/// Bytes of a block: the groups, a `u16` of factors for each, zeros to 2 less than a multiple of 4, and
/// the constants; `None` where it overflows.
pub(super) const fn block_len(cols: usize) -> Option<usize> {
    let groups = cols.div_ceil(GROUP_COLS);
    match groups.checked_mul(size_of::<Group>()) {
        Some(len) => len.checked_add(factors_len(groups) + CONSTANTS_LEN),
        None => None,
    }
}

/// Bytes of factors and zeros.
const fn factors_len(groups: usize) -> usize {
    (groups.saturating_mul(2) + 2).next_multiple_of(4) - 2
}

/// Shift of the biases and of the multipliers, four multipliers, four biases.
pub(super) const CONSTANTS_LEN: usize = 2 + BLOCK_ROWS + 2 * BLOCK_ROWS;

/// The weights of four rows, read in place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nibbles<'a> {
    /// Ascending in columns. Columns and rows past the last are weights of 0.
    pub groups: &'a [Group],
    /// Of every group: those of its rows, row 0 in the lowest 4 bits, each 1 to 15. Those of rows past
    /// the last are 1. An even number of them has a 0 behind it.
    pub factors: &'a [u16],
    /// The shift of the biases, that of the multipliers; four multipliers `u8`; four biases `i16`.
    pub constants: &'a [u8],
}

impl<'a> Nibbles<'a> {
    /// Those of the block that `data` begins with.
    #[inline]
    pub(super) fn read(data: &'a [i8], cols: usize) -> Self {
        let count = cols.div_ceil(GROUP_COLS);
        let at = count.saturating_mul(size_of::<Group>());
        let (groups, rest) = split(bytemuck::cast_slice(data), at);
        let (factors, rest) = split(rest, factors_len(count));
        let constants = rest.get(..CONSTANTS_LEN).unwrap_or_default();
        Self { groups: cast(groups), factors: cast(factors), constants }
    }

    /// Biases and multipliers; zeros where there is no block.
    #[inline]
    pub fn block_constants(&self) -> [[i32; BLOCK_ROWS]; 2] {
        let &[bias_shift, shift, m0, m1, m2, m3, b0, b1, b2, b3, b4, b5, b6, b7] = self.constants
        else {
            return Default::default();
        };
        let biases = [[b0, b1], [b2, b3], [b4, b5], [b6, b7]];
        let bias = |bytes| i32::from(i16::from_le_bytes(bytes)).wrapping_shl(bias_shift.into());
        let multiplier = |m: u8| i32::from(m).wrapping_shl(shift.into());
        [biases.map(bias), [m0, m1, m2, m3].map(multiplier)]
    }

    /// Whether the shifts are in range: then no bias is above 2^29 in magnitude, and no multiplier
    /// leaves `i32`.
    pub(crate) fn has_good_shifts(&self) -> bool {
        let &[bias_shift, shift, ..] = self.constants else { return false };
        bias_shift <= MAX_BIAS_SHIFT && shift <= MAX_MULTIPLIER_SHIFT
    }

    /// `sum(|weight * factor|)` of every row; the row of what is out of range, if anything is.
    ///
    /// `rows` and `cols` are those that are not padding.
    #[inline(never)]
    pub(crate) fn magnitudes(&self, rows: usize, cols: usize) -> Result<[u32; BLOCK_ROWS], usize> {
        let mut sums = [0_u32; BLOCK_ROWS];
        if self.factors.iter().skip(self.groups.len()).any(|&padding| padding != 0) {
            return Err(0);
        }
        for (index, (group, factors)) in self.groups.iter().zip(self.factors).enumerate() {
            let [first, second] = group;
            let left = cols.saturating_sub(index.saturating_mul(GROUP_COLS));
            let past = [past(left), past(left.saturating_sub(8))];
            for (row, ((&first, &second), sum)) in
                first.iter().zip(second).zip(&mut sums).enumerate()
            {
                let factor = u32::from(factors >> (4 * row)) & 15;
                let [first, second] = [magnitudes(first), magnitudes(second)];
                // Only the magnitude of -8 has bit 3.
                let is_out = (first | second) & 0x8888_8888 != 0 || factor == 0;
                let is_padded = match row < rows {
                    true => first & past[0] == 0 && second & past[1] == 0,
                    false => first | second == 0 && factor == 1,
                };
                if is_out || !is_padded {
                    return Err(row);
                }
                *sum = sum.wrapping_add(factor.wrapping_mul(total(first) + total(second)));
            }
        }
        Ok(sums)
    }
}

/// The magnitudes of eight weights, where the weights are.
const fn magnitudes(word: u32) -> u32 {
    // Two's complement; no carry leaves a nibble, since 1 is added to at most 7.
    let weights = word ^ 0x8888_8888;
    let negative = (weights & 0x8888_8888) >> 3;
    (weights ^ negative.wrapping_mul(15)).wrapping_add(negative)
}

/// The sum of eight nibbles.
const fn total(nibbles: u32) -> u32 {
    let bytes = (nibbles & 0x0F0F_0F0F) + (nibbles >> 4 & 0x0F0F_0F0F);
    bytes.wrapping_mul(0x0101_0101) >> 24
}

/// The bits of a word that are columns past the first `cols`.
const fn past(cols: usize) -> u32 {
    if cols >= 8 {
        return 0;
    }
    // Column 2i is in the low half, 2i + 1 in the high half.
    let (low, high) = (0xFFFF_u32 << (4 * cols.div_ceil(2)), 0xFFFF_u32 << (4 * (cols / 2)));
    low & 0xFFFF | high << 16
}

/// A weight of a block times its factor; 0 past the last. For what is not worth a loop of its own.
#[inline(never)]
pub(super) fn weight(data: &[i8], cols: usize, [row, column]: [usize; 2]) -> i8 {
    let nibbles = Nibbles::read(data, cols);
    let (index, within) = (column / GROUP_COLS, column % GROUP_COLS);
    let group = nibbles.groups.get(index);
    let word = group.and_then(|group| group.as_flattened().get(within / 8 * BLOCK_ROWS + row));
    let (Some(word), Some(factors)) = (word, nibbles.factors.get(index)) else { return 0 };
    let shift = within % 2 * 16 + within % 8 / 2 * 4;
    let weight = (word >> shift & 15) as i8 - BIAS;
    weight.wrapping_mul((factors >> (4 * row) & 15) as i8)
}

/// The biases of a block of rows as [`pack_nibbles`] can store them: rounded to 16 bits with as small a
/// shift as possible; those above 2^29 in magnitude are cut off.
#[cfg(feature = "std")]
pub fn round_biases(block: &mut [i32]) {
    let largest = i64::from(i16::MAX);
    round_block(block, MAX_BIAS_SHIFT, -largest..=largest);
}

/// The multipliers of a block of rows, none of which is negative, as [`pack_nibbles`] can store them:
/// rounded to 8 bits with as small a shift as possible; the largest is 255 * 2^23.
#[cfg(feature = "std")]
pub fn round_multipliers(block: &mut [i32]) {
    round_block(block, MAX_MULTIPLIER_SHIFT, 0..=255);
}

#[cfg(feature = "std")]
fn round_block(block: &mut [i32], max_shift: u8, range: core::ops::RangeInclusive<i64>) {
    let rounded = |value: i32, shift: u8| (i64::from(value) + (1 << shift >> 1)) >> shift;
    let fits = |shift: &u8| block.iter().all(|&value| range.contains(&rounded(value, *shift)));
    let shift = (0..max_shift).find(fits).unwrap_or(max_shift);
    for value in block {
        let (low, high) = (*range.start(), *range.end());
        *value = (rounded(*value, shift).clamp(low, high) << shift) as i32;
    }
}

/// The least shift with which all of a block are in range, and what they are then.
#[cfg(feature = "std")]
fn shifted<T: TryFrom<i32>>(block: [i32; BLOCK_ROWS], max_shift: u8) -> (u8, Vec<T>) {
    let narrow = |value: i32, shift: u8| T::try_from(value >> shift).ok();
    let all = |shift: u8| block.iter().map(|&value| narrow(value, shift)).collect();
    let found = (0..=max_shift).find_map(|shift| Some(shift).zip(all(shift)));
    let (shift, values): (u8, Vec<T>) = found.expect("constants of a block are in range");
    assert!(block.iter().all(|value| value >> shift << shift == *value), "constants are rounded");
    (shift, values)
}

/// Packs a matrix of 4 bits: `weights` is `[rows, cols]`, each at most [`MAX_NIBBLE`] in magnitude;
/// `factors`, 1 to [`MAX_FACTOR`], is `[rows, cols / 16]`, rounded up; `bias` and `multipliers` are
/// `[rows]`, of every four rows what [`round_biases`] and [`round_multipliers`] make. The weight that
/// multiplies a column is that of `weights` times its factor.
///
/// # Panics
/// When a weight, a factor or a constant is out of range, or the sizes do not fit.
#[cfg(feature = "std")]
pub fn pack_nibbles(weights: &[i8], factors: &[u8], bias: &[i32], multipliers: &[i32]) -> Vec<u8> {
    let rows = bias.len();
    let cols = weights.len().checked_div(rows).unwrap_or(0);
    let groups = cols.div_ceil(GROUP_COLS);
    assert!(weights.iter().all(|w| w.unsigned_abs() <= MAX_NIBBLE.unsigned_abs()), "a weight");
    assert!(factors.iter().all(|factor| (1..=MAX_FACTOR).contains(factor)), "a factor");
    assert_eq!(factors.len(), rows * groups, "factors");
    let mut blob = Vec::new();
    for first in (0..rows).step_by(BLOCK_ROWS) {
        let weight = |row: usize, column: usize| {
            let is_weight = row < rows && column < cols;
            if is_weight { weights[row * cols + column] } else { 0 }
        };
        for start in (0..groups * GROUP_COLS).step_by(8) {
            for row in first..first + BLOCK_ROWS {
                let stored = |column: usize| (weight(row, start + column) + BIAS) as u32;
                let pair = |i: usize| stored(2 * i) << (4 * i) | stored(2 * i + 1) << (16 + 4 * i);
                blob.extend((0..4).map(pair).sum::<u32>().to_le_bytes());
            }
        }
        let factor = |row: usize, group: usize| match first + row < rows {
            true => u16::from(factors[(first + row) * groups + group]),
            false => 1,
        };
        let end = blob.len() + factors_len(groups);
        for group in 0..groups {
            let word: u16 = (0..BLOCK_ROWS).map(|row| factor(row, group) << (4 * row)).sum();
            blob.extend(word.to_le_bytes());
        }
        blob.resize(end, 0);
        let block =
            |list: &[i32]| core::array::from_fn(|row| list.get(first + row).copied().unwrap_or(0));
        let (bias_shift, biases) = shifted::<i16>(block(bias), MAX_BIAS_SHIFT);
        let (shift, multipliers) = shifted::<u8>(block(multipliers), MAX_MULTIPLIER_SHIFT);
        blob.extend([bias_shift, shift]);
        blob.extend(multipliers);
        blob.extend(biases.into_iter().flat_map(i16::to_le_bytes));
    }
    blob
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::layout::{LinearInt, Packing, linear_i4_len};

    fn matrix(rows: usize, cols: usize) -> (Vec<i8>, Vec<u8>, Vec<i32>, Vec<i32>) {
        let weights = (0..rows * cols).map(|i| ((i * 37) % 15) as i8 - 7);
        let factors = (0..rows * cols.div_ceil(GROUP_COLS)).map(|i| (i * 11 % 15) as u8 + 1);
        let constants = |k: i32| (0..rows as i32).map(|r| r * k).collect::<Vec<_>>();
        let (mut bias, mut multipliers) = (constants(-1_234_567), constants(98_765_432));
        bias.chunks_mut(BLOCK_ROWS).for_each(round_biases);
        multipliers.chunks_mut(BLOCK_ROWS).for_each(round_multipliers);
        (weights.collect(), factors.collect(), bias, multipliers)
    }

    #[test]
    fn gives_back_what_was_packed() {
        for (rows, cols) in (1..10).flat_map(|rows| (1..51).map(move |cols| (rows, cols))) {
            let (weights, factors, bias, multipliers) = matrix(rows, cols);
            let blob = pack_nibbles(&weights, &factors, &bias, &multipliers);
            assert_eq!(Some(blob.len()), linear_i4_len(rows, cols));
            let blob = crate::AlignedBytes::from(&blob[..]);
            let linear = LinearInt::read(Packing::Nibbles, rows, cols, &blob);
            let groups = cols.div_ceil(GROUP_COLS);
            for row in 0..rows {
                let factor = |c: usize| factors[row * groups + c / GROUP_COLS] as i8;
                let expected: Vec<i8> =
                    (0..cols).map(|c| weights[row * cols + c] * factor(c)).collect();
                assert!(linear.row(row).eq(expected.iter().copied()), "{rows}x{cols} {row}");
                assert_eq!(linear.constants(row), (bias[row], multipliers[row]));
                let sums = linear.nibbles(row).magnitudes(rows - row / 4 * 4, cols).unwrap();
                let sum: u32 = expected.iter().map(|w| u32::from(w.unsigned_abs())).sum();
                assert_eq!(sums[row % 4], sum, "{rows}x{cols} {row}");
            }
            assert_eq!(linear.row(rows).count(), 0);
        }
    }

    #[test]
    fn a_block_is_as_the_format_says() {
        // Row 0: 1, 2, ... in steps of 1; the other three rows do not exist.
        let weights = [1, 2, 3, 4, 5, 6, 7, -7, -6];
        let blob = pack_nibbles(&weights, &[5], &[-2 << 16], &[9]);
        assert_eq!(blob.len(), 32 + 4 + 12);
        // Columns 0 2 4 6, then 1 3 5 7, from the lowest bits on: 9 11 13 15, 10 12 14 1.
        assert_eq!(blob[..4], [0xB9, 0xFD, 0xCA, 0x1E]);
        assert_eq!(blob[4..16], [0x88; 12]);
        assert_eq!(blob[16..20], [0x82, 0x88, 0x88, 0x88]);
        // Factors, then the shifts: -2^17 fits into 16 bits when it is shifted by 2.
        assert_eq!(blob[32..36], [0x15, 0x11, 2, 0]);
        assert_eq!(blob[36..40], [9, 0, 0, 0]);
        assert_eq!(blob[40..48], [0, 0x80, 0, 0, 0, 0, 0, 0]);
        let wide = pack_nibbles(&[0; 32], &[1; 2], &[0], &[255 << 23]);
        assert_eq!(wide[64..72], [0x11, 0x11, 0x11, 0x11, 0, 0, 0, 23]);
    }

    #[test]
    fn constants_are_rounded_to_what_a_block_holds() {
        let rounded = |mut block: [i32; 4], round: fn(&mut [i32])| {
            round(&mut block);
            block
        };
        assert_eq!(rounded([1, -32767, 32767, 0], round_biases), [1, -32767, 32767, 0]);
        assert_eq!(rounded([1, 2, 3, 40000], round_biases), [2, 2, 4, 40000]);
        let top = 32767 << 14;
        assert_eq!(rounded([i32::MAX, i32::MIN, 0, 8192], round_biases), [top, -top, 0, 16384]);
        assert_eq!(rounded([255, 3, 0, 1], round_multipliers), [255, 3, 0, 1]);
        assert_eq!(rounded([511, 3, 0, 1], round_multipliers), [512, 4, 0, 0]);
        assert_eq!(rounded([i32::MAX, 0, 0, 0], round_multipliers), [255 << 23, 0, 0, 0]);
    }

    #[test]
    fn the_zeros_behind_an_even_number_of_factors_are_looked_at() {
        let mut blob = pack_nibbles(&[1; 32], &[1; 2], &[0], &[1]);
        blob[64 + 4] = 1;
        let blob = crate::AlignedBytes::from(&blob[..]);
        let linear = LinearInt::read(Packing::Nibbles, 1, 32, &blob);
        assert_eq!(linear.nibbles(0).magnitudes(1, 32), Err(0));
    }

    /// Every nibble of weights and factors, those of the padding too, set to every value.
    #[test]
    fn what_is_out_of_range_is_found() {
        let (rows, cols) = (3, 11);
        let (weights, factors, bias, multipliers) = matrix(rows, cols);
        let blob = pack_nibbles(&weights, &factors, &bias, &multipliers);
        for at in 0..2 * (32 + 2) {
            for value in 0..16 {
                let mut changed = crate::AlignedBytes::from(&blob[..]);
                let shift = at % 2 * 4;
                changed[at / 2] = changed[at / 2] & !(15 << shift) | value << shift;
                let linear = LinearInt::read(Packing::Nibbles, rows, cols, &changed);
                let found = linear.nibbles(0).magnitudes(rows, cols);
                let (row, is_good) = match at.checked_sub(64) {
                    Some(row) if row < rows => (row, value > 0),
                    Some(row) => (row, value == 1),
                    None => {
                        let (row, nibble) = (at / 8 % 4, at % 8);
                        let column = at / 32 * 8 + nibble % 4 * 2 + nibble / 4;
                        let is_weight = row < rows && column < cols;
                        (row, if is_weight { value > 0 } else { value == 8 })
                    }
                };
                assert_eq!(found.err(), (!is_good).then_some(row), "nibble {at} is {value}");
            }
        }
    }
}
