//! The model: the only file that calls the runtime.

use crate::fnv::Fnv;

/// Most bytes of an answer.
pub const ANSWER_LIMIT: usize = 256;

/// Turns a word into its phones.
pub struct Speller {
    answer: [u8; ANSWER_LIMIT],
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing to say.
    Empty,
    /// A character outside the vocabulary.
    UnknownLetter(char),
    /// More letters than the model takes.
    TooLong {
        /// Letters given.
        given: usize,
        /// Most letters.
        limit: usize,
    },
}

impl Speller {
    /// What the banner says.
    pub const MODEL: &str = "echo";
    /// Bytes of the arena.
    pub const ARENA: usize = 0;

    /// Checks the model and takes the arena.
    pub fn load() -> Result<Self, Failure> {
        Ok(Self { answer: [0; ANSWER_LIMIT] })
    }

    /// The phones of `word`.
    pub fn spell(&mut self, word: &str) -> Result<&str, Failure> {
        if word.is_empty() {
            return Err(Failure::Empty);
        }
        if word.len() > 28 {
            return Err(Failure::TooLong { given: word.len(), limit: 28 });
        }
        let mut length = 0;
        for letter in word.chars() {
            if !letter.is_ascii_alphabetic() {
                return Err(Failure::UnknownLetter(letter));
            }
            self.answer[length] = letter.to_ascii_uppercase() as u8;
            self.answer[length + 1] = b' ';
            length += 2;
        }
        core::str::from_utf8(&self.answer[..length - 1]).map_err(|_| Failure::Empty)
    }

    /// The same, adding the logits of every step to `hash`.
    pub fn spell_hashed(&mut self, word: &str, hash: &mut Fnv) -> Result<&str, Failure> {
        let phones = self.spell(word)?;
        hash.write(phones.as_bytes());
        Ok(phones)
    }
}
