//! Every layer operation against `f64`, within units in the last place of `f32`.

use std::vec::Vec;

use half::f16;
use model_format::NormF16;
use model_format::config::Activation;
use model_format::layout::{Layout, LinearF16};
use proptest::prelude::*;

use super::{HalfFloat, Norm};
use crate::precision::{AttentionScratch, HeadCache, Precision, Rows};

/// Half a unit in the last place of 1.0.
const ULP: f64 = 1.0 / (1 << 24) as f64;

fn halves(len: usize) -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec((-2.0_f32..2.0).prop_map(|v| f16::from_f32(v).to_bits()), len)
}

fn wide(bits: u16) -> f64 {
    f16::from_bits(bits).to_f64()
}

proptest! {
    /// A sum of n products rounds at most 2 n times, each by half a unit of the sum of magnitudes.
    #[test]
    fn project_is_within_its_roundings(
        (weights, bias, x) in (1_usize..14, 1_usize..40).prop_flat_map(|(rows, cols)| (
            halves(rows * cols), halves(rows), prop::collection::vec(-8.0_f32..8.0, cols),
        )),
    ) {
        let (rows, cols) = (bias.len(), x.len());
        let linear = LinearF16 { layout: Layout::RowMajor, rows, cols, data: &weights, bias: &bias };
        let input = HalfFloat::input(&x, [1, cols], &mut []);
        let mut out = vec![0.0; rows];
        HalfFloat::project(&linear, &input, (), &mut out);
        let mut positive = vec![0.0; rows];
        HalfFloat::project_activated(&linear, &input, Activation::Relu, (), &mut positive);
        let mut sums = vec![1.0; rows];
        HalfFloat::project_add(&linear, &input, (), &mut sums);
        for (row, &out) in out.iter().enumerate() {
            let products = weights[row * cols..][..cols].iter().zip(&x);
            let products: Vec<f64> = products.map(|(&w, &x)| wide(w) * f64::from(x)).collect();
            let truth = products.iter().sum::<f64>() + wide(bias[row]);
            let magnitude = products.iter().map(|p| p.abs()).sum::<f64>() + wide(bias[row]).abs();
            let bound = 2.0 * (cols + 1) as f64 * ULP * magnitude;
            prop_assert!((f64::from(out) - truth).abs() <= bound, "{out} is not {truth}");
            prop_assert_eq!(positive[row], if out > 0.0 { out } else { 0.0 });
            prop_assert_eq!(sums[row], 1.0 + out);
        }
    }

    #[test]
    fn layer_norm_is_close(
        (x, gamma, beta) in (2_usize..200).prop_flat_map(|d| (
            prop::collection::vec(-8.0_f32..8.0, d), halves(d), halves(d),
        )),
    ) {
        let n = x.len() as f64;
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        prop_assume!(variance > 1e-3);
        let norm = Norm { weights: NormF16 { gamma: &gamma, beta: &beta }, eps: 1e-5 };
        let mut out = x.clone();
        HalfFloat::layer_norm(&norm, (), &mut out);
        for (i, &out) in out.iter().enumerate() {
            let truth = (f64::from(x[i]) - mean) / (variance + 1e-5).sqrt() * wide(gamma[i]) + wide(beta[i]);
            // The mean's error of n roundings is divided by the deviation, at least 0.03.
            let bound = ULP * (8.0 * n / variance.sqrt() + 16.0) * (1.0 + truth.abs());
            prop_assert!((f64::from(out) - truth).abs() <= bound, "{out} is not {truth}");
        }
    }

    #[test]
    fn attention_is_close(
        (keys, values, query) in (1_usize..9, 1_usize..30).prop_flat_map(|(d_k, len)| (
            prop::collection::vec(-2.0_f32..2.0, d_k * len),
            prop::collection::vec(-2.0_f32..2.0, d_k * len),
            prop::collection::vec(-2.0_f32..2.0, d_k),
        )),
    ) {
        let d_k = query.len();
        let len = keys.len() / d_k;
        let (mut scores, mut probabilities, mut out) = (vec![0.0; len], vec![0.0; len], query.clone());
        let cache = HeadCache {
            keys: Rows { data: &keys, stride: d_k, rows: len, cols: d_k },
            values: Rows { data: &values, stride: d_k, rows: len, cols: d_k },
        };
        let scratch = &mut AttentionScratch { scores: &mut scores, probabilities: &mut probabilities };
        HalfFloat::attend(&(), 0, &mut out, cache, scratch, ());

        let dot = |key: &[f32]| key.iter().zip(&query).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum::<f64>();
        let powers: Vec<f64> = keys.chunks_exact(d_k).map(|k| (dot(k) / (d_k as f64).sqrt()).exp()).collect();
        let sum: f64 = powers.iter().sum();
        for (j, &out) in out.iter().enumerate() {
            let column = values.iter().skip(j).step_by(d_k);
            let truth = column.zip(&powers).map(|(&v, p)| f64::from(v) * p / sum).sum::<f64>();
            // Scores are at most 4 sqrt(8) and round d_k times; sums round len times; values are at
            // most 2.
            let bound = 2.0 * ULP * (12.0 * d_k as f64 + 4.0 * len as f64 + 16.0);
            prop_assert!((f64::from(out) - truth).abs() <= bound, "{out} is not {truth}");
        }
    }
}

#[test]
fn a_mean_is_a_sum_in_order_over_the_number_of_rows() {
    let mut out = [0.0; 2];
    HalfFloat::mean(&[1.0e8, 0.5, 3.0, 0.25, -1.0e8, 0.0], &mut out);
    // 1e8 + 3 is 1e8 + 0 or 8 in f32: the order of the sum shows.
    assert_eq!(out, [((1.0e8_f32 + 3.0) - 1.0e8) / 3.0, 0.25]);
}
