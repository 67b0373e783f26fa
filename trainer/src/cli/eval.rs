//! `trainer eval`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use model_format::header::MAGIC;

use crate::config::RunConfig;
use crate::data::corpus::{self, Pair};
use crate::data::split;
use crate::device;
use crate::evaluate::{self, References, Scores};
use crate::model::TrainedModel;

/// Scores a checkpoint or an exported file on pairs of texts.
#[derive(ClapArgs)]
pub struct Args {
    /// An exported file, a run's folder, or a checkpoint file.
    model: PathBuf,
    /// Pairs to score on, `source<TAB>target` lines; lines of one source are its references
    /// [default: the test side of the bundled dictionary].
    #[arg(long, value_name = "TSV")]
    data: Option<PathBuf>,
    /// Write `source<TAB>output` lines here.
    #[arg(long, value_name = "TSV")]
    outputs: Option<PathBuf>,
    /// Threads to decode with.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// What one model gave.
struct Evaluated {
    references: References,
    outputs: Vec<Vec<String>>,
    separator: &'static str,
    /// Per target token; an exported file has none.
    loss: Option<f64>,
    words_per_second: f64,
}

/// Evaluates.
pub fn run(args: &Args) -> Result<()> {
    let pairs = match &args.data {
        Some(path) => corpus::read_tsv(path)?,
        None => split::load(&RunConfig::default().data)?.test,
    };
    let evaluated = match is_exported(&args.model)? {
        true => exported(args, &pairs)?,
        false => checkpoint(args, &pairs)?,
    };
    let Evaluated { references, outputs, separator, loss, words_per_second } = evaluated;
    if let Some(path) = &args.outputs {
        let lines = references.sources.iter().zip(&outputs);
        let text: String = lines.map(|(s, o)| format!("{s}\t{}\n", o.join(separator))).collect();
        crate::checkpoint::write_atomically(path, text.as_bytes())?;
    }
    let Scores { words, wer, per, wer_no_stress, per_no_stress } = references.score(&outputs);
    println!("words           {words}");
    if let Some(loss) = loss {
        println!("loss            {loss:.4} per target token");
    }
    println!("WER             {:.2}%", 100.0 * wer);
    println!("PER             {:.2}%", 100.0 * per);
    println!("WER, no stress  {:.2}%", 100.0 * wer_no_stress);
    println!("PER, no stress  {:.2}%", 100.0 * per_no_stress);
    println!("words/s         {words_per_second:.0}");
    Ok(())
}

/// Whether the file begins as exported ones do.
fn is_exported(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(bytes.starts_with(&MAGIC))
}

fn exported(args: &Args, pairs: &[Pair]) -> Result<Evaluated> {
    let file = device::read(&args.model)?;
    let model = device::check(&file).with_context(|| args.model.display().to_string())?;
    let splitting = device::target_splitting(&model);
    let references = References::split(pairs, &splitting);
    let evaluation = device::evaluate(model, &references.sources, args.threads)?;
    Ok(Evaluated {
        references,
        outputs: evaluation.outputs,
        separator: splitting.separator(),
        loss: None,
        words_per_second: evaluation.texts_per_second,
    })
}

fn checkpoint(args: &Args, pairs: &[Pair]) -> Result<Evaluated> {
    let model = TrainedModel::load(&args.model)?;
    let limits = corpus::Limits {
        source: usize::from(model.config().max_source_len) - 1,
        target: usize::from(model.config().max_target_len) - 1,
    };
    let examples = corpus::encode(pairs, &model.source, &model.target, limits)?;
    let loss = evaluate::loss(&model.network, &model.params, &examples, args.threads);
    let references = References::new(pairs, &model.target);
    let start = Instant::now();
    let outputs = model.transcribe(&references.sources, args.threads);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Evaluated {
        words_per_second: references.sources.len() as f64 / seconds,
        references,
        outputs,
        separator: model.target.separator(),
        loss: Some(loss),
    })
}
