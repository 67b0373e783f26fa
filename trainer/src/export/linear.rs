//! Rows of a matrix to integers, with their biases and multipliers.

use anyhow::{Result, ensure};
use model_format::layout::{GROUP_COLS, Layout, LinearInt, pack_nibbles};

use super::nibbles;

/// A matrix in integers: `[rows, cols]` weights, `[rows]` the rest.
pub struct QuantizedLinear {
    /// Weights in [-127, 127], or in [-7, 7] where there are factors.
    pub weights: Vec<i8>,
    /// Of weights of 4 bits, those of their groups; else empty.
    pub factors: Vec<u8>,
    /// Biases in units of the accumulator.
    pub bias: Vec<i32>,
    /// Real value of one unit of a row's weights.
    pub steps: Vec<f64>,
}

/// A bias stays below 2^29 units of the accumulator.
const MAX_BIAS: f64 = (1_u64 << 29) as f64;

/// What the weights of a matrix are stored in.
#[derive(Debug, Clone, Copy)]
pub enum Width<'a> {
    /// 8 bits.
    Eight,
    /// 4 bits; errors in a column count as much as its mean square, `[cols]`.
    Four(&'a [f32]),
}

/// Rounds every row of `weights` `[rows, cols]` with its own step, that of `steps` by default. `x_step`
/// is the real value of one unit of the input, `x_max` the largest magnitude the input takes, in units.
///
/// A row whose bias would leave its range gets a coarser step, and so does one whose sum could leave
/// the accumulator; a row of zeros keeps its bias.
pub fn quantize_rows(
    weights: &[f32],
    bias: &[f32],
    (x_step, x_max): (f64, i64),
    (width, steps): (Width<'_>, &[f64]),
) -> QuantizedLinear {
    let cols = weights.len() / bias.len().max(1);
    let mut quantized = QuantizedLinear {
        weights: Vec::new(),
        factors: Vec::new(),
        bias: Vec::new(),
        steps: Vec::new(),
    };
    for ((row, &b), &best) in weights.chunks_exact(cols.max(1)).zip(bias).zip(steps) {
        let bias_step = f64::from(b.abs()) / (MAX_BIAS * x_step);
        let mut step = best.max(bias_step);
        if step == 0.0 {
            step = 1.0;
        }
        let (weights, factors, b) = loop {
            let (weights, factors) = width.round(row, step);
            let int_bias = (f64::from(b) / (step * x_step)).round() as i32;
            if row_bound(&weights, &factors, int_bias, x_max) <= i64::from(i32::MAX) {
                break (weights, factors, int_bias);
            }
            step *= 1.02;
        };
        quantized.weights.extend(weights);
        quantized.factors.extend(factors);
        quantized.bias.push(b);
        quantized.steps.push(step);
    }
    quantized
}

impl Width<'_> {
    /// The step of every row of `weights` `[rows, cols]` where nothing else stands in the way; 0 for
    /// zeros.
    pub fn best_steps(self, weights: &[f32], cols: usize) -> Vec<f64> {
        weights.chunks_exact(cols.max(1)).map(|row| self.best_step(row)).collect()
    }

    fn best_step(self, row: &[f32]) -> f64 {
        match self {
            Self::Eight => row.iter().fold(0.0_f64, |max, w| max.max(f64::from(w.abs()))) / 127.0,
            Self::Four(importance) => nibbles::best_step(row, importance),
        }
    }

    /// Weights, and where they have 4 bits the factors of their groups.
    fn round(self, row: &[f32], step: f64) -> (Vec<i8>, Vec<u8>) {
        let round = |w: &f32| (f64::from(*w) / step).round().clamp(-127.0, 127.0) as i8;
        match self {
            Self::Eight => (row.iter().map(round).collect(), Vec::new()),
            Self::Four(importance) => nibbles::round_row(row, importance, step),
        }
    }
}

impl QuantizedLinear {
    /// The largest magnitude that the accumulator of a row can take, without its bias.
    pub fn largest_sum(&self, x_max: i64) -> i64 {
        let rows = self.bias.len().max(1);
        let (cols, groups) = (self.weights.len() / rows, self.factors.len() / rows);
        let weights = self.weights.chunks_exact(cols.max(1)).enumerate();
        let bound = |(row, weights): (usize, &[i8])| {
            row_bound(weights, &self.factors[row * groups..][..groups], 0, x_max)
        };
        weights.map(bound).max().unwrap_or(0)
    }

    /// The bytes of the tensor.
    pub fn pack(&self, multipliers: &[i32]) -> Vec<u8> {
        match self.factors.is_empty() {
            true => LinearInt::pack(Layout::RowMajor, &self.weights, &self.bias, multipliers),
            false => pack_nibbles(&self.weights, &self.factors, &self.bias, multipliers),
        }
    }
}

/// The largest magnitude that the accumulator of a row can take; no factors are ones.
fn row_bound(row: &[i8], factors: &[u8], bias: i32, x_max: i64) -> i64 {
    let factor = |c: usize| factors.get(c / GROUP_COLS).map_or(1, |&factor| i64::from(factor));
    let magnitudes = row.iter().enumerate();
    let sum: i64 = magnitudes.map(|(c, w)| i64::from(w.unsigned_abs()) * factor(c)).sum();
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

    fn quantize(weights: &[f32], bias: &[f32], x_step: f64, width: Width<'_>) -> QuantizedLinear {
        let steps = width.best_steps(weights, weights.len() / bias.len());
        quantize_rows(weights, bias, (x_step, 32768), (width, &steps))
    }

    #[test]
    fn rows_keep_their_own_step() {
        let q = quantize(&[1.0, -0.5, 127.0, 0.0], &[0.0, 1.0], 1.0 / 1024.0, Width::Eight);
        assert_eq!(q.weights, [127, -64, 127, 0]);
        assert_eq!((q.bias[0], q.bias[1]), (0, 1024));
        assert_eq!(q.steps, [1.0 / 127.0, 1.0]);
    }

    #[test]
    fn a_row_of_zeros_keeps_its_bias() {
        let q = quantize(&[0.0, 0.0], &[3.0], 1.0 / 1024.0, Width::Eight);
        assert_eq!(q.weights, [0, 0]);
        let value = f64::from(q.bias[0]) * q.steps[0] / 1024.0;
        assert!((value - 3.0).abs() < 1e-6, "{value}");
    }

    #[test]
    fn no_row_can_leave_the_accumulator() {
        let weights = vec![1.0; 2048];
        let q = quantize(&weights, &[5.0], 1.0 / 1024.0, Width::Eight);
        assert!(row_bound(&q.weights, &[], q.bias[0], 32768) <= i64::from(i32::MAX));
        assert!((f64::from(q.weights[0]) * q.steps[0] - 1.0).abs() < 0.02);
    }

    #[test]
    fn no_row_of_4_bits_can_leave_the_accumulator() {
        let q = quantize(&[1.0; 4096], &[5.0], 1.0 / 1024.0, Width::Four(&[1.0; 4096]));
        assert!(row_bound(&q.weights, &q.factors, q.bias[0], 32768) <= i64::from(i32::MAX));
        // 15 steps a weight are what the accumulator holds; one less is a fifteenth.
        let value = f64::from(q.weights[0]) * f64::from(q.factors[0]) * q.steps[0];
        assert!((value - 1.0).abs() < 0.1, "{value}");
    }

    #[test]
    fn a_large_bias_gets_a_coarser_step() {
        let q = quantize(&[1e-6, 0.0], &[100.0], 1.0 / 4096.0, Width::Eight);
        assert!(q.bias[0].unsigned_abs() <= 1 << 29);
        let value = f64::from(q.bias[0]) * q.steps[0] / 4096.0;
        assert!((value - 100.0).abs() < 1e-4, "{value}");
    }
}
