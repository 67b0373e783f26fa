//! Q formats of all activations, from what calibration saw.

use anyhow::Result;
use model_format::config::ModelConfig;
use model_format::directory::{Kind, Slot};
use model_format::formats::{ActivationSlot, DecoderActivation, EncoderActivation};
use model_format::numeric::QFormat;

use super::calibration::Calibration;
use super::quantizer::{Quantizer, rows};
use super::trained::is_cached;

/// Room above the largest magnitude that calibration saw.
const HEADROOM: f64 = 1.1;
/// Most fractional bits that a file allows.
const MAX_FRAC_BITS: i32 = 20;
/// Largest real scale of one rescale, with room for rounding.
const MAX_SCALE: f64 = 0.499;

/// The chosen formats, by place in the list.
pub struct ChosenFormats {
    config: ModelConfig,
    formats: Vec<QFormat>,
}

impl ChosenFormats {
    /// Chooses every format: as many fractional bits as the seen range allows, fewer where a
    /// multiplier would not fit, and 15 bits where a row of the reader needs it.
    pub fn choose(quantizer: &Quantizer<'_>, calibration: &Calibration) -> Result<Self> {
        let config = quantizer.trained.config;
        let mut chosen = Self { config, formats: Vec::new() };
        for slot in ActivationSlot::all(&config) {
            if !slot.is_used(&config) {
                chosen.formats.push(QFormat::UNUSED);
                continue;
            }
            let bits = reader_bits(quantizer, slot)?;
            let frac_bits = match slot {
                ActivationSlot::Logits => 0,
                _ => frac_bits(calibration.max_abs(&name(&config, slot)), bits),
            };
            let bits = if slot == ActivationSlot::Logits { 32 } else { bits };
            chosen.formats.push(QFormat { frac_bits, bits });
        }
        if config.shared_embedding {
            chosen.share_embedding();
        }
        for slot in Slot::all(&config).filter(|slot| rows(&config, *slot) > 0) {
            chosen.fit_output(quantizer, slot)?;
        }
        chosen.hand_over();
        chosen.choose_logits(quantizer)?;
        Ok(chosen)
    }

    /// One table has one multiplier a row, so both embeddings take the coarser format.
    fn share_embedding(&mut self) {
        let slots = [ActivationSlot::EncoderEmbed, ActivationSlot::DecoderEmbed];
        let [a, b] = slots.map(|slot| self.get(slot));
        let coarser = QFormat { frac_bits: a.frac_bits.min(b.frac_bits), bits: a.bits.min(b.bits) };
        for slot in slots {
            self.set(slot, coarser);
        }
    }

    /// Without a final LayerNorm a stack's result is its last residual stream.
    fn hand_over(&mut self) {
        for slot in [ActivationSlot::Memory, ActivationSlot::DecoderFinal] {
            if let Some(stream) = slot.stream(&self.config).filter(|_| slot.is_used(&self.config)) {
                self.set(slot, self.get(stream));
            }
        }
    }

    /// The format of an activation.
    pub fn get(&self, slot: ActivationSlot) -> QFormat {
        self.formats[slot.index(&self.config)]
    }

    /// The real value of one unit of an activation.
    pub fn step(&self, slot: ActivationSlot) -> f64 {
        2_f64.powi(-i32::from(self.get(slot).frac_bits))
    }

    fn set(&mut self, slot: ActivationSlot, format: QFormat) {
        self.formats[slot.index(&self.config)] = format;
    }

    /// Takes fractional bits from the output of a linear tensor until its multipliers fit.
    fn fit_output(&mut self, quantizer: &Quantizer<'_>, slot: Slot) -> Result<()> {
        let (Some(input), Some(output)) = (slot.input(&self.config), output(slot)) else {
            return Ok(());
        };
        let steps = self.largest_step(quantizer, slot, input)?;
        let mut format = self.get(output);
        let scale = |f: QFormat| steps * self.step(input) * 2_f64.powi(f.frac_bits.into());
        while format.frac_bits > 0 && scale(format) > MAX_SCALE {
            format.frac_bits -= 1;
        }
        self.set(output, format);
        Ok(())
    }

    /// The largest step of a row of `slot`.
    fn largest_step(
        &self,
        quantizer: &Quantizer<'_>,
        slot: Slot,
        input: ActivationSlot,
    ) -> Result<f64> {
        let input = (self.step(input), self.get(input).max_abs());
        let quantized = quantizer.rows(slot, input, None)?;
        Ok(quantized.steps.iter().copied().fold(0.0, f64::max))
    }

    /// As many fractional bits as the multipliers of the output layer allow.
    fn choose_logits(&mut self, quantizer: &Quantizer<'_>) -> Result<()> {
        let slot = match self.config.output.is_tied() {
            true => Slot::TargetEmbedding,
            false => Slot::Output,
        };
        let input = ActivationSlot::output_input(&self.config);
        let scale = self.largest_step(quantizer, slot, input)? * self.step(input);
        let bits = (MAX_SCALE / scale).log2().floor().clamp(0.0, MAX_FRAC_BITS.into());
        self.set(ActivationSlot::Logits, QFormat { frac_bits: bits as i8, bits: 32 });
        Ok(())
    }
}

/// The name under which calibration saw an activation.
pub fn name(config: &ModelConfig, slot: ActivationSlot) -> String {
    let seen = match slot {
        ActivationSlot::Memory | ActivationSlot::DecoderFinal => slot.stream(config),
        _ => None,
    };
    seen.unwrap_or(slot).to_string()
}

/// As many fractional bits as keep `max` times the headroom inside `bits`.
fn frac_bits(max: f32, bits: u8) -> i8 {
    let top = f64::from((1_u32 << (bits - 1)) - 1);
    let room = top / (f64::from(max) * HEADROOM).max(f64::MIN_POSITIVE);
    room.log2().floor().clamp(0.0, MAX_FRAC_BITS.into()) as i8
}

/// 16, or 15 where a row of a tensor that reads `slot` could leave its accumulator otherwise.
fn reader_bits(quantizer: &Quantizer<'_>, slot: ActivationSlot) -> Result<u8> {
    let config = &quantizer.trained.config;
    for reader in Slot::all(config) {
        let expected = reader.expected(model_format::config::Precision::FixedPoint, config);
        if reader.input(config) != Some(slot) || expected.kind != Kind::LinearI8 {
            continue;
        }
        // Without the bias, whose share is below a quarter of the range by construction.
        let quantized = quantizer.rows_without_bias(reader)?;
        if quantized.largest_sum(1 << 15) + (1 << 29) > i64::from(i32::MAX) {
            return Ok(15);
        }
    }
    Ok(16)
}

/// The `i16` activation that a linear tensor writes; caches and logits have scales of their own.
pub fn output(slot: Slot) -> Option<ActivationSlot> {
    use model_format::directory::{DecoderSlot as D, EncoderSlot as E};
    use {DecoderActivation as DA, EncoderActivation as EA};
    match slot {
        _ if is_cached(slot) => None,
        Slot::Encoder(layer, slot) => {
            let activation = match slot {
                E::Query => EA::Query,
                E::Output => EA::Sum1,
                E::Linear1 => EA::Hidden,
                E::Linear2 => EA::Sum2,
                _ => return None,
            };
            Some(ActivationSlot::Encoder(layer, activation))
        }
        Slot::Decoder(layer, slot) => {
            let activation = match slot {
                D::Query => DA::Query,
                D::Output => DA::Sum1,
                D::CrossQuery => DA::CrossQuery,
                D::CrossOutput => DA::Sum2,
                D::Linear1 => DA::Hidden,
                D::Linear2 => DA::Sum3,
                _ => return None,
            };
            Some(ActivationSlot::Decoder(layer, activation))
        }
        _ => None,
    }
}
