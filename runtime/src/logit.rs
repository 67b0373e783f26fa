//! A score of the vocabulary: what the output layer gives and search takes.

use crate::search::Q16;

/// A score of the vocabulary: compared, hashed byte by byte, and read as nats.
pub trait Logit: Copy + PartialOrd {
    /// Marks an id that must not be chosen. No model gives it: an integer logit is at most 2^30 in
    /// magnitude.
    const EXCLUDED: Self;

    /// Its little-endian bytes.
    fn to_le_bytes(self) -> [u8; 4];

    /// Its value in Q32, `i64::MIN` where it is excluded or not a number.
    ///
    /// Exact for an integer of `frac_bits` (0 to 32) fractional bits. A float, for which `frac_bits`
    /// means nothing, loses what is below 2^-32 and saturates at 2^31.
    fn nats(self, frac_bits: u32) -> i64;

    /// An integer in the same order: equal for equal logits, least where it is excluded or not a
    /// number.
    fn order(self) -> i32;

    /// Divided by `penalty` where it is positive, multiplied where it is negative (Keskar et al. 2019,
    /// section 4.1); saturated, so that it is never excluded by it.
    fn penalized(self, penalty: Q16) -> Self;
}

impl Logit for i32 {
    const EXCLUDED: Self = i32::MIN;

    fn to_le_bytes(self) -> [u8; 4] {
        self.to_le_bytes()
    }

    fn nats(self, frac_bits: u32) -> i64 {
        match self {
            Self::EXCLUDED => i64::MIN,
            _ => i64::from(self) << (32_u32.saturating_sub(frac_bits) & 63),
        }
    }

    fn order(self) -> i32 {
        self
    }

    fn penalized(self, penalty: Q16) -> Self {
        let penalty = i64::from(penalty.to_bits());
        let product = match self {
            Self::EXCLUDED => return self,
            1.. => {
                // Unsigned: the runtime divides so elsewhere, and a second routine would cost code.
                let penalty = penalty.unsigned_abs();
                let rounded = (u64::from(self.unsigned_abs()) << 16).saturating_add(penalty >> 1);
                rounded.checked_div(penalty).map_or(i64::MAX, |quotient| quotient as i64)
            }
            _ => (i64::from(self) * penalty + (1 << 15)) >> 16,
        };
        product.clamp(1 - i64::from(i32::MAX), i64::from(i32::MAX)) as i32
    }
}

impl Logit for f32 {
    const EXCLUDED: Self = f32::NEG_INFINITY;

    fn to_le_bytes(self) -> [u8; 4] {
        self.to_le_bytes()
    }

    fn nats(self, _frac_bits: u32) -> i64 {
        const ONE: f32 = 4_294_967_296.0;
        match self > Self::EXCLUDED {
            true => ((self * ONE) as i64).max(-i64::MAX),
            false => i64::MIN,
        }
    }

    fn order(self) -> i32 {
        if self > Self::EXCLUDED {
            // The sum makes one zero of both.
            let bits = (self + 0.0).to_bits() as i32;
            bits ^ (((bits >> 31) as u32) >> 1) as i32
        } else {
            i32::MIN
        }
    }

    fn penalized(self, penalty: Q16) -> Self {
        let penalty = penalty.to_f32();
        let product = match self > 0.0 {
            true => self / penalty,
            false => self * penalty,
        };
        match self > Self::EXCLUDED {
            true => product.clamp(f32::MIN, f32::MAX),
            false => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Q16 = Q16::from_bits(2 << 16);

    #[test]
    fn a_penalty_lowers_every_logit_and_never_excludes_one() {
        for (logit, expected) in [(100, 50), (-100, -200), (0, 0), (1, 1), (3, 2), (-3, -6)] {
            assert_eq!(logit.penalized(TWO), expected);
        }
        assert_eq!(7.0.penalized(TWO), 3.5);
        assert_eq!((-7.0).penalized(TWO), -14.0);
        let most = Q16::from_bits(i32::MAX);
        assert!(i32::MIN < (i32::MIN + 1).penalized(most));
        assert!(f32::NEG_INFINITY < f32::MIN.penalized(most));
    }

    #[test]
    fn an_excluded_logit_stays_excluded_and_so_does_what_is_not_a_number() {
        assert_eq!(i32::EXCLUDED.penalized(TWO), i32::EXCLUDED);
        assert_eq!(f32::EXCLUDED.penalized(TWO), f32::EXCLUDED);
        for logit in [f32::EXCLUDED, f32::NAN] {
            assert_eq!((logit.nats(0), logit.order()), (i64::MIN, i32::MIN));
        }
        assert_eq!((i32::EXCLUDED.nats(8), i32::EXCLUDED.order()), (i64::MIN, i32::MIN));
    }

    #[test]
    fn order_is_that_of_the_logits() {
        let ascending = [f32::MIN, -2.5, -1e-40, 0.0, 1e-40, 1.0, 1e30, f32::INFINITY];
        for pair in ascending.windows(2) {
            assert!(pair[0].order() < pair[1].order(), "{pair:?}");
            assert!(pair[0].nats(0) <= pair[1].nats(0), "{pair:?}");
        }
        assert_eq!((-0.0_f32).order(), 0.0_f32.order());
    }

    #[test]
    fn integer_nats_are_exact_in_every_format() {
        for frac_bits in 0..=30 {
            for logit in [1 - i32::MAX, -1, 0, 1, i32::MAX] {
                let nats = logit.nats(frac_bits);
                assert_eq!(nats >> (32 - frac_bits), i64::from(logit));
                assert_eq!(nats & ((1 << (32 - frac_bits)) - 1), 0);
            }
        }
    }
}
