//! A trained model as the exporters see it: architecture, vocabularies, named tensors.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result};
use model_format::config::{ModelConfig, Positions, Segmentation, TextConfig};
use model_format::directory::{DecoderSlot, EncoderSlot, Slot};

use crate::data::tokenizer::{Tokenizer, Unit};
use crate::model::TrainedModel;

/// A trained model with the names of the file's tensors.
pub struct Trained<'a> {
    /// Architecture, vocabularies and weights.
    pub model: &'a TrainedModel,
    /// The architecture.
    pub config: ModelConfig,
    places: HashMap<&'a str, Range<usize>>,
}

impl<'a> Trained<'a> {
    /// A view of `model`.
    pub fn new(model: &'a TrainedModel) -> Self {
        let specs = model.network.layout.specs.iter();
        let places = specs.map(|spec| (spec.name.as_str(), spec.range())).collect();
        Self { model, config: *model.config(), places }
    }

    /// Text to ids and back, as the device does it.
    pub fn text(&self) -> TextConfig {
        TextConfig {
            source: segmentation(&self.model.source),
            target: segmentation(&self.model.target),
            fold_case: self.model.source.splitting.lowercase,
            unknown: self.model.unknown,
        }
    }

    /// The vocabulary of what the model reads as text: the source, or a language model's prompt.
    pub fn read(&self) -> &Tokenizer {
        if self.config.has_encoder() { &self.model.source } else { &self.model.target }
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Result<&[f32]> {
        let range = self.places.get(name).with_context(|| format!("tensor `{name}` is missing"))?;
        Ok(&self.model.params[range.clone()])
    }

    /// Weights and biases of a linear tensor of the file; biases are zero where there are none.
    pub fn linear(&self, slot: Slot, rows: usize) -> Result<(&[f32], Vec<f32>)> {
        let weight = self.tensor(&format!("{slot}.weight"))?;
        let bias = match slot {
            Slot::SourceEmbedding | Slot::SourcePositions | Slot::TargetPositions => None,
            Slot::TargetEmbedding if !self.config.output.is_tied() => None,
            Slot::TargetEmbedding | Slot::Output => {
                self.config.output.has_bias().then(|| "output.bias".to_owned())
            }
            _ => Some(format!("{slot}.bias")),
        };
        let bias = match bias {
            Some(name) => self.tensor(&name)?.to_vec(),
            None => vec![0.0; rows],
        };
        Ok((weight, bias))
    }

    /// Gamma and beta of a LayerNorm of the file.
    pub fn norm(&self, slot: Slot) -> Result<(&[f32], &[f32])> {
        Ok((self.tensor(&format!("{slot}.weight"))?, self.tensor(&format!("{slot}.bias"))?))
    }

    /// Cosine and sine of the angle of one step for every frequency, in Q30 (Vaswani et al. 2017,
    /// section 3.5).
    pub fn frequencies(&self) -> Vec<[i32; 2]> {
        let d_model = usize::from(self.config.d_model);
        let q30 = |x: f64| (x * f64::from(1 << 30)).round() as i32;
        if self.config.positions == Positions::Learned {
            return Vec::new();
        }
        (0..d_model / 2)
            .map(|i| 10_000_f64.powf(-2.0 * i as f64 / d_model as f64))
            .map(|angle| [q30(angle.cos()), q30(angle.sin())])
            .collect()
    }
}

/// The number of heads that the constants at `slot` belong to, and the name of their attention.
pub fn attention_of(config: &ModelConfig, slot: Slot) -> (usize, String) {
    let heads = match slot {
        Slot::Encoder(..) => config.encoder.n_heads,
        _ => config.decoder.n_heads,
    };
    let name = slot.to_string();
    let attention = name.rsplit_once('.').map_or(name.as_str(), |(attention, _)| attention);
    (heads.into(), attention.to_owned())
}

/// Whether a linear tensor fills a cache of keys or values.
pub const fn is_cached(slot: Slot) -> bool {
    matches!(
        slot,
        Slot::Encoder(_, EncoderSlot::Key | EncoderSlot::Value)
            | Slot::Decoder(
                _,
                DecoderSlot::Key
                    | DecoderSlot::Value
                    | DecoderSlot::CrossKey
                    | DecoderSlot::CrossValue
            )
    )
}

fn segmentation(tokenizer: &Tokenizer) -> Segmentation {
    match tokenizer.splitting.unit {
        Unit::Character => Segmentation::Characters,
        Unit::Word => Segmentation::Symbols,
    }
}

/// Texts of all ids, empty for special ones.
pub fn texts(tokenizer: &Tokenizer) -> Vec<String> {
    let symbols = tokenizer.symbols().iter().enumerate();
    symbols
        .map(|(id, s)| if tokenizer.is_special(id) { String::new() } else { s.clone() })
        .collect()
}
