//! Exponentials and logarithms in integers: the same bits on every target, for both precisions.

use crate::fixed::softmax::exp2_fraction;

use super::q16::Q16;

/// `log2(e)` in Q30.
const LOG2_E: u32 = 1_549_082_005;
/// `ln(2)` in Q32.
pub(crate) const LN_2: u64 = 2_977_044_472;
/// Fractional bits of [`log2`].
pub(crate) const LOG2_BITS: u32 = 24;
/// Nothing further away than this (32 nats in Q32, divided by the temperature to a power of two)
/// weighs anything: below 2^-46 at temperature 1, below 2^-32 at any.
const FARTHEST: u64 = 1 << 37;
const MASK_Q31: u64 = (1 << 31) - 1;

/// `e^(-distance / temperature)` for distances in Q32 nats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exponential {
    /// `log2(e) / temperature` is `mantissa * 2^(shift - 30)`, the mantissa from 2^30 to 2^31.
    mantissa: u32,
    shift: i32,
}

impl Exponential {
    /// Temperature 1.
    pub const NATURAL: Self = Self { mantissa: LOG2_E, shift: 0 };

    /// For a temperature above 0.
    pub fn with_temperature(temperature: Q16) -> Self {
        // log2(e) in Q62, divided by Q16: Q46 and 31 to 62 bits.
        let temperature = u64::from(temperature.magnitude().max(1));
        let factor = (u64::from(LOG2_E) << 32).checked_div(temperature).unwrap_or(u64::MAX);
        let excess = 33_u32.saturating_sub(factor.leading_zeros());
        let mantissa = factor.checked_shr(excess).unwrap_or(0);
        Self { mantissa: mantissa as u32, shift: excess as i32 - 16 }
    }

    /// `e^(-distance / temperature)` in Q`bits`, `bits` being 30, or up to 40 at temperature 1, where a
    /// distance may also be negative, down to -5.5 nats.
    ///
    /// Within `3.1e-6` of its value, relative, and 1.1 units.
    #[inline]
    pub fn weight(self, distance: i64, bits: u32) -> u64 {
        let magnitude = distance.unsigned_abs();
        let scaled = match self.shift {
            0.. if magnitude >= FARTHEST => FARTHEST,
            0.. => magnitude.checked_shl(self.shift as u32).unwrap_or(FARTHEST),
            _ => magnitude.checked_shr(self.shift.unsigned_abs()).unwrap_or(0),
        };
        if scaled >= FARTHEST {
            return 0;
        }
        let exponent = (scaled >> 6).wrapping_mul(u64::from(self.mantissa)) as i64;
        exp2_neg(if distance < 0 { exponent.wrapping_neg() } else { exponent }, bits)
    }
}

/// `2^-exponent` in Q`bits` (30 to 40) for an exponent of 56 fractional bits, -8 at least; relative
/// error at most 3.0e-6, rounded down.
#[inline]
fn exp2_neg(exponent: i64, bits: u32) -> u64 {
    let (whole, power) = split(exponent, 56);
    let shift = (whole.saturating_add(8) as u64).saturating_add(40).saturating_sub(bits.into());
    (power << 18).checked_shr(shift.min(64) as u32).unwrap_or(0)
}

/// `value * 2^-exponent`, rounded half up, for an exponent of 40 fractional bits.
pub(crate) fn scaled_down(value: i32, exponent: u64) -> i32 {
    let (whole, power) = split(exponent.min(i64::MAX as u64) as i64, 40);
    if whole > 32 {
        return 0;
    }
    let half = 1 << (29 + whole);
    (i64::from(value).wrapping_mul(power as i64).wrapping_add(half) >> (30 + whole)) as i32
}

/// The whole part of an exponent of `exponent_bits` (31 to 56) fractional bits, and 2 to the power of
/// minus its fraction in Q30.
#[inline]
fn split(exponent: i64, exponent_bits: u32) -> (i64, u64) {
    let whole = exponent >> (exponent_bits & 63);
    let fraction = (exponent >> (exponent_bits.wrapping_sub(31) & 63)) as u64 & MASK_Q31;
    // Not below the power of the next whole exponent, so that powers never grow with it.
    (whole, exp2_fraction(fraction as i32).max(1 << 29) as u64)
}

/// How often `ln(2)` fits into `nats`, which are in Q32 and below 32; one off where that is within
/// 2^-25 of a whole number.
pub(crate) fn halvings(nats: u64) -> u64 {
    (nats >> 6).wrapping_mul(LOG2_E.into()) >> 56
}

/// `e^-nats` in Q15, at most 1, for nats in Q16; within 0.6 units.
pub(crate) fn exp_q15(nats: u32) -> u16 {
    let weight = Exponential::NATURAL.weight(i64::from(nats) << 16, 30);
    ((weight + (1 << 14)) >> 15) as u16
}

/// `log2(value)` in Q24, rounded down, within 1.1 units; 0 for 0.
///
/// One bit per squaring: a number squared has twice the logarithm.
pub(crate) fn log2(value: u64) -> u32 {
    let leading = value.max(1).leading_zeros();
    let mut mantissa = (value.max(1) << (leading & 63)) >> 32;
    let mut log = 63_u32.saturating_sub(leading);
    for _ in 0..LOG2_BITS {
        let square = mantissa.wrapping_mul(mantissa);
        let bit = square >> 63;
        mantissa = square >> (31 + bit);
        log = (log << 1) | bit as u32;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_within_their_bound() {
        let mut largest = 0.0_f64;
        for shift in 0..63 {
            for step in 0..997 {
                let value = (1_u64 << shift) + ((1_u64 << shift) / 997) * step;
                let truth = (value as f64).log2() * f64::from(1 << LOG2_BITS);
                let error = truth - f64::from(log2(value));
                assert!(error >= -0.1, "{value}: {error}");
                largest = largest.max(error);
            }
        }
        println!("log2: {largest} units of Q24");
        assert!(largest < 1.1);
        assert_eq!((log2(0), log2(1), log2(1 << 40)), (0, 0, 40 << LOG2_BITS));
    }

    #[test]
    fn weights_are_within_their_bound_at_every_temperature() {
        for bits in [1, 7, 655, 32768, 52429, 65536, 65537, 131_072, 1 << 20, i32::MAX] {
            let temperature = Q16::from_bits(bits);
            let exponential = Exponential::with_temperature(temperature);
            for step in 0..20_000_i64 {
                let distance = step * step * (i64::from(bits) * 8 + 1);
                let truth =
                    (-(distance as f64) / 4_294_967_296.0 * 65_536.0 / f64::from(bits)).exp();
                for q in [30, 40].into_iter().take(if bits == 65536 { 2 } else { 1 }) {
                    let unit = f64::from(q).exp2();
                    let error = exponential.weight(distance, q) as f64 - truth * unit;
                    let bound = 3.1e-6 * truth * unit + 1.1;
                    assert!(error.abs() <= bound, "{bits} {distance}: {error} > {bound}");
                }
            }
        }
    }

    #[test]
    fn a_temperature_of_one_changes_nothing_and_extremes_do_not_wrap() {
        let one = Exponential::with_temperature(Q16::ONE);
        assert_eq!((one.mantissa, one.shift), (LOG2_E, 0));
        for bits in [i32::MIN, 0, 1, i32::MAX] {
            let exponential = Exponential::with_temperature(Q16::from_bits(bits));
            assert_eq!(exponential.weight(0, 30), 1 << 30);
            assert_eq!(exponential.weight(i64::MAX, 30), 0);
        }
    }

    #[test]
    fn weights_never_grow_with_the_distance() {
        let mut last = u64::MAX;
        for step in 0..2_000_000 {
            let weight = Exponential::NATURAL.weight(step << 15, 40);
            assert!(weight <= last, "{step}");
            last = weight;
        }
    }

    #[test]
    fn probabilities_are_within_their_bound() {
        for step in 0..100_000_u32 {
            let truth = (-f64::from(step * 8) / 65_536.0).exp() * 32_768.0;
            assert!((f64::from(exp_q15(step * 8)) - truth).abs() <= 0.6, "{step}");
        }
        assert_eq!((exp_q15(0), exp_q15(u32::MAX)), (32_768, 0));
    }
}
