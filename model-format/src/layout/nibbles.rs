//! Weights of 4 bits.
//!
//! A row is a sum over groups of 16 columns, each with a small whole factor: the row keeps one
//! multiplier, and the accumulator stays exact. Blocks of four rows, as in the other packings.

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

/// Bytes of a block before its biases and multipliers: the groups, then a `u16` of factors for each,
/// zeros to a multiple of 4; `None` where it overflows.
pub(super) const fn weights_len(cols: usize) -> Option<usize> {
    let groups = cols.div_ceil(GROUP_COLS);
    match groups.checked_mul(size_of::<Group>()) {
        Some(len) => len.checked_add(factors_len(groups)),
        None => None,
    }
}

const fn factors_len(groups: usize) -> usize {
    groups.saturating_mul(2).next_multiple_of(4)
}

/// The weights of four rows, read in place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nibbles<'a> {
    /// Ascending in columns. Columns and rows past the last are weights of 0.
    pub groups: &'a [Group],
    /// Of every group: those of its rows, row 0 in the lowest 4 bits, each 1 to 15. Those of rows past
    /// the last are 1. An odd number of them has a 0 behind it.
    pub factors: &'a [u16],
}

impl<'a> Nibbles<'a> {
    /// Those of the block that `data` begins with.
    #[inline]
    pub(super) fn read(data: &'a [i8], cols: usize) -> Self {
        let count = cols.div_ceil(GROUP_COLS);
        let at = count.saturating_mul(size_of::<Group>());
        let (groups, rest) = split(bytemuck::cast_slice(data), at);
        let factors = rest.get(..factors_len(count)).unwrap_or_default();
        Self { groups: cast(groups), factors: cast(factors) }
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

/// Packs a matrix of 4 bits: `weights` is `[rows, cols]`, each at most [`MAX_NIBBLE`] in magnitude;
/// `factors`, 1 to [`MAX_FACTOR`], is `[rows, cols / 16]`, rounded up; `bias` and `multipliers` are
/// `[rows]`. The weight that multiplies a column is that of `weights` times its factor.
///
/// # Panics
/// When a weight or a factor is out of range, or the sizes do not fit.
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
        let stored = |row: usize, column: usize| -> u32 {
            let is_weight = row < rows && column < cols;
            let weight = if is_weight { weights[row * cols + column] } else { 0 };
            (weight + BIAS) as u32
        };
        for start in (0..groups * GROUP_COLS).step_by(8) {
            for row in first..first + BLOCK_ROWS {
                let bits = |i: usize| {
                    stored(row, start + 2 * i) << (4 * i)
                        | stored(row, start + 2 * i + 1) << (16 + 4 * i)
                };
                let word: u32 = (0..4).map(bits).sum();
                blob.extend(word.to_le_bytes());
            }
        }
        let end = blob.len() + factors_len(groups);
        for group in 0..groups {
            let factor =
                |row: usize| factors.get((first + row) * groups + group).copied().unwrap_or(1);
            let word: u16 = (0..BLOCK_ROWS).map(|row| u16::from(factor(row)) << (4 * row)).sum();
            blob.extend(word.to_le_bytes());
        }
        blob.resize(end, 0);
        for list in [bias, multipliers] {
            let value = |row| list.get(first + row).copied().unwrap_or(0);
            blob.extend((0..BLOCK_ROWS).flat_map(|row| value(row).to_le_bytes()));
        }
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
        let constants = |k| (0..rows as i32).map(|r| r * k - 3).collect();
        (weights.collect(), factors.collect(), constants(1001), constants(77))
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
        let blob = pack_nibbles(&weights, &[5], &[-2], &[9]);
        assert_eq!(blob.len(), 32 + 4 + 32);
        // Columns 0 2 4 6, then 1 3 5 7, from the lowest bits on: 9 11 13 15, 10 12 14 1.
        assert_eq!(blob[..4], [0xB9, 0xFD, 0xCA, 0x1E]);
        assert_eq!(blob[4..16], [0x88; 12]);
        assert_eq!(blob[16..20], [0x82, 0x88, 0x88, 0x88]);
        assert_eq!(blob[32..36], [0x15, 0x11, 0, 0]);
        assert_eq!(blob[36..44], [0xFE, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
        assert_eq!(blob[52..60], [9, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Every nibble of weights and factors, those of the padding too, set to every value.
    #[test]
    fn what_is_out_of_range_is_found() {
        let (rows, cols) = (3, 11);
        let (weights, factors, bias, multipliers) = matrix(rows, cols);
        let blob = pack_nibbles(&weights, &factors, &bias, &multipliers);
        for at in 0..2 * (32 + 4) {
            for value in 0..16 {
                let mut changed = crate::AlignedBytes::from(&blob[..]);
                let shift = at % 2 * 4;
                changed[at / 2] = changed[at / 2] & !(15 << shift) | value << shift;
                let linear = LinearInt::read(Packing::Nibbles, rows, cols, &changed);
                let found = linear.nibbles(0).magnitudes(rows, cols);
                let (row, is_good) = match at.checked_sub(64) {
                    Some(row) if row < rows => (row, value > 0),
                    Some(3) => (3, value == 1),
                    Some(_) => (0, value == 0),
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
