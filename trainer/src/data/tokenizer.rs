//! Text to ids and back: by characters, or by symbols between spaces.

use std::collections::{BTreeSet, HashMap, HashSet};

use anyhow::{Result, ensure};
use model_format::config::SpecialIds;
use model_format::fold_case;
use serde::{Deserialize, Serialize};

/// What a symbol is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Every character.
    Character,
    /// Whatever stands between white space.
    Word,
}

/// How one side's text becomes symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Splitting {
    /// What a symbol is.
    pub unit: Unit,
    /// Whether letters are lower-cased first.
    pub lowercase: bool,
}

impl Splitting {
    /// What stands between two symbols of a text.
    pub fn separator(&self) -> &'static str {
        if self.unit == Unit::Word { " " } else { "" }
    }

    /// The symbols of a text, cut and then lower-cased one by one, as the device does it: of a whole
    /// text, `str::to_lowercase` makes another sigma at the end of a word.
    pub fn symbols(&self, text: &str) -> Vec<String> {
        let fold = |symbol: &str| match self.lowercase {
            true => symbol.chars().flat_map(fold_case).collect(),
            false => symbol.to_owned(),
        };
        match self.unit {
            Unit::Character => text.chars().map(|c| fold(c.encode_utf8(&mut [0; 4]))).collect(),
            Unit::Word => text.split_whitespace().map(fold).collect(),
        }
    }
}

/// Symbols a vocabulary starts with, in the order of their default ids.
const SPECIAL_NAMES: [&str; 4] = ["<pad>", "<start>", "<end>", "<unknown>"];

/// One side's vocabulary; serialised as its splitting and its list of symbols.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Tokenizer {
    /// How its texts are cut.
    pub splitting: Splitting,
    symbols: Vec<String>,
    ids: HashMap<String, u32>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    splitting: Splitting,
    /// All symbols by id, the special ones included.
    symbols: Vec<String>,
}

impl From<Stored> for Tokenizer {
    fn from(stored: Stored) -> Self {
        let special = SPECIAL_NAMES.len();
        // The special names are no symbols: a text that holds one gets `unknown`.
        let ids = stored.symbols.iter().enumerate().skip(special);
        let ids = ids.map(|(i, s)| (s.clone(), i as u32)).collect();
        Self { splitting: stored.splitting, symbols: stored.symbols, ids }
    }
}

impl From<Tokenizer> for Stored {
    fn from(tokenizer: Tokenizer) -> Self {
        Self { splitting: tokenizer.splitting, symbols: tokenizer.symbols }
    }
}

impl Tokenizer {
    /// A vocabulary of known symbols, by id; the first four are the special ones.
    pub fn from_symbols(splitting: Splitting, symbols: Vec<String>) -> Self {
        Stored { splitting, symbols }.into()
    }

    /// The vocabulary of some texts: special symbols, then all symbols in code point order.
    pub fn build<'a>(
        splitting: Splitting,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let found: HashSet<String> =
            texts.into_iter().flat_map(|text| splitting.symbols(text)).collect();
        // Collected first and then sorted: a text's symbols are many, a vocabulary's few.
        let found: BTreeSet<String> = found.into_iter().collect();
        let special = SPECIAL_NAMES.map(String::from);
        let symbols: Vec<String> = special.into_iter().chain(found).collect();
        ensure!(
            symbols.len() <= usize::from(u16::MAX),
            "{} different symbols; a vocabulary holds at most {}",
            symbols.len(),
            u16::MAX
        );
        Ok(Self::from_symbols(splitting, symbols))
    }

    /// The special ids of every vocabulary made here.
    pub fn special() -> SpecialIds {
        SpecialIds::default()
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Whether there is no symbol besides the special ones.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// All symbols by id; the first four are special.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// The ids of a text, without start and end; unknown symbols become the unknown id.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let unknown = u32::from(Self::special().unknown);
        let symbols = self.splitting.symbols(text);
        symbols.iter().map(|s| self.ids.get(s).copied().unwrap_or(unknown)).collect()
    }

    /// The text of ids; symbols are joined as they were split.
    pub fn decode(&self, ids: &[u32]) -> String {
        let symbols = ids.iter().map(|&id| self.symbols[id as usize].as_str());
        symbols.collect::<Vec<_>>().join(self.separator())
    }

    /// What stands between two symbols of a text.
    pub fn separator(&self) -> &'static str {
        self.splitting.separator()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_lower_cased_one_by_one() {
        let splitting = |unit| Splitting { unit, lowercase: true };
        // A whole word would end in the final sigma of "\u{3c2}".
        assert_eq!(splitting(Unit::Word).symbols("O\u{3a3}"), ["o\u{3c3}"]);
        assert_eq!(splitting(Unit::Character).symbols("O\u{3a3}"), ["o", "\u{3c3}"]);
        // A dotted capital I becomes two characters, which stay one symbol.
        assert_eq!(splitting(Unit::Character).symbols("\u{130}"), ["i\u{307}"]);
    }

    #[test]
    fn characters_and_words_go_there_and_back() {
        let letters = Splitting { unit: Unit::Character, lowercase: true };
        let source = Tokenizer::build(letters, ["abc", "Bd'"]).unwrap();
        assert_eq!(source.symbols()[4..], ["'", "a", "b", "c", "d"]);
        assert_eq!(source.encode("CAB"), [7, 5, 6]);
        assert_eq!(source.encode("x<pad>")[..1], [3]);
        assert_eq!(source.decode(&[7, 5, 6]), "cab");
        let phones = Splitting { unit: Unit::Word, lowercase: false };
        let target = Tokenizer::build(phones, ["K AE1 T", "B IY1"]).unwrap();
        assert_eq!(target.decode(&target.encode("B  AE1 T")), "B AE1 T");
        assert_eq!(target.encode("<end>"), [3]);
        let json = serde_json::to_string(&target).unwrap();
        assert_eq!(serde_json::from_str::<Tokenizer>(&json).unwrap(), target);
    }
}
