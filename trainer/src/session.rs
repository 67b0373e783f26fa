//! A run from its configuration to its last step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};

use crate::checkpoint::{self, Checkpoint, Header};
use crate::config::RunConfig;
use crate::data::corpus::{self, Pair};
use crate::data::split::{self, Split};
use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::report::Report;
use crate::train::{self, Data, Ended};

/// A run, its data and its place.
pub struct Session {
    pub folder: PathBuf,
    pub split: Split,
    pub run: Checkpoint,
    pub network: Arc<Network>,
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
        Ok(Self { folder, split, run, network, data })
    }

    /// The run of a folder, where it stopped.
    pub fn resume(folder: &Path) -> Result<Self> {
        let run = checkpoint::load(folder)?;
        let header = &run.header;
        let split = split::load(&header.config.data)?;
        let network = Arc::new(Network::new(&header.config.model)?);
        let data = encode(&split, &header.config, &header.source, &header.target)?;
        Ok(Self { folder: folder.to_owned(), split, run, network, data })
    }

    /// Trains to the end, or until `stop` is set.
    pub fn train(&mut self, stop: &AtomicBool) -> Result<Ended> {
        let mut report = Report::open(&self.folder)?;
        report.say(&format!(
            "{}: {} parameters, {} training pairs, {} held-out pairs",
            self.folder.display(),
            self.network.layout.len(),
            self.data.train.len(),
            self.data.dev.len()
        ));
        let Self { folder, run, network, data, .. } = self;
        let ended = train::train(folder, network, run, data, &mut report, stop)?;
        if ended == Ended::Interrupted {
            report.say(&format!(
                "stopped after step {}; go on with: trainer train --resume {}",
                run.header.progress.step,
                folder.display()
            ));
        }
        Ok(ended)
    }
}

fn encode(
    split: &Split,
    config: &RunConfig,
    source: &Tokenizer,
    target: &Tokenizer,
) -> Result<Data> {
    let encode = |pairs: &[Pair], side: &Option<PathBuf>| {
        let name = side.as_ref().or(config.data.train.as_ref());
        let name = name.map_or_else(|| "the dictionary".to_owned(), |p| p.display().to_string());
        corpus::encode(pairs, source, target, config.limits()).context(name)
    };
    Ok(Data {
        train: encode(&split.train, &config.data.train)?,
        dev: encode(&split.dev, &config.data.dev)?,
        dev_pairs: split.dev.clone(),
    })
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
