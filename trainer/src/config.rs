//! What a run is: data, architecture, training. Written to the run's folder and into every checkpoint.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, SourceFrame, SpecialIds,
    StackConfig,
};
use serde::{Deserialize, Serialize};

use crate::data::corpus::Limits;
use crate::data::tokenizer::{Splitting, Unit};
use crate::engine::DropoutRates;
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
    /// `source<TAB>target`; the bundled dictionary where absent.
    pub train: Option<PathBuf>,
    /// Held-out pairs; where absent, sources whose hash says so.
    pub dev: Option<PathBuf>,
    /// Symbols of the source.
    pub source: Splitting,
    /// Symbols of the target.
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
    /// Share of the target distribution that is spread over all ids but pad.
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
    /// Most symbols of each side.
    pub fn limits(&self) -> Limits {
        Limits {
            source: usize::from(self.model.max_source_len) - 1,
            target: usize::from(self.model.max_target_len) - 1,
        }
    }

    /// Refuses values that mean nothing; those of the architecture are checked with the network.
    pub fn check(&self) -> Result<()> {
        let train = &self.train;
        ensure!(self.model.max_source_len > 1, "max_source_len must exceed 1");
        ensure!(self.model.max_target_len > 1, "max_target_len must exceed 1");
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

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            data: DataConfig {
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
