//! The vocabularies: texts of all ids, and an index to find an id by its text.
//!
//! For each side, `n` being the number of ids: `n + 1` offsets (`u32`) into the texts, `n` ids
//! (`u16`) sorted by their text, the texts. Ids without a text (the special ones) cannot be typed
//! and come first in the index.

use core::cmp::Ordering;

use crate::error::VocabularyFault;

/// A vocabulary read in place.
#[derive(Debug, Clone, Copy)]
pub struct Vocabulary<'a> {
    /// `[n + 1]` little-endian `u32`.
    offsets: &'a [u8],
    /// `[n]` little-endian `u16`.
    sorted: &'a [u8],
    texts: &'a [u8],
    len: u16,
}

impl<'a> Vocabulary<'a> {
    /// Splits a vocabulary of `len` ids off the front of `blob`, and checks all of it.
    pub(crate) fn split(blob: &'a [u8], len: u16) -> Result<(Self, &'a [u8]), VocabularyFault> {
        let n = usize::from(len);
        let cut = |blob: &'a [u8], at| blob.split_at_checked(at).ok_or(VocabularyFault::Truncated);
        let (offsets, rest) = cut(blob, 4 * (n + 1))?;
        let (sorted, rest) = cut(rest, 2 * n)?;
        let (texts, rest) = cut(rest, read_u32(offsets, n))?;
        let vocabulary = Self { offsets, sorted, texts, len };
        vocabulary.check()?;
        Ok((vocabulary, rest))
    }

    /// Number of ids.
    pub fn len(&self) -> u16 {
        self.len
    }

    /// Whether there are no ids at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all texts are ASCII.
    pub fn is_ascii(&self) -> bool {
        self.texts.iter().all(u8::is_ascii)
    }

    /// The text of `id`: empty for special ids and past the end.
    pub fn text(&self, id: u16) -> &'a str {
        self.bytes(id).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// The id with this text, if there is one.
    pub fn id(&self, text: impl AsRef<[u8]>) -> Option<u16> {
        let text = text.as_ref();
        if text.is_empty() {
            return None;
        }
        let (mut low, mut high) = (0, usize::from(self.len));
        while low < high {
            let middle = low.midpoint(high);
            let id = read_u16(self.sorted, middle);
            match self.bytes(id)?.cmp(text) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(id),
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn bytes(&self, id: u16) -> Option<&'a [u8]> {
        if id >= self.len {
            return None;
        }
        let id = usize::from(id);
        self.texts.get(read_u32(self.offsets, id)..read_u32(self.offsets, id + 1))
    }

    fn check(&self) -> Result<(), VocabularyFault> {
        for id in 0..self.len {
            let bytes = self.bytes(id).ok_or(VocabularyFault::Range { id })?;
            core::str::from_utf8(bytes).map_err(|_| VocabularyFault::Utf8 { id })?;
        }
        // Strictly ascending in (text, id), so no id stands twice and none is missing.
        let mut before: Option<(&[u8], u16)> = None;
        for index in 0..self.len {
            let fault = VocabularyFault::Order { index };
            let id = read_u16(self.sorted, usize::from(index));
            let text = self.bytes(id).ok_or(fault)?;
            let ascends = match before {
                None => true,
                Some((last, last_id)) => {
                    last < text || (last == text && text.is_empty() && last_id < id)
                }
            };
            if !ascends {
                return Err(fault);
            }
            before = Some((text, id));
        }
        Ok(())
    }

    /// Packs a vocabulary: `texts[id]` is the text of `id`, empty for special ids.
    #[cfg(feature = "std")]
    pub(crate) fn pack(texts: &[String]) -> Vec<u8> {
        let mut blob = Vec::new();
        let mut end = 0_u32;
        blob.extend(end.to_le_bytes());
        for text in texts {
            end += text.len() as u32;
            blob.extend(end.to_le_bytes());
        }
        let mut sorted: Vec<u16> = (0..texts.len() as u16).collect();
        sorted.sort_by_key(|&id| (texts[usize::from(id)].as_bytes(), id));
        blob.extend(sorted.iter().flat_map(|id| id.to_le_bytes()));
        blob.extend(texts.iter().flat_map(|text| text.bytes()));
        blob
    }
}

fn read_u32(bytes: &[u8], index: usize) -> usize {
    let start = index.saturating_mul(4);
    let word = bytes.get(start..).and_then(|rest| rest.first_chunk()).copied();
    usize::try_from(u32::from_le_bytes(word.unwrap_or_default())).unwrap_or(usize::MAX)
}

fn read_u16(bytes: &[u8], index: usize) -> u16 {
    let start = index.saturating_mul(2);
    let word = bytes.get(start..).and_then(|rest| rest.first_chunk()).copied();
    u16::from_le_bytes(word.unwrap_or_default())
}
