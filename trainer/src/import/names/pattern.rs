//! Patterns of tensor names: text, the number of a layer, words with several spellings, wildcards.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};

/// Spellings of each word, by the word's name.
pub type Words = BTreeMap<String, Vec<String>>;

/// A name with places that vary.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    text: String,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    /// `{i}` or `{i+1}`: a layer's number, counted from 0, plus this.
    Layer(usize),
    /// `{word}`: any of its spellings.
    Word(Vec<String>),
    /// `*`: anything.
    Anything,
}

/// What a name told a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The layer, where the pattern has one.
    pub layer: Option<usize>,
}

impl Pattern {
    /// Reads `text`; `{word}` is looked up in `words`.
    pub fn parse(text: &str, words: &Words) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '*']) {
            let (before, from) = rest.split_at(at);
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            rest = match from.strip_prefix('*') {
                Some(rest) => {
                    pieces.push(Piece::Anything);
                    rest
                }
                None => {
                    let (inside, rest) = from[1..]
                        .split_once('}')
                        .with_context(|| format!("`{text}`: a `{{` is not closed"))?;
                    pieces.push(piece(inside, words).with_context(|| format!("`{text}`"))?);
                    rest
                }
            };
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        ensure!(!pieces.is_empty(), "a name is empty");
        Ok(Self { text: text.to_owned(), pieces })
    }

    /// Whether `name` fits, and the layer it names.
    pub fn matches(&self, name: &str) -> Option<Match> {
        fit(&self.pieces, name, None)
    }

    /// Whether `name` fits and belongs to `layer`, or to any where the pattern has no layer.
    pub fn matches_layer(&self, name: &str, layer: Option<usize>) -> bool {
        self.matches(name).is_some_and(|m| m.layer.is_none() || m.layer == layer)
    }

    /// The pattern with the layer's number in its place, for messages.
    pub fn of_layer(&self, layer: Option<usize>) -> String {
        let Some(layer) = layer else { return self.text.clone() };
        let number = |text: String, piece: &Piece| match piece {
            Piece::Layer(0) => text.replace("{i}", &layer.to_string()),
            Piece::Layer(add) => text.replace(&format!("{{i+{add}}}"), &(layer + add).to_string()),
            _ => text,
        };
        self.pieces.iter().fold(self.text.clone(), number)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn piece(inside: &str, words: &Words) -> Result<Piece> {
    if inside == "i" {
        return Ok(Piece::Layer(0));
    }
    if let Some(add) = inside.strip_prefix("i+") {
        let add = add.parse().ok().filter(|add| *add < 1000);
        return Ok(Piece::Layer(add.with_context(|| format!("`{{{inside}}}` is no layer"))?));
    }
    match words.get(inside) {
        Some(spellings) => Ok(Piece::Word(spellings.clone())),
        None => bail!("`{{{inside}}}` is neither `{{i}}` nor one of [words]"),
    }
}

fn fit(pieces: &[Piece], rest: &str, layer: Option<usize>) -> Option<Match> {
    let Some((piece, pieces)) = pieces.split_first() else {
        return rest.is_empty().then_some(Match { layer });
    };
    let after = |text: &String| fit(pieces, rest.strip_prefix(text.as_str())?, layer);
    match piece {
        Piece::Text(text) => after(text),
        Piece::Word(spellings) => spellings.iter().find_map(after),
        Piece::Anything => {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.into_iter().find_map(|at| fit(pieces, &rest[at..], layer))
        }
        Piece::Layer(add) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: usize = rest[..digits].parse().ok()?;
            let found = number.checked_sub(*add)?;
            if layer.is_some_and(|layer| layer != found) {
                return None;
            }
            fit(pieces, &rest[digits..], Some(found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        let spellings = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
        [("top", spellings(&["", "model."])), ("q", spellings(&["q", "query"]))]
            .map(|(name, words)| (name.to_owned(), words))
            .into()
    }

    #[test]
    fn words_layers_and_wildcards_match() {
        let layer = |pattern: &str, name: &str| {
            Pattern::parse(pattern, &words()).unwrap().matches(name).map(|m| m.layer)
        };
        assert_eq!(layer("{top}E.{i}.{q}.weight", "E.12.query.weight"), Some(Some(12)));
        assert_eq!(layer("{top}E.{i}.{q}.weight", "model.E.0.q.weight"), Some(Some(0)));
        assert_eq!(layer("{top}E.{i}.{q}.weight", "model.E.0.k.weight"), None);
        assert_eq!(layer("E{i+1}.{i}", "E3.2"), Some(Some(2)));
        assert_eq!(layer("E{i+1}.{i}", "E3.3"), None);
        assert_eq!(layer("E{i+1}", "E0"), None);
        assert_eq!(layer("E{i}", "E"), None);
        assert_eq!(layer("*.pe", "a.b.pe"), Some(None));
        assert_eq!(layer("*.pe", "a.b.pe2"), None);
        assert_eq!(layer("E{i}", "E99999999999999999999999"), None);
    }

    #[test]
    fn a_pattern_shows_itself_with_the_layers_number() {
        let pattern = Pattern::parse("{top}E.{i}.L{i+1}", &words()).unwrap();
        assert_eq!(pattern.of_layer(Some(4)), "{top}E.4.L5");
        assert_eq!(pattern.of_layer(None), "{top}E.{i}.L{i+1}");
    }

    #[test]
    fn mistakes_in_a_pattern_are_named() {
        let error = |text| format!("{:#}", Pattern::parse(text, &words()).unwrap_err());
        assert_eq!(error("a{b"), "`a{b`: a `{` is not closed");
        assert_eq!(error("a{b}"), "`a{b}`: `{b}` is neither `{i}` nor one of [words]");
        assert_eq!(error("a{i+x}"), "`a{i+x}`: `{i+x}` is no layer");
        assert_eq!(error(""), "a name is empty");
    }
}
