//! How the rows of a matrix lie in the file, and the only place that packs and unpacks them.
//!
//! ```text
//! int       integer weights with biases and multipliers: LinearInt
//!   nibbles     those of 4 bits
//!   magnitudes  what the check of a file adds up
//! half      f16 weights with biases: LinearF16
//! ```

mod half;
mod int;
mod magnitudes;
mod nibbles;

pub use half::{LinearF16, ROWS16_BLOCK, linear_f16_len};
pub use int::{BLOCK_ROWS, LinearInt, Packing, TILE_COLS, TILE_LEN, linear_i4_len, linear_i8_len};
pub use nibbles::{
    GROUP_COLS, Group, MAX_BIAS_SHIFT, MAX_FACTOR, MAX_MULTIPLIER_SHIFT, MAX_NIBBLE, Nibbles,
};
#[cfg(feature = "std")]
pub use nibbles::{pack_nibbles, round_biases, round_multipliers};

use crate::config::Precision;

/// The order of a matrix's weights, a field of the file.
///
/// Every build with feature `layouts` reads every one; each is the fast one of some processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Layout {
    /// Row after row, `[rows, cols]`, for processors that add up a vector register.
    RowMajor,
    /// Tiles of four rows, two of them in a halfword, for Cortex-M4, M7 and M33; integer files.
    PairedRows,
    /// Tiles of four rows in a word, for processors with only a 32-bit multiplication; integer files.
    QuadRows,
    /// Sixteen rows side by side, for processors with vectors of floats; HalfFloat files.
    SixteenRows,
}

impl Layout {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 4] =
        [Self::RowMajor, Self::PairedRows, Self::QuadRows, Self::SixteenRows];

    /// The layout with this code in the file.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::RowMajor),
            1 => Some(Self::PairedRows),
            2 => Some(Self::QuadRows),
            3 => Some(Self::SixteenRows),
            _ => None,
        }
    }

    /// The code of this layout in the file.
    pub const fn code(self) -> u8 {
        match self {
            Self::RowMajor => 0,
            Self::PairedRows => 1,
            Self::QuadRows => 2,
            Self::SixteenRows => 3,
        }
    }

    /// Whether this build reads it, in files of this precision.
    pub const fn is_read(self, precision: Precision) -> bool {
        match (precision, ONLY_LAYOUT) {
            (Precision::FixedPoint, Some(only)) => only.code() == self.code(),
            _ => true,
        }
    }

    /// Whether files of this precision can have this layout.
    pub const fn suits(self, precision: Precision) -> bool {
        match self {
            Self::RowMajor => true,
            Self::PairedRows | Self::QuadRows => matches!(precision, Precision::FixedPoint),
            Self::SixteenRows => matches!(precision, Precision::HalfFloat),
        }
    }
}

/// The one layout of integer matrices that a build without feature `layouts` reads; `None` where it reads
/// all of them.
pub const ONLY_LAYOUT: Option<Layout> = if cfg!(feature = "layouts") {
    None
} else if cfg!(kiloformer_layout = "paired-rows") {
    Some(Layout::PairedRows)
} else if cfg!(kiloformer_layout = "quad-rows") {
    Some(Layout::QuadRows)
} else {
    None
};

/// `blob` at `at`, or all of it and nothing.
pub(crate) fn split(blob: &[u8], at: usize) -> (&[u8], &[u8]) {
    blob.split_at_checked(at).unwrap_or((blob, &[]))
}

/// Bytes as numbers, in place; empty where alignment or length forbid it, which the check of the
/// file has excluded.
pub(crate) fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}
