//! LayerNorm (Ba et al. 2016, eq. 4) in integers.

/// Fractional bits of a normalised element.
const NORMALIZED_FRAC_BITS: u32 = 20;

/// What LayerNorm knows of a vector.
///
/// With `d` elements, `D = d * x - sum(x)` and `V = d * sum(x^2) - sum(x)^2 + eps`, a normalised
/// element is `D / sqrt(V)`: the scale of `x` cancels, and nothing is rounded before the end.
pub struct Statistics {
    d: i32,
    sum: i32,
    /// `1 / sqrt(V)` as `reciprocal * 2^-shift / 2^NORMALIZED_FRAC_BITS`.
    reciprocal: u32,
    shift: u32,
}

impl Statistics {
    /// `x` has at most 16384 elements, so that every sum is exact.
    pub fn of(x: &[i16], eps: i64) -> Self {
        let d = x.len() as i32;
        let (mut sum, mut squares) = (0_i32, 0_i64);
        for &x in x {
            sum = sum.wrapping_add(i32::from(x));
            squares += i64::from(i32::from(x) * i32::from(x));
        }
        let variance = i64::from(d) * squares - i64::from(sum) * i64::from(sum) + eps;
        let (reciprocal, shift) = reciprocal_sqrt(variance.unsigned_abs().max(1));
        Self { d, sum, reciprocal, shift }
    }

    /// The normalised element in Q20, rounded once, half up.
    #[inline(always)]
    pub fn normalize(&self, x: i16) -> i32 {
        let deviation = self.d.wrapping_mul(i32::from(x)).wrapping_sub(self.sum);
        let product = i64::from(deviation) * i64::from(self.reciprocal);
        ((product + (1 << (self.shift - 1))) >> self.shift) as i32
    }
}

/// `(r, s)` with `r * 2^-s = 2^20 / sqrt(v)`, `r` in `[2^30, 2^31]`, `s` in `[11, 42]`, for
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
    (y.clamp(1 << 30, 1 << 31) as u32, shift.clamp(11, 42))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn extremes_stay_inside() {
        assert_eq!(Statistics::of(&[7; 16384], 1).normalize(7), 0);
        let mut x = [i16::MIN; 16384];
        x[0] = i16::MAX;
        let top = f64::from(Statistics::of(&x, 1).normalize(i16::MAX)) / 2_f64.powi(20);
        assert!((top - 16383_f64.sqrt()).abs() < 1e-5, "{top}");
    }
}
