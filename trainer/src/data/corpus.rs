//! Pairs of texts: from a `source<TAB>target` file to examples.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::batch::Example;
use super::tokenizer::Tokenizer;

/// One pair of texts and the line that it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// What is given.
    pub source: String,
    /// What is wanted.
    pub target: String,
    /// Counted from 1.
    pub line: usize,
}

/// Most symbols of each side, end id not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of a source.
    pub source: usize,
    /// Of a target.
    pub target: usize,
}

/// Reads a `source<TAB>target` file in UTF-8; empty lines and a byte order mark are skipped.
pub fn read_tsv(path: &Path) -> Result<Vec<Pair>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let pairs = utf8(&bytes).and_then(parse_tsv).with_context(|| path.display().to_string())?;
    ensure!(!pairs.is_empty(), "{}: no pair", path.display());
    Ok(pairs)
}

/// The text of a file, or the line that is no text.
fn utf8(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        anyhow!("line {line}: not UTF-8 (byte {} of the file)", error.valid_up_to() + 1)
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Parses `source<TAB>target` lines.
pub fn parse_tsv(text: &str) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let number = i + 1;
        if line.is_empty() {
            continue;
        }
        let Some((source, target)) = line.split_once('\t') else {
            bail!("line {number}: no tab between source and target");
        };
        ensure!(!target.contains('\t'), "line {number}: more than one tab");
        ensure!(!source.trim().is_empty(), "line {number}: the source is empty");
        ensure!(!target.trim().is_empty(), "line {number}: the target is empty");
        pairs.push(Pair { source: source.into(), target: target.into(), line: number });
    }
    Ok(pairs)
}

/// Encodes pairs; one that exceeds a limit is an error with its line.
pub fn encode(
    pairs: &[Pair],
    source: &Tokenizer,
    target: &Tokenizer,
    limits: Limits,
) -> Result<Vec<Example>> {
    let encoded = pairs.iter().map(|pair| {
        let example =
            Example { source: source.encode(&pair.source), target: target.encode(&pair.target) };
        for (name, ids, limit) in
            [("source", &example.source, limits.source), ("target", &example.target, limits.target)]
        {
            ensure!(
                ids.len() <= limit,
                "line {}: the {name} has {} symbols, the limit is {limit}",
                pair.line,
                ids.len()
            );
        }
        Ok(example)
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::{Splitting, Unit};

    #[test]
    fn bad_lines_are_named() {
        let error = |text| parse_tsv(text).unwrap_err().to_string();
        assert_eq!(error("a\tb\nxy\n"), "line 2: no tab between source and target");
        assert_eq!(error("a\t \n"), "line 1: the target is empty");
        assert_eq!(error("\tb\n"), "line 1: the source is empty");
        assert_eq!(error("a\tb\tc\n"), "line 1: more than one tab");
        assert_eq!(parse_tsv("a\tb\n\nc\td").unwrap()[1].line, 3);
    }

    #[test]
    fn what_is_not_utf8_is_named_and_a_byte_order_mark_skipped() {
        let error = utf8(b"a\tb\nc\t\xff\n").unwrap_err().to_string();
        assert_eq!(error, "line 2: not UTF-8 (byte 7 of the file)");
        assert_eq!(utf8(b"\xef\xbb\xbfa\tb").unwrap(), "a\tb");
    }

    #[test]
    fn too_long_a_target_is_refused_with_line_and_limit() {
        let pairs = parse_tsv("ab\tA B\nab\tA B A\n").unwrap();
        let splitting = |unit| Splitting { unit, lowercase: false };
        let source = Tokenizer::build(splitting(Unit::Character), ["ab"]).unwrap();
        let target = Tokenizer::build(splitting(Unit::Word), ["A B"]).unwrap();
        let limits = Limits { source: 2, target: 2 };
        let error = encode(&pairs, &source, &target, limits).unwrap_err().to_string();
        assert_eq!(error, "line 2: the target has 3 symbols, the limit is 2");
    }
}
