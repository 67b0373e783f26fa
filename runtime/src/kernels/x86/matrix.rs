//! What the kernels of x86-64 read and write, its lengths checked.

use model_format::layout::{BLOCK_ROWS, GROUP_COLS, LinearInt, Packing, TILE_COLS, TILE_LEN};

use super::ROWS;
use crate::kernels::Input;

/// Bytes of the biases and multipliers of a block of bytes.
pub const CONSTANTS_LEN: usize = BLOCK_ROWS * 8;
/// The last bytes of a block of weights of 4 bits: two that are not looked at; the shift of the biases and
/// that of the multipliers; four multipliers, of a byte; four biases, of two.
pub const PADDED_CONSTANTS_LEN: usize = 4 + BLOCK_ROWS + 2 * BLOCK_ROWS;
/// Bytes of a group of weights of 4 bits.
pub const GROUP_LEN: usize = BLOCK_ROWS * GROUP_COLS / 2;
/// Tiles that a group is unpacked into.
pub const GROUP_TILES: usize = GROUP_COLS / TILE_COLS;

/// A matrix whose parts are as long as its sizes say, with an input of as many columns.
#[derive(Clone, Copy)]
pub struct Matrix<'m> {
    linear: &'m LinearInt<'m>,
    block_len: usize,
}

impl<'m> Matrix<'m> {
    /// `None` where a part is shorter than its sizes say, or `input` is not made for it.
    pub fn new(linear: &'m LinearInt<'m>, input: &Input<'_>) -> Option<Self> {
        let &LinearInt { packing, rows, cols, data, bias, multipliers } = linear;
        let block_len = linear.block_len();
        let (units, constants) = match packing {
            Packing::RowMajor => (rows, rows),
            _ => (rows.div_ceil(BLOCK_ROWS), 0),
        };
        let is_whole = units.checked_mul(block_len).is_some_and(|len| len <= data.len())
            && constants <= bias.len()
            && constants <= multipliers.len();
        let has_input = input.cols == cols
            && cols > 0
            && rows > 0
            && input.tokens.checked_mul(cols).is_some_and(|len| len <= input.x.len());
        (is_whole && has_input).then_some(Self { linear, block_len })
    }

    pub fn packing(&self) -> Packing {
        self.linear.packing
    }

    pub fn rows(&self) -> usize {
        self.linear.rows
    }

    pub fn cols(&self) -> usize {
        self.linear.cols
    }

    /// Tiles of a block of rows.
    pub fn tiles(&self) -> usize {
        self.linear.cols.div_ceil(BLOCK_ROWS)
    }

    /// Groups of columns of weights of 4 bits.
    pub fn groups(&self) -> usize {
        self.linear.cols.div_ceil(GROUP_COLS)
    }

    /// Bytes of a block.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Bytes of a block of bytes before its constants.
    pub fn weights_len(&self) -> usize {
        self.block_len - CONSTANTS_LEN
    }

    /// How many of the [`ROWS`] rows from `first` on there are; at least one of `first < rows`.
    pub fn count(&self, first: usize) -> usize {
        self.linear.rows.saturating_sub(first).min(ROWS)
    }

    /// The starts of the rows from `first < rows` on, row-major; the last is repeated where there are
    /// no more.
    #[inline(always)]
    pub fn row_starts(&self, first: usize) -> [*const i8; ROWS] {
        let last = self.linear.rows - 1;
        let start = |row: usize| {
            self.linear.data.as_ptr().wrapping_add((first + row).min(last) * self.linear.cols)
        };
        core::array::from_fn(start)
    }

    /// The starts of the four blocks from that of `first < rows` on; the last is repeated where there
    /// are no more.
    #[inline(always)]
    pub fn block_starts(&self, first: usize) -> [*const i8; ROWS / BLOCK_ROWS] {
        let last = (self.linear.rows - 1) / BLOCK_ROWS;
        let start = |block: usize| {
            let block = (first / BLOCK_ROWS + block).min(last);
            self.linear.data.as_ptr().wrapping_add(block * self.block_len)
        };
        core::array::from_fn(start)
    }

    /// Starts of the biases and of the multipliers from `first < rows` on, row-major.
    pub fn constants(&self, first: usize) -> [*const i32; 2] {
        [self.linear.bias, self.linear.multipliers].map(|list| list.as_ptr().wrapping_add(first))
    }
}

/// Where the bytes of a tile go, so that a register holds two columns of each row as `i16`: what is
/// added to them modulo 256 by an exclusive or, and for columns 0 and 1, then 2 and 3, of each row
/// which byte becomes the upper one of a halfword.
pub struct Unpacking {
    pub flip: [u8; TILE_LEN],
    pub upper: [[u8; TILE_LEN]; 2],
}

impl Unpacking {
    /// That of a packing; row-major tiles are four bytes of four rows, one after the other.
    pub const fn of(packing: Packing) -> &'static Self {
        const ROW_MAJOR: Unpacking = Unpacking::new(Packing::RowMajor);
        const PAIRED: Unpacking = Unpacking::new(Packing::PairedRows);
        const QUAD: Unpacking = Unpacking::new(Packing::QuadRows);
        match packing {
            Packing::RowMajor => &ROW_MAJOR,
            Packing::PairedRows => &PAIRED,
            Packing::QuadRows | Packing::Nibbles => &QUAD,
        }
    }

    const fn new(packing: Packing) -> Self {
        let mut unpacking = Self { flip: [0; TILE_LEN], upper: [[0x80; TILE_LEN]; 2] };
        let mut row = 0;
        while row < BLOCK_ROWS {
            let mut col = 0;
            while col < 4 {
                let (at, flip) = match packing {
                    Packing::RowMajor => (4 * row + col, 0),
                    Packing::PairedRows => {
                        (row / 2 * 8 + 2 * col + row % 2, if row % 2 == 0 { 0x80 } else { 0 })
                    }
                    Packing::QuadRows | Packing::Nibbles => (4 * col + row, 0x80),
                };
                unpacking.flip[at] = flip;
                unpacking.upper[col / 2][4 * row + 2 * (col % 2) + 1] = at as u8;
                col += 1;
            }
            row += 1;
        }
        unpacking
    }
}
