//! From our names to the names of a checkpoint: maps written in TOML.
//!
//! A map says for each of our tensors where its numbers are. The built-in maps are files of the same
//! form; `docs/import.md` is the reference of that form.

pub mod pattern;
pub mod resolve;
pub mod sizes;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, SourceFrame, SpecialIds,
    StackConfig,
};
use serde::Deserialize;

use crate::engine::Network;
use pattern::{Pattern, Words};

/// The built-in maps, in the order in which they are tried.
const BUILT_IN: [(&str, &str); 3] = [
    ("torch", include_str!("../maps/torch.toml")),
    ("marian", include_str!("../maps/marian.toml")),
    ("tutorial", include_str!("../maps/tutorial.toml")),
];

/// Where the numbers of all our tensors are.
#[derive(Debug, Clone)]
pub struct NameMap {
    /// What it is called in messages.
    pub name: String,
    rules: Vec<Rule>,
    /// Tensors of the checkpoint that hold nothing the model needs.
    ignore: Vec<Pattern>,
    /// Tables of sinusoidal positions, to be compared with our own.
    sinusoids: Vec<Pattern>,
    /// Whether a bias that the checkpoint lacks is zero.
    zero_biases: bool,
}

/// Where one of our tensors is.
#[derive(Debug, Clone)]
struct Rule {
    ours: Pattern,
    sources: Vec<Source>,
}

/// A place in the checkpoint.
#[derive(Debug, Clone)]
pub struct Source {
    /// The tensor's name there.
    pub pattern: Pattern,
    /// The part of its rows that is ours: number from 0, and of how many.
    pub part: (usize, usize),
    /// Whether it is `[n_in, n_out]`, for `x W`, and not `[n_out, n_in]`, for `x W^T`.
    pub transpose: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    words: Words,
    tensors: BTreeMap<String, toml::Value>,
    #[serde(default)]
    ignore: Vec<String>,
    #[serde(default)]
    sinusoids: Vec<String>,
    #[serde(default)]
    zero_biases: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    name: String,
    #[serde(default)]
    rows: Option<String>,
    #[serde(default)]
    transpose: bool,
}

impl NameMap {
    /// The built-in map of this name.
    pub fn built_in(name: &str) -> Option<Result<Self>> {
        let (name, text) = BUILT_IN.into_iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text))
    }

    /// All built-in maps.
    pub fn all_built_in() -> Result<Vec<Self>> {
        BUILT_IN.into_iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// Reads a map from a TOML file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// A map from its TOML text; `name` is for messages.
    ///
    /// # Errors
    /// What is no TOML, an unknown key, a name on the left that no model has, a wrong pattern.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let parse = || -> Result<Self> {
            let file: File = toml::from_str(text)?;
            let known = our_names()?;
            let mut rules = Vec::new();
            for (ours, places) in file.tensors {
                rules.extend(rules_of(&ours, places, &file.words, &known)?);
            }
            let patterns = |texts: Vec<String>| -> Result<Vec<_>> {
                texts.iter().map(|text| Pattern::parse(text, &file.words)).collect()
            };
            Ok(Self {
                name: name.to_owned(),
                rules,
                ignore: patterns(file.ignore)?,
                sinusoids: patterns(file.sinusoids)?,
                zero_biases: file.zero_biases,
            })
        };
        parse().with_context(|| format!("names {name}"))
    }

    /// Whether a tensor of a checkpoint has a place in the map.
    pub fn knows(&self, name: &str) -> bool {
        let sources = self.rules.iter().flat_map(|rule| &rule.sources).map(|s| &s.pattern);
        let mut patterns = sources.chain(&self.ignore).chain(&self.sinusoids);
        patterns.any(|pattern| pattern.matches(name).is_some())
    }

    /// Where our tensor `name` is, and its layer.
    fn sources(&self, name: &str) -> (Vec<&Source>, Option<usize>) {
        let rules = self.rules.iter().filter_map(|rule| Some((rule, rule.ours.matches(name)?)));
        let mut layer = None;
        let mut sources = Vec::new();
        for (rule, found) in rules {
            layer = layer.or(found.layer);
            sources.extend(&rule.sources);
        }
        (sources, layer)
    }
}

/// The rules of one line; a name without `.weight` or `.bias` stands for both.
fn rules_of(ours: &str, places: toml::Value, words: &Words, known: &[String]) -> Result<Vec<Rule>> {
    let places = match places {
        toml::Value::Array(places) => places,
        place => vec![place],
    };
    let places = places.into_iter().map(place).collect::<Result<Vec<_>>>();
    let places = places.with_context(|| format!("`{ours}`"))?;
    let has_suffix = ours.ends_with(".weight") || ours.ends_with(".bias");
    let suffixes: &[&str] = if has_suffix { &[""] } else { &[".weight", ".bias"] };
    let rule = |suffix: &&str| -> Result<Rule> {
        let ours = format!("{ours}{suffix}");
        ensure!(known.contains(&ours), "no model has a tensor `{ours}`");
        let source = |place: &Place| -> Result<Source> {
            Ok(Source {
                pattern: Pattern::parse(&format!("{}{suffix}", place.name), words)?,
                part: part(place.rows.as_deref())?,
                transpose: place.transpose && *suffix != ".bias",
            })
        };
        let sources = places.iter().map(source).collect::<Result<_>>();
        let sources = sources.with_context(|| format!("`{ours}`"))?;
        Ok(Rule { ours: Pattern::parse(&ours, words)?, sources })
    };
    suffixes.iter().map(rule).collect()
}

/// A name, or a table with one.
fn place(value: toml::Value) -> Result<Place> {
    match value {
        toml::Value::String(name) => Ok(Place { name, rows: None, transpose: false }),
        table @ toml::Value::Table(_) => Ok(table.try_into()?),
        other => bail!("a {} is neither a name nor a table with one", other.type_str()),
    }
}

/// `"2/3"`: the second of three equal parts.
fn part(rows: Option<&str>) -> Result<(usize, usize)> {
    let Some(rows) = rows else { return Ok((0, 1)) };
    let numbers = rows.split_once('/').and_then(|(part, of)| {
        Some((part.trim().parse::<usize>().ok()?, of.trim().parse::<usize>().ok()?))
    });
    match numbers {
        Some((part @ 1.., of @ ..=64)) if part <= of => Ok((part - 1, of)),
        _ => bail!("rows \"{rows}\" is no part such as \"1/3\""),
    }
}

/// The names of all tensors that a model can have, with `{i}` for the layer.
fn our_names() -> Result<Vec<String>> {
    let stack = StackConfig { n_layers: 1, n_heads: 1, d_ff: 1 };
    let network = Network::new(&ModelConfig {
        family: Family::EncoderDecoder,
        d_model: 2,
        encoder: stack,
        decoder: stack,
        source_vocab: 8,
        target_vocab: 8,
        max_source_len: 2,
        max_target_len: 2,
        norm: NormPlace::Pre,
        final_norm: true,
        positions: Positions::Learned,
        output: Output::UntiedBias,
        shared_embedding: false,
        scale_embedding: true,
        source_frame: SourceFrame::End,
        activation: Activation::Relu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    })?;
    let specs = network.layout.specs.iter();
    Ok(specs.map(|spec| spec.name.replace(".layers.0.", ".layers.{i}.")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", NameMap::parse("x.toml", text).unwrap_err())
    }

    #[test]
    fn mistakes_in_a_map_are_named() {
        let says = |text: &str, expected: &str| {
            let error = error(text);
            assert!(error.contains(expected) && error.starts_with("names x.toml"), "{error}");
        };
        says("tensors = 3", "invalid type");
        says("[tensors]\n[tensor]", "unknown field `tensor`");
        says(
            "[tensors]\n\"encoder.layer.{i}.norm1\" = \"a\"",
            "no model has a tensor `encoder.layer.",
        );
        says("[tensors]\n\"encoder.norm\" = \"{a}\"", "`{a}` is neither");
        says(
            "[tensors]\n\"encoder.norm\" = { name = \"a\", row = \"1/2\" }",
            "unknown field `row`",
        );
        says("[tensors]\n\"encoder.norm\" = 3", "a integer is neither a name nor");
        for rows in ["0/2", "3/2", "1", "a/b", "1/65"] {
            let line =
                format!("[tensors]\n\"encoder.norm\" = {{ name = \"a\", rows = \"{rows}\" }}");
            says(&line, "is no part such as");
        }
    }

    #[test]
    fn built_in_maps_cover_every_tensor_that_a_model_can_have() {
        for map in NameMap::all_built_in().unwrap() {
            for name in our_names().unwrap() {
                let name = name.replace("{i}", "0");
                // Marian has neither learned positions nor final norms.
                let absent = map.name == "marian"
                    && (name.contains("_positions")
                        || name.ends_with("coder.norm.weight")
                        || name.ends_with("coder.norm.bias"));
                let (sources, _) = map.sources(&name);
                assert_eq!(sources.is_empty(), absent, "{}: {name}", map.name);
            }
        }
    }
}
