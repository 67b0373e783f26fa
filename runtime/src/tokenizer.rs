//! Text <-> ids, by the vocabulary of the file alone.

use core::fmt;

use model_format::config::{ModelConfig, Segmentation, UnknownPolicy};
use model_format::{Model, fold_case};

use crate::error::RunError;
use crate::slices::CopyFrom;

/// An id of a vocabulary.
pub type TokenId = u16;

/// Why a text cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum EncodeError {
    /// No symbol at all.
    Empty,
    /// A symbol that the vocabulary does not have, in a model that refuses them.
    UnknownSymbol {
        /// Its place, counted in symbols.
        index: usize,
        /// Its offset in the text, in bytes.
        offset: usize,
        /// Its first `char`.
        first: char,
    },
    /// More symbols than the session takes.
    TooLong {
        /// Symbols of the text.
        len: usize,
        /// Symbols that fit.
        limit: usize,
    },
    /// A symbol of more than [`MAX_SYMBOL_LEN`] bytes.
    SymbolTooLong {
        /// Its offset in the text, in bytes.
        offset: usize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the text is empty"),
            Self::UnknownSymbol { index, offset, first } => write!(
                f,
                "symbol {} (byte {offset}) starting with `{first}` (U+{:04X}) is not in the vocabulary",
                index + 1,
                u32::from(*first)
            ),
            Self::TooLong { len, limit } => {
                write!(f, "the text has {len} symbols, the limit is {limit}")
            }
            Self::SymbolTooLong { offset } => {
                write!(f, "the symbol at byte {offset} has more than {MAX_SYMBOL_LEN} bytes")
            }
        }
    }
}

impl core::error::Error for EncodeError {}

/// The longest symbol of a text in bytes, after lower-casing.
pub const MAX_SYMBOL_LEN: usize = 64;

/// Ids of a caller, or those of a text.
#[derive(Clone)]
pub(crate) enum Ids<'t> {
    /// A caller's.
    Given(core::slice::Iter<'t, TokenId>),
    /// A text's, without what stands around them; a text with errors ends at the first.
    Text(TextIds<'t>),
    /// A text's, with what stands around them.
    Framed(Frame, TextIds<'t>),
}

/// What still stands around the symbols of a source.
#[derive(Clone)]
pub(crate) struct Frame {
    pub start: Option<TokenId>,
    pub end: Option<TokenId>,
}

impl Frame {
    /// That of `config`.
    pub fn of(config: &ModelConfig) -> Self {
        let (frame, special) = (config.source_frame, &config.special);
        Self {
            start: frame.has_start().then_some(special.start),
            end: frame.has_end().then_some(special.end),
        }
    }
}

impl Iterator for Ids<'_> {
    type Item = TokenId;

    fn next(&mut self) -> Option<TokenId> {
        match self {
            Self::Given(ids) => ids.next().copied(),
            Self::Text(ids) => ids.next()?.ok(),
            Self::Framed(frame, ids) => match frame.start.take() {
                Some(start) => Some(start),
                None => match ids.next() {
                    Some(id) => id.ok(),
                    None => frame.end.take(),
                },
            },
        }
    }
}

/// The ids of a text, one by one.
#[derive(Clone)]
pub(crate) struct TextIds<'t> {
    model: &'t Model<'t>,
    is_source: bool,
    pieces: Pieces<'t>,
    /// Of the text, as an address.
    start: usize,
    index: usize,
}

impl<'t> TextIds<'t> {
    /// What the encoder reads of `text`.
    pub fn source(model: &'t Model<'t>, text: &'t str) -> Self {
        Self::new(model, text, true, model.text().source)
    }

    /// A prompt.
    pub fn target(model: &'t Model<'t>, text: &'t str) -> Self {
        Self::new(model, text, false, model.text().target)
    }

    fn new(
        model: &'t Model<'t>,
        text: &'t str,
        is_source: bool,
        segmentation: Segmentation,
    ) -> Self {
        let characters = segmentation == Segmentation::Characters;
        Self {
            model,
            is_source,
            pieces: Pieces { rest: text, characters },
            start: text.as_ptr().addr(),
            index: 0,
        }
    }

    /// How many there are.
    ///
    /// # Errors
    /// When one of them cannot be encoded.
    pub fn count_ids(&self) -> Result<usize, EncodeError> {
        let mut count = 0;
        for id in self.clone() {
            id?;
            count += 1;
        }
        Ok(count)
    }
}

impl Iterator for TextIds<'_> {
    type Item = Result<TokenId, EncodeError>;

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.pieces.next()?;
        let index = self.index;
        self.index = index.saturating_add(1);
        let offset = piece.as_ptr().addr().wrapping_sub(self.start);
        let mut folded = Symbol::default();
        let mut first = None;
        let model = self.model;
        let is_whole = piece.chars().all(|c| {
            first.get_or_insert(c);
            match model.text().fold_case {
                true => fold_case(c).all(|c| folded.push(c)),
                false => folded.push(c),
            }
        });
        if !is_whole {
            return Some(Err(EncodeError::SymbolTooLong { offset }));
        }
        let vocabulary = match self.is_source {
            true => model.source_vocabulary(),
            false => model.target_vocabulary(),
        };
        Some(match (vocabulary.id(folded.as_bytes()), model.text().unknown) {
            (Some(id), _) => Ok(id),
            (None, UnknownPolicy::Replace) => Ok(model.config().special.unknown),
            (None, UnknownPolicy::Refuse) => {
                let first = first.unwrap_or_default();
                Err(EncodeError::UnknownSymbol { index, offset, first })
            }
        })
    }
}

/// Cuts a text into symbols.
#[derive(Clone)]
struct Pieces<'t> {
    rest: &'t str,
    characters: bool,
}

impl<'t> Iterator for Pieces<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let (mut start, mut end) = (None, self.rest.len());
        for (at, c) in self.rest.char_indices() {
            let is_outside = match self.characters {
                true => start.is_some(),
                false => c.is_whitespace(),
            };
            match start {
                None if !is_outside => start = Some(at),
                Some(_) if is_outside => {
                    end = at;
                    break;
                }
                _ => (),
            }
        }
        let (piece, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        piece.get(start?..)
    }
}

/// One symbol after lower-casing.
struct Symbol {
    bytes: [u8; MAX_SYMBOL_LEN],
    len: usize,
}

impl Default for Symbol {
    fn default() -> Self {
        Self { bytes: [0; MAX_SYMBOL_LEN], len: 0 }
    }
}

impl Symbol {
    /// Appends `c`; whether it fitted.
    fn push(&mut self, c: char) -> bool {
        let mut utf8 = [0; 4];
        append(&mut self.bytes, &mut self.len, c.encode_utf8(&mut utf8).as_bytes())
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Writes `bytes` behind the first `len` of `buffer`; whether they fitted.
#[inline(never)]
fn append(buffer: &mut [u8], len: &mut usize, bytes: &[u8]) -> bool {
    let room = buffer.get_mut(*len..).and_then(|room| room.get_mut(..bytes.len()));
    let Some(room) = room else { return false };
    room.copy_from(bytes);
    *len += bytes.len();
    true
}

/// Writes ids as text into the caller's memory.
struct TextWriter<'b> {
    buffer: &'b mut [u8],
    len: usize,
    separator: &'static str,
}

impl<'b> TextWriter<'b> {
    pub fn new(buffer: &'b mut [u8], segmentation: Segmentation) -> Self {
        let separator = match segmentation {
            Segmentation::Characters => "",
            Segmentation::Symbols => " ",
        };
        Self { buffer, len: 0, separator }
    }

    /// Appends one symbol, none for a special id; `false` where it does not fit, and then nothing of
    /// it counts as written.
    pub fn push(&mut self, symbol: &str) -> bool {
        let separator = if self.len == 0 || symbol.is_empty() { "" } else { self.separator };
        let mut len = self.len;
        let fits = append(self.buffer, &mut len, separator.as_bytes())
            && append(self.buffer, &mut len, symbol.as_bytes());
        if fits {
            self.len = len;
        }
        fits
    }

    /// What was written.
    pub fn finish(self) -> &'b str {
        let written = self.buffer.get(..self.len).unwrap_or_default();
        core::str::from_utf8(written).unwrap_or_default()
    }
}

/// Writes `ids` as target text of `model`.
pub(crate) fn write_ids<'b>(
    model: &Model<'_>,
    ids: impl Iterator<Item = TokenId>,
    buffer: &'b mut [u8],
) -> Result<&'b str, RunError> {
    let capacity = buffer.len();
    let mut writer = TextWriter::new(buffer, model.text().target);
    for id in ids {
        if !writer.push(model.target_vocabulary().text(id)) {
            return Err(RunError::BufferFull { capacity });
        }
    }
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_ids_write_nothing_between_symbols() {
        let mut buffer = [0; 5];
        let mut writer = TextWriter::new(&mut buffer, Segmentation::Symbols);
        let written = ["", "AA", "", "BB", "", "C"].map(|symbol| writer.push(symbol));
        assert_eq!(written, [true, true, true, true, true, false]);
        assert_eq!(writer.finish(), "AA BB");
    }
    #[test]
    fn white_space_parts_symbols_and_is_a_character_among_characters() {
        let pieces = |rest, characters| Pieces { rest, characters }.collect::<std::vec::Vec<_>>();
        for text in ["AA B É", "  AA\tB\u{3000}É \n"] {
            assert_eq!(pieces(text, false), ["AA", "B", "É"]);
        }
        assert_eq!(pieces(" aé ", true), [" ", "a", "é", " "]);
        assert!(pieces(" \n", false).is_empty() && pieces("", true).is_empty());
    }
}
