//! Sampling: temperature, then top-k, then top-p, then one draw.
//!
//! In place and without scratch: the logits stay as they are, and what top-k and top-p keep is found
//! by halving the range of logits where they cut. Everything is an integer, so the same random bits
//! draw the same id on every target.

use core::ops::RangeInclusive;

use crate::logit::Logit;
use crate::tokenizer::TokenId;

use super::exp_log::Exponential;
use super::options::Sampling;

/// Fractional bits of a weight; an id less probable than 2^-31 of the best is never drawn.
const WEIGHT_BITS: u32 = 30;

/// Draws an id by 64 `random` bits; `logits` is `[vocab]`, filtered, with `frac_bits`. `None` where
/// every id is excluded.
///
/// Each id has its probability within `1e-5` of itself and 2^-30. Ties at a cut go to the lower id.
/// Costs two exponentials per id that top-k keeps; with top-p two more as a rule, as it looks again
/// only at the ids among which the cut may still lie; and up to 32 comparisons per id for each of
/// the two.
///
/// ```
/// use runtime::{q16, search::{Sampling, draw}};
///
/// let sampling = Sampling { temperature: q16!(0.8), top_k: Some(2), ..Sampling::default() };
/// // Logits with 4 fractional bits: 3.0, 1.0, 2.5.
/// let logits = [48, 16, 40];
/// assert_eq!(draw(&logits, 4, &sampling, 0), Some(0));
/// assert_eq!(draw(&logits, 4, &sampling, u64::MAX), Some(2));
/// ```
pub fn draw<L: Logit>(
    logits: &[L],
    frac_bits: u32,
    sampling: &Sampling,
    random: u64,
) -> Option<TokenId> {
    let best = logits.iter().map(|logit| logit.nats(frac_bits)).max()?;
    if best == i64::MIN {
        return None;
    }
    let exponential = Exponential::with_temperature(sampling.temperature);
    let ids = Ids { logits, frac_bits, exponential, best };
    let mut kept = Kept { least: i32::MIN, ties: usize::MAX };
    if let Some(top_k) = sampling.top_k {
        kept = ids.top_k(top_k.into());
    }
    if let Some(top_p) = sampling.top_p {
        kept = ids.top_p(kept, top_p.magnitude());
    }
    ids.draw(kept, random)
}

/// The ids above a cut.
#[derive(Clone, Copy)]
struct Kept {
    /// Order of the least logit that is kept.
    least: i32,
    /// Of those that have it, as many are kept, lower ids first.
    ties: usize,
}

struct Ids<'a, L> {
    logits: &'a [L],
    frac_bits: u32,
    exponential: Exponential,
    /// The largest logit in Q32 nats.
    best: i64,
}

impl<L: Logit> Ids<'_, L> {
    fn weight(&self, logit: L) -> u64 {
        match logit.nats(self.frac_bits) {
            i64::MIN => 0,
            nats => self.exponential.weight(self.best.saturating_sub(nats), WEIGHT_BITS),
        }
    }

    fn top_k(&self, k: usize) -> Kept {
        let count = |from: i32| self.logits.iter().filter(|logit| logit.order() >= from).count();
        let least = largest(i32::MIN..=i32::MAX, |from| count(from) >= k);
        let above = least.checked_add(1).map_or(0, count);
        Kept { least, ties: k.saturating_sub(above) }
    }

    /// Of `kept`, the fewest whose mass reaches `p` (Q16).
    fn top_p(&self, kept: Kept, p: u32) -> Kept {
        let (total, least, best) = self.kept(kept).fold(
            (0_u64, i32::MAX, i32::MIN),
            |(total, least, best), (_, logit)| match (self.weight(logit), logit.order()) {
                (0, _) => (total, least, best),
                (weight, order) => {
                    (total.saturating_add(weight), least.min(order), best.max(order))
                }
            },
        );
        // 2^30 per id: the sum is below 2^46, its product with p below 2^63.
        let needed = total.saturating_mul(p.into()).div_ceil(1 << 16).max(1);
        // Mass of what is above the last order that was not enough.
        let (mut upto, mut above) = (None, 0_u64);
        let least = largest(least..=best, |from| {
            let within = |order: i32| order >= from && upto.is_none_or(|upto| order < upto);
            let part = self.kept(kept).filter(|(_, logit)| within(logit.order()));
            let mass = part.fold(above, |sum, (_, logit)| sum.saturating_add(self.weight(logit)));
            if mass < needed {
                (upto, above) = (Some(from), mass);
            }
            mass >= needed
        });
        let each = self.logits.iter().find(|logit| logit.order() == least);
        let each = each.map_or(1, |logit| self.weight(*logit).max(1));
        let missing = needed.saturating_sub(above);
        let ties = missing.saturating_add(each - 1).checked_div(each).unwrap_or(1) as usize;
        Kept { least, ties }
    }

    /// Ids and logits of what is kept.
    fn kept(&self, kept: Kept) -> impl Iterator<Item = (TokenId, L)> {
        let mut ties = kept.ties;
        (0..=TokenId::MAX).zip(self.logits).filter_map(move |(id, &logit)| {
            let order = logit.order();
            let is_tie = order == kept.least && ties > 0;
            ties = ties.saturating_sub(usize::from(is_tie));
            (is_tie || order > kept.least).then_some((id, logit))
        })
    }

    fn draw(&self, kept: Kept, random: u64) -> Option<TokenId> {
        let total: u64 = self.kept(kept).map(|(_, logit)| self.weight(logit)).sum();
        let mut left = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        for (id, logit) in self.kept(kept) {
            let weight = self.weight(logit);
            if left < weight {
                return Some(id);
            }
            left -= weight;
        }
        None
    }
}

/// The largest number of `range` of which `holds`, which does for its start, and for no number above
/// one of which it does not; asks 32 times at most.
fn largest(range: RangeInclusive<i32>, mut holds: impl FnMut(i32) -> bool) -> i32 {
    let (mut low, mut high) = (i64::from(*range.start()), i64::from(*range.end()) + 1);
    while high - low > 1 {
        let middle = (low + high) >> 1;
        if holds(middle as i32) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q16;
    use crate::search::Q16;
    use std::cell::Cell;
    use std::vec::Vec;

    /// splitmix64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            x ^ (x >> 31)
        }
    }

    const FRAC_BITS: u32 = 10;

    thread_local! {
        /// How often a logit was read as nats: once for the best, then once per exponential.
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Clone, Copy, PartialEq, PartialOrd)]
    struct Counted(i32);

    impl Logit for Counted {
        const EXCLUDED: Self = Self(i32::EXCLUDED);

        fn to_le_bytes(self) -> [u8; 4] {
            self.0.to_le_bytes()
        }

        fn nats(self, frac_bits: u32) -> i64 {
            READ.set(READ.get() + 1);
            self.0.nats(frac_bits)
        }

        fn order(self) -> i32 {
            self.0.order()
        }

        fn penalized(self, penalty: Q16) -> Self {
            Self(self.0.penalized(penalty))
        }
    }

    #[test]
    fn sampling_costs_no_more_exponentials_than_stated() {
        let mut random = Random(5);
        let mut worst = [0, 0];
        for round in 0..200 {
            // Sums of four: most in the middle, a few far off.
            let mut sum = || (0..4).map(|_| random.next() as i32 >> 20).sum::<i32>();
            let logits: Vec<_> = (0..1000).map(|_| Counted(sum() << (round % 5))).collect();
            for (top_p, worst) in [None, Some(q16!(0.9))].into_iter().zip(&mut worst) {
                READ.set(0);
                let sampling = Sampling { top_p, ..Sampling::default() };
                assert!(draw(&logits, 10, &sampling, random.next()).is_some());
                *worst = (READ.get() - logits.len()).max(*worst);
            }
        }
        println!("exponentials for 1000 ids: {worst:?}");
        assert!(worst[0] <= 2000 && worst[1] <= 4000, "{worst:?}");
    }

    /// Probabilities by sorting, in f64.
    fn truth(logits: &[f64], sampling: &Sampling) -> Vec<f64> {
        let temperature = f64::from(sampling.temperature.to_bits()) / 65_536.0;
        let max = logits.iter().copied().fold(f64::MIN, f64::max);
        let mut ids: Vec<usize> = (0..logits.len()).filter(|i| logits[*i].is_finite()).collect();
        ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        ids.truncate(sampling.top_k.map_or(usize::MAX, usize::from));
        let weight = |i: usize| ((logits[i] - max) / temperature).exp();
        let total: f64 = ids.iter().map(|i| weight(*i)).sum();
        let p = sampling.top_p.map_or(2.0, |p| f64::from(p.to_bits()) / 65_536.0);
        let mut mass = 0.0;
        let reached = ids.iter().position(|i| {
            mass += weight(*i) / total;
            mass >= p
        });
        ids.truncate(reached.map_or(usize::MAX, |last| last + 1));
        let total: f64 = ids.iter().map(|i| weight(*i)).sum();
        (0..logits.len()).map(|i| if ids.contains(&i) { weight(i) / total } else { 0.0 }).collect()
    }

    fn wide(logits: &[i32]) -> Vec<f64> {
        let nats = |&x: &i32| match x {
            i32::EXCLUDED => f64::NEG_INFINITY,
            x => f64::from(x) / f64::from(1 << FRAC_BITS),
        };
        logits.iter().map(nats).collect()
    }

    fn settings() -> Vec<Sampling> {
        let mut settings = Vec::new();
        for temperature in [q16!(0.1), q16!(0.7), Q16::ONE, q16!(3.0)] {
            for top_k in [None, Some(1), Some(3), Some(6)] {
                for top_p in [None, Some(q16!(0.05)), Some(q16!(0.61)), Some(Q16::ONE)] {
                    settings.push(Sampling { temperature, top_k, top_p });
                }
            }
        }
        settings
    }

    #[test]
    fn every_id_has_exactly_its_share_of_the_random_numbers() {
        let cases = [
            &[300, -2000, 1024, 1023, 50, -5000][..],
            &[7; 6],
            &[500, 900, 500, 900, 500, i32::EXCLUDED],
            &[0, 1 << 20, 0, 0, 0, 0],
        ];
        for logits in cases {
            let floats: Vec<f32> = logits
                .iter()
                .map(|x| if *x == i32::EXCLUDED { f32::EXCLUDED } else { *x as f32 / 1024.0 })
                .collect();
            for sampling in settings() {
                let expected = truth(&wide(logits), &sampling);
                let mut shares = [0_u32; 6];
                for random in 0..4096_u64 {
                    let id = draw(logits, FRAC_BITS, &sampling, random << 52).unwrap();
                    assert_eq!(draw(&floats, 0, &sampling, random << 52), Some(id));
                    shares[usize::from(id)] += 1;
                }
                for (share, expected) in shares.iter().zip(expected) {
                    let error = f64::from(*share) - expected * 4096.0;
                    assert!(error.abs() <= 1.1, "{logits:?} {sampling:?} {shares:?}");
                }
            }
        }
    }

    #[test]
    fn frequencies_pass_a_chi_square_test() {
        let mut random = Random(17);
        let logits: Vec<i32> = (0..40).map(|_| random.next() as i32 >> 19).collect();
        for sampling in settings() {
            let expected = truth(&wide(&logits), &sampling);
            const DRAWS: u32 = 20_000;
            let mut counts = [0_u32; 40];
            for _ in 0..DRAWS {
                let id = draw(&logits, FRAC_BITS, &sampling, random.next()).unwrap();
                counts[usize::from(id)] += 1;
            }
            let (mut chi_square, mut freedom) = (0.0, -1.0_f64);
            for (count, p) in counts.iter().zip(&expected) {
                assert!(*count == 0 || *p > 0.0, "drawn although cut");
                let expected = p * f64::from(DRAWS);
                if expected >= 5.0 {
                    chi_square += (f64::from(*count) - expected).powi(2) / expected;
                    freedom += 1.0;
                }
            }
            // Mean plus five standard deviations of the distribution.
            let bound = freedom + 5.0 * f64::sqrt(2.0 * freedom.max(1.0));
            assert!(chi_square <= bound, "{sampling:?}: {chi_square} with {freedom}");
        }
    }

    #[test]
    fn ties_at_a_cut_go_to_the_lower_ids() {
        let drawn = |sampling: &Sampling| {
            let mut ids: Vec<_> =
                (0..256).filter_map(|r| draw(&[5, 9, 5, 9, 5], 10, sampling, r << 56)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let top_k = |k| drawn(&Sampling { top_k: Some(k), ..Sampling::default() });
        assert_eq!([top_k(1), top_k(3), top_k(4)], [vec![1], vec![0, 1, 3], vec![0, 1, 2, 3]]);
        let top_p = |p| drawn(&Sampling { top_p: Some(p), ..Sampling::default() });
        assert_eq!(top_p(q16!(0.0001)), [1]);
        assert_eq!(top_p(q16!(0.5)), [0, 1, 3]);
        assert_eq!(top_p(Q16::ONE), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn masses_at_the_cut_agree_with_sorting_for_many_ids() {
        let mut random = Random(3);
        for len in [1, 2, 100, 5000] {
            let logits: Vec<i32> = (0..len).map(|_| random.next() as i32 >> 20).collect();
            for top_p in [q16!(0.01), q16!(0.3), q16!(0.95)] {
                let sampling = Sampling { top_p: Some(top_p), ..Sampling::default() };
                let ids = Ids {
                    logits: &logits,
                    frac_bits: FRAC_BITS,
                    exponential: Exponential::NATURAL,
                    best: logits.iter().map(|x| x.nats(FRAC_BITS)).max().unwrap(),
                };
                let kept = ids.top_p(Kept { least: i32::MIN, ties: usize::MAX }, top_p.magnitude());
                let count = truth(&wide(&logits), &sampling).iter().filter(|p| **p > 0.0).count();
                let found = ids.kept(kept).count();
                assert!(found.abs_diff(count) <= 1, "{len} {top_p:?}: {found}, not {count}");
            }
        }
    }

    #[test]
    fn an_excluded_id_is_never_drawn_and_without_others_nothing_is() {
        let logits = [i32::EXCLUDED, 4, i32::EXCLUDED];
        for sampling in settings() {
            for random in [0, 1 << 63, u64::MAX] {
                assert_eq!(draw(&logits, 3, &sampling, random), Some(1));
                assert_eq!(draw(&[i32::EXCLUDED; 3], 3, &sampling, random), None);
                assert_eq!(draw(&[f32::NAN, f32::EXCLUDED], 0, &sampling, random), None);
                assert_eq!(draw::<i32>(&[], 3, &sampling, random), None);
            }
        }
    }
}
