//! Integer matrices.
//!
//! A row-major one is its weights, then the biases (`i32`, in units of the accumulator), then the
//! multipliers (`i32`). The others are blocks of four rows, each with its own four biases and four
//! multipliers behind its weights, so that a kernel reads one stream; those of 4 bits have them in 16
//! and 8 bits.

use super::nibbles::{self, Nibbles};
use super::{Layout, ONLY_LAYOUT, cast, magnitudes, split};

/// Whether this build reads weights of 4 bits; without, no matrix is of [`Packing::Nibbles`].
const INT4: bool = cfg!(feature = "int4");

/// Rows of a block.
pub const BLOCK_ROWS: usize = 4;
/// Columns of a tile.
pub const TILE_COLS: usize = 4;
/// Bytes of a tile: four rows of four columns.
pub const TILE_LEN: usize = BLOCK_ROWS * TILE_COLS;
/// Bytes of the biases and multipliers behind the weights of a block.
const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;

/// How an integer matrix is packed.
///
/// A tile of `PairedRows` and `QuadRows` is 16 bytes: four rows of four columns, those past the last
/// being zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Row after row.
    RowMajor,
    /// A halfword is `256 b + (a + 128)` for the weights a and b of two rows in one column. A tile is
    /// rows 0 and 1 of columns 0 to 3, then rows 2 and 3.
    PairedRows,
    /// A word is the four rows of one column, each byte a weight + 128. A tile is columns 0 to 3.
    QuadRows,
    /// Weights of 4 bits with a factor for every 16 columns of a row, whatever the file's layout:
    /// [`Nibbles`].
    Nibbles,
}

impl Packing {
    /// How a layout packs `i8` matrices: of a build that reads one layout alone, how that one does.
    pub const fn of(layout: Layout) -> Self {
        match if let Some(only) = ONLY_LAYOUT { only } else { layout } {
            Layout::PairedRows => Self::PairedRows,
            Layout::QuadRows => Self::QuadRows,
            Layout::RowMajor | Layout::SixteenRows => Self::RowMajor,
        }
    }

    /// Bytes of a block of `cols` columns with its constants; `None` where it overflows.
    const fn block_len(self, cols: usize) -> Option<usize> {
        if INT4 && matches!(self, Self::Nibbles) {
            return nibbles::block_len(cols);
        }
        match cols.div_ceil(TILE_COLS).checked_mul(TILE_LEN) {
            Some(weights) => weights.checked_add(CONSTANTS_LEN),
            None => None,
        }
    }

    /// Bytes of the blocks of a matrix; `None` where it overflows.
    const fn blocks_len(self, rows: usize, cols: usize) -> Option<usize> {
        match self.block_len(cols) {
            Some(block) => block.checked_mul(rows.div_ceil(BLOCK_ROWS)),
            None => None,
        }
    }

    /// Where the weights of row `row` (of a block, 0 to 3, where there are blocks) lie.
    const fn strides(self, row: usize) -> Strides {
        match self {
            Self::RowMajor => Strides { first: 0, tile: TILE_COLS, col: 1, flip: 0 },
            Self::PairedRows => Strides {
                first: (row / 2) * 8 + row % 2,
                tile: TILE_LEN,
                col: 2,
                flip: if row.is_multiple_of(2) { 0x80 } else { 0 },
            },
            Self::QuadRows => Strides { first: row, tile: TILE_LEN, col: 4, flip: 0x80 },
            // Not bytes: a row begins where its block does.
            Self::Nibbles => Strides { first: 0, tile: 0, col: 0, flip: 0 },
        }
    }
}

/// Offsets of a row's weights: column c is at `first + c / 4 * tile + c % 4 * col`.
#[derive(Debug, Clone, Copy)]
struct Strides {
    first: usize,
    tile: usize,
    col: usize,
    /// Added to a weight, modulo 256: 128 where it is biased.
    flip: u8,
}

/// Rounds up to a multiple of 4, where the constants of a row-major matrix begin; `None` on overflow.
const fn align4(len: usize) -> Option<usize> {
    match len.checked_add(3) {
        Some(len) => Some(len & !3),
        None => None,
    }
}

/// Length of the blob of an `i8` linear tensor; `None` where it overflows.
pub const fn linear_i8_len(layout: Layout, rows: usize, cols: usize) -> Option<usize> {
    let packing = Packing::of(layout);
    if !matches!(packing, Packing::RowMajor) {
        return packing.blocks_len(rows, cols);
    }
    let (Some(weights), Some(constants)) = (rows.checked_mul(cols), rows.checked_mul(8)) else {
        return None;
    };
    match align4(weights) {
        Some(weights) => weights.checked_add(constants),
        None => None,
    }
}

/// Length of the blob of a 4-bit linear tensor; `None` where it overflows.
pub const fn linear_i4_len(rows: usize, cols: usize) -> Option<usize> {
    Packing::Nibbles.blocks_len(rows, cols)
}

/// An integer matrix with its epilogue, read in place:
/// `out[r] = rescale(bias[r] + sum(w[r, c] * x[c]), multipliers[r])`.
#[derive(Debug, Clone, Copy)]
pub struct LinearInt<'a> {
    /// How it is packed.
    pub packing: Packing,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs).
    pub cols: usize,
    /// Row-major: the weights, `[rows, cols]`, in [-127, 127]. Otherwise the blocks.
    pub data: &'a [i8],
    /// Row-major: biases in units of the accumulator, `[rows]`.
    pub bias: &'a [i32],
    /// Row-major: multipliers of [`rescale`](crate::numeric::rescale), `[rows]`.
    pub multipliers: &'a [i32],
}

impl<'a> LinearInt<'a> {
    /// Takes the parts of a blob; empty parts where the blob is too short.
    pub(crate) fn read(packing: Packing, rows: usize, cols: usize, blob: &'a [u8]) -> Self {
        let (weights, constants) = match packing {
            Packing::RowMajor => split(blob, align4(rows * cols).unwrap_or(0)),
            _ => (blob, &[][..]),
        };
        let (bias, multipliers) = cast(constants).split_at_checked(rows).unwrap_or_default();
        Self { packing, rows, cols, data: cast(weights), bias, multipliers }
    }

    /// How it is packed, as a build that reads one layout alone knows it.
    pub const fn known_packing(&self) -> Packing {
        match (self.packing, ONLY_LAYOUT) {
            (Packing::Nibbles, _) if INT4 => Packing::Nibbles,
            (_, Some(only)) => Packing::of(only),
            (packing, None) => packing,
        }
    }

    /// Bytes of a block; of a row where there are no blocks.
    pub const fn block_len(&self) -> usize {
        match self.known_packing() {
            Packing::RowMajor => self.cols,
            packing => match packing.block_len(self.cols) {
                Some(len) => len,
                None => usize::MAX,
            },
        }
    }

    /// The blocks from the one on that `row` is in; the rows from `row` on where there are no blocks.
    #[inline(always)]
    pub fn from_row(&self, row: usize) -> &'a [i8] {
        let index = match self.known_packing() {
            Packing::RowMajor => row,
            _ => row / BLOCK_ROWS,
        };
        self.data.get(index.saturating_mul(self.block_len())..).unwrap_or_default()
    }

    /// Weights, factors and constants of the block that `row` is in; empty past the last, and where the packing
    /// is not [`Packing::Nibbles`].
    #[inline]
    pub fn nibbles(&self, row: usize) -> Nibbles<'a> {
        match self.known_packing() {
            Packing::Nibbles => Nibbles::read(self.from_row(row), self.cols),
            _ => Nibbles::default(),
        }
    }

    /// The weights of row `row`, those of 4 bits times their factors; none past the last.
    pub fn row(self, row: usize) -> impl Iterator<Item = i8> + use<'a> {
        const AT_ONCE: usize = 64;
        let cols = if row < self.rows { self.cols } else { 0 };
        (0..cols).step_by(AT_ONCE).flat_map(move |column| {
            let mut weights = [0; AT_ONCE];
            self.copy_weights(row, column, &mut weights);
            weights.into_iter().take(cols.saturating_sub(column))
        })
    }

    /// Bias and multiplier of row `row`; zeros past the last.
    pub fn constants(&self, row: usize) -> (i32, i32) {
        let [bias, multipliers] = self.block_constants(row & !(BLOCK_ROWS - 1));
        let get = |list: [i32; BLOCK_ROWS]| list.get(row % BLOCK_ROWS).copied().unwrap_or(0);
        (get(bias), get(multipliers))
    }

    /// Biases and multipliers of the four rows from `row` on, a multiple of [`BLOCK_ROWS`]; zeros past
    /// the last.
    #[inline(never)]
    pub fn block_constants(&self, row: usize) -> [[i32; BLOCK_ROWS]; 2] {
        if self.known_packing() == Packing::RowMajor {
            return [self.bias, self.multipliers].map(|list| {
                let mut list = list.get(row..).unwrap_or_default().iter();
                [(); BLOCK_ROWS].map(|()| list.next().copied().unwrap_or(0))
            });
        }
        if INT4 && self.known_packing() == Packing::Nibbles {
            return self.nibbles(row).block_constants();
        }
        let end = (row / BLOCK_ROWS).saturating_add(1).saturating_mul(self.block_len());
        let constants = self.data.get(end.saturating_sub(CONSTANTS_LEN)..end).unwrap_or_default();
        match cast::<[[i32; BLOCK_ROWS]; 2]>(bytemuck::cast_slice(constants)) {
            [constants] => *constants,
            _ => [[0; BLOCK_ROWS]; 2],
        }
    }

    /// Whether the shifts of the block that `row` is in are in range, where it has shifts.
    pub(crate) fn has_good_shifts(&self, row: usize) -> bool {
        !INT4 || self.known_packing() != Packing::Nibbles || self.nibbles(row).has_good_shifts()
    }

    /// Writes the weights of row `row` from column `column` on, those of 4 bits times their factors, as
    /// far as `out` and the row go.
    ///
    /// Not inlined, and small rather than fast: for what reads a row now and then.
    #[inline(never)]
    pub fn copy_weights(&self, row: usize, column: usize, out: &mut [i8]) {
        let data = self.from_row(row);
        let Strides { first, tile, col, flip } = self.known_packing().strides(row % BLOCK_ROWS);
        let end = if row < self.rows { self.cols } else { 0 };
        if INT4 && self.known_packing() == Packing::Nibbles {
            for (column, out) in (column..end).zip(out) {
                *out = nibbles::weight(data, self.cols, [row % BLOCK_ROWS, column]);
            }
            return;
        }
        let mut place = column % TILE_COLS;
        let start = (column / TILE_COLS).wrapping_mul(tile).wrapping_add(place * col);
        let mut at = first.wrapping_add(start);
        let next_tile = tile.wrapping_sub((TILE_COLS - 1) * col);
        for (_, out) in (column..end).zip(out) {
            *out = data.get(at).map_or(0, |stored| stored.wrapping_add(flip as i8));
            place += 1;
            at = at.wrapping_add(if place == TILE_COLS { next_tile } else { col });
            place %= TILE_COLS;
        }
    }

    /// `sum(|weight|)` of the four rows from `first` on, a multiple of [`BLOCK_ROWS`]; the one with a
    /// weight out of range, if there is one.
    pub(crate) fn magnitudes(&self, first: usize) -> Result<[u32; BLOCK_ROWS], usize> {
        let rows = self.rows.saturating_sub(first).min(BLOCK_ROWS);
        let data = self.from_row(first);
        let sums = match self.known_packing() {
            Packing::Nibbles if INT4 => return self.nibbles(first).magnitudes(rows, self.cols),
            Packing::RowMajor => magnitudes::of_rows(data, self.cols),
            packing => {
                let len = self.cols.div_ceil(TILE_COLS).saturating_mul(TILE_LEN);
                let tiles = cast(bytemuck::cast_slice(data.get(..len).unwrap_or_default()));
                magnitudes::of_tiles(tiles, packing)
            }
        };
        match sums.iter().take(rows).position(|&sum| sum >= magnitudes::OUT_OF_RANGE) {
            Some(row) => Err(row),
            None => Ok(sums),
        }
    }

    /// Packs a matrix: `weights` is `[rows, cols]`, `bias` and `multipliers` are `[rows]`.
    #[cfg(feature = "std")]
    pub fn pack(layout: Layout, weights: &[i8], bias: &[i32], multipliers: &[i32]) -> Vec<u8> {
        let packing = Packing::of(layout);
        if packing != Packing::RowMajor {
            return pack_blocks(packing, weights, bias, multipliers);
        }
        let mut blob: Vec<u8> = weights.iter().map(|w| w.to_le_bytes()[0]).collect();
        blob.resize(blob.len().next_multiple_of(4), 0);
        blob.extend(bias.iter().flat_map(|b| b.to_le_bytes()));
        blob.extend(multipliers.iter().flat_map(|m| m.to_le_bytes()));
        blob
    }
}

#[cfg(feature = "std")]
fn pack_blocks(packing: Packing, weights: &[i8], bias: &[i32], multipliers: &[i32]) -> Vec<u8> {
    let rows = bias.len();
    let cols = weights.len().checked_div(rows).unwrap_or(0);
    let mut blob = Vec::new();
    for first in (0..rows).step_by(BLOCK_ROWS) {
        let start = blob.len();
        blob.resize(start + cols.div_ceil(TILE_COLS) * TILE_LEN, 0);
        for row in 0..BLOCK_ROWS {
            let Strides { first: offset, tile, col, flip } = packing.strides(row);
            for c in 0..cols.next_multiple_of(TILE_COLS) {
                let is_weight = c < cols && first + row < rows;
                let w = if is_weight { weights[(first + row) * cols + c] } else { 0 };
                blob[start + offset + c / TILE_COLS * tile + c % TILE_COLS * col] =
                    w.to_le_bytes()[0].wrapping_add(flip);
            }
        }
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

    fn matrix(rows: usize, cols: usize) -> (Vec<i8>, Vec<i32>, Vec<i32>) {
        let weights = (0..rows * cols).map(|i| ((i * 37) % 255) as i32 - 127).map(|w| w as i8);
        let constants = |k| (0..rows as i32).map(|r| r * k - 3).collect();
        (weights.collect(), constants(1001), constants(77))
    }

    #[test]
    fn every_packing_gives_back_what_was_packed() {
        for (layout, rows) in Layout::ALL.into_iter().flat_map(|l| (1..10).map(move |r| (l, r))) {
            for cols in 1..14 {
                let (weights, bias, multipliers) = matrix(rows, cols);
                let blob = LinearInt::pack(layout, &weights, &bias, &multipliers);
                assert_eq!(Some(blob.len()), linear_i8_len(layout, rows, cols));
                let blob = crate::AlignedBytes::from(&blob[..]);
                let linear = LinearInt::read(Packing::of(layout), rows, cols, &blob);
                for row in 0..rows {
                    let expected = &weights[row * cols..(row + 1) * cols];
                    assert!(linear.row(row).eq(expected.iter().copied()), "{layout:?} {row}");
                    assert_eq!(linear.constants(row), (bias[row], multipliers[row]));
                    for begun in 0..=cols {
                        let mut copy = [99; 16];
                        linear.copy_weights(row, begun, &mut copy);
                        assert_eq!(copy[..cols - begun], expected[begun..], "{layout:?} {row}");
                        assert!(copy[cols - begun..].iter().all(|&w| w == 99));
                    }
                }
                assert_eq!(linear.row(rows).count(), 0);
            }
        }
    }

    /// Rows of all lengths about that at which sums of 16 bits are full, with weights of all magnitudes,
    /// one of them out of range.
    #[test]
    fn magnitudes_are_those_of_the_weights() {
        let shapes = (1..10).flat_map(|rows| (1..14).map(move |cols| (rows, cols)));
        for (rows, cols) in shapes.chain([(3, 1019), (4, 1020), (5, 1021), (6, 4099)]) {
            let (_, bias, multipliers) = matrix(rows, 1);
            for layout in Layout::ALL {
                for extreme in [127, -127] {
                    let mut weights: Vec<i8> = matrix(rows, cols).0;
                    weights[..cols].fill(extreme);
                    let blob = LinearInt::pack(layout, &weights, &bias, &multipliers);
                    let blob = crate::AlignedBytes::from(&blob[..]);
                    let linear = LinearInt::read(Packing::of(layout), rows, cols, &blob);
                    for first in (0..rows).step_by(BLOCK_ROWS) {
                        let sums = linear.magnitudes(first).unwrap();
                        for (row, sum) in (first..rows).zip(sums) {
                            let row = &weights[row * cols..(row + 1) * cols];
                            let expected: u32 =
                                row.iter().map(|w| u32::from(w.unsigned_abs())).sum();
                            assert_eq!(sum, expected, "{layout:?} {rows}x{cols}");
                        }
                    }
                }
                for bad in [0, rows * cols / 2, rows * cols - 1] {
                    let mut weights = matrix(rows, cols).0;
                    weights[bad] = -128;
                    let blob = LinearInt::pack(layout, &weights, &bias, &multipliers);
                    let blob = crate::AlignedBytes::from(&blob[..]);
                    let linear = LinearInt::read(Packing::of(layout), rows, cols, &blob);
                    let row = bad / cols;
                    assert_eq!(
                        linear.magnitudes(row & !3),
                        Err(row % 4),
                        "{layout:?} {rows}x{cols}"
                    );
                }
            }
        }
    }

    #[test]
    fn tiles_are_as_the_format_says() {
        // Row r, column c is 16 r + c.
        let weights: Vec<i8> = (0..4).flat_map(|r| (0..4).map(move |c| 16 * r + c)).collect();
        let blob = |layout| LinearInt::pack(layout, &weights, &[0; 4], &[0; 4]);
        let paired = blob(Layout::PairedRows);
        assert_eq!(paired[..8], [128, 16, 129, 17, 130, 18, 131, 19]);
        assert_eq!(paired[8..16], [160, 48, 161, 49, 162, 50, 163, 51]);
        let quad = blob(Layout::QuadRows);
        assert_eq!(quad[..8], [128, 144, 160, 176, 129, 145, 161, 177]);
    }
}
