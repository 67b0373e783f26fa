//! Why a file is refused.

use core::fmt;

use crate::directory::Slot;
use crate::header::HeaderError;

/// Why [`Model::from_bytes`](crate::Model::from_bytes) refuses a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ModelError {
    /// The start of the file.
    Header(HeaderError),
    /// The file ends before its parts do, or a length in it is no number.
    Truncated {
        /// Bytes given.
        len: usize,
    },
    /// Bytes follow the end of the model.
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// The slice does not start on a multiple of [`ALIGN`](crate::ALIGN);
    /// `include_model!` and `AlignedBytes` give one that does.
    Misaligned {
        /// Its address modulo [`ALIGN`](crate::ALIGN).
        offset: usize,
    },
    /// The weights do not start on a multiple of [`ALIGN`](crate::ALIGN) of the file.
    MisplacedWeights {
        /// Their offset in the file.
        offset: usize,
    },
    /// The bytes are not those that were written.
    Checksum {
        /// CRC-32 that the file states.
        stored: u32,
        /// CRC-32 of its bytes.
        computed: u32,
    },
    /// Integer models take at most 512 positions.
    TooLong {
        /// Length limit of the file.
        len: u16,
    },
    /// A tensor of the directory.
    Tensor(Slot, TensorFault),
    /// An activation format.
    Format {
        /// Its index in the list of formats.
        index: usize,
    },
    /// The number of bytes of a list differs from what the configuration asks for.
    ListLength {
        /// Bytes the configuration asks for.
        expected: usize,
        /// Bytes in the file.
        found: usize,
    },
    /// A vocabulary.
    Vocabulary(Side, VocabularyFault),
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum TensorFault {
    /// A kind that the configuration does not ask for.
    Kind {
        /// Code in the file.
        found: u8,
    },
    /// A kind that a build with more features reads.
    Unread {
        /// The feature that this one lacks.
        feature: &'static str,
    },
    /// A shape that the configuration does not ask for.
    Shape {
        /// `[rows, cols]` in the file.
        found: [u16; 2],
        /// `[rows, cols]` that the configuration asks for.
        expected: [u16; 2],
    },
    /// A length that does not fit the shape.
    Length {
        /// Bytes in the file.
        found: u32,
    },
    /// An offset that is not aligned, overlaps the tensor before or leaves the file.
    Offset {
        /// Offset in the weights.
        found: u32,
    },
    /// A weight of -128, in 4 bits one of -8 or a factor of 0 or padding that is not as it should be, or
    /// an `f16` that is no finite number.
    Weight {
        /// Its row.
        row: usize,
    },
    /// A row whose sum could leave `i32`.
    Overflow {
        /// The row.
        row: usize,
    },
    /// A multiplier, a bias or a constant outside its range.
    Constant {
        /// Its index.
        index: usize,
    },
}

/// The two languages of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Side {
    /// What the encoder reads.
    Source,
    /// What the decoder writes.
    Target,
}

/// What is wrong with a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum VocabularyFault {
    /// Shorter than its entries.
    Truncated,
    /// Bytes follow it.
    TrailingBytes,
    /// An entry whose text is not inside the blob.
    Range {
        /// Id of the entry.
        id: u16,
    },
    /// An entry that is no UTF-8.
    Utf8 {
        /// Id of the entry.
        id: u16,
    },
    /// The sorted index does not ascend strictly, or names an id twice.
    Order {
        /// Place in the index.
        index: u16,
    },
}

impl ModelError {
    /// The feature without which this build does not read the file; `None` where none would help.
    pub const fn missing_feature(&self) -> Option<&'static str> {
        match self {
            Self::Header(HeaderError::Unread { feature })
            | Self::Tensor(_, TensorFault::Unread { feature }) => Some(feature),
            _ => None,
        }
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(e) => e.fmt(f),
            Self::Truncated { len } => {
                write!(f, "the model is cut short: {len} bytes are not all of it")
            }
            Self::TrailingBytes { count } => write!(f, "{count} bytes follow the end of the model"),
            Self::Misaligned { offset } => write!(
                f,
                "the model lies {offset} bytes past a multiple of {}; use include_model! or AlignedBytes",
                crate::ALIGN
            ),
            Self::MisplacedWeights { offset } => {
                write!(f, "the weights start at {offset}, no multiple of {}", crate::ALIGN)
            }
            Self::Checksum { stored, computed } => {
                write!(f, "damaged file: its CRC-32 should be {stored:08x} and is {computed:08x}")
            }
            Self::TooLong { len } => write!(
                f,
                "an integer model takes at most {} positions, this one asks for {len}",
                crate::config::MAX_FIXED_LEN
            ),
            Self::Tensor(slot, fault) => write!(f, "tensor {slot}: {fault}"),
            Self::Format { index } => write!(f, "activation format {index} is out of range"),
            Self::ListLength { expected, found } => {
                write!(f, "a list has {found} bytes where the configuration asks for {expected}")
            }
            Self::Vocabulary(side, fault) => write!(f, "{side:?} vocabulary: {fault:?}"),
        }
    }
}

impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind { found } => write!(f, "kind {found} does not belong here"),
            Self::Unread { feature } => write!(f, "this build lacks feature `{feature}`"),
            Self::Shape { found, expected } => {
                write!(f, "shape {found:?} where the configuration asks for {expected:?}")
            }
            Self::Length { found } => write!(f, "{found} bytes do not fit its shape"),
            Self::Offset { found } => {
                write!(f, "offset {found} is not aligned, overlaps or leaves the file")
            }
            Self::Weight { row } => write!(f, "row {row} has a weight out of range"),
            Self::Overflow { row } => write!(f, "the sum of row {row} could overflow"),
            Self::Constant { index } => write!(f, "constant {index} is out of range"),
        }
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { len } => write!(f, "{len} bytes are too short for a model"),
            Self::NotAModel => write!(f, "not a Kiloformer model"),
            Self::UnsupportedVersion { found } => write!(
                f,
                "format version {found}; this build reads version {}",
                crate::header::VERSION
            ),
            Self::Config(field) => write!(f, "configuration field {field:?} is out of range"),
            Self::Unread { feature } => {
                write!(f, "the file needs feature `{feature}`, which this build lacks")
            }
        }
    }
}

impl core::error::Error for HeaderError {}
impl core::error::Error for ModelError {}
