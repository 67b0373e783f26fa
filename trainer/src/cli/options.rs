//! Options of a run: every one overrides the value of `--config`, or the default.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::choices::{
    ActivationOption, FamilyOption, NormOption, OutputOption, PositionsOption, SourceFrameOption,
};
use crate::config::{RunConfig, with_family};
use crate::data::tasks::Task;
use crate::data::tokenizer::Unit;
use crate::optimizer::ScheduleKind;

/// What the pairs are.
#[derive(Args, Default)]
#[command(next_help_heading = "Data")]
pub struct DataOptions {
    /// What is learned from the bundled dictionary, by a small model made for it [default: g2p].
    #[arg(long, value_enum, conflicts_with_all = ["config", "data"])]
    task: Option<Task>,
    /// Pairs to train on, `source<TAB>target` lines, where a target is a text, a label, or a label for
    /// every source symbol; for a decoder-only model one text a line [default: the bundled dictionary].
    #[arg(long, value_name = "TSV")]
    data: Option<PathBuf>,
    /// Held-out pairs [default: one source in twenty of the training pairs].
    #[arg(long, value_name = "TSV")]
    dev: Option<PathBuf>,
    /// What a source symbol is; a decoder-only model has target symbols alone [default: character].
    #[arg(long, value_enum)]
    source_unit: Option<Unit>,
    /// What a target symbol or a label is [default: word].
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

/// The architecture.
#[derive(Args, Default)]
#[command(next_help_heading = "Architecture")]
pub struct ModelOptions {
    /// Which stacks there are; a decoder or an encoder that is not there has no sizes
    /// [default: encoder-decoder].
    #[arg(long, value_enum)]
    family: Option<FamilyOption>,
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
    /// Most source ids, those of the frame included [default: 32].
    #[arg(long, value_name = "N")]
    max_source_len: Option<u16>,
    /// Most target ids, end id and prompt included [default: 32].
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
    /// Whether source and target have one embedding and one vocabulary [default: false].
    #[arg(long, value_name = "BOOL")]
    shared_embedding: Option<bool>,
    /// Whether embeddings are multiplied by the root of d_model [default: true].
    #[arg(long, value_name = "BOOL")]
    scale_embedding: Option<bool>,
    /// What stands around the symbols of a source [default: end].
    #[arg(long, value_enum)]
    source_frame: Option<SourceFrameOption>,
    /// The feed-forward's non-linearity [default: relu].
    #[arg(long, value_enum)]
    activation: Option<ActivationOption>,
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
    /// Start from this JSON, as a run's `config.json` has it; what it leaves out has its default.
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
            None => RunConfig::of_task(self.data.task.unwrap_or_default()),
            Some(path) => read(path).with_context(|| path.display().to_string())?,
        };
        self.data.apply(&mut config);
        self.model.apply(&mut config);
        self.train.apply(&mut config);
        config.check()?;
        Ok(config)
    }
}

/// A config from a JSON file; what it leaves out has its default.
fn read(path: &Path) -> Result<RunConfig> {
    let text = std::fs::read_to_string(path)?;
    let mut config = serde_json::to_value(RunConfig::default())?;
    overlay(&mut config, serde_json::from_str(&text)?, "")?;
    Ok(serde_json::from_value(config)?)
}

/// Fields that a config has only where they are not the default.
const OPTIONAL: [&str; 1] = [".data.task"];

/// Puts `values` over those of `config`, object by object; `name` is where they stand.
fn overlay(config: &mut Value, values: Value, name: &str) -> Result<()> {
    match (config, values) {
        (Value::Object(config), Value::Object(values)) => {
            for (key, value) in values {
                let name = format!("{name}.{key}");
                if OPTIONAL.contains(&name.as_str()) {
                    config.insert(key, value);
                    continue;
                }
                let field = config.get_mut(&key);
                let field = field.with_context(|| format!("no field is `{}`", &name[1..]))?;
                overlay(field, value, &name)?;
            }
        }
        (config, value) => *config = value,
    }
    Ok(())
}

impl DataOptions {
    fn apply(&self, config: &mut RunConfig) {
        let data = &mut config.data;
        if self.data.is_some() {
            // Held-out pairs of another file would not belong to these.
            (data.train, data.dev) = (self.data.clone(), None);
            // Nor would the sizes of their vocabularies.
            (config.model.source_vocab, config.model.target_vocab) = (0, 0);
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
        if let Some(family) = self.family {
            config.model = with_family(config.model, family.into());
        }
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
        set(&mut model.shared_embedding, self.shared_embedding);
        set(&mut model.scale_embedding, self.scale_embedding);
        set(&mut model.source_frame, self.source_frame.map(Into::into));
        set(&mut model.activation, self.activation.map(Into::into));
        set(&mut model.norm, self.norm.map(Into::into));
        set(&mut model.positions, self.positions.map(Into::into));
        set(&mut model.output, self.output.map(Into::into));
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
    use model_format::config::{Output, StackConfig};

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

    #[test]
    fn a_config_may_leave_fields_out_but_may_not_invent_any() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        let with = |json: &str| {
            std::fs::write(&path, json).unwrap();
            parse(&["--config", path.to_str().unwrap()])
        };
        let config = with(r#"{"model": {"d_model": 12, "encoder": {"n_layers": 2}}}"#).unwrap();
        let mut expected = RunConfig::default();
        (expected.model.d_model, expected.model.encoder.n_layers) = (12, 2);
        assert_eq!(config, expected);
        let stress = RunConfig::of_task(Task::Stress);
        assert_eq!(with(&serde_json::to_string(&stress).unwrap()).unwrap(), stress);
        let error = format!("{:#}", with(r#"{"model": {"d_mdoel": 12}}"#).unwrap_err());
        assert!(error.ends_with("x.json: no field is `model.d_mdoel`"), "{error}");
    }

    #[test]
    fn a_family_brings_and_drops_stacks() {
        let data = ["--data", "x.tsv", "--family"];
        let of = |family: &str, more: &[&str]| parse(&[&data, &[family][..], more].concat());
        let tagger = of("tagger", &["--encoder-layers", "2"]).unwrap().model;
        assert_eq!((tagger.encoder.n_layers, tagger.decoder), (2, StackConfig::NONE));
        assert_eq!((tagger.output, tagger.max_target_len), (Output::UntiedBias, 0));
        let language = of("decoder-only", &[]).unwrap().model;
        assert_eq!((language.encoder, language.max_source_len), (StackConfig::NONE, 0));
        assert_eq!(language.output, Output::Tied);
        for (family, option, value, expected) in [
            ("tagger", "--encoder-layers", "0", "encoder.n_layers is 0"),
            ("tagger", "--decoder-layers", "2", "decoder.n_layers is 2: a tagger has no decoder"),
            (
                "classifier",
                "--output",
                "tied",
                "output is Tied: a classifier has no target embedding",
            ),
            (
                "decoder-only",
                "--encoder-d-ff",
                "9",
                "encoder.d_ff is 9: a decoder-only model has no encoder",
            ),
            ("decoder-only", "--shared-embedding", "true", "shared_embedding needs an encoder"),
        ] {
            let error = of(family, &[option, value]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = parse(&["--family", "tagger"]).unwrap_err().to_string();
        assert!(error.starts_with("family: the task g2p of the bundled dictionary"), "{error}");
    }
}
