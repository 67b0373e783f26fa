//! The vocabularies of a checkpoint, from JSON.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model_format::config::SpecialIds;
use serde_json::{Map, Value};

use super::config::SpecialDraft;
use crate::data::tokenizer::{Splitting, Tokenizer, Unit};

/// Symbols of one side by id.
#[derive(Debug, Clone, PartialEq)]
pub struct Symbols {
    /// `source` or `target`, for messages.
    pub side: &'static str,
    /// Ids without a symbol are gaps, which only special ids may be.
    by_id: Vec<Option<String>>,
    unit: Option<Unit>,
    lowercase: Option<bool>,
}

/// How one side's texts are cut, where the command line says so.
#[derive(Debug, Clone, Copy, Default)]
pub struct SplittingChoice {
    /// What a symbol is.
    pub unit: Option<Unit>,
    /// Whether letters are lower-cased first.
    pub lowercase: Option<bool>,
}

/// Usual names of pad, start, end and unknown.
const USUAL_NAMES: [&[&str]; 4] = [
    &["<pad>", "[PAD]", "<PAD>", "<blank>", "<blk>"],
    &["<start>", "<s>", "<sos>", "<bos>", "[SOS]", "[BOS]", "<SOS>", "<BOS>", "<START>"],
    &["<end>", "</s>", "<eos>", "[EOS]", "<EOS>", "<END>"],
    &["<unknown>", "<unk>", "[UNK]", "<UNK>"],
];

/// Reads the vocabularies of both sides; a file with one is for both.
///
/// A vocabulary is a list of symbols in the order of their ids, a map from symbol to id, or an
/// object with one of these as `symbols` beside `unit` and `lowercase`.
pub fn read(path: &Path) -> Result<[Symbols; 2]> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<[Symbols; 2]> {
    let value: Value = serde_json::from_str(text)?;
    let is_side = |side: &Value| side.is_array() || side.is_object();
    let side = |name: &str| value.get(name).filter(|side| is_side(side));
    let [source, target] = match (side("source"), side("target")) {
        (None, None) => [&value, &value],
        (source, target) => [source.unwrap_or(&Value::Null), target.unwrap_or(&Value::Null)],
    };
    let read = |side, value| symbols(side, value).with_context(|| format!("{side} vocabulary"));
    Ok([read("source", source)?, read("target", target)?])
}

fn symbols(side: &'static str, value: &Value) -> Result<Symbols> {
    let mut symbols = Symbols { side, by_id: Vec::new(), unit: None, lowercase: None };
    let listed = match value {
        Value::Object(fields) if fields.get("symbols").is_some_and(|s| !s.is_number()) => {
            for (name, value) in fields {
                let context = || format!("`{name}` is {value}");
                match name.as_str() {
                    "symbols" => {}
                    "unit" => {
                        symbols.unit =
                            Some(serde_json::from_value(value.clone()).with_context(context)?);
                    }
                    "lowercase" => {
                        symbols.lowercase = Some(value.as_bool().with_context(context)?);
                    }
                    other => bail!("`{other}` is no field: symbols, unit, lowercase"),
                }
            }
            &fields["symbols"]
        }
        other => other,
    };
    symbols.by_id = match listed {
        Value::Null => Vec::new(),
        Value::Array(list) => list.iter().enumerate().map(of_list).collect::<Result<_>>()?,
        Value::Object(map) => by_id(map)?,
        _ => bail!("neither a list of symbols nor a map from symbol to id"),
    };
    symbols.check_doubles()?;
    Ok(symbols)
}

fn of_list((id, symbol): (usize, &Value)) -> Result<Option<String>> {
    match symbol {
        Value::String(symbol) => Ok(Some(symbol.clone())),
        Value::Null => Ok(None),
        other => bail!("id {id} is {other}, which is no symbol"),
    }
}

fn by_id(map: &Map<String, Value>) -> Result<Vec<Option<String>>> {
    let mut by_id: Vec<Option<String>> = Vec::new();
    for (symbol, id) in map {
        let id = id.as_u64().and_then(|id| u16::try_from(id).ok()).map(usize::from);
        let id = id.with_context(|| format!("the id of {symbol:?} is {}", map[symbol]))?;
        if by_id.len() <= id {
            by_id.resize(id + 1, None);
        }
        if let Some(other) = &by_id[id] {
            bail!("{other:?} and {symbol:?} have the same id {id}");
        }
        by_id[id] = Some(symbol.clone());
    }
    Ok(by_id)
}

impl Symbols {
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether the side has no vocabulary.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn check_doubles(&self) -> Result<()> {
        let mut seen = std::collections::HashMap::new();
        for (id, symbol) in self.by_id.iter().enumerate() {
            let Some(symbol) = symbol else { continue };
            if let Some(other) = seen.insert(symbol, id) {
                bail!("ids {other} and {id} are both {symbol:?}");
            }
        }
        ensure!(seen.len() <= usize::from(u16::MAX), "{} symbols, the most are 65535", seen.len());
        Ok(())
    }

    fn find(&self, names: &[&str]) -> Option<u16> {
        let id = self.by_id.iter().position(|s| s.as_deref().is_some_and(|s| names.contains(&s)));
        id.and_then(|id| u16::try_from(id).ok())
    }

    /// The vocabulary with special ids (none for labels), of `len` ids: those that
    /// have no symbol must be special.
    ///
    /// # Errors
    /// An id without a symbol that is no special id.
    pub fn tokenizer(
        &self,
        len: usize,
        special: Option<SpecialIds>,
        choice: SplittingChoice,
    ) -> Result<Tokenizer> {
        let side = self.side;
        let is_special = |id: usize| {
            let ids = special.map(|s| [s.pad, s.start, s.end, s.unknown].map(usize::from));
            ids.is_some_and(|ids| ids.contains(&id))
        };
        let plain = || self.by_id.iter().enumerate().filter(|(id, _)| !is_special(*id));
        for (id, symbol) in plain() {
            let symbol = symbol.as_deref().unwrap_or_default();
            ensure!(!symbol.is_empty(), "{side} vocabulary: id {id} has no symbol");
        }
        let is_letter = |symbol: &str| symbol.chars().count() == 1;
        let are_letters = plain().all(|(_, symbol)| symbol.as_deref().is_some_and(is_letter));
        let unit = if are_letters { Unit::Character } else { Unit::Word };
        let splitting = Splitting {
            unit: choice.unit.or(self.unit).unwrap_or(unit),
            lowercase: choice.lowercase.or(self.lowercase).unwrap_or(false),
        };
        let mut symbols: Vec<_> =
            self.by_id.iter().map(|s| s.clone().unwrap_or_default()).collect();
        symbols.resize(len, String::new());
        Ok(Tokenizer::with_special(splitting, symbols, special))
    }
}

/// The special ids: those that the config says, and those whose usual names are in the vocabularies.
///
/// # Errors
/// A pad, start or end id that neither says, and names with different ids on the two sides.
pub fn special_ids(draft: SpecialDraft, sides: &[&Symbols]) -> Result<SpecialDraft> {
    let of = |given: Option<u16>, names: &[&str], what: &str| -> Result<Option<u16>> {
        if given.is_some() {
            return Ok(given);
        }
        let found: Vec<u16> = sides.iter().filter_map(|side| side.find(names)).collect();
        ensure!(
            found.iter().all(|id| Some(id) == found.first()),
            "the {what} id is {found:?} in source and target; `special.{what}` of the config says which"
        );
        Ok(found.first().copied())
    };
    let [pad, start, end, unknown] = USUAL_NAMES;
    let found = SpecialDraft {
        pad: of(draft.pad, pad, "pad")?,
        start: of(draft.start, start, "start")?,
        end: of(draft.end, end, "end")?,
        unknown: of(draft.unknown, unknown, "unknown")?,
    };
    for (id, what) in [(found.pad, "pad"), (found.start, "start"), (found.end, "end")] {
        ensure!(
            id.is_some(),
            "the {what} id is unknown: the config has no `special.{what}`, the vocabulary no usual name"
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    const SPECIAL: SpecialIds = SpecialIds { pad: 0, start: 1, end: 2, unknown: 5 };

    #[test]
    fn doubles_and_nonsense_are_named() {
        assert_eq!(
            error(r#"{"a": 3, "b": 3}"#),
            r#"source vocabulary: "a" and "b" have the same id 3"#
        );
        assert_eq!(error(r#"["a", "b", "a"]"#), r#"source vocabulary: ids 0 and 2 are both "a""#);
        assert_eq!(error(r#"{"a": 70000}"#), r#"source vocabulary: the id of "a" is 70000"#);
        assert_eq!(
            error(r#"{"source": ["a"], "target": [1]}"#),
            "target vocabulary: id 0 is 1, which is no symbol"
        );
        assert!(error("3").contains("neither a list of symbols nor a map"));
        assert!(error(r#"{"symbols": ["a"], "units": 1}"#).contains("`units` is no field"));
        assert!(error(r#"{"symbols": ["a"], "unit": "byte"}"#).contains("unknown variant"));
    }

    #[test]
    fn only_special_ids_may_have_no_symbol() {
        let [source, target] =
            parse(r#"{"source": {"a": 3, "b": 4}, "target": {"AA": 4}}"#).unwrap();
        let choice = SplittingChoice::default();
        let tokenizer = source.tokenizer(6, Some(SPECIAL), choice).unwrap();
        assert_eq!((tokenizer.len(), tokenizer.encode("ba?")), (6, vec![4, 3, 5]));
        assert_eq!(tokenizer.splitting.unit, Unit::Character);
        let error = target.tokenizer(6, Some(SPECIAL), choice).unwrap_err().to_string();
        assert_eq!(error, "target vocabulary: id 3 has no symbol");
    }

    #[test]
    fn special_ids_come_from_the_config_then_from_usual_names() {
        let [source, target] = parse(r#"["</s>", "<unk>", "a", "<pad>"]"#).unwrap();
        let sides = [&source, &target];
        let start = SpecialDraft { start: Some(3), ..SpecialDraft::default() };
        let found = special_ids(start, &sides).unwrap();
        assert_eq!(
            found,
            SpecialDraft { pad: Some(3), start: Some(3), end: Some(0), unknown: Some(1) }
        );
        let error = special_ids(SpecialDraft::default(), &sides).unwrap_err().to_string();
        assert!(error.starts_with("the start id is unknown"), "{error}");
        let [source, target] = parse(r#"{"source": ["<pad>"], "target": ["a", "<pad>"]}"#).unwrap();
        let error = special_ids(start, &[&source, &target]).unwrap_err().to_string();
        assert!(error.starts_with("the pad id is [0, 1] in source and target"), "{error}");
    }
}
