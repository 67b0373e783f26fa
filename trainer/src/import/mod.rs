//! Checkpoints from PyTorch: from a `.pt` or `.safetensors` file to a trained model.
//!
//! ```text
//! config       sizes and choices, from our JSON or (marian) Hugging Face's
//! vocabulary   symbols by id, from JSON
//! names        which tensor of the checkpoint is which of ours
//! state_dict   the tensors of a checkpoint, by their foreign names
//!   torch        PyTorch's zip archives
//!     pickle       the part of Python's pickle language that they use; never calls anything
//! way_back     a trained model as a state dict for PyTorch
//! ```

pub mod config;
pub mod marian;
pub mod names;
pub mod pickle;
pub mod state_dict;
pub mod torch;
pub mod vocabulary;
pub mod way_back;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model_format::config::{Family, ModelConfig, SpecialIds, UnknownPolicy};

use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::model::TrainedModel;
use config::{Draft, Lengths, SpecialDraft};
use names::NameMap;
use names::resolve::{self, Problems, Resolved, Tensors};
use names::sizes::Seen;
use state_dict::StateDict;
use vocabulary::{SplittingChoice, Symbols};

/// Problems that a message lists.
const MAX_LISTED: usize = 20;

/// What to import.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// A `.pt` or `.safetensors` file.
    pub checkpoint: &'a Path,
    /// The key of the state dict inside of a `.pt`, where it is not a usual one.
    pub key: Option<&'a str>,
    /// The architecture; see [`config`].
    pub config: &'a Path,
    /// The vocabularies; see [`vocabulary`].
    pub vocab: &'a Path,
    /// `auto`, the name of a built-in map, or the path of a TOML file; see [`names`].
    pub names: &'a str,
    /// Limits that win over the config's.
    pub lengths: Lengths,
    /// How source texts are cut.
    pub source: SplittingChoice,
    /// How target texts are cut.
    pub target: SplittingChoice,
}

/// What was imported.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The model.
    pub model: TrainedModel,
    /// The map of names that fitted.
    pub names: String,
    /// Kinds of biases of which the checkpoint has none: zeros.
    pub zero_biases: Vec<&'static str>,
}

/// Reads a checkpoint and everything that belongs to it.
///
/// # Errors
/// Whatever does not fit; of the tensors, all that do not fit at once.
pub fn import(request: Request<'_>) -> Result<Imported> {
    let dict = state_dict::read(request.checkpoint, request.key)?;
    let draft = Draft::read(request.config, request.lengths)?;
    let [source, target] = vocabulary::read(request.vocab)?;
    let family = draft.family()?;
    let sides: &[&Symbols] = match family {
        Family::EncoderDecoder => &[&source, &target],
        Family::DecoderOnly => &[&target],
        _ => &[&source],
    };
    let special = vocabulary::special_ids(draft.special, sides)
        .with_context(|| request.vocab.display().to_string())?;
    let maps = maps(request.names)?;
    let (names, config, resolved) = fitting(&maps, &dict, &draft, special)?;
    let model = assemble(config, resolved.tensors, special, (&source, &target), request)
        .with_context(|| request.vocab.display().to_string())?;
    Ok(Imported { model, names, zero_biases: resolved.zero_biases.into_iter().collect() })
}

fn maps(names: &str) -> Result<Vec<NameMap>> {
    match (names, NameMap::built_in(names)) {
        ("auto", _) => NameMap::all_built_in(),
        (_, Some(map)) => Ok(vec![map?]),
        (path, None) => Ok(vec![NameMap::read(Path::new(path))?]),
    }
}

/// The first map that fits, with the config and the tensors.
fn fitting(
    maps: &[NameMap],
    dict: &StateDict,
    draft: &Draft,
    special: SpecialDraft,
) -> Result<(String, ModelConfig, Resolved)> {
    // The map that knows most of the names is the one whose problems help.
    let mut nearest: Option<(usize, &str, Problems)> = None;
    for map in maps {
        match fit(map, dict, draft, special) {
            Ok((config, resolved)) => return Ok((map.name.clone(), config, resolved)),
            Err(problems) => {
                let known = dict.keys().filter(|name| map.knows(name)).count();
                if nearest.as_ref().is_none_or(|(most, ..)| known > *most) {
                    nearest = Some((known, &map.name, problems));
                }
            }
        }
    }
    let (_, name, problems) = nearest.context("no map of names")?;
    let tried = match maps.len() {
        1 => String::new(),
        n => format!("none of the {n} built-in maps; nearest: "),
    };
    bail!("the checkpoint does not fit ({tried}{name}):\n  {}", listed(&problems))
}

/// The first problems, one a line, and how many more there are.
fn listed(problems: &[String]) -> String {
    let mut lines: Vec<String> = problems.iter().take(MAX_LISTED).cloned().collect();
    match problems.len().saturating_sub(MAX_LISTED) {
        0 => {}
        more => lines.push(format!("... and {more} more")),
    }
    lines.join("\n  ")
}

/// Refuses sizes that no checkpoint of so many tensors has, and those that no text fits.
fn check_sizes(config: &ModelConfig, dict: &StateDict) -> Result<()> {
    for (name, stack) in [("encoder", config.encoder), ("decoder", config.decoder)] {
        ensure!(
            usize::from(stack.n_layers) <= dict.len(),
            "{name}.n_layers is {}, but the checkpoint has {} tensors in all",
            stack.n_layers,
            dict.len()
        );
    }
    let frame = config.source_frame.len();
    ensure!(
        !config.has_encoder() || config.max_source_len > frame,
        "max_source_len is {} (--max-source-len): no room for a symbol beside the source's frame of \
         {frame} ids",
        config.max_source_len
    );
    Ok(())
}

/// The config and the tensors as one map sees them.
fn fit(
    map: &NameMap,
    dict: &StateDict,
    draft: &Draft,
    special: SpecialDraft,
) -> Result<(ModelConfig, Resolved), Problems> {
    let one = |error: anyhow::Error| vec![format!("{error:#}")];
    let special = stand_in(special);
    let config = draft.complete(&Seen::new(map, dict), special).map_err(one)?;
    check_sizes(&config, dict).map_err(one)?;
    let network = Network::new(&config).map_err(one)?;
    Ok((config, resolve::resolve(map, dict, &network)?))
}

/// The special ids, with any free id for an unknown id that there is not.
fn stand_in(special: SpecialDraft) -> SpecialIds {
    let [pad, start, end] =
        [special.pad, special.start, special.end].map(|id| id.unwrap_or_default());
    let free = (0..).find(|id| ![pad, start, end].contains(id));
    SpecialIds { pad, start, end, unknown: special.unknown.or(free).unwrap_or_default() }
}

/// Puts config, vocabularies and tensors together. The format wants an unknown id; where the source
/// has none, one is added with a row of zeros, which no text reaches, since unknown symbols are
/// then refused; one of the checkpoint's own stands for them.
fn assemble(
    mut config: ModelConfig,
    mut tensors: Tensors,
    special: SpecialDraft,
    (source, target): (&Symbols, &Symbols),
    request: Request<'_>,
) -> Result<TrainedModel> {
    for (symbols, rows) in [(source, config.source_vocab), (target, config.target_vocab)] {
        ensure!(
            rows == 0 || symbols.len() == usize::from(rows),
            "{} vocabulary: {} ids, but {rows} rows of the checkpoint's tensor",
            symbols.side,
            symbols.len()
        );
    }
    // What the decoder reads and writes has no unknown id where that was added to the source.
    let mut target_special = config.special;
    if special.unknown.is_none() {
        let embedding = tensors.get_mut("source_embedding.weight");
        let embedding = embedding.context(
            "there is no unknown id: `special.unknown` of the config must say which id stands for \
             unknown symbols, since the embedding is the target's too",
        )?;
        ensure!(config.source_vocab < u16::MAX, "the source vocabulary is full");
        embedding.extend(std::iter::repeat_n(0.0, config.d_model.into()));
        config.special.unknown = config.source_vocab;
        target_special.unknown = target_special.start;
        config.source_vocab += 1;
    }
    let special_ids = (config.special, target_special);
    let (source, target) = tokenizers(&config, special_ids, (source, target), request)?;
    let unknown = match special.unknown {
        Some(_) => UnknownPolicy::Replace,
        None => UnknownPolicy::Refuse,
    };
    let network = Network::new(&config)?;
    let params = network.layout.gather(&tensors)?;
    Ok(TrainedModel { network, source, target, params, unknown })
}

/// The vocabularies of both sides, with the special ids of each.
///
/// # Errors
/// An id without a symbol, and a symbol that no text can hold on the side that is read.
fn tokenizers(
    config: &ModelConfig,
    (source_special, target_special): (SpecialIds, SpecialIds),
    (source, target): (&Symbols, &Symbols),
    request: Request<'_>,
) -> Result<(Tokenizer, Tokenizer)> {
    let target_special = config.has_decoder().then_some(target_special);
    let target = target.tokenizer(config.target_vocab.into(), target_special, request.target)?;
    if !config.has_encoder() {
        target.check_readable().context("target vocabulary")?;
        return Ok((Tokenizer::none(target.splitting), target));
    }
    let len = config.source_vocab.into();
    let source = source.tokenizer(len, Some(source_special), request.source)?;
    // A shared vocabulary has symbols of the target too, which no source holds.
    let check = match config.shared_embedding {
        true => source.check_lengths(),
        false => source.check_readable(),
    };
    check.context("source vocabulary")?;
    Ok((source, target))
}
