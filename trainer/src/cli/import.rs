//! `trainer import`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args as ClapArgs;
use model_format::config::{Precision, UnknownPolicy};

use super::export::{PrecisionArg, UnknownArg, WeightsArg, warn_unused};
use super::layout::{LayoutArgs, in_layout};
use crate::checkpoint::write_atomically;
use crate::data::corpus::Pair;
use crate::data::tokenizer::Unit;
use crate::export::{CALIBRATION_PAIRS, export_with};
use crate::import::config::Lengths;
use crate::import::vocabulary::SplittingChoice;
use crate::import::{Request, import};
use crate::model::TrainedModel;

/// Turns a PyTorch checkpoint into a file for the runtime.
///
/// Reads `.pt` files of `torch.save(model.state_dict(), ...)`, training checkpoints that hold such a
/// state dict, and `.safetensors` files. Nothing in them is ever executed. See docs/import.md.
#[derive(ClapArgs)]
pub struct Args {
    /// The checkpoint: .pt, .pth or .safetensors.
    checkpoint: PathBuf,
    /// The architecture, in JSON: fields of a run's `model`, of which sizes that the tensors tell may
    /// be left out; or Hugging Face's config.json of a Marian model.
    #[arg(long, value_name = "JSON")]
    config: PathBuf,
    /// The vocabularies, in JSON: `{"source": ..., "target": ...}`, each a list of symbols or a map
    /// from symbol to id; or one list or map for both sides.
    #[arg(long, value_name = "JSON")]
    vocab: PathBuf,
    /// Which tensor is which: `torch`, `marian`, `tutorial`, a TOML file, or `auto` to try the
    /// built-in ones.
    #[arg(long, value_name = "NAMES", default_value = "auto")]
    names: String,
    /// Where the state dict is inside of a .pt [default: the usual keys].
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The file to write.
    #[arg(short, long, value_name = "KFM")]
    output: PathBuf,
    /// How numbers are stored and computed.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fixed)]
    precision: PrecisionArg,
    /// Bits of an integer file's weights. 4 halve the file, for a little accuracy.
    #[arg(long, value_enum, value_name = "BITS", default_value_t = WeightsArg::Eight)]
    weights: WeightsArg,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Source texts (of a language model prompts), one a line, on which an integer model's ranges are
    /// measured; of `source<TAB>target` lines the source counts.
    #[arg(long, value_name = "TEXTS")]
    calibration: Option<PathBuf>,
    /// Most source ids, those around the symbols included [default: the config's].
    #[arg(long, value_name = "N")]
    max_source_len: Option<u16>,
    /// Most target ids, end id included [default: the config's].
    #[arg(long, value_name = "N")]
    max_target_len: Option<u16>,
    /// What a source symbol is [default: character where all symbols are single ones, else word].
    #[arg(long, value_enum)]
    source_unit: Option<Unit>,
    /// What a target symbol is [default: as for the source].
    #[arg(long, value_enum)]
    target_unit: Option<Unit>,
    /// Whether source text is lower-cased [default: the vocabulary's, else false].
    #[arg(long, value_name = "BOOL")]
    source_lowercase: Option<bool>,
    /// What the file does with source symbols that it does not know [default: replace where the
    /// vocabulary has an unknown id, else refuse].
    #[arg(long, value_enum)]
    unknown: Option<UnknownArg>,
    /// Threads that decode the calibration texts.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Imports.
pub fn run(args: &Args) -> Result<()> {
    let mut imported = import(Request {
        checkpoint: &args.checkpoint,
        key: args.key.as_deref(),
        config: &args.config,
        vocab: &args.vocab,
        names: &args.names,
        lengths: Lengths { source: args.max_source_len, target: args.max_target_len },
        source: SplittingChoice { unit: args.source_unit, lowercase: args.source_lowercase },
        target: SplittingChoice { unit: args.target_unit, lowercase: None },
    })?;
    if let Some(unknown) = args.unknown {
        // The checkpoint's own unknown id has texts replaced by default.
        ensure!(
            !matches!(
                (unknown, imported.model.unknown),
                (UnknownArg::Replace, UnknownPolicy::Refuse)
            ),
            "--unknown replace: the checkpoint has no unknown id to stand for unknown symbols"
        );
        imported.model.unknown = unknown.into();
    }
    let precision = args.precision.into();
    let (layout, weights) = (args.layout.chosen(precision)?, args.weights.chosen(precision)?);
    let pairs = match (&args.calibration, precision) {
        (Some(path), Precision::FixedPoint) => calibration(&imported.model, path, args.threads)
            .with_context(|| path.display().to_string())?,
        (None, Precision::FixedPoint) => bail!(
            "an integer file needs --calibration TEXTS, source texts one a line; \
             --precision half needs none"
        ),
        (calibration, Precision::HalfFloat) => {
            warn_unused(calibration.as_deref());
            Vec::new()
        }
    };
    let file = in_layout(export_with(&imported.model, precision, weights, &pairs)?, layout)?;
    write_atomically(&args.output, &file)?;
    println!(
        "{}: {} bytes; {} parameters, names of `{}`",
        args.output.display(),
        file.len(),
        imported.model.params.len(),
        imported.names
    );
    if !imported.zero_biases.is_empty() {
        println!("biases that the checkpoint lacks are zero: {}", imported.zero_biases.join(", "));
    }
    Ok(())
}

/// Some texts of a file, at equal distances, with the model's own greedy outputs.
fn calibration(model: &TrainedModel, path: &Path, threads: usize) -> Result<Vec<Pair>> {
    let text = std::fs::read_to_string(path).context("reading")?;
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let given = lines.map(|(i, line)| (i, line.split('\t').next().unwrap_or_default()));
    let given: Vec<_> = given.filter(|(_, text)| !text.trim().is_empty()).collect();
    ensure!(!given.is_empty(), "no text");
    for (line, text) in &given {
        check_text(model, text).with_context(|| format!("line {line}"))?;
    }
    let distance = given.len().div_ceil(CALIBRATION_PAIRS);
    let given: Vec<_> = given.into_iter().step_by(distance).collect();
    let texts: Vec<String> = given.iter().map(|(_, text)| (*text).to_owned()).collect();
    let outputs = model.transcribe(&texts, threads);
    let pairs = given.into_iter().zip(outputs);
    Ok(pairs.map(|((line, text), output)| pair(model, line, text, output)).collect())
}

/// A text with the model's output. What a language model reads is the prompt and what follows.
fn pair(model: &TrainedModel, line: usize, text: &str, output: Vec<String>) -> Pair {
    let (source, mut target) = match model.config().has_encoder() {
        true => (text.to_owned(), Vec::new()),
        false => (String::new(), model.target.splitting.symbols(text)),
    };
    target.extend(output);
    if model.config().has_decoder() {
        // The decoder reads the start id too.
        target.truncate(usize::from(model.config().max_target_len).saturating_sub(1));
    }
    Pair { source, target: target.join(model.target.separator()), line }
}

/// Refuses a text that the exported file would refuse.
fn check_text(model: &TrainedModel, text: &str) -> Result<()> {
    let config = model.config();
    let (tokenizer, len, frame) = match config.has_encoder() {
        true => (&model.source, config.max_source_len, config.source_frame.len()),
        // A prompt leaves room for one id.
        false => (&model.target, config.max_target_len, 1),
    };
    let ids = match model.unknown {
        UnknownPolicy::Replace => tokenizer.encode(text),
        UnknownPolicy::Refuse => {
            let ids = tokenizer.encode_known(text);
            ids.map_err(|symbol| anyhow!("symbol {symbol:?} is not in the vocabulary"))?
        }
    };
    let room = usize::from(len.saturating_sub(frame));
    ensure!(ids.len() <= room, "{} symbols, the limit is {room}", ids.len());
    Ok(())
}
