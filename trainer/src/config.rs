//! What a run is: data, architecture, training. Written to the run's folder and into every checkpoint.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use model_format::config::{
    Activation, ModelConfig, NormPlace, Output, Positions, SpecialIds, StackConfig,
};
use serde::{Deserialize, Serialize};

use crate::data::corpus::Limits;
use crate::data::tokenizer::{Splitting, Unit};
use crate::engine::DropoutRates;
use crate::optimizer::{AdamConfig, Schedule, ScheduleKind};

/// Everything that decides the result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    pub data: DataConfig,
    /// Vocabulary sizes are filled in when the data is read.
    pub model: ModelConfig,
    pub train: TrainConfig,
}

/// Where the pairs come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataConfig {
    /// `source<TAB>target`; the bundled dictionary where absent.
    pub train: Option<PathBuf>,
    /// Held-out pairs; where absent, sources whose hash says so.
    pub dev: Option<PathBuf>,
    pub source: Splitting,
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
    pub seed: u64,
    pub epochs: u64,
    /// Pairs to a step.
    pub batch_size: usize,
    /// Parts of a batch that are worked on at the same time; part of the result's bits.
    pub workers: usize,
    pub dropout: DropoutRates,
    pub label_smoothing: f32,
    pub adam: AdamConfig,
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
        ensure!(train.epochs > 0 && train.batch_size > 0, "epochs and batch size must be positive");
        ensure!((1..=256).contains(&train.workers), "{} workers, not 1 to 256", train.workers);
        ensure!(
            train.checkpoint_steps > 0 && train.eval_epochs > 0,
            "steps between checkpoints and epochs between evaluations must be positive"
        );
        let DropoutRates { residual, attention, activation } = train.dropout;
        for (name, value) in [
            ("dropout", residual),
            ("attention dropout", attention),
            ("activation dropout", activation),
            ("label smoothing", train.label_smoothing),
            ("beta1", train.adam.beta1),
            ("beta2", train.adam.beta2),
            ("the average's decay", train.adam.ema_decay),
        ] {
            ensure!((0.0..1.0).contains(&value), "{name} is {value}, not in [0, 1)");
        }
        ensure!(train.schedule.rate > 0.0, "the learning rate must be positive");
        ensure!(train.adam.clip_norm > 0.0, "the largest gradient norm must be positive");
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
                epochs: 18,
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
        activation: Activation::Relu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    }
}
