//! A matrix with its constants, before and after it is packed. The places of the packed weights are
//! computed from the words of the format's description, not from the code that reads them.

use model_format::layout::{LinearInt, Packing};

use super::super::ROWS;
use super::MAX_COLS;

/// Rows of the highest matrix: twice the kernels' block.
pub const MAX_ROWS: usize = 2 * ROWS;
/// Bytes that a row-major matrix is moved away from its alignment.
pub const MAX_OFFSET: usize = 3;

const BLOCKS: usize = MAX_ROWS.div_ceil(4);
const CAPACITY: usize = BLOCKS * (MAX_COLS.next_multiple_of(16) * 4 + 32) + MAX_OFFSET;

/// The packings that all builds read.
pub const PACKINGS: [Packing; 3] = [Packing::RowMajor, Packing::PairedRows, Packing::QuadRows];

/// Bytes that start on a multiple of 16, as those of a file do.
#[repr(C, align(16))]
struct Aligned([i8; CAPACITY]);

pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    weights: [i8; MAX_ROWS * MAX_COLS],
    pub bias: [i32; MAX_ROWS],
    pub multipliers: [i32; MAX_ROWS],
    packed: Aligned,
    offset: usize,
}

impl Matrix {
    pub fn new() -> Self {
        Self {
            rows: 0,
            cols: 0,
            weights: [0; MAX_ROWS * MAX_COLS],
            bias: [0; MAX_ROWS],
            multipliers: [0; MAX_ROWS],
            packed: Aligned([0; CAPACITY]),
            offset: 0,
        }
    }

    pub fn weights(&self) -> &[i8] {
        &self.weights[..self.rows * self.cols]
    }

    pub fn weights_mut(&mut self) -> &mut [i8] {
        &mut self.weights[..self.rows * self.cols]
    }

    /// Packs it; `offset` moves a row-major matrix away from its alignment.
    pub fn pack(&mut self, packing: Packing, offset: usize) {
        self.offset = if packing == Packing::RowMajor { offset } else { 0 };
        self.packed.0.fill(0);
        let (rows, cols) = (self.rows, self.cols);
        if packing == Packing::RowMajor {
            let to = &mut self.packed.0[self.offset..];
            to[..rows * cols].copy_from_slice(&self.weights[..rows * cols]);
            return;
        }
        for (row, col) in (0..rows.next_multiple_of(4))
            .flat_map(|row| (0..cols.next_multiple_of(4)).map(move |col| (row, col)))
        {
            let is_weight = row < rows && col < cols;
            let weight = if is_weight { self.weights[row * cols + col] } else { 0 };
            self.packed.0[place(packing, cols, row, col)] =
                if is_biased(packing, row) { weight.wrapping_add(-128) } else { weight };
        }
        for row in 0..rows {
            let end = (row / 4 + 1) * block_len(cols);
            let at = |list: usize| end - 32 + list * 16 + row % 4 * 4;
            self.put(at(0), self.bias[row]);
            self.put(at(1), self.multipliers[row]);
        }
    }

    fn put(&mut self, at: usize, value: i32) {
        self.packed.0[at..at + 4].copy_from_slice(&value.to_le_bytes().map(|byte| byte as i8));
    }

    /// What a model would hand out.
    pub fn linear(&self, packing: Packing) -> LinearInt<'_> {
        let Self { rows, cols, .. } = *self;
        let (len, constants) = match packing {
            Packing::RowMajor => (rows * cols, rows),
            _ => (rows.div_ceil(4) * block_len(cols), 0),
        };
        LinearInt {
            packing,
            rows,
            cols,
            data: &self.packed.0[self.offset..][..len],
            bias: &self.bias[..constants],
            multipliers: &self.multipliers[..constants],
        }
    }
}

/// A tile of 16 bytes per four columns, and eight constants.
fn block_len(cols: usize) -> usize {
    cols.div_ceil(4) * 16 + 32
}

fn place(packing: Packing, cols: usize, row: usize, col: usize) -> usize {
    let tile = row / 4 * block_len(cols) + col / 4 * 16;
    match packing {
        Packing::PairedRows => tile + row % 4 / 2 * 8 + col % 4 * 2 + row % 2,
        _ => tile + col % 4 * 4 + row % 4,
    }
}

fn is_biased(packing: Packing, row: usize) -> bool {
    packing == Packing::QuadRows || row % 2 == 0
}
