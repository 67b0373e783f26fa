//! The Kiloformer model file: one postcard message that trainer and device share.
//!
//! ```text
//! write   FileBuilder -> bytes                  (feature `std`; the trainer)
//! model   bytes -> Model, checked once          (the device)
//!   check        offsets, ranges, overflow bounds
//!   vocabulary   text <-> id
//!   directory    which tensors there are, by arithmetic on the configuration
//!   formats      Q formats of the activations
//!   layout       rows in their order; the only place that packs and unpacks
//!   header       magic, version, configuration block at fixed offsets, `const`
//!     config     what a model is
//!     numeric    the one rescale
//! ```
//!
//! `FORMAT.md` beside this crate specifies every byte.
//!
//! A file that is not a model gets a typed error, and never a panic:
//!
//! ```
//! use model_format::{Model, ModelError, header::HeaderError};
//!
//! let error = Model::from_bytes(b"GIF89a").unwrap_err();
//! assert_eq!(error, ModelError::Header(HeaderError::TooShort { len: 6 }));
//! ```
#![cfg_attr(not(any(feature = "std", test)), no_std)]

pub mod config;
pub mod directory;
pub mod formats;
pub mod header;
pub mod layout;
pub mod numeric;

mod check;
mod envelope;
mod error;
mod model;
#[cfg(feature = "std")]
mod processor;
#[cfg(feature = "std")]
mod repack;
mod vocabulary;
#[cfg(feature = "std")]
mod write;

pub use check::residual_multiplier;
pub use error::{ModelError, Side, TensorFault, VocabularyFault};
pub use model::{ALIGN, Checks, Model, NormF16, NormI32};
#[cfg(feature = "std")]
pub use processor::Processor;
#[cfg(feature = "std")]
pub use repack::repack;
pub use vocabulary::Vocabulary;
#[cfg(feature = "std")]
pub use write::{AlignedBytes, FileBuilder};

/// `char::to_lowercase`, which trainer and device share where a file folds case; without feature
/// `unicode-case` that of characters which become ASCII by it, and no table.
///
/// That is enough for a vocabulary of ASCII, in which a symbol with anything else is unknown either way;
/// or too long either way, but for those whose length folding would change about the limit.
pub fn fold_case(c: char) -> impl Iterator<Item = char> {
    #[cfg(feature = "unicode-case")]
    return c.to_lowercase();
    #[cfg(not(feature = "unicode-case"))]
    core::iter::once(fold_to_ascii(c))
}

/// The lower case of `c` where that is ASCII, else `c`.
#[cfg(any(test, not(feature = "unicode-case")))]
const fn fold_to_ascii(c: char) -> char {
    const KELVIN_SIGN: char = '\u{212A}';
    if c == KELVIN_SIGN { 'k' } else { c.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_without_a_table_is_that_of_unicode_in_ascii() {
        for c in '\0'..=char::MAX {
            let folded = c.to_lowercase();
            match folded.clone().all(|folded| folded.is_ascii()) {
                true => assert!(folded.eq([fold_to_ascii(c)]), "{c:?}"),
                false => assert_eq!(fold_to_ascii(c), c),
            }
        }
    }
}
