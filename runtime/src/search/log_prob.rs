//! Log-probabilities in integers, and the confidence of an output.
//!
//! `log p(id) = logit - ln(sum of e^logit)`. Both precisions use the same integers: a logit is read
//! as nats in Q32 ([`Logit::nats`]), so no sum of floats depends on its order.
//!
//! The sum is that of the model's own logits, before filters and penalties: a confidence then says
//! what the model thinks of an output among all others, also where only a few were allowed.

use crate::logit::Logit;

use super::exp_log::{Exponential, LN_2, LOG2_BITS, exp_q15, halvings, log2};

/// Fractional bits of the terms of the sum: 65535 of them, each up to 2^8, fit a `u64`.
const TERM_BITS: u32 = 40;
/// A logit this far (in Q32 nats) above the reference moves it: `e^5.5 < 2^8`.
const TOO_HIGH: i64 = 11 << 31;
/// A logit this far above leaves nothing of the sum before it.
const FAR_ABOVE: i64 = 32 << 32;

/// A natural logarithm of a probability in Q16, 0 at most.
///
/// Sums saturate at -32768 nats: four bytes are enough, as all outputs as improbable as that are
/// alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(transparent)]
pub struct LogProb(i32);

impl LogProb {
    /// Probability 1.
    pub const CERTAIN: Self = Self(0);
    /// Probability 0: what is excluded.
    pub const IMPOSSIBLE: Self = Self(i32::MIN);
    /// The least of what can be.
    const LEAST: Self = Self(-i32::MAX);

    /// `bits * 2^-16` nats; 0 where that is positive.
    pub const fn from_bits(bits: i32) -> Self {
        Self(if bits > 0 { 0 } else { bits })
    }

    /// Itself times 2^16.
    pub const fn to_bits(self) -> i32 {
        self.0
    }

    /// Of both together; impossible where one is.
    pub fn and(self, other: Self) -> Self {
        if self == Self::IMPOSSIBLE || other == Self::IMPOSSIBLE {
            return Self::IMPOSSIBLE;
        }
        Self(self.0.saturating_add(other.0)).max(Self::LEAST)
    }

    /// The probability, within 0.6 units.
    pub fn probability(self) -> Probability {
        Probability(exp_q15(self.0.unsigned_abs()))
    }
}

/// A probability in Q15, 1 at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Probability(u16);

impl Probability {
    /// 1.
    pub const ONE: Self = Self(1 << 15);

    /// `bits * 2^-15`; 1 where that is more.
    pub const fn from_bits(bits: u16) -> Self {
        if bits > Self::ONE.0 { Self::ONE } else { Self(bits) }
    }

    /// `percent / 100`, rounded down; 1 where that is more.
    pub const fn from_percent(percent: u8) -> Self {
        let percent = if percent > 100 { 100 } else { percent as u32 };
        Self(((percent << 15) / 100) as u16)
    }

    /// Itself times 2^15.
    pub const fn to_bits(self) -> u16 {
        self.0
    }
}

/// `ln(sum of e^logit)`, one logit after the other: needs no buffer.
///
/// Within 0.2 units of Q16 nats, streamed or at once ([`of`](Self::of)).
#[derive(Debug, Clone, Copy)]
pub struct LogSumExp {
    /// In Q32 nats; at most `TOO_HIGH` below the largest logit.
    reference: i64,
    /// Sum of `e^(logit - reference)` in Q40.
    sum: u64,
}

impl Default for LogSumExp {
    fn default() -> Self {
        Self { reference: i64::MIN, sum: 0 }
    }
}

impl LogSumExp {
    /// Of `logits`, with their `frac_bits`.
    pub fn of<L: Logit>(logits: &[L], frac_bits: u32) -> LogSum {
        let nats = || logits.iter().map(|logit| logit.nats(frac_bits));
        let mut sum = Self { reference: nats().max().unwrap_or(i64::MIN), sum: 0 };
        nats().for_each(|nats| sum.push_nats(nats));
        sum.finish()
    }

    /// Takes the next logit; an excluded one adds nothing.
    pub fn push<L: Logit>(&mut self, logit: L, frac_bits: u32) {
        self.push_nats(logit.nats(frac_bits));
    }

    fn push_nats(&mut self, nats: i64) {
        if nats == i64::MIN {
            return;
        }
        let mut above = nats.saturating_sub(self.reference);
        if above >= TOO_HIGH {
            self.raise(above, nats);
            above = nats.saturating_sub(self.reference);
        }
        let term = Exponential::NATURAL.weight(above.saturating_neg(), TERM_BITS);
        self.sum = self.sum.saturating_add(term);
    }

    /// Moves the reference up by whole halvings of the sum, which are exact.
    fn raise(&mut self, above: i64, nats: i64) {
        if above >= FAR_ABOVE {
            *self = Self { reference: nats, sum: 0 };
            return;
        }
        let halvings = halvings(above as u64);
        self.sum = self.sum.checked_shr(halvings as u32).unwrap_or(0);
        self.reference = self.reference.saturating_add(halvings.wrapping_mul(LN_2) as i64);
    }

    /// The logarithm of the sum so far.
    pub fn finish(self) -> LogSum {
        let log2 = i64::from(log2(self.sum)) - i64::from(TERM_BITS << LOG2_BITS);
        LogSum(self.reference.saturating_add((log2 * LN_2 as i64) >> LOG2_BITS))
    }
}

/// The logarithm of a sum of exponentials: what makes log-probabilities of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSum(i64);

impl LogSum {
    /// The log-probability of the id that has `logit`.
    ///
    /// Within 0.7 units of Q16: the sum's error and the rounding. Saturated just above
    /// [`LogProb::IMPOSSIBLE`], which an excluded logit gives.
    pub fn log_prob<L: Logit>(self, logit: L, frac_bits: u32) -> LogProb {
        match logit.nats(frac_bits) {
            i64::MIN => LogProb::IMPOSSIBLE,
            nats => {
                let rounded = nats.saturating_sub(self.0).saturating_add(1 << 15) >> 16;
                LogProb(rounded.clamp(i64::from(LogProb::LEAST.0), 0) as i32)
            }
        }
    }
}

/// The log-probability of an output: that of all its ids, the end id included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Score {
    /// Of all ids together.
    pub sum: LogProb,
    /// Number of ids.
    pub tokens: u16,
}

impl Default for Score {
    fn default() -> Self {
        Self { sum: LogProb::CERTAIN, tokens: 0 }
    }
}

impl Score {
    /// Takes the log-probability of the next id.
    pub fn push(&mut self, log_prob: LogProb) {
        self.sum = self.sum.and(log_prob);
        self.tokens = self.tokens.saturating_add(1);
    }

    /// The mean of the log-probabilities per id, rounded towards 0; certain for no ids.
    pub fn per_token(self) -> LogProb {
        match self.sum {
            LogProb::IMPOSSIBLE => LogProb::IMPOSSIBLE,
            sum => LogProb(sum.0.checked_div(i32::from(self.tokens)).unwrap_or(0)),
        }
    }

    /// The confidence: the geometric mean of the probabilities of the ids, which does not fall with
    /// the length alone. Within 1.2 units of Q15.
    pub fn confidence(self) -> Probability {
        self.per_token().probability()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const UNIT: f64 = 65_536.0;

    fn truth(logits: &[f64]) -> f64 {
        let max = logits.iter().copied().fold(f64::MIN, f64::max);
        max + logits.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
    }

    fn streamed<L: Logit>(logits: &[L], frac_bits: u32) -> LogSum {
        let mut sum = LogSumExp::default();
        logits.iter().for_each(|logit| sum.push(*logit, frac_bits));
        sum.finish()
    }

    /// Errors in units of Q16: of the sum at once, of the sum streamed, of log-probabilities.
    fn errors<L: Logit>(logits: &[L], frac_bits: u32) -> [f64; 3] {
        let nats = |l: &L| l.nats(frac_bits) as f64 / 4_294_967_296.0;
        let wide: Vec<f64> = logits.iter().map(nats).collect();
        let truth = truth(&wide);
        let of = |sum: LogSum| (sum.0 as f64 / 4_294_967_296.0 - truth).abs() * UNIT;
        let sum = LogSumExp::of(logits, frac_bits);
        let log_probs = logits.iter().zip(&wide).map(|(logit, nats)| {
            let expected = ((nats - truth) * UNIT).max(-f64::from(i32::MAX));
            (f64::from(sum.log_prob(*logit, frac_bits).0) - expected).abs()
        });
        [of(sum), of(streamed(logits, frac_bits)), log_probs.fold(0.0, f64::max)]
    }

    /// Logits in shapes that ought to be hard.
    fn shapes() -> Vec<Vec<i32>> {
        let mut state = 1_u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state as i32 >> 3
        };
        let mut shapes: Vec<Vec<i32>> = std::vec![
            std::vec![7],
            std::vec![-5; 65_535],
            std::vec![1 << 30, -(1 << 30)],
            std::vec![-(1 << 30), 1 << 30],
            (0..65_535).collect(),
            (0..65_535).rev().collect(),
            (0..65_535).map(|i| i * 4096).collect(),
            (0..65_535).map(|i| (i >> 2) * (i >> 2)).collect(),
            (0..65_535).map(|_| random()).collect(),
            (0..72).map(|_| random() >> 6).collect(),
        ];
        // One large logit before, after and among many that vanish one by one.
        for place in [0, 30_000, 65_534] {
            let mut shape = std::vec![0; 65_535];
            shape[place] = 20 << 20;
            shapes.push(shape);
        }
        shapes
    }

    #[test]
    fn integer_log_sums_are_within_their_bound_in_every_format() {
        let mut largest = [0.0_f64; 3];
        for shape in shapes() {
            for frac_bits in 0..=30 {
                for (largest, error) in largest.iter_mut().zip(errors(&shape, frac_bits)) {
                    *largest = largest.max(error);
                }
            }
        }
        println!("units of Q16: sum, streamed, log-probability {largest:?}");
        assert!(largest[0] <= 0.2 && largest[1] <= 0.2 && largest[2] <= 0.7, "{largest:?}");
    }

    #[test]
    fn float_log_sums_are_within_their_bound() {
        for shape in shapes() {
            for scale in [1e-9_f32, 1e-7, 1e-6, 1e-3, 1.0] {
                let logits: Vec<f32> = shape.iter().map(|x| *x as f32 * scale).collect();
                let [sum, streamed, log_prob] = errors(&logits, 0);
                // Magnitudes of 2^30 leave f64 itself no more than this.
                let own = scale as f64 * 1e-5;
                assert!(sum <= 0.2 + own && streamed <= 0.2 + own && log_prob <= 0.7 + own);
            }
        }
    }

    #[test]
    fn excluded_logits_add_nothing_and_are_impossible() {
        let sum = LogSumExp::of(&[5, i32::EXCLUDED, 5], 4);
        assert_eq!(sum, LogSumExp::of(&[5, 5], 4));
        assert_eq!(sum.log_prob(i32::EXCLUDED, 4), LogProb::IMPOSSIBLE);
        assert_eq!(sum.log_prob(5, 4).to_bits(), -45_426);
        let sum = LogSumExp::of(&[1.0, f32::NAN, f32::EXCLUDED], 0);
        assert_eq!(sum.log_prob(1.0, 0), LogProb::CERTAIN);
        assert_eq!(sum.log_prob(f32::NAN, 0), LogProb::IMPOSSIBLE);
        let nothing = LogSumExp::of::<i32>(&[], 0);
        assert_eq!(nothing.log_prob(0, 0), LogProb::CERTAIN);
        assert_eq!(nothing, streamed::<i32>(&[], 0));
    }

    #[test]
    fn sums_saturate_and_stay_possible() {
        let far = LogProb::from_bits(i32::MIN + 5);
        assert_eq!(far.and(far), LogProb::LEAST);
        assert_eq!(far.and(LogProb::IMPOSSIBLE), LogProb::IMPOSSIBLE);
        assert_eq!(LogProb::from_bits(3), LogProb::CERTAIN);
        let huge = LogSumExp::of(&[f32::MAX, f32::MIN], 0);
        assert_eq!(huge.log_prob(f32::MIN, 0), LogProb::LEAST);
    }

    #[test]
    fn confidence_is_the_geometric_mean_and_needs_no_length() {
        let half = LogProb::from_bits(-45_426);
        for tokens in [1, 2, 100] {
            let mut score = Score::default();
            (0..tokens).for_each(|_| score.push(half));
            assert_eq!(score.confidence(), Probability::from_percent(50));
        }
        let mut score = Score::default();
        assert_eq!(score.confidence(), Probability::ONE);
        // sqrt(1/2 * 1/8) = 1/4
        score.push(half);
        score.push(LogProb::from_bits(3 * -45_426));
        assert_eq!(score.confidence().to_bits(), 8192);
        score.push(LogProb::IMPOSSIBLE);
        assert_eq!(score.confidence().to_bits(), 0);
        assert!(Probability::from_percent(200) == Probability::ONE);
    }
}
