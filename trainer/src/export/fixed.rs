//! The integer file: every tensor in the units of the numeric contract.

use anyhow::{Context, Result, ensure};
use model_format::FileBuilder;
use model_format::directory::{DecoderSlot, Kind, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation, EncoderActivation};

use super::Weights;
use super::calibration::Calibration;
use super::formats::{ChosenFormats, output};
use super::linear::{QuantizedLinear, multiplier};
use super::quantizer::{Quantizer, rows};
use super::trained::{Trained, attention_of, is_cached};

/// Writes formats and tensors.
pub fn write(
    trained: &Trained<'_>,
    calibration: &Calibration,
    weights: Weights,
    file: &mut FileBuilder,
) -> Result<()> {
    let quantizer = Quantizer::new(trained, calibration, weights);
    let formats = ChosenFormats::choose(&quantizer, calibration)?;
    file.formats(|slot| formats.get(slot));
    file.four_bit(|slot| quantizer.is_four_bit(slot));
    let exporter = Exporter { trained, calibration, quantizer, formats };
    file.tensors(|slot, kind| {
        exporter.tensor(slot, kind).with_context(|| format!("tensor `{slot}`"))
    })
}

struct Exporter<'a> {
    trained: &'a Trained<'a>,
    calibration: &'a Calibration,
    quantizer: Quantizer<'a>,
    formats: ChosenFormats,
}

/// Shift of an `i8` operand of the embedding before its rescale.
const EMBEDDING_SHIFT: i32 = 24;
/// Fractional bits of a normalised element of LayerNorm.
const NORMALIZED_FRAC_BITS: i32 = 20;
/// Fractional bits of the exponent of softmax.
const EXPONENT_BITS: i32 = 12;
/// Fractional bits of a probability of softmax.
const PROBABILITY_BITS: i32 = 15;

impl Exporter<'_> {
    fn tensor(&self, slot: Slot, kind: Kind) -> Result<Vec<u8>> {
        match kind {
            Kind::LinearI8 | Kind::LinearI4 => self.linear(slot),
            Kind::NormI32 => self.norm(slot),
            Kind::Heads => self.heads(slot),
            Kind::Multipliers => {
                // Of the look-up in a tied table, whose own are those of the output.
                let (table, _) = self.rows(Slot::TargetEmbedding)?;
                let scale = self.embedding_scale(Slot::TargetEmbedding);
                let multipliers: Result<Vec<i32>> =
                    table.steps.iter().map(|step| multiplier(step * scale)).collect();
                Ok(multipliers?.iter().flat_map(|m| m.to_le_bytes()).collect())
            }
            Kind::Frequencies => {
                let pairs = self.trained.frequencies();
                Ok(pairs.iter().flatten().flat_map(|q| q.to_le_bytes()).collect())
            }
            Kind::Absent | Kind::LinearF16 | Kind::NormF16 => Ok(Vec::new()),
        }
    }

    fn linear(&self, slot: Slot) -> Result<Vec<u8>> {
        let (quantized, scales) = self.rows(slot)?;
        let rows = quantized.steps.iter().zip(scales);
        let multipliers: Result<Vec<i32>> =
            rows.map(|(step, scale)| multiplier(step * scale)).collect();
        Ok(quantized.pack(&multipliers?))
    }

    /// A linear tensor, and what makes a row's step the real scale of its rescale.
    fn rows(&self, slot: Slot) -> Result<(QuantizedLinear, Vec<f64>)> {
        let input = match slot.input(&self.trained.config) {
            Some(input) => (self.formats.step(input), self.formats.get(input).max_abs()),
            None => (1.0, 1),
        };
        let scales = self.scales(slot, input.0);
        Ok((self.quantizer.rows(slot, input, Some(&scales))?, scales))
    }

    /// From the accumulator, in units of a weight's step, to the output: `x_step / out_step`.
    fn scales(&self, slot: Slot, x_step: f64) -> Vec<f64> {
        let config = &self.trained.config;
        let rows = rows(config, slot);
        let is_output =
            slot == Slot::Output || (slot == Slot::TargetEmbedding && config.output.is_tied());
        if is_cached(slot) {
            // 8-bit keys or values, whose step is their head's.
            let (n_heads, _) = attention_of(config, slot);
            let (d_k, name) = (usize::from(config.d_model) / n_heads, slot.to_string());
            let cached_step = |row: usize| self.calibration.cached_step(&name, row / d_k);
            return (0..rows).map(|row| x_step / cached_step(row)).collect();
        }
        let scale = match output(slot) {
            _ if is_output => x_step / self.formats.step(ActivationSlot::Logits),
            Some(output) => x_step / self.formats.step(output),
            None => self.embedding_scale(slot),
        };
        vec![scale; rows]
    }

    /// From a shifted weight to the embedding: token embeddings may be scaled by `sqrt(d_model)`.
    fn embedding_scale(&self, slot: Slot) -> f64 {
        let (output, scale) = match slot {
            Slot::SourceEmbedding => (ActivationSlot::EncoderEmbed, true),
            Slot::SourcePositions => (ActivationSlot::EncoderEmbed, false),
            Slot::TargetPositions => (ActivationSlot::DecoderEmbed, false),
            _ => (ActivationSlot::DecoderEmbed, true),
        };
        let config = &self.trained.config;
        let scale = match scale && config.scale_embedding {
            true => f64::from(config.d_model).sqrt(),
            false => 1.0,
        };
        scale / self.formats.step(output) * 2_f64.powi(-EMBEDDING_SHIFT)
    }

    fn norm(&self, slot: Slot) -> Result<Vec<u8>> {
        let config = &self.trained.config;
        let [input, output] = slot.norm_activations(config).context("no LayerNorm")?;
        let (gamma, beta) = self.trained.norm(slot)?;
        let d = f64::from(config.d_model);
        let step = self.formats.step(input);
        let eps = (f64::from(config.layer_norm_eps) * d * d / (step * step)).round().max(1.0);
        let out_step = self.formats.step(output);
        let mut blob = (eps as i64).to_le_bytes().to_vec();
        for &g in gamma {
            let scale = f64::from(g) / out_step * 2_f64.powi(-NORMALIZED_FRAC_BITS);
            blob.extend(multiplier(scale)?.to_le_bytes());
        }
        for &b in beta {
            let units = (f64::from(b) / out_step).round();
            ensure!(units.abs() < f64::from(1 << 20), "beta {b} is too large");
            blob.extend((units as i32).to_le_bytes());
        }
        Ok(blob)
    }

    /// Per head: from the scores' accumulator to the exponent of 2, and from the context's to the
    /// output at a sum of probabilities of one.
    fn heads(&self, slot: Slot) -> Result<Vec<u8>> {
        let config = &self.trained.config;
        let (n_heads, attention) = attention_of(config, slot);
        let d_k = f64::from(config.d_model) / n_heads as f64;
        let (query, context) = attention_activations(slot)?;
        let mut blob = Vec::new();
        for head in 0..n_heads {
            let step =
                |part: &str| self.calibration.cached_step(&format!("{attention}.{part}"), head);
            let score = self.formats.step(query) * step("key") / d_k.sqrt();
            let score = score * std::f64::consts::LOG2_E * 2_f64.powi(EXPONENT_BITS);
            let context =
                step("value") / self.formats.step(context) * 2_f64.powi(-PROBABILITY_BITS);
            blob.extend(multiplier(score)?.to_le_bytes());
            blob.extend(multiplier(context)?.to_le_bytes());
        }
        Ok(blob)
    }
}

/// Query and context of the attention whose heads' constants lie at `slot`.
fn attention_activations(slot: Slot) -> Result<(ActivationSlot, ActivationSlot)> {
    use {DecoderActivation as D, EncoderActivation as E};
    match slot {
        Slot::Encoder(l, _) => {
            Ok((ActivationSlot::Encoder(l, E::Query), ActivationSlot::Encoder(l, E::Context)))
        }
        Slot::Decoder(l, DecoderSlot::Heads) => {
            Ok((ActivationSlot::Decoder(l, D::Query), ActivationSlot::Decoder(l, D::Context)))
        }
        Slot::Decoder(l, _) => Ok((
            ActivationSlot::Decoder(l, D::CrossQuery),
            ActivationSlot::Decoder(l, D::CrossContext),
        )),
        _ => anyhow::bail!("no heads"),
    }
}
