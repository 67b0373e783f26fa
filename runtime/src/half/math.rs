//! The functions of HalfFloat: never those of std, whose bits differ from target to target.

/// An `f16` bit pattern as `f32`, exact for every finite number.
///
/// Exponent and mantissa move to their places in an `f32`; the multiplication by 2^112 corrects the
/// exponent's bias, for subnormal numbers too. No branch, so loops over weights vectorize.
#[inline(always)]
pub fn widen(bits: u16) -> f32 {
    const BIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7FFF) << 13) * BIAS;
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// `e^x`.
#[inline]
pub fn exp(x: f32) -> f32 {
    #[cfg(feature = "approx-math")]
    return micromath::F32Ext::exp(x);
    #[cfg(not(feature = "approx-math"))]
    libm::expf(x)
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
    #[test]
    fn every_finite_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let truth = half::f16::from_bits(bits);
            if truth.is_finite() {
                assert_eq!(super::widen(bits).to_bits(), truth.to_f32().to_bits(), "{bits:04x}");
            }
        }
    }
}
