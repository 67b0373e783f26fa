//! LayerNorm (Ba et al. 2016, eq. 4) in integers.

use model_format::numeric::rescale;

use crate::kernels;

/// Fractional bits of a normalised element.
const NORMALIZED_FRAC_BITS: u32 = 20;

/// What LayerNorm knows of a vector.
///
/// With `d` elements, `D = d * x - sum(x)` and `V = d * sum(x^2) - sum(x)^2 + eps`, a normalised
/// element is `D / sqrt(V)`: the scale of `x` cancels, and nothing is rounded before the end.
pub struct Statistics {
    /// `d` and `-sum(x)`, shifted left by what `shift` has less than 32.
    d: i32,
    minus_sum: i32,
    /// `1 / sqrt(V)` as `reciprocal * 2^-shift / 2^NORMALIZED_FRAC_BITS`, in `[2^30, 2^31)`.
    reciprocal: i32,
    /// What `shift` has more than 32.
    more: u32,
}

impl Statistics {
    /// `x` has at most 16384 elements, so that every sum is exact.
    ///
    /// Not inlined: a compiler that knows the reciprocal to be positive multiplies in 64 bits.
    #[inline(never)]
    pub fn of(x: &[i16], eps: i64) -> Self {
        let d = x.len() as i32;
        let (sum, squares) = kernels::moments(x);
        let variance = i64::from(d) * squares - i64::from(sum) * i64::from(sum) + eps;
        let (reciprocal, shift) = reciprocal_sqrt(variance.unsigned_abs().max(1));
        // A normalised element is below 2^27 and the reciprocal at least 2^30: D shifted left to make
        // the shift 32 is below 2^29.
        let less = 32_u32.saturating_sub(shift);
        let more = shift.saturating_sub(32);
        Self {
            d: d << less,
            minus_sum: sum.wrapping_neg().wrapping_shl(less),
            reciprocal: reciprocal as i32,
            more,
        }
    }

    /// Whether [`normalize`](Self::normalize) is one product.
    pub fn is_plain(&self) -> bool {
        self.more == 0
    }

    /// The normalised element in Q20, rounded once, half up, where that is one product.
    #[inline(always)]
    pub fn normalize_plain(&self, x: i16) -> i32 {
        rescale(self.deviation(x), self.reciprocal)
    }

    /// The normalised element in Q20, rounded once, half up.
    #[inline(always)]
    pub fn normalize(&self, x: i16) -> i32 {
        if self.is_plain() {
            return self.normalize_plain(x);
        }
        let high = ((i64::from(self.deviation(x)) * i64::from(self.reciprocal)) >> 32) as i32;
        (high + (1 << (self.more - 1))) >> self.more
    }

    #[inline(always)]
    fn deviation(&self, x: i16) -> i32 {
        self.d.wrapping_mul(i32::from(x)).wrapping_add(self.minus_sum)
    }
}

/// `(r, s)` with `r * 2^-s = 2^20 / sqrt(v)`, `r` in `[2^30, 2^31)`, `s` in `[10, 42]`, for
/// `1 <= v < 2^63`; relative error below 2^-28.
fn reciprocal_sqrt(v: u64) -> (u32, u32) {
    let zeros = v.leading_zeros() & 62;
    // v = a * 2^(64 - zeros), a in [0.25, 1) kept in Q32.
    let a = ((v << zeros) >> 32) as u32;
    let shift = 30 + 32 - NORMALIZED_FRAC_BITS - zeros / 2;
    // Quadratic start, 2.5% off at most, then Newton: y = y (3 - a y^2) / 2 in Q30.
    const C: [u64; 3] = [2_867_785_095, 3_527_614_924, 1_759_391_008];
    let a = u64::from(a);
    let mut y = C[0] + ((C[2] * ((a * a) >> 32)) >> 32) - ((C[1] * a) >> 32);
    for _ in 0..3 {
        let a_y2 = (a * ((y * y) >> 30)) >> 32;
        y = (y * ((3 << 30) - a_y2)) >> 31;
    }
    let shift = shift.clamp(11, 42);
    match y.clamp(1 << 30, 1 << 31) {
        // The same number, in what an i32 holds.
        0x8000_0000 => (1 << 30, shift - 1),
        y => (y as u32, shift),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn reciprocal_is_close_to_f64(bits in 0_u32..63, low in any::<u64>()) {
            let v = (1_u64 << bits) | (low & ((1 << bits) - 1));
            let (r, s) = reciprocal_sqrt(v);
            let ours = f64::from(r) * 2_f64.powi(-(s as i32));
            let truth = 2_f64.powi(20) / (v as f64).sqrt();
            prop_assert!((ours / truth - 1.0).abs() < 2_f64.powi(-28), "{ours} {truth}");
        }

        #[test]
        fn elements_are_within_one_unit_of_f64(x in proptest::collection::vec(any::<i16>(), 2..300)) {
            let n = x.len() as f64;
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
            // eps is 1 in units of d^2 x^2.
            let deviation = (variance + 1.0 / (n * n)).sqrt();
            let statistics = Statistics::of(&x, 1);
            for &x in &x {
                let truth = (f64::from(x) - mean) / deviation * 2_f64.powi(20);
                let error = f64::from(statistics.normalize(x)) - truth;
                prop_assert!(error.abs() < 1.0, "{error}");
            }
        }
    }

    proptest! {
        /// Whatever the size of V: the shift of the product is on both sides of 32.
        #[test]
        fn elements_are_rounded_once(
            seed in proptest::collection::vec(any::<i16>(), 2..40),
            repeats in 1_usize..400,
            eps in 1_i64..1 << 60,
            small in 0_u32..16,
        ) {
            let x: Vec<i16> = seed.iter().map(|x| x >> small).collect::<Vec<_>>().repeat(repeats);
            let d = x.len() as i128;
            let sum: i128 = x.iter().map(|&x| i128::from(x)).sum();
            let squares: i128 = x.iter().map(|&x| i128::from(x) * i128::from(x)).sum();
            let variance = d * squares - sum * sum + i128::from(eps);
            let (r, s) = reciprocal_sqrt(variance as u64);
            let statistics = Statistics::of(&x, eps);
            for &x in &seed {
                let x = x >> small;
                let product = (d * i128::from(x) - sum) * i128::from(r);
                prop_assert_eq!(i128::from(statistics.normalize(x)), (product + (1 << (s - 1))) >> s);
            }
        }
    }

    #[test]
    fn extremes_stay_inside() {
        assert_eq!(Statistics::of(&[7; 16384], 1).normalize(7), 0);
        let mut x = [i16::MIN; 16384];
        x[0] = i16::MAX;
        let top = f64::from(Statistics::of(&x, 1).normalize(i16::MAX)) / 2_f64.powi(20);
        assert!((top - 16383_f64.sqrt()).abs() < 1e-5, "{top}");
    }
}
