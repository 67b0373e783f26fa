//! The smooth non-linearities of the feed-forward sublayer, each as `x * gate(x)`.
//!
//! `x` enters in the format of the output, before saturation, so that a linear layer has the same
//! multipliers whatever follows it. Every gate is symmetric, `gate(-x) = 1 - gate(x)`, and computed
//! for `|x|` in Q30 from one power of two and one reciprocal.

use model_format::config::Activation;
use model_format::numeric::rescale;

use super::softmax::exp2_fraction;

const ONE_Q30: i32 = 1 << 30;
/// `log2(e)` in Q30.
const LOG2_E: i32 = 1_549_082_005;

/// `x * gate(x)`; `x` and the result have `frac_bits` fractional bits. ReLU has no gate of this kind
/// and is not asked for.
///
/// One function for all of them, and not inlined: what their gates share stands once in the code.
#[inline(never)]
pub fn smooth(activation: Activation, x: i32, frac_bits: u32) -> i32 {
    // From here on, in Q16, the gate is 1 within less than half a unit of every format.
    let limit = match activation {
        Activation::Gelu | Activation::GeluTanh => 6 << 16,
        Activation::Silu | Activation::Relu => 32 << 16,
    };
    let q16 = ((i64::from(x.unsigned_abs()) << 16) >> frac_bits).min(limit);
    let gate = if q16 < limit { gate(activation, q16 as i32) } else { ONE_Q30 };
    let gate = if x < 0 { ONE_Q30 - gate } else { gate };
    ((product(x, gate) + (1 << 29)) >> 30) as i32
}

/// In Q30 for `x >= 0` in Q16, below the limit.
#[inline(always)]
fn gate(activation: Activation, x: i32) -> i32 {
    // 2 sqrt(2 / pi) in Q26 and 0.044715 times it in Q30.
    const C1: i32 = 107_090_253;
    const C3: i32 = 76_616_651;
    sigmoid(match activation {
        // `Phi(x)`.
        Activation::Gelu => return normal_distribution(x),
        // `sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))`.
        Activation::GeluTanh => {
            let slope = C1 + (product(C3, square(x)) >> 20) as i32;
            (product(x, slope) >> 26) as i32
        }
        Activation::Silu | Activation::Relu => x,
    })
}

/// `1 / (1 + e^-x)` in Q30 for `x >= 0` in Q16, below 32.
#[inline(always)]
fn sigmoid(x: i32) -> i32 {
    let u = exp2_neg(rescale(x << 6, LOG2_E));
    reciprocal((1 << 29) + (u >> 1))
}

/// The normal distribution at `x >= 0` in Q16, below 6, in Q30 (Abramowitz & Stegun, 7.1.26).
#[inline(always)]
fn normal_distribution(x: i32) -> i32 {
    // 0.3275911 / sqrt(2) in Q30; the halved coefficients in Q30, highest power first.
    const P: i32 = 248_723_584;
    const A: [i32; 5] = [569_837_701, -780_155_054, 763_115_691, -152_738_022, 136_810_595];
    // log2(e) / 2 in Q30.
    let power = exp2_neg(rescale(square(x) << 6, LOG2_E / 2));
    let t = reciprocal((1 << 29) + (product(x, P) >> 17) as i32);
    let mut sum = 0;
    for a in A {
        sum = (product(sum + a, t) >> 30) as i32;
    }
    ONE_Q30 - (product(sum, power) >> 30) as i32
}

/// `2^-z` in Q30 for `z >= 0` in Q20, within 3e-6 of its value.
fn exp2_neg(z: i32) -> i32 {
    let p = exp2_fraction((z & ((1 << 20) - 1)) << 11);
    p.checked_shr((z >> 20) as u32).unwrap_or(0)
}

/// `1 / d` in Q30 for `d` in Q29, 1 to 4: a quotient of 16 bits and one step of Newton's.
fn reciprocal(d: i32) -> i32 {
    let quotient = (1_u32 << 31).checked_div((d >> 14) as u32).unwrap_or(0);
    let r = i64::from(quotient) << 14;
    let correction = (1 << 31) - ((i64::from(d) * r) >> 29);
    ((r * correction) >> 30) as i32
}

/// `x * x` of Q16 in Q16.
#[inline(always)]
fn square(x: i32) -> i32 {
    (product(x, x) >> 16) as i32
}

#[inline(always)]
fn product(a: i32, b: i32) -> i64 {
    i64::from(a) * i64::from(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error of `f`, in units of the output, over inputs of every format.
    fn largest_error(activation: Activation, truth: impl Fn(f64) -> f64) -> f64 {
        let mut largest = 0.0_f64;
        for frac_bits in 0..=20 {
            let unit = f64::from(1 << frac_bits);
            // Beyond 2^15 units the output saturates, but a negative input still counts.
            for i in -80_000..=33_000 {
                let x = i * if i < -33_000 { 797 } else { 1 };
                let expected = truth(f64::from(x) / unit) * unit;
                let ours = f64::from(smooth(activation, x, frac_bits));
                largest = largest.max((ours - expected).abs());
            }
        }
        largest
    }

    fn phi(x: f64) -> f64 {
        0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
    }

    #[test]
    fn every_activation_is_within_its_bound_in_every_format() {
        let silu_error = largest_error(Activation::Silu, |x| x / (1.0 + (-x).exp()));
        let gelu_error = largest_error(Activation::Gelu, |x| x * phi(x));
        let tanh_error = largest_error(Activation::GeluTanh, |x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x * 0.5 * (1.0 + inner.tanh())
        });
        println!("units of the output: silu {silu_error}, gelu {gelu_error}, tanh {tanh_error}");
        // Half a unit is the rounding of the result itself.
        assert!(silu_error < 0.64 && gelu_error < 0.79 && tanh_error < 0.81);
    }

    #[test]
    fn extremes_stay_inside() {
        for frac_bits in 0..=20 {
            for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
                let f = |x| smooth(activation, x, frac_bits);
                assert_eq!([f(0), f(i32::MAX), f(i32::MIN)], [0, i32::MAX, 0]);
            }
        }
    }
}
