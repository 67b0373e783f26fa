//! Rows of a matrix to `i8`, with their biases and multipliers.

use anyhow::{Result, ensure};

/// A matrix in integers: `[rows, cols]` weights, `[rows]` the rest.
pub struct QuantizedLinear {
    /// Weights in [-127, 127].
    pub weights: Vec<i8>,
    /// Biases in units of the accumulator.
    pub bias: Vec<i32>,
    /// Real value of one unit of a row's weights.
    pub steps: Vec<f64>,
}

/// A bias stays below 2^29 units of the accumulator.
const MAX_BIAS: f64 = (1_u64 << 29) as f64;

/// Rounds every row of `weights` `[rows, cols]` with its own step. `x_step` is the real value of one
/// unit of the input, `x_max` the largest magnitude the input takes, in units.
///
/// A row whose bias would leave its range gets a coarser step, and so does one whose sum could leave
/// the accumulator; a row of zeros keeps its bias.
pub fn quantize_rows(weights: &[f32], bias: &[f32], x_step: f64, x_max: i64) -> QuantizedLinear {
    let cols = weights.len() / bias.len().max(1);
    let mut quantized =
        QuantizedLinear { weights: Vec::new(), bias: Vec::new(), steps: Vec::new() };
    for (row, &b) in weights.chunks_exact(cols.max(1)).zip(bias) {
        let max = row.iter().fold(0.0_f64, |max, w| max.max(f64::from(w.abs())));
        let bias_step = f64::from(b.abs()) / (MAX_BIAS * x_step);
        let mut step = (max / 127.0).max(bias_step);
        if step == 0.0 {
            step = 1.0;
        }
        let (row, b) = loop {
            let ints: Vec<i8> = row
                .iter()
                .map(|w| (f64::from(*w) / step).round().clamp(-127.0, 127.0) as i8)
                .collect();
            let int_bias = (f64::from(b) / (step * x_step)).round() as i32;
            if row_bound(&ints, int_bias, x_max) <= i64::from(i32::MAX) {
                break (ints, int_bias);
            }
            step *= 1.02;
        };
        quantized.weights.extend(row);
        quantized.bias.push(b);
        quantized.steps.push(step);
    }
    quantized
}

/// The largest magnitude that the accumulator of a row can take.
pub fn row_bound(row: &[i8], bias: i32, x_max: i64) -> i64 {
    let sum: i64 = row.iter().map(|w| i64::from(w.unsigned_abs())).sum();
    sum * x_max + i64::from(bias.unsigned_abs())
}

/// `round(scale * 2^32)`, the multiplier of the one rescale.
pub fn multiplier(scale: f64) -> Result<i32> {
    ensure!(scale.is_finite(), "a scale is no number");
    let rounded = (scale * 2_f64.powi(32)).round();
    ensure!(
        rounded.abs() <= f64::from(i32::MAX),
        "a scale of {scale} is 0.5 or more, which no multiplier holds"
    );
    Ok(rounded as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_own_step() {
        let q = quantize_rows(&[1.0, -0.5, 127.0, 0.0], &[0.0, 1.0], 1.0 / 1024.0, 32768);
        assert_eq!(q.weights, [127, -64, 127, 0]);
        assert_eq!((q.bias[0], q.bias[1]), (0, 1024));
        assert_eq!(q.steps, [1.0 / 127.0, 1.0]);
    }

    #[test]
    fn a_row_of_zeros_keeps_its_bias() {
        let q = quantize_rows(&[0.0, 0.0], &[3.0], 1.0 / 1024.0, 32768);
        assert_eq!(q.weights, [0, 0]);
        let value = f64::from(q.bias[0]) * q.steps[0] / 1024.0;
        assert!((value - 3.0).abs() < 1e-6, "{value}");
    }

    #[test]
    fn no_row_can_leave_the_accumulator() {
        let weights = vec![1.0; 2048];
        let q = quantize_rows(&weights, &[5.0], 1.0 / 1024.0, 32768);
        assert!(row_bound(&q.weights, q.bias[0], 32768) <= i64::from(i32::MAX));
        assert!((f64::from(q.weights[0]) * q.steps[0] - 1.0).abs() < 0.02);
    }

    #[test]
    fn a_large_bias_gets_a_coarser_step() {
        let q = quantize_rows(&[1e-6, 0.0], &[100.0], 1.0 / 4096.0, 32768);
        assert!(q.bias[0].unsigned_abs() <= 1 << 29);
        let value = f64::from(q.bias[0]) * q.steps[0] / 4096.0;
        assert!((value - 100.0).abs() < 1e-4, "{value}");
    }
}
