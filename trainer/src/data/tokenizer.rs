//! Text to ids and back: by characters, or by symbols between spaces.

use std::collections::{BTreeSet, HashMap, HashSet};

use anyhow::{Result, ensure};
use model_format::config::SpecialIds;
use model_format::fold_case;
use runtime::MAX_SYMBOL_LEN;
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

    /// The first half of a text's symbols, at least one.
    pub fn first_half(&self, text: &str) -> String {
        let symbols = self.symbols(text);
        symbols[..symbols.len().div_ceil(2)].join(self.separator())
    }
}

/// Symbols a vocabulary starts with, in the order of their default ids.
const SPECIAL_NAMES: [&str; 4] = ["<pad>", "<start>", "<end>", "<unknown>"];

/// One side's vocabulary; serialised as its splitting, its list of symbols and its special ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Tokenizer {
    /// How its texts are cut.
    pub splitting: Splitting,
    symbols: Vec<String>,
    special: Option<SpecialIds>,
    ids: HashMap<String, u32>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    splitting: Splitting,
    /// All symbols by id, the special ones included.
    symbols: Vec<String>,
    /// The first four where a checkpoint does not say; `null` where every id is a label.
    #[serde(default = "first_four", skip_serializing_if = "is_first_four")]
    special: Option<SpecialIds>,
}

fn first_four() -> Option<SpecialIds> {
    Some(SpecialIds::default())
}

fn is_first_four(special: &Option<SpecialIds>) -> bool {
    *special == first_four()
}

impl From<Stored> for Tokenizer {
    fn from(stored: Stored) -> Self {
        let Stored { splitting, symbols, special } = stored;
        Self::with_special(splitting, symbols, special)
    }
}

impl From<Tokenizer> for Stored {
    fn from(tokenizer: Tokenizer) -> Self {
        let Tokenizer { splitting, symbols, special, .. } = tokenizer;
        Self { splitting, symbols, special }
    }
}

fn is_among(special: Option<SpecialIds>, id: usize) -> bool {
    special.is_some_and(|s| [s.pad, s.start, s.end, s.unknown].map(usize::from).contains(&id))
}

impl Tokenizer {
    /// A vocabulary of known symbols, by id; the first four are the special ones.
    pub fn from_symbols(splitting: Splitting, symbols: Vec<String>) -> Self {
        Self::with_special(splitting, symbols, first_four())
    }

    /// A vocabulary of known symbols, by id, those with the ids `special` included; labels have no
    /// special ids.
    ///
    /// Special ids are no symbols, whatever their names: a text that holds one gets `unknown`. Of equal
    /// symbols the last counts.
    pub fn with_special(
        splitting: Splitting,
        symbols: Vec<String>,
        special: Option<SpecialIds>,
    ) -> Self {
        let ids = symbols.iter().enumerate().filter(|(id, _)| !is_among(special, *id));
        let ids = ids.map(|(id, s)| (s.clone(), id as u32)).collect();
        Self { splitting, symbols, special, ids }
    }

    /// The vocabulary of a side that a model does not have.
    pub fn none(splitting: Splitting) -> Self {
        Self::with_special(splitting, Vec::new(), None)
    }

    /// The vocabulary of some texts: special symbols, then all symbols in code point order.
    pub fn build<'a>(
        splitting: Splitting,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let special = SPECIAL_NAMES.map(String::from).into_iter();
        let symbols = checked(special.chain(distinct(splitting, texts)).collect())?;
        Ok(Self::from_symbols(splitting, symbols))
    }

    /// All labels of some texts, in code point order.
    pub fn build_labels<'a>(
        splitting: Splitting,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let labels = checked(distinct(splitting, texts).into_iter().collect())?;
        Ok(Self::with_special(splitting, labels, None))
    }

    /// The vocabulary that two sides share: the special ids and all symbols of both.
    pub fn join(self, other: Self) -> Result<(Self, Self)> {
        let known = |t: &Self| t.symbols[SPECIAL_NAMES.len()..].to_vec();
        let both: BTreeSet<String> = known(&self).into_iter().chain(known(&other)).collect();
        let special = SPECIAL_NAMES.map(String::from).into_iter();
        let symbols = checked(special.chain(both).collect())?;
        Ok((
            Self::from_symbols(self.splitting, symbols.clone()),
            Self::from_symbols(other.splitting, symbols),
        ))
    }

    /// The ids with a meaning of their own; labels have none.
    pub fn special(&self) -> Option<SpecialIds> {
        self.special
    }

    /// Whether an id has a meaning of its own.
    pub fn is_special(&self, id: usize) -> bool {
        is_among(self.special, id)
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Whether there is no symbol besides the special ones.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// All symbols by id, the special ones included.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// The ids of a text, without start and end; unknown symbols become the unknown id. Labels have no
    /// unknown id, so that an unknown one is left out: [`Tokenizer::encode_known`] tells it.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let unknown = self.special.map(|special| u32::from(special.unknown));
        let symbols = self.splitting.symbols(text);
        symbols.iter().filter_map(|s| self.ids.get(s).copied().or(unknown)).collect()
    }

    /// The ids of a text, or its first unknown symbol.
    pub fn encode_known(&self, text: &str) -> Result<Vec<u32>, String> {
        let symbols = self.splitting.symbols(text).into_iter();
        symbols.map(|s| self.ids.get(&s).copied().ok_or(s)).collect()
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

    fn plain_symbols(&self) -> impl Iterator<Item = &String> {
        let symbols = self.symbols.iter().enumerate();
        symbols.filter(|(id, _)| !self.is_special(*id)).map(|(_, symbol)| symbol)
    }

    /// Refuses a symbol that the runtime cannot read.
    ///
    /// # Errors
    /// Names the first.
    pub fn check_lengths(&self) -> Result<()> {
        for symbol in self.plain_symbols() {
            ensure!(
                symbol.len() <= MAX_SYMBOL_LEN,
                "symbol {symbol:?} has {} bytes; the runtime reads symbols of at most {MAX_SYMBOL_LEN}",
                symbol.len()
            );
        }
        Ok(())
    }

    /// Refuses a symbol that no text can hold: one that the runtime cannot read, that white space cuts, or
    /// that lower-casing changes.
    ///
    /// # Errors
    /// Names the first.
    pub fn check_readable(&self) -> Result<()> {
        self.check_lengths()?;
        let Splitting { unit, lowercase } = self.splitting;
        for symbol in self.plain_symbols() {
            ensure!(
                unit == Unit::Character || !symbol.contains(char::is_whitespace),
                "symbol {symbol:?} has white space in it, and the unit `word` cuts texts there"
            );
            ensure!(
                !lowercase || symbol.chars().flat_map(fold_case).eq(symbol.chars()),
                "symbol {symbol:?} has upper case, and texts are lower-cased (`lowercase` is true)"
            );
        }
        Ok(())
    }
}

/// The symbols of some texts in code point order.
fn distinct<'a>(
    splitting: Splitting,
    texts: impl IntoIterator<Item = &'a str>,
) -> BTreeSet<String> {
    let found: HashSet<String> =
        texts.into_iter().flat_map(|text| splitting.symbols(text)).collect();
    // Collected first and then sorted: a text's symbols are many, a vocabulary's few.
    found.into_iter().collect()
}

/// Refuses more symbols than there are ids.
fn checked(symbols: Vec<String>) -> Result<Vec<String>> {
    ensure!(
        symbols.len() <= usize::from(u16::MAX),
        "{} different symbols; a vocabulary holds at most {}",
        symbols.len(),
        u16::MAX
    );
    Ok(symbols)
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

    #[test]
    fn special_ids_are_data() {
        let words = Splitting { unit: Unit::Word, lowercase: false };
        let symbols = ["</s>", "<unk>", "a", "b", "<pad>"].map(String::from).to_vec();
        let special = SpecialIds { pad: 4, start: 4, end: 0, unknown: 1 };
        let marian = Tokenizer::with_special(words, symbols, Some(special));
        assert_eq!(marian.encode("b a c <pad> </s>"), [3, 2, 1, 1, 1]);
        assert_eq!(marian.encode_known("a c"), Err("c".to_owned()));
        let json = serde_json::to_string(&marian).unwrap();
        assert_eq!(serde_json::from_str::<Tokenizer>(&json).unwrap(), marian);
    }

    #[test]
    fn labels_have_no_special_ids() {
        let words = Splitting { unit: Unit::Word, lowercase: false };
        let labels = Tokenizer::build_labels(words, ["1 - 0", "- 2"]).unwrap();
        assert_eq!(labels.symbols(), ["-", "0", "1", "2"]);
        assert_eq!(labels.encode_known("0 - 2"), Ok(vec![1, 0, 3]));
        assert_eq!(labels.encode_known("0 3"), Err("3".to_owned()));
        assert!((0..4).all(|id| !labels.is_special(id)));
        let json = serde_json::to_string(&labels).unwrap();
        assert_eq!(serde_json::from_str::<Tokenizer>(&json).unwrap(), labels);
    }

    #[test]
    fn a_checkpoint_that_says_nothing_of_special_ids_has_the_first_four() {
        let words = Splitting { unit: Unit::Word, lowercase: false };
        let built = Tokenizer::build(words, ["a"]).unwrap();
        let json = serde_json::to_string(&built).unwrap();
        assert!(!json.contains("special"), "{json}");
        let read = serde_json::from_str::<Tokenizer>(&json).unwrap();
        assert_eq!(read.special(), Some(SpecialIds::default()));
    }

    #[test]
    fn two_sides_can_share_a_vocabulary() {
        let words = Splitting { unit: Unit::Word, lowercase: false };
        let letters = Splitting { unit: Unit::Character, lowercase: true };
        let (source, target) = (
            Tokenizer::build(letters, ["ba"]).unwrap(),
            Tokenizer::build(words, ["b see"]).unwrap(),
        );
        let (source, target) = source.join(target).unwrap();
        assert_eq!(source.symbols(), target.symbols());
        assert_eq!(source.symbols()[4..], ["a", "b", "see"]);
        assert_eq!((source.encode("B"), target.encode("b see")), (vec![5], vec![5, 6]));
    }
}
