//! The functions of HalfFloat: never those of std, whose bits differ from target to target.

use model_format::config::Activation;

/// `e^x`.
#[inline]
pub fn exp(x: f32) -> f32 {
    #[cfg(feature = "approx-math")]
    return micromath::F32Ext::exp(x);
    #[cfg(not(feature = "approx-math"))]
    libm::expf(x)
}

/// The non-linearity of the feed-forward sublayer.
#[inline]
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        // Not `max`: its choice between -0 and 0 is the target's.
        Activation::Relu => match x > 0.0 {
            true => x,
            false => 0.0,
        },
        Activation::Gelu => 0.5 * x * (1.0 + libm::erff(x * core::f32::consts::FRAC_1_SQRT_2)),
        // (1 + tanh(y)) / 2 = 1 / (1 + e^-2y)
        Activation::GeluTanh => {
            const C: f32 = 1.595_769;
            x / (1.0 + exp(-C * (x + 0.044_715 * x * x * x)))
        }
        Activation::Silu => x / (1.0 + exp(-x)),
    }
}

/// Square root.
#[inline]
pub fn sqrt(x: f32) -> f32 {
    #[cfg(feature = "approx-math")]
    return micromath::F32Ext::sqrt(x);
    #[cfg(not(feature = "approx-math"))]
    libm::sqrtf(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_follow_f64() {
        let c = (2.0 / std::f64::consts::PI).sqrt();
        for i in -4000..4000 {
            let x = i as f32 / 200.0;
            let wide = f64::from(x);
            let phi = 0.5 * libm::erfc(-wide / std::f64::consts::SQRT_2);
            let tanh = 0.5 * (1.0 + (c * (wide + 0.044_715 * wide.powi(3))).tanh());
            for (activation, truth) in [
                (Activation::Relu, wide.max(0.0)),
                (Activation::Gelu, wide * phi),
                (Activation::GeluTanh, wide * tanh),
                (Activation::Silu, wide / (1.0 + (-wide).exp())),
            ] {
                let error = (f64::from(activate(activation, x)) - truth).abs();
                // Units of f32 of the operand: 1 + erf cancels for negative x.
                assert!(error <= 2e-7 * wide.abs().max(1.0), "{activation:?} {x}: {error}");
            }
        }
    }

    #[test]
    fn every_finite_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let truth = half::f16::from_bits(bits);
            if truth.is_finite() {
                assert_eq!(
                    crate::kernels::float::widen(bits).to_bits(),
                    truth.to_f32().to_bits(),
                    "{bits:04x}"
                );
            }
        }
    }
}
