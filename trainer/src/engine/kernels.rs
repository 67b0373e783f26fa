//! The loops over elements. Each is compiled for several instruction sets and chosen at run
//! time; sums run in a fixed number of lanes, so that the result does not depend on that choice.

use multiversion::multiversion;

use crate::rng::Mask;

const LANES: usize = 16;

/// Sum of `f` over the elements of some slices of one length, in sixteen lanes.
#[inline(always)]
fn sum_by<const N: usize>(slices: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let parts = slices.map(|slice| slice.as_chunks::<LANES>());
    let mut lanes = [0f32; LANES];
    for i in 0..parts[0].0.len() {
        let chunks = parts.map(|(chunks, _)| &chunks[i]);
        for l in 0..LANES {
            lanes[l] += f(chunks.map(|chunk| chunk[l]));
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
        width /= 2;
    }
    (0..parts[0].1.len()).fold(lanes[0], |sum, i| sum + f(parts.map(|(_, tail)| tail[i])))
}

/// The largest element, in sixteen lanes.
#[inline(always)]
fn max_of(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = if v > *lane { v } else { *lane };
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}

/// e^x to about 1e-7, for x <= 0 (below -87 it stays at e^-87); vectorises, unlike the library's.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the rounded exponent in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    // ln 2 in two parts, so that the reduced argument is exact (Cody and Waite).
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_5e-2, 0.166_666_65, 0.5] {
        p = p * r + c;
    }
    let p = p * r * r + r + 1.0;
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3F80_0000))
}

/// Every row of `out` becomes `bias`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn fill_rows(out: &mut [f32], bias: &[f32]) {
    for row in out.chunks_exact_mut(bias.len()) {
        row.copy_from_slice(bias);
    }
}

/// `bias[c] += sum over rows of x[row, c]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn add_column_sums(bias: &mut [f32], x: &[f32]) {
    for row in x.chunks_exact(bias.len()) {
        for (b, &v) in bias.iter_mut().zip(row) {
            *b += v;
        }
    }
}

/// `a += b`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn add_assign(a: &mut [f32], b: &[f32]) {
    for (a, &b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

/// `x = max(0, x)`, with dropout where a mask is given.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn relu(x: &mut [f32], mask: Option<Mask>) {
    match mask {
        None => x.iter_mut().for_each(|v| *v = if *v > 0.0 { *v } else { 0.0 }),
        Some(mask) => {
            for (v, factor) in x.iter_mut().zip(mask.factors(0)) {
                *v = if *v > 0.0 { *v * factor } else { 0.0 };
            }
        }
    }
}

/// Gradient through `relu`: an output above zero was positive and kept.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn relu_backward(d: &mut [f32], out: &[f32], scale: f32) {
    for (d, &out) in d.iter_mut().zip(out) {
        *d = if out > 0.0 { *d * scale } else { 0.0 };
    }
}

/// `out = x + dropout(branch)`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn residual(out: &mut [f32], x: &[f32], branch: &[f32], mask: Option<Mask>) {
    match mask {
        None => {
            for ((o, &x), &b) in out.iter_mut().zip(x).zip(branch) {
                *o = x + b;
            }
        }
        Some(mask) => {
            for (((o, &x), &b), factor) in out.iter_mut().zip(x).zip(branch).zip(mask.factors(0)) {
                *o = x + b * factor;
            }
        }
    }
}

/// `out = dropout(x)`: the way forward and, with gradients, the way back.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn dropout(out: &mut [f32], x: &[f32], mask: Option<Mask>) {
    match mask {
        None => out.copy_from_slice(x),
        Some(mask) => {
            for ((o, &x), factor) in out.iter_mut().zip(x).zip(mask.factors(0)) {
                *o = x * factor;
            }
        }
    }
}

/// LayerNorm over rows of `gamma.len()`: `hat` keeps the normalised rows and `rstd` one number a row
/// for the way back.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn layer_norm(
    x: &[f32],
    (gamma, beta): (&[f32], &[f32]),
    eps: f32,
    hat: &mut [f32],
    rstd: &mut [f32],
    out: &mut [f32],
) {
    let d = gamma.len();
    let rows = x.chunks_exact(d).zip(hat.chunks_exact_mut(d)).zip(out.chunks_exact_mut(d));
    for (((x, hat), out), rstd) in rows.zip(rstd) {
        let mean = sum_by([x], |[x]| x) / d as f32;
        let variance = sum_by([x], |[x]| (x - mean) * (x - mean)) / d as f32;
        *rstd = 1.0 / (variance + eps).sqrt();
        let affine = out.iter_mut().zip(gamma).zip(beta);
        for ((&x, hat), ((out, &gamma), &beta)) in x.iter().zip(hat).zip(affine) {
            *hat = (x - mean) * *rstd;
            *out = *hat * gamma + beta;
        }
    }
}

/// Gradient through LayerNorm: `dx (+)= ...`, `d_gamma += ...`, `d_beta += ...`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn layer_norm_backward(
    dy: &[f32],
    hat: &[f32],
    rstd: &[f32],
    gamma: &[f32],
    (d_gamma, d_beta): (&mut [f32], &mut [f32]),
    (dx, accumulate): (&mut [f32], bool),
) {
    let d = gamma.len();
    let (d_gamma, d_beta) = (&mut d_gamma[..d], &mut d_beta[..d]);
    let rows = dy.chunks_exact(d).zip(hat.chunks_exact(d)).zip(dx.chunks_exact_mut(d));
    for (((dy, hat), dx), &rstd) in rows.zip(rstd) {
        let mean = sum_by([dy, gamma], |[dy, gamma]| dy * gamma) / d as f32;
        let slope = sum_by([dy, gamma, hat], |[dy, gamma, hat]| dy * gamma * hat) / d as f32;
        let affine = gamma.iter().zip(&mut *d_gamma).zip(&mut *d_beta);
        let row = dy.iter().zip(hat).zip(dx);
        for (((&dy, &hat), dx), ((&gamma, d_gamma), d_beta)) in row.zip(affine) {
            *d_gamma += dy * hat;
            *d_beta += dy;
            let g = rstd * (dy * gamma - mean - hat * slope);
            *dx = if accumulate { *dx + g } else { g };
        }
    }
}

/// Cross-entropy with label smoothing over rows of `vocab` logits, which become gradients times
/// `scale`. Returns (smoothed loss, plain negative log likelihood), summed over rows.
///
/// The smoothing mass is spread over all ids but `pad`, where there is one (Szegedy et al. 2016).
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn cross_entropy(
    logits: &mut [f32],
    targets: &[u32],
    vocab: usize,
    pad: Option<usize>,
    smoothing: f32,
    scale: f32,
) -> (f64, f64) {
    let spread = (vocab - usize::from(pad.is_some())) as f32;
    let share = smoothing / spread;
    let mut total = (0f64, 0f64);
    for (row, &target) in logits.chunks_exact_mut(vocab).zip(targets) {
        let target = target as usize;
        let max = max_of(row);
        let logit_sum = sum_by([row], |[logit]| logit) - pad.map_or(0.0, |pad| row[pad]);
        let at_target = row[target];
        row.iter_mut().for_each(|v| *v = exp(*v - max));
        let sum = sum_by([row], |[exp]| exp);
        let log_sum = max + sum.ln();
        total.1 += f64::from(log_sum - at_target);
        total.0 += f64::from(
            (1.0 - smoothing) * (log_sum - at_target) + share * (spread * log_sum - logit_sum),
        );
        let inverse = scale / sum;
        let pad_gradient = pad.map(|pad| (pad, row[pad] * inverse));
        row.iter_mut().for_each(|v| *v = *v * inverse - share * scale);
        if let Some((pad, gradient)) = pad_gradient {
            row[pad] = gradient;
        }
        row[target] -= (1.0 - smoothing) * scale;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        for i in 0..=87_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "exp({x}): relative error {error}");
        }
    }

    #[test]
    fn sums_have_no_lost_element() {
        for n in 0..70usize {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum_by([&x], |[x]| x), (n * n.saturating_sub(1) / 2) as f32);
            assert_eq!(sum_by([&x, &x], |[x, y]| x - y), 0.0);
        }
    }

    #[test]
    fn cross_entropy_matches_its_definition() {
        let (vocab, smoothing) = (7, 0.1);
        let logits: Vec<f32> = (0..14).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
        for (pad, share) in [(Some(0), 0.1 / 6.0), (None, 0.1 / 7.0)] {
            let mut row = logits.clone();
            let (loss, nll) = cross_entropy(&mut row, &[3, 6], vocab, pad, smoothing, 1.0);
            let (mut expected, mut expected_nll) = (0.0, 0.0);
            for (r, &target) in [3usize, 6].iter().enumerate() {
                let x: Vec<f64> = logits[r * 7..][..7].iter().map(|&v| f64::from(v)).collect();
                let log_sum = x.iter().map(|v| v.exp()).sum::<f64>().ln();
                expected_nll += log_sum - x[target];
                for i in 0..vocab {
                    let spread = if Some(i) == pad { 0.0 } else { share };
                    let q = spread + if i == target { 0.9 } else { 0.0 };
                    expected += q * (log_sum - x[i]);
                    let gradient = (x[i] - log_sum).exp() - q;
                    assert!((f64::from(row[r * 7 + i]) - gradient).abs() < 1e-6);
                }
            }
            assert!((loss - expected).abs() < 1e-5 && (nll - expected_nll).abs() < 1e-5);
        }
    }
}
