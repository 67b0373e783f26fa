//! A run from its configuration to its last evaluation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use model_format::config::{Family, SpecialIds};

use crate::backend::Device;
use crate::checkpoint::{self, Checkpoint, Header};
use crate::config::RunConfig;
use crate::data::corpus;
use crate::data::split::{self, Split};
use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::evaluate::HeldOut;
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
        let split = split::load(&config.data, config.model.family)?;
        let (source, target) = vocabularies(&split, &mut config)?;
        let network = Arc::new(Network::new(&config.model)?);
        let data = encode(&split, &config, (&source, &target), &network)?;
        let run = fresh(&folder, &network, config, source, target, &data)?;
        Ok(Self { folder, split, run, network, device: Device::default(), data })
    }

    /// The run of a folder, where it stopped.
    pub fn resume(folder: &Path) -> Result<Self> {
        let run = checkpoint::load(folder)?;
        let header = &run.header;
        let split = split::load(&header.config.data, header.config.model.family)?;
        let network = Arc::new(Network::new(&header.config.model)?);
        let tokenizers = (&header.source, &header.target);
        let data = encode(&split, &header.config, tokenizers, &network)?;
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

    /// The watched pairs.
    pub fn held_out(&self) -> &HeldOut {
        &self.data.dev
    }

    fn last_evaluation(&self, report: &mut Report) -> Result<()> {
        let header = &self.run.header;
        let tokenizers = (&header.source, &header.target);
        let test = HeldOut::new(&self.split.test, tokenizers, &self.network, &self.data.train)?;
        let (side, held_out) =
            if test.examples.is_empty() { ("held-out", &self.data.dev) } else { ("test", &test) };
        match train::evaluate_run(&self.network, &self.run, held_out) {
            Some(quality) => report.last_evaluation(header.progress.step, side, &quality),
            None => {
                report.say("finished: no pair was held out, so nothing is known of its quality");
                Ok(())
            }
        }
    }
}

/// The vocabularies of a run, whose sizes go into the config.
///
/// Symbols are those of the training pairs, labels those of all pairs: that a label exists is no secret
/// of the held-out ones.
pub fn vocabularies(split: &Split, config: &mut RunConfig) -> Result<(Tokenizer, Tokenizer)> {
    let (data, model) = (&mut config.data, &mut config.model);
    ensure!(
        model.special == SpecialIds::default(),
        "special: a trained vocabulary has {:?}",
        SpecialIds::default()
    );
    let sources = || split.train.iter().map(|pair| pair.source.as_str());
    let targets = || split.train.iter().map(|pair| pair.target.as_str());
    let (source, target) = match model.family {
        Family::EncoderDecoder => {
            let source = Tokenizer::build(data.source, sources())?;
            let target = Tokenizer::build(data.target, targets())?;
            if model.shared_embedding { source.join(target)? } else { (source, target) }
        }
        Family::DecoderOnly => {
            data.source = data.target;
            (Tokenizer::none(data.source), Tokenizer::build(data.target, targets())?)
        }
        Family::Tagger | Family::Classifier => {
            let held_out = split.dev.iter().chain(&split.test);
            let labels = targets().chain(held_out.map(|pair| pair.target.as_str()));
            let target = Tokenizer::build_labels(data.target, labels)?;
            (Tokenizer::build(data.source, sources())?, target)
        }
    };
    // A model that cannot be exported is not worth its training.
    let (name, read) = if source.is_empty() { ("target", &target) } else { ("source", &source) };
    read.check_lengths().context(name)?;
    (model.source_vocab, model.target_vocab) = (source.len() as u16, target.len() as u16);
    Ok((source, target))
}

fn encode(
    split: &Split,
    config: &RunConfig,
    tokenizers: (&Tokenizer, &Tokenizer),
    network: &Network,
) -> Result<Data> {
    let file_name = |file: Option<&Path>| {
        let file = file.or(config.data.train.as_deref());
        file.map_or_else(|| "the dictionary".to_owned(), |path| path.display().to_string())
    };
    let train = corpus::encode(&split.train, tokenizers, &network.config);
    let train = train.with_context(|| file_name(None))?;
    let dev = HeldOut::new(&split.dev, tokenizers, network, &train);
    let dev = dev.with_context(|| file_name(config.data.dev.as_deref()))?;
    Ok(Data { train, dev })
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
