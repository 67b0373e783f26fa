//! The checks of [`Model::from_bytes`](crate::Model::from_bytes) after the envelope is open.

use crate::config::Precision;
use crate::directory::{Expected, Kind, Slot};
use crate::error::{ModelError, TensorFault};
use crate::formats::{ActivationSlot, DecoderActivation, EncoderActivation};
use crate::layout::{BLOCK_ROWS, LinearF16, LinearInt};
use crate::model::{ALIGN, Model};
use crate::numeric::QFormat;

/// Offsets, shapes, formats and constants; with `weights` also the range of every weight, and that no row
/// of an integer tensor can leave `i32`.
#[inline(never)]
pub(crate) fn tensors(model: &Model<'_>, weights: bool) -> Result<(), ModelError> {
    let config = model.config();
    if model.header().precision == Precision::FixedPoint {
        formats(model)?;
    }
    let mut end = 0;
    for slot in Slot::listed(model.entries(), config) {
        let fault = match place(model, slot, end) {
            Ok(stop) => {
                end = stop;
                fault(model, slot, weights)
            }
            Err(fault) => Some(fault),
        };
        if let Some(fault) = fault {
            return Err(ModelError::Tensor(slot, fault));
        }
    }
    Ok(())
}

/// What is wrong with the numbers of a tensor, whose place is sound.
#[inline(never)]
fn fault(model: &Model<'_>, slot: Slot, weights: bool) -> Option<TensorFault> {
    let kind = model.kind(slot);
    match kind {
        Kind::LinearI8 | Kind::LinearI4 => {
            let x_max = match weights {
                true => {
                    slot.input(model.config()).map(|input| model.formats().get(input).max_abs())
                }
                false => None,
            };
            rows_int(&model.linear_int(slot), weights, x_max)
        }
        Kind::LinearF16 if weights && cfg!(feature = "half-float") => {
            let linear = model.linear_f16(slot);
            let bad = linear.data.iter().chain(linear.bias).position(|w| !is_finite(*w));
            bad.map(|_| TensorFault::Weight { row: first_bad_row(&linear) })
        }
        _ => bad_constant(model, slot, kind).map(|index| TensorFault::Constant { index }),
    }
}

/// Checks one directory entry; the end of its blob.
fn place(model: &Model<'_>, slot: Slot, end: usize) -> Result<usize, TensorFault> {
    let expected = slot.expected(model.header().precision, model.config());
    let expected = Expected { kind: model.kind(slot), ..expected };
    let entry = model.entry(slot);
    if cfg!(not(feature = "int4"))
        && entry.kind == Kind::LinearI4 as u8
        && expected.kind == Kind::LinearI8
    {
        return Err(TensorFault::Unread { feature: "int4" });
    }
    if entry.kind != expected.kind as u8 {
        return Err(TensorFault::Kind { found: entry.kind });
    }
    let (found, wanted) = ([entry.rows, entry.cols], [expected.rows, expected.cols]);
    if found != wanted {
        return Err(TensorFault::Shape { found, expected: wanted });
    }
    let len = entry.len as usize;
    if expected.byte_len(model.header().layout) != Some(len) {
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

/// The index of the first constant out of range of a tensor that is no matrix.
fn bad_constant(model: &Model<'_>, slot: Slot, kind: Kind) -> Option<usize> {
    match kind {
        Kind::Multipliers => first_outside(model.multipliers(slot), 0, i32::MAX),
        Kind::Heads => model.pairs(slot).iter().position(|&[score, context]| {
            score < 0 || !(0..=MAX_CONTEXT_MULTIPLIER).contains(&context)
        }),
        Kind::Frequencies => {
            let values = model.pairs(slot).as_flattened();
            first_outside(values, -ONE_Q30, ONE_Q30).map(|index| index / 2)
        }
        Kind::NormI32 => {
            let norm = model.norm_i32(slot);
            match (1..=MAX_EPS).contains(&norm.eps) {
                true => first_outside(norm.beta, -MAX_BETA, MAX_BETA),
                false => Some(0),
            }
        }
        Kind::NormF16 if cfg!(feature = "half-float") => {
            let norm = model.norm_f16(slot);
            norm.gamma.iter().chain(norm.beta).position(|w| !is_finite(*w))
        }
        _ => None,
    }
}

#[inline(never)]
fn first_outside(values: &[i32], low: i32, high: i32) -> Option<usize> {
    values.iter().position(|value| !(low..=high).contains(value))
}

/// The first row of a matrix with a number that is not finite.
fn first_bad_row(linear: &LinearF16<'_>) -> usize {
    let is_bad = |&row: &usize| !linear.row(row).chain([linear.row_bias(row)]).all(is_finite);
    (0..linear.rows).find(is_bad).unwrap_or(linear.rows)
}

/// What is wrong with the constants of the rows of an integer matrix and, with `weights`, with the rows
/// where they multiply activations up to `x_max`.
#[inline(never)]
fn rows_int(linear: &LinearInt<'_>, weights: bool, x_max: Option<i64>) -> Option<TensorFault> {
    for first in (0..linear.rows).step_by(BLOCK_ROWS) {
        let [biases, multipliers] = linear.block_constants(first);
        if !linear.has_good_shifts(first) {
            return Some(TensorFault::Constant { index: first });
        }
        let mut rows = (first..linear.rows).zip(multipliers);
        if let Some((index, _)) = rows.find(|&(_, multiplier)| multiplier < 0) {
            return Some(TensorFault::Constant { index });
        }
        if !weights {
            continue;
        }
        let sums = match linear.magnitudes(first) {
            Ok(sums) => sums,
            Err(row) => return Some(TensorFault::Weight { row: first.saturating_add(row) }),
        };
        let mut rows = (first..linear.rows).zip(sums.into_iter().zip(biases));
        if let Some((row, _)) = rows.find(|&(_, (sum, bias))| overflows(sum, bias, x_max)) {
            return Some(TensorFault::Overflow { row });
        }
    }
    None
}

/// Whether a row whose weights have this sum of magnitudes could leave `i32`; never where it
/// multiplies no activation.
fn overflows(sum: u32, bias: i32, x_max: Option<i64>) -> bool {
    let Some(x_max) = x_max else { return false };
    i64::from(sum) * x_max + i64::from(bias.unsigned_abs()) > i64::from(i32::MAX)
}

const MAX_FRAC_BITS: i8 = 20;

fn formats(model: &Model<'_>) -> Result<(), ModelError> {
    let slots = ActivationSlot::listed(model.formats().len(), model.config());
    match slots.enumerate().find(|(_, slot)| !format_is_good(model, *slot)) {
        Some((index, _)) => Err(ModelError::Format { index }),
        None => Ok(()),
    }
}

/// Whether a format is in range, and fits the tensors before it.
fn format_is_good(model: &Model<'_>, slot: ActivationSlot) -> bool {
    use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
    let (config, get) = (model.config(), |slot| model.formats().get(slot));
    let format @ QFormat { frac_bits, bits } = get(slot);
    if slot == A::Logits {
        return (0..=30).contains(&frac_bits) && bits == 32;
    }
    if !slot.is_used(config) {
        return format == QFormat::UNUSED;
    }
    let stream = slot.stream(config).map(get);
    let fits = match slot {
        A::Memory | A::DecoderFinal => stream.is_none_or(|stream| format == stream),
        // A shared table has one multiplier a row.
        A::DecoderEmbed => !config.shared_embedding || format == get(A::EncoderEmbed),
        A::Encoder(_, E::Query) => scores_fit(format, config.encoder_d_k()),
        A::Decoder(_, D::Query | D::CrossQuery) => scores_fit(format, config.decoder_d_k()),
        _ => stream.is_none_or(|stream| residual_multiplier(stream, format).is_some()),
    };
    fits && (0..=MAX_FRAC_BITS).contains(&frac_bits) && (bits == 15 || bits == 16)
}

/// Whether no score of a query, less the maximum, can leave `i32`.
fn scores_fit(query: QFormat, d_k: usize) -> bool {
    // Divided, not multiplied, which could leave 32 bits.
    let most = i32::MAX.checked_div(2 * 127 * d_k as i32);
    most.is_none_or(|most| query.max_abs() <= i64::from(most))
}

/// The multiplier that brings the residual stream, shifted left by 14, to the format of the sum:
/// `2^(18 + sum.frac_bits - stream.frac_bits)`.
pub const fn residual_multiplier(stream: QFormat, sum: QFormat) -> Option<i32> {
    let exponent = 18 + sum.frac_bits as i32 - stream.frac_bits as i32;
    if exponent >= 0 && exponent <= 30 { Some(1 << exponent) } else { None }
}

/// Whether the bit pattern of an `f16` is a finite number: its exponent is not all ones.
const fn is_finite(bits: u16) -> bool {
    bits & 0x7C00 != 0x7C00
}
