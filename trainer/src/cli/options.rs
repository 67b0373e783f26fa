//! Options of a run: every one overrides the value of `--config`, or the default.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use model_format::config::{NormPlace, Output, Positions};

use crate::config::RunConfig;
use crate::data::tokenizer::Unit;
use crate::optimizer::ScheduleKind;

/// What the pairs are.
#[derive(Args, Default)]
#[command(next_help_heading = "Data")]
pub struct DataOptions {
    /// Pairs to train on, `source<TAB>target` lines [default: the bundled dictionary].
    #[arg(long, value_name = "TSV")]
    data: Option<PathBuf>,
    /// Held-out pairs [default: one source in twenty of the training pairs].
    #[arg(long, value_name = "TSV")]
    dev: Option<PathBuf>,
    /// What a source symbol is [default: character].
    #[arg(long, value_enum)]
    source_unit: Option<Unit>,
    /// What a target symbol is [default: word].
    #[arg(long, value_enum)]
    target_unit: Option<Unit>,
    /// Whether source text is lower-cased [default: true].
    #[arg(long, value_name = "BOOL")]
    source_lowercase: Option<bool>,
    /// Whether target text is lower-cased [default: false].
    #[arg(long, value_name = "BOOL")]
    target_lowercase: Option<bool>,
    /// Whether the bundled dictionary's phones keep their stress digits [default: true].
    #[arg(long, value_name = "BOOL")]
    stress: Option<bool>,
}

/// Where LayerNorm stands.
#[derive(Clone, Copy, ValueEnum)]
enum NormOption {
    /// Before each sublayer.
    Pre,
    /// After each residual sum.
    Post,
}

/// How positions enter.
#[derive(Clone, Copy, ValueEnum)]
enum PositionsOption {
    /// Sine at even and cosine at odd columns.
    SinusoidalInterleaved,
    /// Sines, then cosines.
    SinusoidalHalves,
    /// One learned row per position.
    Learned,
}

/// Where the output takes its weights from.
#[derive(Clone, Copy, ValueEnum)]
enum OutputOption {
    /// The target embedding.
    Tied,
    /// The target embedding, with a bias of its own.
    TiedBias,
    /// A matrix of its own.
    Untied,
    /// A matrix of its own, with bias.
    UntiedBias,
}

/// The architecture.
#[derive(Args, Default)]
#[command(next_help_heading = "Architecture")]
pub struct ModelOptions {
    /// Width of the residual stream [default: 80].
    #[arg(long, value_name = "N")]
    d_model: Option<u16>,
    /// Encoder layers [default: 4].
    #[arg(long, value_name = "N")]
    encoder_layers: Option<u16>,
    /// Decoder layers [default: 1].
    #[arg(long, value_name = "N")]
    decoder_layers: Option<u16>,
    /// Attention heads of the encoder [default: 4].
    #[arg(long, value_name = "N")]
    encoder_heads: Option<u16>,
    /// Attention heads of the decoder [default: 4].
    #[arg(long, value_name = "N")]
    decoder_heads: Option<u16>,
    /// Inner size of the encoder's feed-forward [default: 160].
    #[arg(long, value_name = "N")]
    encoder_d_ff: Option<u16>,
    /// Inner size of the decoder's feed-forward [default: 160].
    #[arg(long, value_name = "N")]
    decoder_d_ff: Option<u16>,
    /// Most source ids, end id included [default: 32].
    #[arg(long, value_name = "N")]
    max_source_len: Option<u16>,
    /// Most target ids, end id included [default: 32].
    #[arg(long, value_name = "N")]
    max_target_len: Option<u16>,
    /// Where LayerNorm stands [default: pre].
    #[arg(long, value_enum)]
    norm: Option<NormOption>,
    /// Whether each stack ends with a LayerNorm [default: true].
    #[arg(long, value_name = "BOOL")]
    final_norm: Option<bool>,
    /// How positions enter [default: sinusoidal-interleaved].
    #[arg(long, value_enum)]
    positions: Option<PositionsOption>,
    /// Where the output takes its weights from [default: tied].
    #[arg(long, value_enum)]
    output: Option<OutputOption>,
    /// LayerNorm's epsilon [default: 1e-5].
    #[arg(long, value_name = "N")]
    layer_norm_eps: Option<f32>,
}

/// How to train.
#[derive(Args, Default)]
#[command(next_help_heading = "Training")]
pub struct TrainOptions {
    /// Seed of weights, order and dropout [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Passes over the training pairs [default: 22].
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Pairs to a step [default: 256].
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Threads, each with its own part of every batch; part of the result's bits [default: 2].
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Dropout on embeddings, on sublayers, and before an untied output [default: 0.1].
    #[arg(long, value_name = "N")]
    dropout: Option<f32>,
    /// Dropout on attention probabilities [default: 0].
    #[arg(long, value_name = "N")]
    attention_dropout: Option<f32>,
    /// Dropout inside the feed-forward [default: 0].
    #[arg(long, value_name = "N")]
    activation_dropout: Option<f32>,
    /// Label smoothing [default: 0.1].
    #[arg(long, value_name = "N")]
    label_smoothing: Option<f32>,
    /// Shape of the learning rate [default: cosine].
    #[arg(long, value_enum)]
    schedule: Option<ScheduleKind>,
    /// Peak rate of the cosine, or factor of the inverse square root [default: 0.002].
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Steps of warm-up [default: 800].
    #[arg(long, value_name = "N")]
    warmup_steps: Option<u64>,
    /// Last rate over peak rate, for the cosine [default: 0.02].
    #[arg(long, value_name = "N")]
    floor: Option<f64>,
    /// Adam's first decay [default: 0.9].
    #[arg(long, value_name = "N")]
    beta1: Option<f32>,
    /// Adam's second decay [default: 0.98].
    #[arg(long, value_name = "N")]
    beta2: Option<f32>,
    /// Adam's epsilon [default: 1e-9].
    #[arg(long, value_name = "N")]
    adam_eps: Option<f32>,
    /// Decoupled weight decay, on matrices [default: 0.01].
    #[arg(long, value_name = "N")]
    weight_decay: Option<f32>,
    /// Largest norm of the gradient [default: 1].
    #[arg(long, value_name = "N")]
    clip_norm: Option<f32>,
    /// Decay of the average of weights [default: 0.9995].
    #[arg(long, value_name = "N")]
    ema_decay: Option<f32>,
    /// Steps between checkpoints [default: 500].
    #[arg(long, value_name = "N")]
    checkpoint_steps: Option<u64>,
    /// Epochs between evaluations [default: 1].
    #[arg(long, value_name = "N")]
    eval_epochs: Option<u64>,
}

/// All options that a [`RunConfig`] comes from.
#[derive(Args, Default)]
pub struct RunOptions {
    /// Start from this JSON, as a run's `config.json` has it.
    #[arg(long, value_name = "JSON")]
    config: Option<PathBuf>,
    #[command(flatten)]
    data: DataOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    train: TrainOptions,
}

/// Overrides a value where an option was given.
fn set<T: Copy>(value: &mut T, option: Option<T>) {
    if let Some(option) = option {
        *value = option;
    }
}

impl RunOptions {
    /// The config that the options describe; vocabulary sizes come later, from the data.
    pub fn config(&self) -> Result<RunConfig> {
        let mut config = match &self.config {
            None => RunConfig::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("reading {}", path.display()))?;
                serde_json::from_str(&text).with_context(|| path.display().to_string())?
            }
        };
        self.data.apply(&mut config);
        self.model.apply(&mut config);
        self.train.apply(&mut config);
        config.check()?;
        Ok(config)
    }
}

impl DataOptions {
    fn apply(&self, config: &mut RunConfig) {
        let data = &mut config.data;
        if self.data.is_some() {
            // Held-out pairs of another file would not belong to these.
            (data.train, data.dev) = (self.data.clone(), None);
        }
        if self.dev.is_some() {
            data.dev = self.dev.clone();
        }
        set(&mut data.source.unit, self.source_unit);
        set(&mut data.target.unit, self.target_unit);
        set(&mut data.source.lowercase, self.source_lowercase);
        set(&mut data.target.lowercase, self.target_lowercase);
        set(&mut data.stress, self.stress);
    }
}

impl ModelOptions {
    fn apply(&self, config: &mut RunConfig) {
        let model = &mut config.model;
        set(&mut model.d_model, self.d_model);
        set(&mut model.encoder.n_layers, self.encoder_layers);
        set(&mut model.decoder.n_layers, self.decoder_layers);
        set(&mut model.encoder.n_heads, self.encoder_heads);
        set(&mut model.decoder.n_heads, self.decoder_heads);
        set(&mut model.encoder.d_ff, self.encoder_d_ff);
        set(&mut model.decoder.d_ff, self.decoder_d_ff);
        set(&mut model.max_source_len, self.max_source_len);
        set(&mut model.max_target_len, self.max_target_len);
        set(&mut model.final_norm, self.final_norm);
        set(&mut model.layer_norm_eps, self.layer_norm_eps);
        let norm = self.norm.map(|norm| match norm {
            NormOption::Pre => NormPlace::Pre,
            NormOption::Post => NormPlace::Post,
        });
        set(&mut model.norm, norm);
        let positions = self.positions.map(|positions| match positions {
            PositionsOption::SinusoidalInterleaved => Positions::SinusoidalInterleaved,
            PositionsOption::SinusoidalHalves => Positions::SinusoidalHalves,
            PositionsOption::Learned => Positions::Learned,
        });
        set(&mut model.positions, positions);
        let output = self.output.map(|output| match output {
            OutputOption::Tied => Output::Tied,
            OutputOption::TiedBias => Output::TiedBias,
            OutputOption::Untied => Output::Untied,
            OutputOption::UntiedBias => Output::UntiedBias,
        });
        set(&mut model.output, output);
    }
}

impl TrainOptions {
    fn apply(&self, config: &mut RunConfig) {
        let train = &mut config.train;
        set(&mut train.seed, self.seed);
        set(&mut train.epochs, self.epochs);
        set(&mut train.batch_size, self.batch_size);
        set(&mut train.workers, self.workers);
        set(&mut train.dropout.residual, self.dropout);
        set(&mut train.dropout.attention, self.attention_dropout);
        set(&mut train.dropout.activation, self.activation_dropout);
        set(&mut train.label_smoothing, self.label_smoothing);
        set(&mut train.schedule.kind, self.schedule);
        set(&mut train.schedule.rate, self.rate);
        set(&mut train.schedule.warmup_steps, self.warmup_steps);
        set(&mut train.schedule.floor, self.floor);
        set(&mut train.adam.beta1, self.beta1);
        set(&mut train.adam.beta2, self.beta2);
        set(&mut train.adam.eps, self.adam_eps);
        set(&mut train.adam.weight_decay, self.weight_decay);
        set(&mut train.adam.clip_norm, self.clip_norm);
        set(&mut train.adam.ema_decay, self.ema_decay);
        set(&mut train.checkpoint_steps, self.checkpoint_steps);
        set(&mut train.eval_epochs, self.eval_epochs);
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn command() -> Command {
        RunOptions::augment_args(Command::new("train"))
    }

    fn parse(arguments: &[&str]) -> Result<RunConfig> {
        let arguments = ["train"].iter().chain(arguments);
        RunOptions::from_arg_matches(&command().try_get_matches_from(arguments)?)?.config()
    }

    #[test]
    fn every_option_says_its_default() {
        let default = RunConfig::default();
        assert_eq!(parse(&[]).unwrap(), default);
        let mut checked = 0;
        for option in command().get_arguments() {
            let name = option.get_long().unwrap();
            let help = option.get_help().unwrap().to_string();
            if ["config", "data", "dev"].contains(&name) {
                continue;
            }
            let value = help.split("[default: ").nth(1).and_then(|rest| rest.strip_suffix(']'));
            let value = value.unwrap_or_else(|| panic!("--{name} does not say its default"));
            let config = parse(&[&format!("--{name}"), value]).unwrap();
            assert_eq!(config, default, "--{name} {value} is not the default");
            checked += 1;
        }
        assert!(checked > 30, "{checked} options");
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_name() {
        for (option, value) in [
            ("epochs", "0"),
            ("batch-size", "0"),
            ("workers", "0"),
            ("checkpoint-steps", "0"),
            ("eval-epochs", "0"),
            ("dropout", "1"),
            ("label-smoothing", "nan"),
            ("rate", "0"),
            ("rate", "inf"),
            ("floor", "2"),
            ("adam-eps", "0"),
            ("clip-norm", "nan"),
            ("max-target-len", "1"),
        ] {
            let error = parse(&[&format!("--{option}"), value]).unwrap_err().to_string();
            assert!(error.starts_with(&option.replace('-', "_")), "--{option} {value}: {error}");
        }
    }
}
