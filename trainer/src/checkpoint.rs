//! A run on disk: one safetensors file, written aside and renamed, so that whatever happens the last
//! whole checkpoint stays usable.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use safetensors::tensor::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::data::tokenizer::Tokenizer;
use crate::engine::Network;
use crate::optimizer::Weights;

/// The checkpoint's name in a run's folder.
pub const FILE_NAME: &str = "checkpoint.safetensors";
/// The key of the JSON part; the only one, because the file's map has no fixed order.
const METADATA_KEY: &str = "kiloformer";
/// Version of the JSON part.
const VERSION: u32 = 1;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps done.
    pub step: u64,
    /// The epoch that is running, from 0.
    pub epoch: u64,
    /// Batches of it that are done.
    pub batch: u64,
    /// Smoothed loss of those batches, summed over target tokens.
    pub epoch_loss: f64,
    /// Their target tokens.
    pub epoch_tokens: u64,
}

/// The JSON part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Of this structure.
    pub version: u32,
    /// How the run was begun.
    pub config: RunConfig,
    /// Source vocabulary.
    pub source: Tokenizer,
    /// Target vocabulary.
    pub target: Tokenizer,
    /// How far it is.
    pub progress: Progress,
    /// Hash of the training examples: a resumed run must see the same ones.
    pub data_hash: u64,
}

impl Header {
    /// The header of a run that has not begun.
    pub fn new(config: RunConfig, source: Tokenizer, target: Tokenizer, data_hash: u64) -> Self {
        let progress = Progress::default();
        Self { version: VERSION, config, source, target, progress, data_hash }
    }
}

/// A whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// All but numbers.
    pub header: Header,
    /// All numbers.
    pub weights: Weights,
}

/// A tensor on its way into a file.
struct TensorView<'a> {
    shape: &'a [usize],
    data: &'a [f32],
}

impl View for &TensorView<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.data.iter().flat_map(|v| v.to_le_bytes()).collect()
    }
    fn data_len(&self) -> usize {
        self.data.len() * 4
    }
}

/// The four buffers of [`Weights`] and the prefix of their tensors' names.
fn groups(weights: &Weights) -> [(&'static str, &Vec<f32>); 4] {
    [
        ("params", &weights.params),
        ("ema", &weights.ema),
        ("adam.moment1", &weights.moment1),
        ("adam.moment2", &weights.moment2),
    ]
}

/// Writes the checkpoint into a run's folder. On an error the previous one stays as it was.
pub fn save(folder: &Path, network: &Network, header: &Header, weights: &Weights) -> Result<()> {
    let mut tensors = Vec::new();
    for (prefix, flat) in groups(weights) {
        for spec in &network.layout.specs {
            let view = TensorView { shape: &spec.shape, data: &flat[spec.range()] };
            tensors.push((format!("{prefix}/{}", spec.name), view));
        }
    }
    let metadata = HashMap::from([(METADATA_KEY.to_owned(), serde_json::to_string(header)?)]);
    let views = tensors.iter().map(|(name, view)| (name.as_str(), view));
    let bytes = safetensors::serialize(views, Some(metadata))?;
    write_atomically(&folder.join(FILE_NAME), &bytes)
}

/// Writes a file aside, flushes it to the disk and renames it over the old one.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = path.with_extension("tmp");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&aside, path)
    };
    write().map_err(|error| {
        // What was written of the new file is of no use; an error here would hide the first.
        let _ = fs::remove_file(&aside);
        let kept = if path.exists() { "; the previous one is kept" } else { "" };
        anyhow!("writing {} ({} bytes): {error}{kept}", path.display(), bytes.len())
    })
}

/// Reads a checkpoint: a file, or the folder of a run.
pub fn load(path: &Path) -> Result<Checkpoint> {
    let path = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} is not a usable checkpoint", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Checkpoint> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let json = metadata.metadata().as_ref().and_then(|map| map.get(METADATA_KEY));
    let json = json.context("no `kiloformer` entry in its metadata")?;
    let version: serde_json::Value = serde_json::from_str(json)?;
    ensure!(version["version"] == VERSION, "version {} is not {VERSION}", version["version"]);
    let header: Header = serde_json::from_str(json)?;
    let file = SafeTensors::deserialize(bytes)?;
    let network = Network::new(&header.config.model)?;
    let read = |prefix: &str| -> Result<Vec<f32>> {
        let mut tensors = BTreeMap::new();
        for spec in &network.layout.specs {
            let tensor = file.tensor(&format!("{prefix}/{}", spec.name))?;
            let numbers = tensor.data().chunks_exact(4);
            let numbers = numbers.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            tensors.insert(spec.name.clone(), numbers);
        }
        network.layout.gather(&tensors)
    };
    let weights = Weights {
        params: read("params")?,
        ema: read("ema")?,
        moment1: read("adam.moment1")?,
        moment2: read("adam.moment2")?,
    };
    Ok(Checkpoint { header, weights })
}
