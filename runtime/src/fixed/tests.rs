//! Every layer operation against `f64`, on the same integers, within stated units of the output.

use std::vec::Vec;

use model_format::NormI32;
use model_format::config::Activation;
use model_format::layout::{LinearInt, Packing};
use proptest::prelude::*;

use super::{Embedding, FixedPoint, Range, Residual};
use crate::kernels::{Input, scratch_len};
use crate::precision::{AttentionScratch, HeadCache, Position, Precision, Rows};

const WIDE: Range = Range { low: -32768, high: 32767, ..NO_TENSOR };
#[cfg(feature = "saturation-counts")]
const NO_TENSOR: Range = Range { low: 0, high: 0, frac_bits: 0, tensor: usize::MAX };
#[cfg(not(feature = "saturation-counts"))]
const NO_TENSOR: Range = Range { low: 0, high: 0, frac_bits: 0 };

/// A matrix of any shape with its input, as plain vectors.
#[derive(Debug)]
struct Case {
    cols: usize,
    weights: Vec<i8>,
    bias: Vec<i32>,
    multipliers: Vec<i32>,
    x: Vec<i16>,
}

impl Case {
    fn linear(&self) -> LinearInt<'_> {
        LinearInt {
            packing: Packing::RowMajor,
            rows: self.bias.len(),
            cols: self.cols,
            data: &self.weights,
            bias: &self.bias,
            multipliers: &self.multipliers,
        }
    }

    /// Shows `see` the input, ready.
    fn with_input<R>(&self, see: impl FnOnce(&Input<'_>) -> R) -> R {
        let mut scratch = vec![0_u32; scratch_len(1, self.cols).div_ceil(4)];
        let scratch = bytemuck::cast_slice_mut(&mut scratch);
        see(&Input::new(&self.x, [1, self.cols], scratch))
    }

    /// `(b + W x) m / 2^32`, the real value of every output in its own units.
    fn truth(&self) -> Vec<f64> {
        let rows = self.weights.chunks_exact(self.cols);
        let constants = self.bias.iter().zip(&self.multipliers);
        rows.zip(constants)
            .map(|(row, (&bias, &m))| {
                let sum: i64 =
                    row.iter().zip(&self.x).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum();
                (sum + i64::from(bias)) as f64 * f64::from(m) / 2_f64.powi(32)
            })
            .collect()
    }
}

/// Shapes with every remainder of the block of four; multipliers that reach saturation.
fn case() -> impl Strategy<Value = Case> {
    (1_usize..14, 1_usize..40).prop_flat_map(|(rows, cols)| {
        (
            prop::collection::vec(-127_i8..=127, rows * cols),
            prop::collection::vec(-(1_i32 << 24)..1 << 24, rows),
            prop::collection::vec(0_i32..1 << 25, rows),
            prop::collection::vec(any::<i16>(), cols),
        )
            .prop_map(move |(weights, bias, multipliers, x)| Case {
                cols,
                weights,
                bias,
                multipliers,
                x,
            })
    })
}

fn check(
    ours: &[i16],
    truth: impl IntoIterator<Item = f64>,
    bound: f64,
) -> Result<(), TestCaseError> {
    for (&ours, truth) in ours.iter().zip(truth) {
        let truth = truth.clamp(-32768.0, 32767.0);
        prop_assert!((f64::from(ours) - truth).abs() <= bound, "{ours} is not {truth}");
    }
    Ok(())
}

/// One rounding: half a unit.
const ROUNDED_ONCE: f64 = 0.5 + 1e-9;
/// Two roundings, summed: a unit.
const ROUNDED_TWICE: f64 = 1.0 + 1e-9;

proptest! {
    #[test]
    fn project_is_within_half_a_unit(case in case()) {
        let mut out = vec![0; case.bias.len()];
        let linear = case.linear();
        case.with_input(|x| FixedPoint::project(&linear, x, WIDE, &mut out));
        check(&out, case.truth(), ROUNDED_ONCE)?;
        let relu = Activation::Relu;
        case.with_input(|x| FixedPoint::project_activated(&linear, x, relu, WIDE, &mut out));
        check(&out, case.truth().into_iter().map(|v| v.max(0.0)), ROUNDED_ONCE)?;
    }

    #[test]
    fn project_add_is_within_a_unit(case in case(), exponent in 12_u32..24, seed in any::<i16>()) {
        let residual = Residual { multiplier: 1 << exponent, range: WIDE };
        let stream: Vec<i16> = (0..case.bias.len()).map(|i| seed.wrapping_mul(i as i16 + 3)).collect();
        let mut sum = stream.clone();
        case.with_input(|x| FixedPoint::project_add(&case.linear(), x, residual, &mut sum));
        let scale = 2_f64.powi(exponent as i32 + 14 - 32);
        let truth = case.truth().into_iter().zip(&stream).map(|(v, &s)| v + f64::from(s) * scale);
        check(&sum, truth, ROUNDED_TWICE)?;
    }

    #[test]
    fn cache_and_logits_are_within_half_a_unit(case in case()) {
        let mut cached = vec![0; case.bias.len()];
        let range = Range { low: -127, high: 127, ..NO_TENSOR };
        let linear = case.linear();
        case.with_input(|x| FixedPoint::project_cached(&linear, x, range, &mut cached, &mut []));
        let (mut again, mut room) = (cached.clone(), vec![0; cached.len()]);
        again.fill(0);
        case.with_input(|x| FixedPoint::project_cached(&linear, x, range, &mut again, &mut room));
        prop_assert_eq!(&again, &cached);
        let mut logits = Vec::new();
        case.with_input(|x| {
            FixedPoint::project_logits(&linear, 0..linear.rows, x, |first, values| {
                logits.extend((first..).zip(values.iter().copied()));
            });
        });
        prop_assert_eq!(logits.len(), case.bias.len());
        for (row, truth) in case.truth().into_iter().enumerate() {
            prop_assert_eq!(logits[row].0, row);
            prop_assert!((f64::from(logits[row].1) - truth).abs() <= ROUNDED_ONCE);
            let truth = truth.clamp(-127.0, 127.0);
            prop_assert!((f64::from(cached[row]) - truth).abs() <= ROUNDED_ONCE);
        }
    }

    /// Half a unit of the last rounding, and one unit of Q20 times a multiplier below 2^26.
    #[test]
    fn layer_norm_is_within_half_a_unit(
        (x, gamma, beta) in (2_usize..200).prop_flat_map(|d| (
            prop::collection::vec(any::<i16>(), d),
            prop::collection::vec(-(1_i32 << 26)..1 << 26, d),
            prop::collection::vec(-4096_i32..4096, d),
        )),
        eps in 1_i64..1 << 30,
    ) {
        let norm = NormI32 { eps, gamma: &gamma, beta: &beta };
        let mut out = x.clone();
        FixedPoint::layer_norm(&norm, WIDE, &mut out);
        let n = x.len() as f64;
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        let deviation = (variance + eps as f64 / (n * n)).sqrt();
        let truth = x.iter().zip(gamma.iter().zip(&beta)).map(|(&x, (&g, &b))| {
            (f64::from(x) - mean) / deviation * f64::from(g) * 2_f64.powi(20 - 32) + f64::from(b)
        });
        check(&out, truth, ROUNDED_ONCE + 2_f64.powi(26 - 32))?;
    }

    #[test]
    fn embedding_is_within_a_unit(
        row in prop::collection::vec(-127_i8..=127, 8),
        multiplier in 0_i32..1 << 22,
        rotation in prop::collection::vec([-(1_i32 << 30)..=1 << 30, -(1_i32 << 30)..=1 << 30], 4),
        frac_bits in 0_u32..16,
    ) {
        let table = LinearInt {
            packing: Packing::RowMajor, rows: 1, cols: 8, data: &row, bias: &[0], multipliers: &[0],
        };
        let multipliers = [multiplier];
        let embedding =
            Embedding { table, multipliers: Some(&multipliers), range: WIDE, position_shift: 30 - frac_bits };
        let words = row.iter().map(|&w| f64::from(w) * f64::from(multiplier) * 2_f64.powi(24 - 32));
        let words: Vec<f64> = words.collect();
        let scale = 2_f64.powi(frac_bits as i32 - 30);
        let mut out = [0; 8];
        for interleaved in [true, false] {
            FixedPoint::embed(&embedding, 0, &Position::Sinusoidal { rotation: &rotation, interleaved }, &mut out);
            let wave = |c: usize| match interleaved {
                true => rotation[c / 2][c % 2],
                false => rotation[c % 4][c / 4],
            };
            let truth = words.iter().enumerate().map(|(c, w)| w + f64::from(wave(c)) * scale);
            check(&out, truth, ROUNDED_TWICE)?;
        }
        FixedPoint::embed(&embedding, 0, &Position::Learned { table: embedding, position: 0 }, &mut out);
        check(&out, words.iter().map(|w| 2.0 * w), ROUNDED_TWICE)?;
    }

    /// Half a unit of the last rounding, one unit of Q15 in every probability (against a sum of at
    /// least one) and the rounding of the exponent to Q12, in a context of at most 127 values.
    #[test]
    fn attention_is_within_its_bound(
        (keys, values, query) in (1_usize..9, 1_usize..30).prop_flat_map(|(d_k, len)| (
            prop::collection::vec(-127_i8..=127, d_k * len),
            prop::collection::vec(-127_i8..=127, d_k * len),
            prop::collection::vec(any::<i16>(), d_k),
        )),
        score in 0_i32..1 << 14,
        context in 0_i32..1 << 24,
    ) {
        let d_k = query.len();
        let len = keys.len() / d_k;
        let heads: &[[i32; 2]] = &[[score, context]];
        let (mut scores, mut probabilities, mut out) = (vec![0; len], vec![0; len], query.clone());
        let cache = HeadCache {
            keys: Rows { data: &keys, stride: d_k, rows: len, cols: d_k },
            values: Rows { data: &values, stride: d_k, rows: len, cols: d_k },
        };
        let scratch = &mut AttentionScratch { scores: &mut scores, probabilities: &mut probabilities };
        FixedPoint::attend(&heads, 0, &mut out, cache, scratch, WIDE);

        let exponents: Vec<f64> = keys.chunks_exact(d_k).map(|key| {
            let dot: i64 = key.iter().zip(&query).map(|(&k, &q)| i64::from(k) * i64::from(q)).sum();
            dot as f64 * f64::from(score) / 2_f64.powi(32 + 12)
        }).collect();
        let max = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = exponents.iter().map(|e| (e - max).exp2()).collect();
        let sum: f64 = powers.iter().sum();
        let unit = f64::from(context) * 2_f64.powi(15 - 32);
        let truth = (0..d_k).map(|j| {
            let column = values.iter().skip(j).step_by(d_k);
            column.zip(&powers).map(|(&v, p)| f64::from(v) * p / sum).sum::<f64>() * unit
        });
        let probability_error = len as f64 / 32767.0 + 2.0 * 2_f64.ln() * 2_f64.powi(-13);
        check(&out, truth, ROUNDED_ONCE + 2.0 * 127.0 * unit * probability_error)?;
    }
}

#[test]
fn a_mean_is_rounded_half_up_and_holds_at_the_extremes() {
    let mean = |rows: &[[i16; 2]]| {
        let mut out = [0; 2];
        FixedPoint::mean(rows.as_flattened(), &mut out);
        out
    };
    assert_eq!(mean(&[[3, -3], [4, -4]]), [4, -3]);
    assert_eq!(mean(&[[1, -1], [0, 0], [0, 0]]), [0, 0]);
    assert_eq!(mean(&[[2, -2], [0, 0], [0, 0]]), [1, -1]);
    assert_eq!(mean(&[[i16::MAX, i16::MIN]; 512]), [i16::MAX, i16::MIN]);
}
