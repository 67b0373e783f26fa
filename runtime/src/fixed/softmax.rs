//! softmax in powers of two, its maximum subtracted on the accumulators.

use model_format::numeric::rescale;

/// Fractional bits of an exponent.
pub const EXPONENT_BITS: u32 = 12;
/// A probability before the division, 1.0 being the top.
pub const TOP: i32 = 32767;

/// `probabilities[i] = 2^(multiplier * (scores[i] - max))` in Q15; their sum.
///
/// The multiplier carries `log2(e) / sqrt(d_k)`, so that this is the softmax of Vaswani et al. 2017
/// (eq. 1) without its division.
pub fn exp2_all(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> u32 {
    let max = scores.iter().copied().max().unwrap_or(0);
    let mut sum = 0_u32;
    for (probability, &score) in probabilities.iter_mut().zip(scores) {
        let u = exp2_neg(rescale(max.wrapping_sub(score), multiplier));
        *probability = u as i16;
        sum = sum.wrapping_add(u as u32);
    }
    sum
}

/// `weights = probabilities / sum` in Q15, rounded half up: what [`context_multiplier`] does to the
/// sum of all. Their sum is 1 but for half a unit each.
pub fn weights(probabilities: &[i16], weights: &mut [u16]) {
    let sum: u32 = probabilities.iter().map(|u| u32::from(u.unsigned_abs())).sum();
    for (weight, u) in weights.iter_mut().zip(probabilities) {
        let rounded = (u32::from(u.unsigned_abs()) << 15).wrapping_add(sum / 2);
        *weight = rounded.checked_div(sum).unwrap_or(0) as u16;
    }
}

/// `2^-z` in Q15 for `z >= 0` in Q12, at most 32767; within 0.51 units of the true value.
#[inline(always)]
fn exp2_neg(z: i32) -> i32 {
    let whole = (z >> EXPONENT_BITS) as u32;
    let fraction = (z & ((1 << EXPONENT_BITS) - 1)) << (31 - EXPONENT_BITS);
    if whole > 15 {
        return 0;
    }
    let p = exp2_fraction(fraction);
    ((p + (1 << (14 + whole))) >> (15 + whole)).min(TOP)
}

/// Coefficient i of the polynomial times 2^i in Q30: every multiplication by a fraction in Q31 halves.
pub const EXP2: [i32; 5] = [1 << 30, -1_488_342_683, 1_028_458_883, -457_187_050, 117_371_054];

/// `2^-fraction` in Q30 for a fraction in Q31: a polynomial of degree 4, minimax in relative error
/// (3.0e-6), 1 at 0.
#[inline(always)]
pub fn exp2_fraction(fraction: i32) -> i32 {
    let [c0, c1, c2, c3, c4] = EXP2;
    let mut p = c4;
    for c in [c3, c2, c1, c0] {
        p = c + rescale(p, fraction);
    }
    p
}

/// The multiplier of `sum(u * v)`: `context * 2^15 / sum`, rounded half up, for a `sum` of at most 512
/// probabilities.
///
/// The largest probability is 32767, so the quotient stays an `i32`. Divided digit by digit: a
/// division of 64 bits is a long routine of its own, and every remainder is below 2^24.
pub fn context_multiplier(context: i32, sum: u32) -> i32 {
    let (context, sum) = (context.unsigned_abs(), sum.max(TOP as u32));
    let divided = |dividend: u32| {
        let quotient = dividend.checked_div(sum).unwrap_or(0);
        (quotient, dividend.wrapping_sub(quotient.wrapping_mul(sum)))
    };
    let (whole, rest) = divided(context);
    let (high, rest) = divided(rest << 8);
    let (low, _) = divided((rest << 7).wrapping_add(sum / 2));
    (whole << 15).wrapping_add(high << 7).wrapping_add(low) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn powers_are_within_their_bound_everywhere() {
        for z in 0..20 << EXPONENT_BITS {
            let truth = (f64::from(-z) / 4096.0).exp2() * 32768.0;
            let bound = if z == 0 { 1.0 } else { 0.61 };
            let error = f64::from(exp2_neg(z)) - truth.min(32767.4);
            assert!(error.abs() <= bound, "2^-({z}/4096): {error}");
        }
    }

    #[test]
    fn distant_scores_vanish_and_the_top_is_whole() {
        let mut probabilities = [0_i16; 3];
        let sum = exp2_all(&[i32::MAX / 2, i32::MIN / 2, 0], 1 << 30, &mut probabilities);
        assert_eq!((probabilities, sum), ([32767, 0, 0], 32767));
    }

    #[test]
    fn weights_are_fractions_of_the_sum() {
        let mut out = [0; 4];
        weights(&[32767, 0, 16384, 16383], &mut out);
        assert_eq!(out, [16384, 0, 8192, 8192]);
        let mut alone = [0; 1];
        weights(&[32767], &mut alone);
        assert_eq!(alone, [1 << 15]);
        let mut longest = [0; 512];
        weights(&[32767; 512], &mut longest);
        assert_eq!(longest, [64; 512]);
    }

    #[test]
    fn digits_of_the_multiplier_are_those_of_a_long_division() {
        let contexts = (0..31).flat_map(|bit| [1_i32 << bit, (1 << bit) + 12_345, (1 << bit) - 1]);
        for context in contexts.chain([0x7F00_0000]).filter(|c| (0..=0x7F00_0000).contains(c)) {
            for sum in (32767..=512 * 32767).step_by(7919).chain([32768, 512 * 32767]) {
                let long = ((i64::from(context) << 15) + i64::from(sum / 2)) / i64::from(sum);
                assert_eq!(i64::from(context_multiplier(context, sum)), long, "{context} {sum}");
            }
        }
    }

    #[test]
    fn division_stays_inside_at_the_extremes() {
        assert!(context_multiplier(0x7F00_0000, 32767) > 0);
        assert_eq!(context_multiplier(1 << 20, 32768), 1 << 20);
        let longest: Vec<i32> = [5; 512].into();
        let mut probabilities = [0_i16; 512];
        assert_eq!(exp2_all(&longest, 1, &mut probabilities), 512 * 32767);
    }
}
