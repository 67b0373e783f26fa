//! Lists of the best, and the score that outputs of different lengths are compared by.

use super::exp_log::{log2, scaled_down};
use super::log_prob::LogProb;
use super::q16::Q16;

/// `sum / tokens^alpha` in Q16, rounded; within `4e-6` of itself and 0.6 units.
///
/// Does not fall with `tokens`, for `sum` is 0 at most.
pub(crate) fn normalized(sum: LogProb, tokens: u16, alpha: Q16) -> LogProb {
    // Q16 times Q24.
    let exponent = u64::from(alpha.magnitude()).wrapping_mul(log2(tokens.into()).into());
    LogProb::from_bits(scaled_down(sum.to_bits(), exponent))
}

/// Puts `item` into the first `len` of `list`, which are sorted by `key`, best first; equals keep the
/// order they came in. What does not fit falls out.
#[inline]
pub(crate) fn insert<T: Copy, K: PartialOrd>(
    list: &mut [T],
    len: &mut usize,
    item: T,
    key: impl Fn(&T) -> K,
) {
    let is_full = *len >= list.len();
    if is_full && list.last().is_none_or(|last| key(last) >= key(&item)) {
        return;
    }
    let mut item = item;
    let mut is_found = false;
    for place in list.iter_mut().take(*len) {
        is_found |= key(place) < key(&item);
        if is_found {
            core::mem::swap(place, &mut item);
        }
    }
    if let Some(place) = list.get_mut(*len) {
        *place = item;
        *len = len.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q16;
    use std::vec::Vec;

    #[test]
    fn the_best_are_kept_in_order_and_equals_in_theirs() {
        let (mut list, mut len) = ([(0, 0); 3], 0);
        for item in [(5, 'a'), (7, 'b'), (5, 'c'), (6, 'd'), (7, 'e'), (6, 'f'), (1, 'g')] {
            insert(&mut list, &mut len, (item.0, item.1 as u32), |item| item.0);
        }
        let names: Vec<_> = list.iter().map(|(_, name)| char::from_u32(*name).unwrap()).collect();
        assert_eq!((names, len), (vec!['b', 'e', 'd'], 3));
        let mut none: [(i32, u32); 0] = [];
        insert(&mut none, &mut 0, (1, 1), |item| item.0);
    }

    #[test]
    fn normalized_scores_are_within_their_bound() {
        for alpha in [Q16::ZERO, q16!(0.3), q16!(0.6), Q16::ONE, q16!(2.0), q16!(7.3)] {
            for tokens in (1..600).chain([10_000, u16::MAX]) {
                for bits in [0, -1, -70_000, -3_000_000, i32::MIN + 1] {
                    let alpha_wide = f64::from(alpha.to_bits()) / 65_536.0;
                    let truth = f64::from(bits) / f64::from(tokens).powf(alpha_wide);
                    let found = normalized(LogProb::from_bits(bits), tokens, alpha);
                    let error = (f64::from(found.to_bits()) - truth).abs();
                    assert!(error <= 0.6 - truth * 4e-6, "{alpha:?} {tokens} {bits}: {error}");
                }
            }
        }
    }

    #[test]
    fn normalized_scores_do_not_fall_with_the_length() {
        for alpha in (0..200).map(|a| Q16::from_bits(a * 1009)) {
            let mut last = LogProb::IMPOSSIBLE;
            for tokens in 1..=512 {
                let score = normalized(LogProb::from_bits(-2_000_000_000), tokens, alpha);
                assert!(score >= last, "{alpha:?} {tokens}");
                last = score;
            }
        }
    }

    #[test]
    fn a_penalty_of_zero_changes_nothing_and_a_huge_one_leaves_nothing() {
        let sum = LogProb::from_bits(-123_457);
        assert_eq!(normalized(sum, 17, Q16::ZERO), sum);
        assert_eq!(normalized(sum, 1, q16!(3.0)), sum);
        assert_eq!(normalized(sum, 9, Q16::from_bits(i32::MAX)), LogProb::CERTAIN);
    }
}
