//! Choices that cannot be followed, with their numbers.

use core::fmt;

use crate::tokenizer::TokenId;

use super::q16::Q16;

/// A choice that cannot be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum OptionsError {
    /// A float that is not a number or out of the range of [`Q16`].
    NotQ16,
    /// More ids are asked for than are allowed.
    MinAboveMax {
        /// Fewest ids.
        min_len: u16,
        /// Most ids.
        max_len: u16,
    },
    /// A suppressed id outside the vocabulary.
    SuppressedOutOfRange {
        /// Its place.
        index: usize,
        /// The id.
        id: TokenId,
        /// Size of the vocabulary.
        vocab: u16,
    },
    /// A repetition penalty below 1.
    RepetitionPenalty {
        /// The penalty.
        penalty: Q16,
    },
    /// An n-gram of no ids.
    EmptyNgram,
    /// An empty list of allowed outputs.
    NothingAllowed,
    /// An allowed output with an id outside the vocabulary.
    AllowedOutOfRange {
        /// Its place in the list.
        index: usize,
        /// The id.
        id: TokenId,
        /// Size of the vocabulary.
        vocab: u16,
    },
    /// An allowed output with an id that is never produced: pad, start, end or a suppressed one.
    AllowedNeverProduced {
        /// Its place in the list.
        index: usize,
        /// The id.
        id: TokenId,
    },
    /// An allowed output that is too short or too long.
    AllowedLength {
        /// Its place in the list.
        index: usize,
        /// Its ids, end id included.
        len: usize,
        /// Fewest ids.
        min_len: u16,
        /// Most ids.
        max_len: u16,
    },
    /// An allowed output that is not above the one before it.
    AllowedNotSorted {
        /// Its place in the list.
        index: usize,
    },
    /// A temperature that is not above 0.
    Temperature {
        /// The temperature.
        temperature: Q16,
    },
    /// A number of ids to draw from that is 0 or more than there are.
    TopK {
        /// The number.
        top_k: u16,
        /// Size of the vocabulary.
        vocab: u16,
    },
    /// A mass to draw from that is not above 0 and at most 1.
    TopP {
        /// The mass.
        top_p: Q16,
    },
    /// A search with no beams.
    NoBeams,
    /// No outputs, or more than there are beams.
    NBest {
        /// The number of outputs.
        n_best: u16,
        /// The number of beams.
        beams: u16,
    },
    /// A length penalty below 0.
    LengthPenalty {
        /// The penalty.
        length_penalty: Q16,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotQ16 => f.write_str("not a number from -32768 to below 32768"),
            Self::MinAboveMax { min_len, max_len } => {
                write!(f, "at least {min_len} ids are asked for and at most {max_len}")
            }
            Self::SuppressedOutOfRange { index, id, vocab } => {
                write!(f, "suppressed id {id} (number {}) is not below {vocab}", Nth(*index))
            }
            Self::RepetitionPenalty { penalty } => {
                write!(f, "the repetition penalty is {}/65536, not at least 1", penalty.to_bits())
            }
            Self::EmptyNgram => f.write_str("an n-gram of 0 ids cannot be kept from repeating"),
            Self::NothingAllowed => f.write_str("the list of allowed outputs is empty"),
            Self::AllowedOutOfRange { index, id, vocab } => {
                write!(f, "allowed output {} has id {id}, which is not below {vocab}", Nth(*index))
            }
            Self::AllowedNeverProduced { index, id } => {
                write!(f, "allowed output {} has id {id}, which is never produced", Nth(*index))
            }
            Self::AllowedLength { index, len, min_len, max_len } => write!(
                f,
                "allowed output {} has {len} ids with its end, not {min_len} to {max_len}",
                Nth(*index)
            ),
            Self::AllowedNotSorted { index } => {
                write!(f, "allowed output {} is not above the one before it", Nth(*index))
            }
            Self::Temperature { temperature } => write!(
                f,
                "the temperature is {}/65536, not above 0; for 0 search greedily",
                temperature.to_bits()
            ),
            Self::TopK { top_k, vocab } => {
                write!(f, "top-k is {top_k}, not 1 to {vocab} as the vocabulary has")
            }
            Self::TopP { top_p } => {
                write!(f, "top-p is {}/65536, not above 0 and at most 1", top_p.to_bits())
            }
            Self::NoBeams => f.write_str("a beam search needs at least one beam"),
            Self::NBest { n_best, beams } => {
                write!(f, "{n_best} outputs are asked for, not 1 to {beams} as there are beams")
            }
            Self::LengthPenalty { length_penalty } => {
                write!(f, "the length penalty is {}/65536, below 0", length_penalty.to_bits())
            }
        }
    }
}

/// A place, counted from 1.
struct Nth(usize);

impl fmt::Display for Nth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.saturating_add(1).fmt(f)
    }
}

impl core::error::Error for OptionsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_their_numbers() {
        let error = OptionsError::SuppressedOutOfRange { index: 1, id: 10, vocab: 10 };
        assert_eq!(error.to_string(), "suppressed id 10 (number 2) is not below 10");
        let error = OptionsError::TopK { top_k: 11, vocab: 10 };
        assert_eq!(error.to_string(), "top-k is 11, not 1 to 10 as the vocabulary has");
    }
}
