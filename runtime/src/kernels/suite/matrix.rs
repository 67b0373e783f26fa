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

/// Groups of the widest matrix of 4 bits.
const GROUPS: usize = MAX_COLS.div_ceil(16);

/// All packings; the last one changes the weights.
pub const PACKINGS: [Packing; 4] =
    [Packing::RowMajor, Packing::PairedRows, Packing::QuadRows, Packing::Nibbles];

/// Bytes that start on a multiple of 16, as those of a file do.
#[repr(C, align(16))]
struct Aligned([i8; CAPACITY]);

pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    weights: [i8; MAX_ROWS * MAX_COLS],
    /// Of weights of 4 bits, by row and group.
    factors: [[i8; GROUPS]; MAX_ROWS],
    /// Of their biases and multipliers, by block.
    shifts: [[u32; 2]; BLOCKS],
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
            factors: [[1; GROUPS]; MAX_ROWS],
            shifts: [[0; 2]; BLOCKS],
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

    /// Makes every weight the product of 4 bits and a factor, and every constant one that a shift makes
    /// of fewer bits.
    pub fn round_to_nibbles(&mut self) {
        let constants = self.bias.chunks_mut(4).zip(self.multipliers.chunks_mut(4));
        for ((biases, multipliers), shifts) in constants.zip(&mut self.shifts) {
            for bias in biases.iter_mut() {
                *bias = (*bias).clamp(-(0x7FFF << 14), 0x7FFF << 14);
            }
            for multiplier in multipliers.iter_mut() {
                *multiplier = multiplier.saturating_abs();
            }
            *shifts = [narrow(biases, 15), narrow(multipliers, 8)];
        }
        let rows = self.weights.chunks_exact_mut(self.cols).zip(&mut self.factors).take(self.rows);
        for (row, factors) in rows {
            for (group, factor) in row.chunks_mut(16).zip(factors) {
                // From 1 to 15.
                *factor = (1 + i32::from(group[0]).abs() * 14 / 127) as i8;
                for weight in group {
                    // From -7 to 7.
                    *weight = *weight / 18 * *factor;
                }
            }
        }
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
        if packing == Packing::Nibbles {
            self.pack_nibbles();
            return;
        }
        self.pack_bytes(packing);
        for row in 0..rows {
            let end = (row / 4 + 1) * block_len(packing, cols);
            let at = |list: usize| end - 32 + list * 16 + row % 4 * 4;
            self.put(at(0), self.bias[row]);
            self.put(at(1), self.multipliers[row]);
        }
    }

    fn pack_bytes(&mut self, packing: Packing) {
        let (rows, cols) = (self.rows, self.cols);
        for (row, col) in (0..rows.next_multiple_of(4))
            .flat_map(|row| (0..cols.next_multiple_of(4)).map(move |col| (row, col)))
        {
            let is_weight = row < rows && col < cols;
            let weight = if is_weight { self.weights[row * cols + col] } else { 0 };
            self.packed.0[place(packing, cols, row, col)] =
                if is_biased(packing, row) { weight.wrapping_add(-128) } else { weight };
        }
    }

    fn pack_nibbles(&mut self) {
        let (rows, cols) = (self.rows, self.cols);
        let groups = cols.div_ceil(16);
        for (row, col) in (0..rows.next_multiple_of(4))
            .flat_map(|row| (0..groups * 16).map(move |col| (row, col)))
        {
            let (block, group) = (row / 4 * block_len(Packing::Nibbles, cols), col / 16);
            let (word, i) = (block + group * 32 + col / 8 % 2 * 16 + row % 4 * 4, col % 8 / 2);
            // Column 2i is in the bits from 4i on, 2i + 1 in those from 16 + 4i on.
            let bit = 4 * i + col % 2 * 16;
            let weight = match row < rows && col < cols {
                true => self.weights[row * cols + col] / self.factors[row][group],
                false => 0,
            };
            self.packed.0[word + bit / 8] |= (weight + 8) << (bit % 8);
            if col % 16 == 0 {
                let factor = if row < rows { self.factors[row][group] } else { 1 };
                let at = block + groups * 32 + group * 2 + row % 4 / 2;
                self.packed.0[at] |= factor << (row % 2 * 4);
            }
        }
        for row in 0..rows {
            // The last 14 bytes of a block: shifts, multipliers, biases.
            let end = (row / 4 + 1) * block_len(Packing::Nibbles, cols);
            let [bias_shift, shift] = self.shifts[row / 4];
            self.packed.0[end - 14..end - 12].copy_from_slice(&[bias_shift as i8, shift as i8]);
            self.packed.0[end - 12 + row % 4] = (self.multipliers[row] >> shift) as i8;
            let bias = (self.bias[row] >> bias_shift) as i16;
            let at = end - 8 + row % 4 * 2;
            self.packed.0[at..at + 2].copy_from_slice(&bias.to_le_bytes().map(|byte| byte as i8));
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
            _ => (rows.div_ceil(4) * block_len(packing, cols), 0),
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

/// Clears the lowest bits of four numbers, so that the others are at most `bits` (without a sign); how
/// many it has cleared.
fn narrow(numbers: &mut [i32], bits: u32) -> u32 {
    let largest = numbers.iter().map(|number| number.unsigned_abs()).max().unwrap_or(0);
    let shift = (32 - largest.leading_zeros()).saturating_sub(bits);
    for number in numbers {
        *number = (*number >> shift) << shift;
    }
    shift
}

/// A tile of 16 bytes per four columns and eight constants; or 32 bytes and a halfword per group of 16
/// columns, and 14 bytes of constants that end on a multiple of 4.
fn block_len(packing: Packing, cols: usize) -> usize {
    let groups = cols.div_ceil(16);
    match packing {
        Packing::Nibbles => groups * 32 + (groups * 2 + 2).next_multiple_of(4) + 12,
        _ => cols.div_ceil(4) * 16 + 32,
    }
}

fn place(packing: Packing, cols: usize, row: usize, col: usize) -> usize {
    let tile = row / 4 * block_len(packing, cols) + col / 4 * 16;
    match packing {
        Packing::PairedRows => tile + row % 4 / 2 * 8 + col % 4 * 2 + row % 2,
        _ => tile + col % 4 * 4 + row % 4,
    }
}

fn is_biased(packing: Packing, row: usize) -> bool {
    packing == Packing::QuadRows || row.is_multiple_of(2)
}
