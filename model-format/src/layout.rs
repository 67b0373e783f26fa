//! How the rows of a matrix lie in the file, and the only place that packs and unpacks them.
//!
//! A linear tensor is one blob: its weights in the layout's order, then what the epilogue needs,
//! in rows: for `i8` weights the biases (`i32`, in units of the accumulator) and the multipliers
//! (`i32`), for `f16` weights the biases (`f16`).

/// The order of a matrix's weights, a field of the file.
///
/// Codes 1 and 2 are reserved for paired rows (DSP cores) and quad rows (cores with only a 32-bit
/// multiply).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Layout {
    /// Row after row, `[rows, cols]`.
    RowMajor,
}

impl Layout {
    /// The layout with this code in the file.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::RowMajor),
            _ => None,
        }
    }

    /// The code of this layout in the file.
    pub const fn code(self) -> u8 {
        match self {
            Self::RowMajor => 0,
        }
    }
}

/// Rounds up to a multiple of 4, where the epilogue's words begin; `None` on overflow.
const fn align4(len: usize) -> Option<usize> {
    match len.checked_add(3) {
        Some(len) => Some(len & !3),
        None => None,
    }
}

/// Length of the blob of an `i8` linear tensor; `None` where it overflows.
pub const fn linear_i8_len(rows: usize, cols: usize) -> Option<usize> {
    let (Some(weights), Some(epilogue)) = (rows.checked_mul(cols), rows.checked_mul(8)) else {
        return None;
    };
    match align4(weights) {
        Some(weights) => weights.checked_add(epilogue),
        None => None,
    }
}

/// Length of the blob of an `f16` linear tensor; `None` where it overflows.
pub const fn linear_f16_len(rows: usize, cols: usize) -> Option<usize> {
    let (Some(weights), Some(bias)) = (rows.checked_mul(cols), rows.checked_mul(2)) else {
        return None;
    };
    match weights.checked_mul(2) {
        Some(weights) => weights.checked_add(bias),
        None => None,
    }
}

/// An `i8` matrix with its epilogue, read in place.
///
/// `weights` is `[rows, cols]` in [`Layout`] order, `bias` and `multipliers` are `[rows]`:
/// `out[r] = rescale(bias[r] + sum(w[r, c] * x[c]), multipliers[r])`.
#[derive(Debug, Clone, Copy)]
pub struct LinearI8<'a> {
    /// Order of `weights`.
    pub layout: Layout,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs).
    pub cols: usize,
    /// The weights, in [-127, 127].
    pub weights: &'a [i8],
    /// Biases, in units of the accumulator.
    pub bias: &'a [i32],
    /// Multipliers of [`rescale`](crate::numeric::rescale).
    pub multipliers: &'a [i32],
}

impl<'a> LinearI8<'a> {
    /// Takes the parts of a blob; empty parts where the blob is too short.
    pub(crate) fn read(layout: Layout, rows: usize, cols: usize, blob: &'a [u8]) -> Self {
        let (weights, epilogue) = split(blob, align4(rows * cols).unwrap_or(0));
        let (bias, multipliers) = split(epilogue, rows * 4);
        Self {
            layout,
            rows,
            cols,
            weights: cast(weights).get(..rows * cols).unwrap_or_default(),
            bias: cast(bias),
            multipliers: cast(multipliers),
        }
    }

    /// Row `row` of a [`Layout::RowMajor`] matrix, `[cols]`; empty past the last row.
    pub fn row(&self, row: usize) -> &'a [i8] {
        let start = row.saturating_mul(self.cols);
        self.weights.get(start..start.saturating_add(self.cols)).unwrap_or_default()
    }

    /// Packs a matrix: `weights` is `[rows, cols]`, `bias` and `multipliers` are `[rows]`.
    #[cfg(feature = "std")]
    pub fn pack(_layout: Layout, weights: &[i8], bias: &[i32], multipliers: &[i32]) -> Vec<u8> {
        let mut blob: Vec<u8> = weights.iter().map(|w| w.to_le_bytes()[0]).collect();
        blob.resize(blob.len().next_multiple_of(4), 0);
        blob.extend(bias.iter().flat_map(|b| b.to_le_bytes()));
        blob.extend(multipliers.iter().flat_map(|m| m.to_le_bytes()));
        blob
    }
}

/// An `f16` matrix with its bias, read in place; bit patterns of IEEE 754 binary16.
///
/// `weights` is `[rows, cols]` in [`Layout`] order, `bias` is `[rows]`.
#[derive(Debug, Clone, Copy)]
pub struct LinearF16<'a> {
    /// Order of `weights`.
    pub layout: Layout,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs).
    pub cols: usize,
    /// The weights, all finite.
    pub weights: &'a [u16],
    /// Biases.
    pub bias: &'a [u16],
}

impl<'a> LinearF16<'a> {
    /// Takes the parts of a blob; empty parts where the blob is too short.
    pub(crate) fn read(layout: Layout, rows: usize, cols: usize, blob: &'a [u8]) -> Self {
        let (weights, bias) = split(blob, rows * cols * 2);
        Self { layout, rows, cols, weights: cast(weights), bias: cast(bias) }
    }

    /// Row `row` of a [`Layout::RowMajor`] matrix, `[cols]`; empty past the last row.
    pub fn row(&self, row: usize) -> &'a [u16] {
        let start = row.saturating_mul(self.cols);
        self.weights.get(start..start.saturating_add(self.cols)).unwrap_or_default()
    }

    /// Packs a matrix: `weights` is `[rows, cols]`, `bias` is `[rows]`.
    #[cfg(feature = "std")]
    pub fn pack(_layout: Layout, weights: &[half::f16], bias: &[half::f16]) -> Vec<u8> {
        weights.iter().chain(bias).flat_map(|w| w.to_bits().to_le_bytes()).collect()
    }
}

/// `blob` at `at`, or all of it and nothing.
pub(crate) fn split(blob: &[u8], at: usize) -> (&[u8], &[u8]) {
    blob.split_at_checked(at).unwrap_or((blob, &[]))
}

/// Bytes as numbers, in place; empty where alignment or length forbid it, which the check of the
/// file has excluded.
pub(crate) fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}
