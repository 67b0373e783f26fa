//! `trainer eval`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args as ClapArgs;

use crate::data::corpus;
use crate::evaluate::{self, References};
use crate::model::TrainedModel;

/// Scores a checkpoint on pairs of texts.
#[derive(ClapArgs)]
pub struct Args {
    /// A run's folder, or a checkpoint file.
    checkpoint: PathBuf,
    /// Pairs to score on: `source<TAB>target` lines; lines of one source are its references.
    #[arg(long, value_name = "TSV")]
    data: PathBuf,
    /// Write `source<TAB>output` lines here.
    #[arg(long, value_name = "TSV")]
    outputs: Option<PathBuf>,
    /// Threads to decode with.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Evaluates.
pub fn run(args: &Args) -> Result<()> {
    let model = TrainedModel::load(&args.checkpoint)?;
    let pairs = corpus::read_tsv(&args.data)?;
    let limits = corpus::Limits {
        source: usize::from(model.config().max_source_len) - 1,
        target: usize::from(model.config().max_target_len) - 1,
    };
    let examples = corpus::encode(&pairs, &model.source, &model.target, limits)?;
    let loss = evaluate::loss(&model.network, &model.params, &examples, args.threads);
    let references = References::new(&pairs, &model.target);
    let start = Instant::now();
    let outputs = model.transcribe(&references.sources, args.threads);
    let seconds = start.elapsed().as_secs_f64();
    let scores = references.score(&outputs);
    if let Some(path) = &args.outputs {
        let separator = model.target.separator();
        let lines = references.sources.iter().zip(&outputs);
        let text: String = lines.map(|(s, o)| format!("{s}\t{}\n", o.join(separator))).collect();
        crate::checkpoint::write_atomically(path, text.as_bytes())?;
    }
    println!("words           {}", scores.words);
    println!("loss            {loss:.4} per target token");
    println!("WER             {:.2}%", 100.0 * scores.wer);
    println!("PER             {:.2}%", 100.0 * scores.per);
    println!("WER, no stress  {:.2}%", 100.0 * scores.wer_no_stress);
    println!("PER, no stress  {:.2}%", 100.0 * scores.per_no_stress);
    println!("words/s         {:.0}", scores.words as f64 / seconds);
    Ok(())
}
