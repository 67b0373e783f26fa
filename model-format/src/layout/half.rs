//! Matrices of `f16`.

use super::{Layout, cast, split};

/// Rows of a block of [`Layout::SixteenRows`].
pub const ROWS16_BLOCK: usize = 16;

/// Length of the blob of an `f16` linear tensor; `None` where it overflows.
pub const fn linear_f16_len(layout: Layout, rows: usize, cols: usize) -> Option<usize> {
    let rows = match layout {
        Layout::SixteenRows => match rows.checked_next_multiple_of(ROWS16_BLOCK) {
            Some(rows) => rows,
            None => return None,
        },
        _ => rows,
    };
    let Some(numbers) = rows.checked_mul(cols.saturating_add(1)) else {
        return None;
    };
    numbers.checked_mul(2)
}

/// An `f16` matrix with its bias, read in place; bit patterns of IEEE 754 binary16.
#[derive(Debug, Clone, Copy)]
pub struct LinearF16<'a> {
    /// Order of the weights.
    pub layout: Layout,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs).
    pub cols: usize,
    /// Row-major: the weights, `[rows, cols]`. Sixteen rows: blocks of `[cols, 16]` weights and 16
    /// biases, zeros past the last row. All finite.
    pub data: &'a [u16],
    /// Row-major: biases, `[rows]`.
    pub bias: &'a [u16],
}

impl<'a> LinearF16<'a> {
    /// Takes the parts of a blob; empty parts where the blob is too short.
    pub(crate) fn read(layout: Layout, rows: usize, cols: usize, blob: &'a [u8]) -> Self {
        let (weights, bias) = match layout {
            Layout::SixteenRows => (blob, &[][..]),
            _ => split(blob, rows * cols * 2),
        };
        Self { layout, rows, cols, data: cast(weights), bias: cast(bias) }
    }

    /// Numbers of a block; of a row where there are no blocks.
    pub const fn block_len(&self) -> usize {
        match self.layout {
            Layout::SixteenRows => ROWS16_BLOCK.saturating_mul(self.cols.saturating_add(1)),
            _ => self.cols,
        }
    }

    /// The weights of row `row`; none past the last.
    pub fn row(&self, row: usize) -> impl Iterator<Item = u16> + use<'a> {
        let cols = if row < self.rows { self.cols } else { 0 };
        let (start, step) = match self.layout {
            Layout::SixteenRows => {
                let block = (row / ROWS16_BLOCK).saturating_mul(self.block_len());
                (block.saturating_add(row % ROWS16_BLOCK), ROWS16_BLOCK)
            }
            _ => (row.saturating_mul(self.cols), 1),
        };
        self.data.get(start..).unwrap_or_default().iter().step_by(step).take(cols).copied()
    }

    /// Bias of row `row`; 0 past the last.
    pub fn row_bias(&self, row: usize) -> u16 {
        let (list, at) = match self.layout {
            Layout::SixteenRows => {
                let end = (row / ROWS16_BLOCK).saturating_add(1).saturating_mul(self.block_len());
                (self.data, end.saturating_sub(ROWS16_BLOCK).saturating_add(row % ROWS16_BLOCK))
            }
            _ => (self.bias, row),
        };
        list.get(at).copied().unwrap_or(0)
    }

    /// Packs a matrix: `weights` is `[rows, cols]`, `bias` is `[rows]`.
    #[cfg(feature = "std")]
    pub fn pack(layout: Layout, weights: &[half::f16], bias: &[half::f16]) -> Vec<u8> {
        let bytes = |w: &half::f16| w.to_bits().to_le_bytes();
        if layout != Layout::SixteenRows {
            return weights.iter().chain(bias).flat_map(bytes).collect();
        }
        let cols = weights.len().checked_div(bias.len()).unwrap_or(0);
        let mut blob = Vec::new();
        for first in (0..bias.len()).step_by(ROWS16_BLOCK) {
            let rows = first..first + ROWS16_BLOCK;
            for col in 0..cols {
                let weight = |row: usize| weights.get(row * cols + col).map_or([0; 2], bytes);
                blob.extend(rows.clone().flat_map(weight));
            }
            blob.extend(rows.flat_map(|row| bias.get(row).map_or([0; 2], bytes)));
        }
        blob
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn every_layout_gives_back_what_was_packed() {
        for layout in [Layout::RowMajor, Layout::SixteenRows] {
            for (rows, cols) in (1..40).flat_map(|rows| (1..4).map(move |cols| (rows, cols))) {
                let half = |i: usize| half::f16::from_bits(i as u16 + 1);
                let weights: Vec<_> = (0..rows * cols).map(half).collect();
                let bias: Vec<_> = (0..rows).map(|i| half(1000 + i)).collect();
                let blob = LinearF16::pack(layout, &weights, &bias);
                assert_eq!(Some(blob.len()), linear_f16_len(layout, rows, cols));
                let blob = crate::AlignedBytes::from(&blob[..]);
                let linear = LinearF16::read(layout, rows, cols, &blob);
                for row in 0..rows {
                    let expected = weights[row * cols..(row + 1) * cols].iter();
                    assert!(linear.row(row).eq(expected.map(|w| w.to_bits())));
                    assert_eq!(linear.row_bias(row), bias[row].to_bits());
                }
                assert_eq!(linear.row(rows).count(), 0);
            }
        }
    }
}
