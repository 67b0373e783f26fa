//! What a run is: data, architecture, training. Written to the run's folder and into every checkpoint.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, SourceFrame, SpecialIds,
    StackConfig,
};
use serde::{Deserialize, Serialize};

use crate::data::tasks::Task;
use crate::data::tokenizer::{Splitting, Unit};
use crate::engine::DropoutRates;
use crate::engine::sanity::{self, family_name};
use crate::optimizer::{AdamConfig, Schedule, ScheduleKind};

/// Everything that decides the result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Where the pairs come from.
    pub data: DataConfig,
    /// Vocabulary sizes are filled in when the data is read.
    pub model: ModelConfig,
    /// How it trains.
    pub train: TrainConfig,
}

/// Where the pairs come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataConfig {
    /// What is learned from the bundled dictionary, where `train` is absent.
    #[serde(default, skip_serializing_if = "Task::is_default")]
    pub task: Task,
    /// `source<TAB>target` lines, where a target is a text or labels, or a text a line for a language
    /// model; the bundled dictionary where absent.
    pub train: Option<PathBuf>,
    /// Held-out pairs; where absent, sources whose hash says so.
    pub dev: Option<PathBuf>,
    /// Symbols of the source; of a language model, those of the target.
    pub source: Splitting,
    /// Symbols of the target, or labels.
    pub target: Splitting,
    /// Whether the bundled dictionary's phones keep their stress digits.
    #[serde(default = "yes")]
    pub stress: bool,
}

fn yes() -> bool {
    true
}

/// How a run trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// Of starting weights, order and dropout.
    pub seed: u64,
    /// Passes over the training pairs.
    pub epochs: u64,
    /// Pairs to a step.
    pub batch_size: usize,
    /// Parts of a batch that are worked on at the same time; part of the result's bits.
    pub workers: usize,
    /// How often dropout drops.
    pub dropout: DropoutRates,
    /// Share of the target distribution that is spread over all ids but pad, or over all labels.
    pub label_smoothing: f32,
    /// The optimizer's constants.
    pub adam: AdamConfig,
    /// The learning rate.
    pub schedule: Schedule,
    /// Steps between checkpoints.
    pub checkpoint_steps: u64,
    /// Epochs between evaluations on held-out pairs.
    pub eval_epochs: u64,
}

impl RunConfig {
    /// Refuses values that mean nothing; vocabulary sizes are checked with the network.
    pub fn check(&self) -> Result<()> {
        self.check_model()?;
        let train = &self.train;
        ensure!((1..=256).contains(&train.workers), "workers is {}, not 1 to 256", train.workers);
        for (name, value) in [
            ("epochs", train.epochs),
            ("batch_size", train.batch_size as u64),
            ("checkpoint_steps", train.checkpoint_steps),
            ("eval_epochs", train.eval_epochs),
        ] {
            ensure!(value > 0, "{name} is 0, not positive");
        }
        let DropoutRates { residual, attention, activation } = train.dropout;
        for (name, value) in [
            ("dropout", residual),
            ("attention_dropout", attention),
            ("activation_dropout", activation),
            ("label_smoothing", train.label_smoothing),
            ("beta1", train.adam.beta1),
            ("beta2", train.adam.beta2),
            ("ema_decay", train.adam.ema_decay),
            ("weight_decay", train.adam.weight_decay),
        ] {
            ensure!((0.0..1.0).contains(&value), "{name} is {value}, not in [0, 1)");
        }
        let Schedule { rate, floor, .. } = train.schedule;
        ensure!(rate > 0.0 && rate.is_finite(), "rate is {rate}, not a positive number");
        ensure!((0.0..=1.0).contains(&floor), "floor is {floor}, not in [0, 1]");
        let AdamConfig { eps, clip_norm, .. } = train.adam;
        ensure!(eps > 0.0 && eps.is_finite(), "adam_eps is {eps}, not a positive number");
        ensure!(clip_norm > 0.0, "clip_norm is {clip_norm}, not a positive number");
        Ok(())
    }
}

impl RunConfig {
    /// Refuses an architecture that cannot be, or that the data are not for.
    fn check_model(&self) -> Result<()> {
        let model = &self.model;
        if model.has_encoder() {
            let frame = model.source_frame.len();
            ensure!(model.max_source_len > frame, "max_source_len must exceed {frame}");
        }
        if model.has_decoder() {
            ensure!(model.max_target_len > 1, "max_target_len must exceed 1");
        }
        ensure!(
            self.data.train.is_some() || self.data.task.family() == model.family,
            "family: the task {} of the bundled dictionary is not for a {}; choose another --task, \
             or --data",
            self.data.task,
            family_name(model.family)
        );
        sanity::check_without_vocabularies(model)
    }

    /// A small model of a task on the bundled dictionary; of the default task, the default.
    pub fn of_task(task: Task) -> Self {
        let default = Self::default();
        let letters = default.data.source;
        let symbols = default.data.target;
        let (source, target) = match task {
            Task::G2p => return default,
            Task::Stress => (symbols, symbols),
            Task::Syllables => (letters, symbols),
            Task::Words => (letters, letters),
        };
        let small = StackConfig { n_layers: 2, n_heads: 4, d_ff: 128 };
        let model = ModelConfig { d_model: 64, encoder: small, decoder: small, ..default.model };
        Self {
            data: DataConfig { task, source, target, ..default.data },
            model: with_family(model, task.family()),
            // Perplexity is judged, which smoothing raises.
            train: TrainConfig { epochs: 10, label_smoothing: 0.0, ..default.train },
        }
    }
}

/// `model` as another family: what it lacks is taken from the default, what it must not have is dropped.
pub fn with_family(model: ModelConfig, family: Family) -> ModelConfig {
    let default = default_model();
    let mut model = ModelConfig { family, ..model };
    if !model.has_encoder() {
        (model.encoder, model.source_vocab, model.max_source_len) = (StackConfig::NONE, 0, 0);
    } else if model.encoder == StackConfig::NONE {
        (model.encoder, model.max_source_len) = (default.encoder, default.max_source_len);
    }
    if !model.has_decoder() {
        (model.decoder, model.max_target_len) = (StackConfig::NONE, 0);
        if model.output.is_tied() {
            model.output = Output::UntiedBias;
        }
    } else if model.decoder == StackConfig::NONE {
        (model.decoder, model.max_target_len) = (default.decoder, default.max_target_len);
    }
    model.shared_embedding &= model.has_cross_attention();
    model
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            data: DataConfig {
                task: Task::default(),
                train: None,
                dev: None,
                source: Splitting { unit: Unit::Character, lowercase: true },
                target: Splitting { unit: Unit::Word, lowercase: false },
                stress: true,
            },
            model: default_model(),
            train: TrainConfig {
                seed: 1,
                epochs: 22,
                batch_size: 256,
                workers: 2,
                dropout: DropoutRates { residual: 0.1, attention: 0.0, activation: 0.0 },
                label_smoothing: 0.1,
                adam: AdamConfig {
                    beta1: 0.9,
                    beta2: 0.98,
                    eps: 1e-9,
                    weight_decay: 0.01,
                    clip_norm: 1.0,
                    ema_decay: 0.9995,
                },
                schedule: Schedule {
                    kind: ScheduleKind::Cosine,
                    rate: 2e-3,
                    warmup_steps: 800,
                    floor: 0.02,
                },
                checkpoint_steps: 500,
                eval_epochs: 1,
            },
        }
    }
}

/// The model that ships: 4 encoder layers and 1 decoder layer, because the encoder runs once.
fn default_model() -> ModelConfig {
    ModelConfig {
        family: Family::EncoderDecoder,
        d_model: 80,
        encoder: StackConfig { n_layers: 4, n_heads: 4, d_ff: 160 },
        decoder: StackConfig { n_layers: 1, n_heads: 4, d_ff: 160 },
        source_vocab: 0,
        target_vocab: 0,
        max_source_len: 32,
        max_target_len: 32,
        norm: NormPlace::Pre,
        final_norm: true,
        positions: Positions::SinusoidalInterleaved,
        output: Output::Tied,
        shared_embedding: false,
        scale_embedding: true,
        source_frame: SourceFrame::End,
        activation: Activation::Relu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    }
}
