//! The checks of [`Model::from_bytes`](crate::Model::from_bytes) after the envelope is open.

use crate::config::{ModelConfig, Precision};
use crate::directory::{Kind, Slot};
use crate::error::{ModelError, TensorFault};
use crate::formats::{ActivationSlot, DecoderActivation, EncoderActivation};
use crate::layout::LinearI8;
use crate::model::{ALIGN, Model};
use crate::numeric::QFormat;

/// Offsets, shapes, formats and constants.
pub(crate) fn structure(model: &Model<'_>) -> Result<(), ModelError> {
    if model.header().precision == Precision::FixedPoint {
        formats(model)?;
    }
    let mut end = 0;
    for slot in Slot::all(model.config()) {
        end = place(model, slot, end).map_err(|fault| ModelError::Tensor(slot, fault))?;
        constants(model, slot)
            .map_err(|index| ModelError::Tensor(slot, TensorFault::Constant { index }))?;
    }
    Ok(())
}

/// The range of every weight, and that no row of an integer tensor can leave `i32`.
pub(crate) fn weights(model: &Model<'_>) -> Result<(), ModelError> {
    let config = model.config();
    for slot in Slot::all(config) {
        let fault = match slot.expected(model.header().precision, config).kind {
            Kind::LinearI8 => {
                let x_max = slot.input(config).map(|input| model.formats().get(input).max_abs());
                rows_i8(&model.linear_i8(slot), x_max)
            }
            Kind::LinearF16 => {
                let linear = model.linear_f16(slot);
                let bad = linear.weights.iter().chain(linear.bias).position(|w| !is_finite(*w));
                bad.map(|at| TensorFault::Weight { row: at.checked_div(linear.cols).unwrap_or(0) })
            }
            _ => None,
        };
        if let Some(fault) = fault {
            return Err(ModelError::Tensor(slot, fault));
        }
    }
    Ok(())
}

/// Checks one directory entry; the end of its blob.
fn place(model: &Model<'_>, slot: Slot, end: usize) -> Result<usize, TensorFault> {
    let expected = slot.expected(model.header().precision, model.config());
    let entry = model.entry(slot);
    if entry.kind != expected.kind as u8 {
        return Err(TensorFault::Kind { found: entry.kind });
    }
    let (found, wanted) = ([entry.rows, entry.cols], [expected.rows, expected.cols]);
    if found != wanted {
        return Err(TensorFault::Shape { found, expected: wanted });
    }
    let len = entry.len as usize;
    if expected.byte_len() != Some(len) {
        return Err(TensorFault::Length { found: entry.len });
    }
    let start = entry.offset as usize;
    let offset_fault = TensorFault::Offset { found: entry.offset };
    let stop = start.checked_add(len).ok_or(offset_fault)?;
    if !start.is_multiple_of(ALIGN) || start < end || stop > model.weights_len() {
        return Err(offset_fault);
    }
    Ok(stop)
}

/// Largest multiplier of a head's context: divided by a sum of probabilities of at least 32767/32768
/// it must stay an `i32`.
const MAX_CONTEXT_MULTIPLIER: i32 = 0x7F00_0000;
/// Largest constant of an integer LayerNorm: sums with it stay exact.
const MAX_EPS: i64 = 1 << 60;
const MAX_BETA: i32 = 1 << 20;
const ONE_Q30: i32 = 1 << 30;

/// The index of the first constant of a tensor that is out of range, as the error.
fn constants(model: &Model<'_>, slot: Slot) -> Result<(), usize> {
    let none_of = |bad: Option<usize>| bad.map_or(Ok(()), Err);
    let is_negative = |m: &i32| *m < 0;
    match slot.expected(model.header().precision, model.config()).kind {
        Kind::LinearI8 => none_of(model.linear_i8(slot).multipliers.iter().position(is_negative)),
        Kind::Multipliers => none_of(model.multipliers(slot).iter().position(is_negative)),
        Kind::Heads => none_of(model.pairs(slot).iter().position(|&[score, context]| {
            score < 0 || !(0..=MAX_CONTEXT_MULTIPLIER).contains(&context)
        })),
        Kind::Frequencies => none_of(
            model
                .pairs(slot)
                .iter()
                .position(|pair| pair.iter().any(|v| !(-ONE_Q30..=ONE_Q30).contains(v))),
        ),
        Kind::NormI32 => {
            let norm = model.norm_i32(slot);
            if !(1..=MAX_EPS).contains(&norm.eps) {
                return Err(0);
            }
            none_of(norm.beta.iter().position(|b| !(-MAX_BETA..=MAX_BETA).contains(b)))
        }
        Kind::NormF16 => {
            let norm = model.norm_f16(slot);
            none_of(norm.gamma.iter().chain(norm.beta).position(|w| !is_finite(*w)))
        }
        Kind::LinearF16 | Kind::Absent => Ok(()),
    }
}

fn rows_i8(linear: &LinearI8<'_>, x_max: Option<i64>) -> Option<TensorFault> {
    for (row, bias) in linear.bias.iter().enumerate() {
        let weights = linear.row(row);
        if weights.contains(&i8::MIN) {
            return Some(TensorFault::Weight { row });
        }
        if let Some(x_max) = x_max {
            let sum: u32 = weights.iter().map(|w| u32::from(w.unsigned_abs())).sum();
            let bound = i64::from(sum) * x_max + i64::from(bias.unsigned_abs());
            if bound > i64::from(i32::MAX) {
                return Some(TensorFault::Overflow { row });
            }
        }
    }
    None
}

const MAX_FRAC_BITS: i8 = 20;

fn formats(model: &Model<'_>) -> Result<(), ModelError> {
    let config = model.config();
    let fault = |slot: ActivationSlot| ModelError::Format { index: slot.index(config) };
    for slot in ActivationSlot::all(config) {
        let QFormat { frac_bits, bits } = model.formats().get(slot);
        let is_good = match slot {
            ActivationSlot::Logits => (0..=30).contains(&frac_bits) && bits == 32,
            slot if !slot.is_used(config) => QFormat { frac_bits, bits } == QFormat::UNUSED,
            _ => (0..=MAX_FRAC_BITS).contains(&frac_bits) && (bits == 15 || bits == 16),
        };
        if !is_good {
            return Err(fault(slot));
        }
    }
    let get = |slot| model.formats().get(slot);
    for (stream, sum) in residuals(config) {
        if residual_multiplier(get(stream), get(sum)).is_none() {
            return Err(fault(sum));
        }
    }
    if !config.final_norm {
        let last = [
            (
                ActivationSlot::Memory,
                ActivationSlot::encoder_stream(config, config.encoder.n_layers),
            ),
            (
                ActivationSlot::DecoderFinal,
                ActivationSlot::decoder_stream(config, config.decoder.n_layers),
            ),
        ];
        for (slot, stream) in last {
            if slot.is_used(config) && get(slot) != get(stream) {
                return Err(fault(slot));
            }
        }
    }
    if config.shared_embedding
        && get(ActivationSlot::EncoderEmbed) != get(ActivationSlot::DecoderEmbed)
    {
        // One table has one multiplier a row.
        return Err(fault(ActivationSlot::DecoderEmbed));
    }
    query_bounds(model).map_or(Ok(()), |slot| Err(fault(slot)))
}

/// The multiplier that brings the residual stream, shifted left by 14, to the format of the sum:
/// `2^(18 + sum.frac_bits - stream.frac_bits)`.
pub const fn residual_multiplier(stream: QFormat, sum: QFormat) -> Option<i32> {
    let exponent = 18 + sum.frac_bits as i32 - stream.frac_bits as i32;
    if exponent >= 0 && exponent <= 30 { Some(1 << exponent) } else { None }
}

/// Every residual connection: the stream that enters and the sum that leaves.
fn residuals(
    config: &ModelConfig,
) -> impl Iterator<Item = (ActivationSlot, ActivationSlot)> + use<> {
    use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
    let config = *config;
    let pre = config.norm == crate::config::NormPlace::Pre;
    let encoder = (0..config.encoder.n_layers).flat_map(move |l| {
        let middle = A::Encoder(l, if pre { E::Sum1 } else { E::Norm1 });
        [(A::encoder_stream(&config, l), A::Encoder(l, E::Sum1)), (middle, A::Encoder(l, E::Sum2))]
    });
    let decoder = (0..config.decoder.n_layers).flat_map(move |l| {
        let first = A::Decoder(l, if pre { D::Sum1 } else { D::Norm1 });
        [
            (A::decoder_stream(&config, l), A::Decoder(l, D::Sum1)),
            (first, A::Decoder(l, D::Sum2)),
            (A::decoder_middle(&config, l), A::Decoder(l, D::Sum3)),
        ]
        .into_iter()
        .filter(move |(_, sum)| sum.is_used(&config))
    });
    encoder.chain(decoder)
}

/// The first query whose scores, less their maximum, could leave `i32`.
fn query_bounds(model: &Model<'_>) -> Option<ActivationSlot> {
    use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
    let config = model.config();
    let is_bad = |slot: &ActivationSlot, d_k: usize| {
        2 * 127 * d_k as i64 * model.formats().get(*slot).max_abs() > i64::from(i32::MAX)
    };
    let encoder = (0..config.encoder.n_layers).map(|l| A::Encoder(l, E::Query));
    let decoder = (0..config.decoder.n_layers)
        .flat_map(|l| [A::Decoder(l, D::Query), A::Decoder(l, D::CrossQuery)])
        .filter(|slot| slot.is_used(config));
    encoder
        .into_iter()
        .find(|slot| is_bad(slot, config.encoder_d_k()))
        .or_else(|| decoder.into_iter().find(|slot| is_bad(slot, config.decoder_d_k())))
}

/// Whether the bit pattern of an `f16` is a finite number: its exponent is not all ones.
const fn is_finite(bits: u16) -> bool {
    bits & 0x7C00 != 0x7C00
}
