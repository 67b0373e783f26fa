//! Rows of a matrix to integers, with their biases and multipliers.

use anyhow::{Result, ensure};
use model_format::layout::{
    BLOCK_ROWS, GROUP_COLS, Layout, LinearInt, MAX_MULTIPLIER_SHIFT, pack_nibbles, round_biases,
};

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
/// Where the weights have 4 bits, below 2^24: the biases of a block share a shift, and in a row of few or
/// small weights one could be large only for being fine.
const MAX_BIAS_I4: f64 = (1_u64 << 24) as f64;

/// What the weights of a matrix are stored in.
#[derive(Debug, Clone, Copy)]
pub enum Width<'a> {
    /// 8 bits.
    Eight,
    /// 4 bits; errors in a column count as much as its mean square, `[cols]`.
    Four(&'a [f32]),
}

/// How rows are rounded.
#[derive(Debug, Clone, Copy)]
pub struct Rounding<'a> {
    /// What the weights are stored in.
    pub width: Width<'a>,
    /// The step of every row, where nothing else stands in the way.
    pub steps: &'a [f64],
    /// What a row's step is multiplied with to be the real scale of its rescale; nothing where the
    /// formats are not chosen yet. The multipliers of 4 bits have 8, and steps follow them.
    pub scales: Option<&'a [f64]>,
}

/// Rounds every row of `weights` `[rows, cols]` with its own step. `x_step` is the real value of one
/// unit of the input, `x_max` the largest magnitude the input takes, in units.
///
/// A row whose bias would leave its range gets a coarser step, and so does one whose sum could leave
/// the accumulator; a row of zeros keeps its bias.
pub fn quantize_rows(
    weights: &[f32],
    bias: &[f32],
    (x_step, x_max): (f64, i64),
    rounding: Rounding<'_>,
) -> QuantizedLinear {
    let cols = (weights.len() / bias.len().max(1)).max(1);
    let max_bias = match rounding.width {
        Width::Eight => MAX_BIAS,
        Width::Four(_) => MAX_BIAS_I4,
    };
    let mut quantized = QuantizedLinear {
        weights: Vec::new(),
        factors: Vec::new(),
        bias: Vec::new(),
        steps: Vec::new(),
    };
    for (index, (weights, bias)) in
        weights.chunks(BLOCK_ROWS * cols).zip(bias.chunks(BLOCK_ROWS)).enumerate()
    {
        let first = index * BLOCK_ROWS;
        let least = |(row, b): (usize, &f32)| {
            rounding.steps[first + row].max(f64::from(b.abs()) / (max_bias * x_step))
        };
        let mut wanted: Vec<f64> = bias.iter().enumerate().map(least).collect();
        let block = loop {
            let steps = rounding.allowed(&wanted, first);
            let block = round_block(weights, bias, x_step, (rounding.width, &steps));
            let mut is_good = true;
            for (row, wanted) in wanted.iter_mut().enumerate() {
                let bias_fits =
                    (f64::from(bias[row]) / (steps[row] * x_step)).abs() <= max_bias + 1.0;
                if !bias_fits || block.bound(row, x_max) > i64::from(i32::MAX) {
                    *wanted = steps[row].max(*wanted) * 1.02;
                    is_good = false;
                }
            }
            if is_good {
                break block;
            }
        };
        quantized.weights.extend(block.weights);
        quantized.factors.extend(block.factors);
        quantized.bias.extend(block.bias);
        quantized.steps.extend(block.steps);
    }
    quantized
}

/// The rows of one block with these steps.
fn round_block(
    weights: &[f32],
    bias: &[f32],
    x_step: f64,
    (width, steps): (Width<'_>, &[f64]),
) -> QuantizedLinear {
    let (mut ints, mut factors) = (Vec::new(), Vec::new());
    for (row, &step) in weights.chunks_exact(weights.len() / bias.len()).zip(steps) {
        let (row, row_factors) = width.round(row, step);
        ints.extend(row);
        factors.extend(row_factors);
    }
    let int_bias = |(&b, &step): (&f32, &f64)| (f64::from(b) / (step * x_step)).round() as i32;
    let mut bias: Vec<i32> = bias.iter().zip(steps).map(int_bias).collect();
    if let Width::Four(_) = width {
        round_biases(&mut bias);
    }
    QuantizedLinear { weights: ints, factors, bias, steps: steps.to_vec() }
}

impl Rounding<'_> {
    /// Steps near `wanted`, those of the block that begins with row `first`, which the file can have.
    fn allowed(&self, wanted: &[f64], first: usize) -> Vec<f64> {
        let (Width::Four(_), Some(scales)) = (self.width, self.scales) else {
            return wanted.iter().map(|&step| if step == 0.0 { 1.0 } else { step }).collect();
        };
        let one = 2_f64.powi(32);
        let rows = || wanted.iter().zip(&scales[first..]);
        let largest = rows().map(|(step, scale)| step * scale * one).fold(0.0, f64::max);
        let fits = |shift: &u8| (largest / 2_f64.powi((*shift).into())).round() <= 255.0;
        let shift = (0..MAX_MULTIPLIER_SHIFT).find(fits).unwrap_or(MAX_MULTIPLIER_SHIFT);
        let unit = 2_f64.powi(shift.into());
        let allowed = |(step, scale): (&f64, &f64)| {
            (step * scale * one / unit).round().clamp(1.0, 255.0) * unit / (scale * one)
        };
        rows().map(allowed).collect()
    }
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
        (0..self.bias.len()).map(|row| self.sum(row) * x_max).max().unwrap_or(0)
    }

    /// The largest magnitude that the accumulator of a row can take.
    fn bound(&self, row: usize, x_max: i64) -> i64 {
        self.sum(row) * x_max + i64::from(self.bias[row].unsigned_abs())
    }

    /// The sum of the magnitudes of a row's weights.
    fn sum(&self, row: usize) -> i64 {
        let rows = self.bias.len();
        let (cols, groups) = (self.weights.len() / rows, self.factors.len() / rows);
        let factors = &self.factors[row * groups..][..groups];
        let factor = |c: usize| factors.get(c / GROUP_COLS).map_or(1, |&factor| i64::from(factor));
        let weights = self.weights[row * cols..][..cols].iter().enumerate();
        weights.map(|(c, w)| i64::from(w.unsigned_abs()) * factor(c)).sum()
    }

    /// The bytes of the tensor.
    pub fn pack(&self, multipliers: &[i32]) -> Vec<u8> {
        match self.factors.is_empty() {
            true => LinearInt::pack(Layout::RowMajor, &self.weights, &self.bias, multipliers),
            false => pack_nibbles(&self.weights, &self.factors, &self.bias, multipliers),
        }
    }
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
        let rounding = Rounding { width, steps: &steps, scales: None };
        quantize_rows(weights, bias, (x_step, 32768), rounding)
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
        assert!(q.bound(0, 32768) <= i64::from(i32::MAX));
        assert!((f64::from(q.weights[0]) * q.steps[0] - 1.0).abs() < 0.02);
    }

    #[test]
    fn no_row_of_4_bits_can_leave_the_accumulator() {
        let q = quantize(&[1.0; 4096], &[5.0], 1.0 / 1024.0, Width::Four(&[1.0; 4096]));
        assert!(q.bound(0, 32768) <= i64::from(i32::MAX));
        // 15 steps a weight are what the accumulator holds; one less is a fifteenth.
        let value = f64::from(q.weights[0]) * f64::from(q.factors[0]) * q.steps[0];
        assert!((value - 1.0).abs() < 0.1, "{value}");
    }

    /// Rows of very different sizes, one of zeros, and one that is a bias.
    #[test]
    fn multipliers_of_4_bits_have_8() {
        let magnitudes = [1.0, 0.01, 0.0, 0.0, 3.0];
        let weight = |i: usize| magnitudes[i / 32] * ((i * 7 % 32) as f32 - 16.0);
        let weights: Vec<f32> = (0..5 * 32).map(weight).collect();
        let bias = [1.0, -0.5, 0.0, 20.0, 0.25];
        let width = Width::Four(&[1.0; 32]);
        let (steps, scales) = (width.best_steps(&weights, 32), [0.3, 0.3, 0.3, 0.3, 0.001]);
        let rounding = Rounding { width, steps: &steps, scales: Some(&scales) };
        let q = quantize_rows(&weights, &bias, (1.0 / 1024.0, 32768), rounding);
        let rows = q.steps.iter().zip(scales);
        let multipliers: Vec<i32> = rows.map(|(step, s)| multiplier(step * s).unwrap()).collect();
        // It refuses what is not rounded.
        assert!(!q.pack(&multipliers).is_empty());
        for (row, b) in bias.iter().enumerate() {
            let value = f64::from(q.bias[row]) * q.steps[row] / 1024.0;
            // 2^24 in 15 bits are shifted by 9; the bias was a whole number before.
            let half = (256.0 + 0.5) * q.steps[row] / 1024.0;
            assert!((value - f64::from(*b)).abs() <= half, "{row}: {value}");
            for (c, w) in weights[row * 32..][..32].iter().enumerate() {
                let int =
                    f64::from(q.weights[row * 32 + c]) * f64::from(q.factors[row * 2 + c / 16]);
                let top = f64::from(magnitudes[row]) * 16.0;
                assert!((int * q.steps[row] - f64::from(*w)).abs() <= 0.1 * top, "{row} {c}");
            }
        }
    }

    #[test]
    fn a_large_bias_gets_a_coarser_step() {
        let q = quantize(&[1e-6, 0.0], &[100.0], 1.0 / 4096.0, Width::Eight);
        assert!(q.bias[0].unsigned_abs() <= 1 << 29);
        let value = f64::from(q.bias[0]) * q.steps[0] / 4096.0;
        assert!((value - 100.0).abs() < 1e-4, "{value}");
    }
}
