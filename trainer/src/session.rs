//! A run from its configuration to its last evaluation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};

use crate::backend::Device;
use crate::checkpoint::{self, Checkpoint, Header};
use crate::config::RunConfig;
use crate::data::batch::Example;
use crate::data::corpus::{self, Pair};
use crate::data::split::{self, Split};
use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::evaluate::{HeldOut, References};
use crate::report::Report;
use crate::train::{self, Data, Ended};

/// A run, its data and its place.
pub struct Session {
    /// Where the run's files lie.
    pub folder: PathBuf,
    /// All pairs by their purpose.
    pub split: Split,
    /// How far the run is.
    pub run: Checkpoint,
    /// The map of its parameters.
    pub network: Arc<Network>,
    /// What it trains on; no part of its result.
    pub device: Device,
    data: Data,
}

/// The first of `name`, `name-2`, ... that does not exist.
pub fn free_folder(name: &str) -> PathBuf {
    let names = (1..).map(|i| if i == 1 { name.to_owned() } else { format!("{name}-{i}") });
    let mut free = names.map(PathBuf::from).filter(|path| !path.exists());
    free.next().unwrap_or_else(|| name.into())
}

impl Session {
    /// A new run in a folder of its own.
    pub fn begin(folder: PathBuf, mut config: RunConfig) -> Result<Self> {
        let split = split::load(&config.data)?;
        let texts = |text: fn(&Pair) -> &str| split.train.iter().map(text);
        let source = Tokenizer::build(config.data.source, texts(|p| &p.source))?;
        let target = Tokenizer::build(config.data.target, texts(|p| &p.target))?;
        config.model.source_vocab = source.len() as u16;
        config.model.target_vocab = target.len() as u16;
        let network = Arc::new(Network::new(&config.model)?);
        let data = encode(&split, &config, &source, &target)?;
        let run = fresh(&folder, &network, config, source, target, &data)?;
        Ok(Self { folder, split, run, network, device: Device::default(), data })
    }

    /// The run of a folder, where it stopped.
    pub fn resume(folder: &Path) -> Result<Self> {
        let run = checkpoint::load(folder)?;
        let header = &run.header;
        let split = split::load(&header.config.data)?;
        let network = Arc::new(Network::new(&header.config.model)?);
        let data = encode(&split, &header.config, &header.source, &header.target)?;
        let folder = folder.to_owned();
        Ok(Self { folder, split, run, network, device: Device::default(), data })
    }

    /// Trains to the end, or until `stop` is set; what is finished is evaluated on the test pairs, or
    /// on the watched ones where there are no others.
    pub fn train(&mut self, stop: &AtomicBool) -> Result<Ended> {
        let Self { folder, run, network, data, .. } = self;
        let mut backend = self.device.open(network, run.header.config.train.workers)?;
        let mut report = Report::open(folder)?;
        report.say(&format!(
            "{}: {} parameters, {} training pairs, {} held-out pairs, on {}",
            folder.display(),
            network.layout.len(),
            data.train.len(),
            data.dev.examples.len(),
            backend.name()
        ));
        let ended = train::train(folder, network, run, data, &mut backend, &mut report, stop)?;
        report.finish();
        match ended {
            Ended::Finished => self.last_evaluation(&mut report)?,
            Ended::Interrupted => report.say(&format!(
                "stopped after step {}; go on with: trainer train --resume {}",
                run.header.progress.step,
                folder.display()
            )),
        }
        Ok(ended)
    }

    fn last_evaluation(&self, report: &mut Report) -> Result<()> {
        let header = &self.run.header;
        let test =
            encode_side(&self.split.test, None, &header.config, &header.source, &header.target)?;
        let test = held_out(test, &self.split.test, &header.target);
        let (side, held_out) =
            if test.examples.is_empty() { ("held-out", &self.data.dev) } else { ("test", &test) };
        match train::evaluate_run(&self.network, &self.run, held_out) {
            Some((loss, scores)) => {
                report.last_evaluation(header.progress.step, side, loss, &scores)
            }
            None => {
                report.say("finished: no pair was held out, so nothing is known of its quality");
                Ok(())
            }
        }
    }
}

fn encode(
    split: &Split,
    config: &RunConfig,
    source: &Tokenizer,
    target: &Tokenizer,
) -> Result<Data> {
    let train = encode_side(&split.train, None, config, source, target)?;
    let dev = encode_side(&split.dev, config.data.dev.as_deref(), config, source, target)?;
    Ok(Data { train, dev: held_out(dev, &split.dev, target) })
}

/// Examples of pairs that come from `file`, or else from the training pairs' file.
fn encode_side(
    pairs: &[Pair],
    file: Option<&Path>,
    config: &RunConfig,
    source: &Tokenizer,
    target: &Tokenizer,
) -> Result<Vec<Example>> {
    let file = file.or(config.data.train.as_deref());
    let name = file.map_or_else(|| "the dictionary".to_owned(), |p| p.display().to_string());
    corpus::encode(pairs, source, target, config.limits()).context(name)
}

fn held_out(examples: Vec<Example>, pairs: &[Pair], target: &Tokenizer) -> HeldOut {
    HeldOut { examples, references: References::new(pairs, target) }
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
