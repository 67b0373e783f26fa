//! Smooth activations of the feed-forward, forward and back; ReLU, which needs no more than its
//! result for the way back, is among the [`kernels`](super::kernels).

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use model_format::config::Activation;
use multiversion::multiversion;

use super::kernels::exp;
use crate::rng::Mask;

/// An activation whose derivative needs what went in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Smooth {
    /// `x * Phi(x)` (Hendrycks & Gimpel 2016).
    Gelu,
    /// The approximation of the same paper.
    GeluTanh,
    /// `x * sigmoid(x)` (Elfwing et al. 2017).
    Silu,
}

impl Smooth {
    /// Nothing for ReLU.
    pub const fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::Relu => None,
            Activation::Gelu => Some(Self::Gelu),
            Activation::GeluTanh => Some(Self::GeluTanh),
            Activation::Silu => Some(Self::Silu),
        }
    }
}

/// `out = f(x)`, with dropout where a mask is given.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn forward(out: &mut [f32], x: &[f32], f: Smooth, mask: Option<Mask>) {
    match f {
        Smooth::Gelu => map(out, x, gelu),
        Smooth::GeluTanh => map(out, x, gelu_tanh),
        Smooth::Silu => map(out, x, silu),
    }
    if let Some(mask) = mask {
        for (out, factor) in out.iter_mut().zip(mask.factors(0)) {
            *out *= factor;
        }
    }
}

/// Gradient through `forward`, in place, from what went in.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn backward(d: &mut [f32], x: &[f32], f: Smooth, mask: Option<Mask>) {
    if let Some(mask) = mask {
        for (d, factor) in d.iter_mut().zip(mask.factors(0)) {
            *d *= factor;
        }
    }
    match f {
        Smooth::Gelu => times(d, x, gelu_slope),
        Smooth::GeluTanh => times(d, x, gelu_tanh_slope),
        Smooth::Silu => times(d, x, silu_slope),
    }
}

#[inline(always)]
fn map(out: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x);
    }
}

#[inline(always)]
fn times(d: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (d, &x) in d.iter_mut().zip(x) {
        *d *= f(x);
    }
}

/// `1 / (1 + e^-x)`, by the exponential of what is not positive.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x >= 0.0 { 1.0 } else { e };
    numerator / (1.0 + e)
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
fn silu_slope(x: f32) -> f32 {
    let s = sigmoid(x);
    s + x * s * (1.0 - s)
}

/// Of `x^3` in the argument of tanh.
const CUBIC: f32 = 0.044_715;
/// `2 sqrt(2 / pi)`: half of `1 + tanh(u)` is `sigmoid(2 u)`.
const TWICE_ROOT: f32 = 2.0 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI;

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    x * sigmoid(TWICE_ROOT * (x + CUBIC * x * x * x))
}

#[inline(always)]
fn gelu_tanh_slope(x: f32) -> f32 {
    let s = sigmoid(TWICE_ROOT * (x + CUBIC * x * x * x));
    s + x * s * (1.0 - s) * TWICE_ROOT * (1.0 + 3.0 * CUBIC * x * x)
}

/// The normal distribution to about 2e-7, and `e^(-x^2 / 2)` (Abramowitz & Stegun 1964, 26.2.17,
/// written for the tail, so that nothing is lost by a difference where x is negative).
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    let density = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let mut p = 1.330_274_5;
    for c in [-1.821_256, 1.781_477_9, -0.356_563_78, 0.319_381_54] {
        p = p * t + c;
    }
    let tail = 0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI * density * p * t;
    (if x > 0.0 { 1.0 - tail } else { tail }, density)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * normal(x).0
}

#[inline(always)]
fn gelu_slope(x: f32) -> f32 {
    let (below, density) = normal(x);
    below + x * density * (0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng;

    /// By Simpson's rule on the density, which this many steps make exact to 1e-12.
    fn normal_exact(x: f64) -> f64 {
        let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let n = 2000;
        let h = x / f64::from(n);
        let inner = |i: i32| density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 };
        0.5 + h / 3.0 * (density(0.0) + (1..n).map(inner).sum::<f64>() + density(x))
    }

    fn exact(f: Smooth, x: f64) -> f64 {
        match f {
            Smooth::Gelu => x * normal_exact(x),
            Smooth::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
            Smooth::Silu => x / (1.0 + (-x).exp()),
        }
    }

    const ALL: [Smooth; 3] = [Smooth::Gelu, Smooth::GeluTanh, Smooth::Silu];

    #[test]
    fn activations_are_accurate_and_so_are_their_slopes() {
        let x: Vec<f32> = (-10_000..=10_000).map(|i| i as f32 / 1000.0).collect();
        for f in ALL {
            let (mut y, mut slope) = (vec![0.0; x.len()], vec![1.0; x.len()]);
            forward(&mut y, &x, f, None);
            backward(&mut slope, &x, f, None);
            for ((&x, &y), &slope) in x.iter().zip(&y).zip(&slope) {
                let (at, h) = (f64::from(x), 1e-5);
                let error = (f64::from(y) - exact(f, at)).abs();
                assert!(error < 1e-6_f64.max(2e-7 * at), "{f:?}({x}): off by {error}");
                let expected = (exact(f, at + h) - exact(f, at - h)) / (2.0 * h);
                let error = (f64::from(slope) - expected).abs();
                assert!(error < 2e-6, "slope of {f:?} at {x}: off by {error}");
            }
        }
    }

    #[test]
    fn large_numbers_stay_numbers() {
        for f in ALL {
            let x = [-1e6, -200.0, 0.0, 200.0, 1e6];
            let mut y = [0.0; 5];
            forward(&mut y, &x, f, None);
            assert!(
                y[..3].iter().all(|y| y.abs() < 1e-30) && y[3..] == [200.0, 1e6],
                "{f:?}: {y:?}"
            );
            let mut slope = [1.0; 5];
            backward(&mut slope, &x, f, None);
            let expected = [0.0, 0.0, 0.5, 1.0, 1.0];
            let is_close = slope.iter().zip(expected).all(|(s, e)| (s - e).abs() < 1e-6);
            assert!(is_close, "{f:?}: {slope:?}");
        }
    }

    #[test]
    fn dropout_drops_the_same_elements_on_both_ways() {
        let mask = rng::Mask::new(5, 0.3);
        let x: Vec<f32> = (0..100).map(|i| 1.0 + i as f32).collect();
        for f in ALL {
            let (mut y, mut slope) = (vec![0.0; 100], vec![1.0; 100]);
            forward(&mut y, &x, f, Some(mask));
            backward(&mut slope, &x, f, Some(mask));
            let dropped = |v: &[f32]| v.iter().map(|v| *v == 0.0).collect::<Vec<_>>();
            assert_eq!(dropped(&y), dropped(&slope));
            assert!(dropped(&y).contains(&true) && dropped(&y).contains(&false));
        }
    }
}
