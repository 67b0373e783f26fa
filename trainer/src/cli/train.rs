//! `trainer train`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;

use crate::checkpoint::{self, Checkpoint, Header};
use crate::config::RunConfig;
use crate::data::corpus::{self, Pair};
use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::report::Report;
use crate::train::{self, Data, Ended};

/// Every option overrides the value of `--config`, or the default.
#[derive(ClapArgs, Default)]
pub struct Args {
    /// Pairs to train on: `source<TAB>target` lines.
    #[arg(long, value_name = "TSV")]
    data: Option<PathBuf>,
    /// Held-out pairs.
    #[arg(long, value_name = "TSV")]
    dev: Option<PathBuf>,
    /// Folder of the run.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[arg(long)]
    epochs: Option<u64>,
    #[arg(long)]
    workers: Option<usize>,
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long)]
    rate: Option<f64>,
    /// Go on with the run in this folder.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    resume: Option<PathBuf>,
}

/// Trains.
pub fn run(args: &Args) -> Result<()> {
    let (folder, run) = match &args.resume {
        Some(folder) => (folder.clone(), Some(checkpoint::load(folder)?)),
        None => (args.out.clone().unwrap_or_else(|| "runs/default".into()), None),
    };
    let mut config = run.as_ref().map_or_else(RunConfig::default, |run| run.header.config.clone());
    if run.is_none() {
        config.data.train = args.data.clone();
        config.data.dev = args.dev.clone();
        config.train.epochs = args.epochs.unwrap_or(config.train.epochs);
        config.train.workers = args.workers.unwrap_or(config.train.workers);
        config.train.seed = args.seed.unwrap_or(config.train.seed);
        config.train.schedule.rate = args.rate.unwrap_or(config.train.schedule.rate);
    }
    let Some(path) = &config.data.train else { bail!("--data is missing") };
    let pairs = corpus::read_tsv(path)?;
    let dev_pairs = config.data.dev.as_deref().map_or_else(|| Ok(Vec::new()), corpus::read_tsv)?;
    let (source, target) = match &run {
        Some(run) => (run.header.source.clone(), run.header.target.clone()),
        None => tokenizers(&config, &pairs)?,
    };
    config.model.source_vocab = source.len() as u16;
    config.model.target_vocab = target.len() as u16;
    let encode = |pairs: &[Pair]| corpus::encode(pairs, &source, &target, config.limits());
    let data = Data { train: encode(&pairs)?, dev: encode(&dev_pairs)?, dev_pairs };
    let network = Arc::new(Network::new(&config.model)?);
    let mut run = match run {
        Some(run) => run,
        None => fresh(&folder, &network, config, source, target, &data)?,
    };
    let mut report = Report::open(&folder)?;
    report.say(&format!(
        "{} parameters, {} training pairs, {} held-out pairs",
        network.layout.len(),
        data.train.len(),
        data.dev.len()
    ));
    let stop = stop_flag()?;
    match train::train(&folder, &network, &mut run, &data, &mut report, &stop)? {
        Ended::Finished => Ok(()),
        Ended::Interrupted => {
            report.say(&format!(
                "stopped at step {}; go on with --resume {}",
                run.header.progress.step,
                folder.display()
            ));
            Ok(())
        }
    }
}

fn tokenizers(config: &RunConfig, pairs: &[Pair]) -> Result<(Tokenizer, Tokenizer)> {
    let source = Tokenizer::build(config.data.source, pairs.iter().map(|p| p.source.as_str()))?;
    let target = Tokenizer::build(config.data.target, pairs.iter().map(|p| p.target.as_str()))?;
    Ok((source, target))
}

/// Makes the folder and the first checkpoint, which proves that both can be written.
fn fresh(
    folder: &Path,
    network: &Network,
    config: RunConfig,
    source: Tokenizer,
    target: Tokenizer,
    data: &Data,
) -> Result<Checkpoint> {
    ensure!(
        !folder.join(checkpoint::FILE_NAME).exists(),
        "{} holds a run already: choose another --out, or go on with --resume",
        folder.display()
    );
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let json = serde_json::to_string_pretty(&config)?;
    checkpoint::write_atomically(&folder.join("config.json"), json.as_bytes())?;
    let header = Header::new(config, source, target, train::data_hash(&data.train));
    let run = train::begin(network, header);
    checkpoint::save(folder, network, &run.header, &run.weights)?;
    Ok(run)
}

/// A flag that Ctrl-C sets; the loop looks at it after every step.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("catching Ctrl-C")?;
    Ok(stop)
}
