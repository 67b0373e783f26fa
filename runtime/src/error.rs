//! Why nothing runs.

use core::fmt;

use crate::search::OptionsError;
use crate::tokenizer::{EncodeError, TokenId};

/// The arena is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ArenaTooSmall {
    /// Bytes needed in all.
    pub needed: usize,
    /// Bytes given.
    pub given: usize,
}

/// Why nothing could be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RunError {
    /// The text.
    Encode(EncodeError),
    /// An id outside its vocabulary.
    IdOutOfRange {
        /// Its place.
        index: usize,
        /// The id.
        id: TokenId,
        /// Size of the vocabulary.
        vocab: u16,
    },
    /// Padding, which a device has no use for; in a prompt or prefix also the start id.
    SpecialId {
        /// Its place.
        index: usize,
        /// The id.
        id: TokenId,
    },
    /// A prompt or prefix leaves no room for what follows.
    PrefixTooLong {
        /// Its ids.
        len: usize,
        /// Ids that it may have; 0 where the model takes no prefix.
        limit: usize,
    },
    /// The buffer for the text is full; the next symbol is not in it.
    BufferFull {
        /// Bytes of the buffer.
        capacity: usize,
    },
}

/// Why a generation cannot choose in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SearchError {
    /// An option that is out of range.
    Options(OptionsError),
    /// More beams than the session has memory for; constraints and sampling need 1, see
    /// [`Limits::beams`](crate::Limits::beams).
    TooFewBeams {
        /// Beams needed.
        needed: u16,
        /// Beams of the session.
        planned: u16,
    },
    /// The first id was computed already.
    Begun,
}

/// The budget is too small for the largest unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BudgetTooSmall {
    /// Multiply-accumulates needed: [`Plan::smallest_budget`](crate::Plan::smallest_budget).
    pub needed: u32,
    /// Multiply-accumulates given.
    pub given: u32,
}

impl fmt::Display for ArenaTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the arena has {} bytes and needs {}", self.given, self.needed)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(error) => error.fmt(f),
            Self::IdOutOfRange { index, id, vocab } => {
                write!(f, "id {id} (number {}) is not below {vocab}", index + 1)
            }
            Self::SpecialId { index, id } => write!(
                f,
                "id {id} (number {}) is padding or the start id, which no input has",
                index.saturating_add(1)
            ),
            Self::PrefixTooLong { len, limit } => {
                write!(f, "a prompt or prefix of {len} ids is too long, the limit is {limit}")
            }
            Self::BufferFull { capacity } => {
                write!(f, "the answer does not fit into {capacity} bytes")
            }
        }
    }
}

impl fmt::Display for BudgetTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, given } = self;
        write!(f, "the budget is {given} multiply-accumulates, the largest unit needs {needed}")
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(error) => error.fmt(f),
            Self::TooFewBeams { needed, planned } => {
                write!(f, "{needed} beams are asked for, the session was planned with {planned}")
            }
            Self::Begun => f.write_str("the generation has begun with another choice"),
        }
    }
}

impl core::error::Error for SearchError {}
impl core::error::Error for ArenaTooSmall {}
impl core::error::Error for RunError {}
impl core::error::Error for BudgetTooSmall {}
