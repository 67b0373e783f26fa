//! A fixture as `tests/pytorch/make_fixtures.py` writes it: tensors, and facts in JSON.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use model_format::config::ModelConfig;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Deserialize;
use trainer::data::batch::Pairs;
use trainer::data::tokenizer::{Splitting, Tokenizer, Unit};
use trainer::engine::Network;
use trainer::model::TrainedModel;

use crate::best_id;

/// What PyTorch says besides tensors.
#[derive(Deserialize)]
pub struct Facts {
    /// The architecture.
    pub config: ModelConfig,
    /// Share of label smoothing in the loss.
    pub smoothing: f32,
    /// The mean loss per label that counts.
    pub loss: f64,
    /// How far 8-bit weights, keys and values alone move the logits, over their norm.
    pub quantization: f64,
    /// Greedy search, by sentence; none without a decoder.
    #[serde(default)]
    pub greedy: Vec<Greedy>,
    /// Beam search; none without a decoder.
    #[serde(default)]
    pub beam: Vec<Beam>,
}

/// One greedy answer.
#[derive(Deserialize)]
pub struct Greedy {
    /// What the encoder reads, the frame included; none for a language model.
    pub source: Option<Vec<u16>>,
    /// Ids after start that the search goes on with.
    pub prompt: Vec<u16>,
    /// Ids after the prompt, the end id included where it was reached.
    pub ids: Vec<u16>,
}

/// The best answers of one beam search.
#[derive(Deserialize)]
pub struct Beam {
    /// Index of the source among those of greedy search; that one's prompt is not used.
    pub sentence: usize,
    /// Live hypotheses.
    pub beams: usize,
    /// Answers wanted.
    pub n: usize,
    /// Exponent of the length penalty.
    pub alpha: f64,
    /// Best first.
    pub best: Vec<Scored>,
}

/// One answer of a beam search.
#[derive(Deserialize)]
pub struct Scored {
    /// Ids after start, the end id included where it was reached.
    pub ids: Vec<u16>,
    /// Sum of log-probabilities over length^alpha.
    pub score: f64,
}

/// Row-major numbers.
struct Values {
    shape: Vec<usize>,
    numbers: Vec<f32>,
}

/// One fixture.
pub struct Fixture {
    /// Name of its files.
    pub name: String,
    /// Its JSON.
    pub facts: Facts,
    tensors: HashMap<String, Values>,
}

/// One sentence of the padded batch, without its padding.
pub struct Sentence {
    /// What the encoder reads, the frame included; empty for a language model.
    pub source: Vec<u32>,
    /// What the decoder reads; empty without one.
    pub target: Vec<u32>,
    /// What is to be predicted.
    pub labels: Vec<u32>,
}

impl Sentence {
    /// The source without its frame.
    pub fn symbols(&self, config: &ModelConfig) -> &[u32] {
        let frame = config.source_frame;
        let first = usize::from(frame.has_start());
        let last = self.source.len().saturating_sub(usize::from(frame.has_end()));
        self.source.get(first..last).unwrap_or_default()
    }
}

/// Where the committed fixtures lie.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pytorch/fixtures")
}

/// All fixtures of `folder`, by name.
pub fn fixtures(folder: &Path) -> Vec<Fixture> {
    let files = fs::read_dir(folder).expect("the folder of fixtures");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| Fixture::read(path)).collect()
}

impl Fixture {
    fn read(json: &Path) -> Self {
        let name = json.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let facts =
            serde_json::from_slice(&fs::read(json).expect("the facts")).expect("their JSON");
        let bytes = fs::read(json.with_extension("safetensors")).expect("the tensors");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        let tensors = tensors.iter().map(|(name, view)| (name.to_owned(), values(&view))).collect();
        Self { name, facts, tensors }
    }

    /// The architecture.
    pub fn config(&self) -> &ModelConfig {
        &self.facts.config
    }

    fn find(&self, name: &str) -> Option<&Values> {
        self.tensors.get(name)
    }

    /// A tensor's numbers.
    pub fn numbers(&self, name: &str) -> &[f32] {
        let values = self.find(name);
        &values.unwrap_or_else(|| panic!("{}: no tensor `{name}`", self.name)).numbers
    }

    /// Names of the tensors that start with `prefix`, without it.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let names = self.tensors.keys().filter_map(|name| name.strip_prefix(prefix));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Row `b` of a padded tensor of ids where `visible` is not 0; empty where the model has none.
    fn ids(&self, name: &str, b: usize, visible: &[f32]) -> Vec<u32> {
        let Some(values) = self.find(name) else { return Vec::new() };
        let row = values.numbers.chunks_exact(values.shape[1]).nth(b).expect("a row");
        row.iter()
            .zip(visible)
            .filter(|(_, seen)| **seen != 0.0)
            .map(|(id, _)| *id as u32)
            .collect()
    }

    /// The batch, without padding.
    pub fn sentences(&self) -> Vec<Sentence> {
        let counts = self.find("counts").expect("what counts");
        let sentence = |(b, counts): (usize, &[f32])| {
            let seen = self.find("source_visible").map(|values| {
                let len = *values.shape.last().expect("a length");
                &values.numbers[b * len..][..len]
            });
            Sentence {
                source: self.ids("source", b, seen.unwrap_or_default()),
                target: self.ids("target", b, counts),
                labels: self.ids("labels", b, counts),
            }
        };
        counts.numbers.chunks_exact(counts.shape[1]).enumerate().map(sentence).collect()
    }

    /// The batch as the trainer packs it.
    pub fn pairs(&self) -> Pairs {
        let mut pairs = Pairs::default();
        for Sentence { source, target, labels } in self.sentences() {
            pairs.source.push(source);
            pairs.target.push(if self.config().has_decoder() { target } else { labels.clone() });
            pairs.labels.extend(labels);
        }
        pairs
    }

    /// Rows of an activation of sentence `b`: `[b, len, columns]` without what was padded.
    pub fn activation(&self, name: &str, b: usize, sentence: &Sentence) -> Vec<f32> {
        let values = self.find(&format!("activations.{name}")).expect("an activation");
        let &[_, len, columns] = values.shape.as_slice() else { panic!("{name}: no batch") };
        let rows = values.numbers[b * len * columns..][..len * columns].chunks_exact(columns);
        let of_source = name.starts_with("encoder")
            || name.ends_with("cross_attention.key")
            || name.ends_with("cross_attention.value");
        if name == "logits" {
            let counts = &self.numbers("counts")[b * len..][..len];
            let rows = rows.zip(counts).filter(|(_, counts)| **counts != 0.0);
            rows.flat_map(|(row, _)| row.to_vec()).collect()
        } else {
            let n = if of_source { sentence.source.len() } else { sentence.target.len() };
            rows.take(n).flatten().copied().collect()
        }
    }

    /// The logits of the whole batch as the trainer packs them: a row for every label.
    pub fn packed_logits(&self) -> Vec<f32> {
        let sentences = self.sentences();
        sentences.iter().enumerate().flat_map(|(b, s)| self.activation("logits", b, s)).collect()
    }

    /// The best label of every row of logits, by sentence.
    pub fn best_labels(&self) -> Vec<Vec<u16>> {
        let rows = |(b, sentence)| self.activation("logits", b, sentence);
        let logits: Vec<Vec<f32>> = self.sentences().iter().enumerate().map(rows).collect();
        let best = |row: &[f32]| best_id(self.config(), row);
        let vocab = usize::from(self.config().target_vocab);
        logits.iter().map(|logits| logits.chunks_exact(vocab).map(best).collect()).collect()
    }

    /// The network with the fixture's weights.
    pub fn model(&self) -> TrainedModel {
        let tensors: BTreeMap<String, Vec<f32>> = self
            .names("weights.")
            .into_iter()
            .map(|name| (name.clone(), self.numbers(&format!("weights.{name}")).to_vec()))
            .collect();
        let config = self.config();
        let tokenizer = |vocab: u16, has_special: bool| {
            let symbols = (0..vocab).map(|id| format!("s{id}")).collect();
            let splitting = Splitting { unit: Unit::Word, lowercase: false };
            Tokenizer::with_special(splitting, symbols, has_special.then_some(config.special))
        };
        let source = tokenizer(config.source_vocab, config.has_encoder());
        let target = tokenizer(config.target_vocab, config.has_decoder());
        let model = TrainedModel::from_tensors(config, source, target, &tensors);
        let model = model.unwrap_or_else(|error| panic!("{}: {error:#}", self.name));
        let names: Vec<&str> = model.network.layout.specs.iter().map(|s| s.name.as_str()).collect();
        for name in tensors.keys() {
            assert!(names.contains(&name.as_str()), "{}: `{name}` has no use", self.name);
        }
        model
    }

    /// The map of [`Fixture::model`]'s parameters.
    pub fn network(&self) -> Arc<Network> {
        Arc::new(self.model().network)
    }
}

fn values(view: &TensorView<'_>) -> Values {
    let data = view.data();
    let numbers = match view.dtype() {
        Dtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        // Ids and masks: small whole numbers, which f32 holds exactly.
        Dtype::I32 => data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
        Dtype::U8 => data.iter().map(|&b| f32::from(b)).collect(),
        other => panic!("a fixture has no {other:?}"),
    };
    Values { shape: view.shape().to_vec(), numbers }
}
