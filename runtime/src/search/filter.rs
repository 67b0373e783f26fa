//! Which ids may follow the ids produced so far.

use model_format::config::SpecialIds;

use crate::logit::Logit;
use crate::tokenizer::TokenId;

use super::options::Constraints;
use super::trie::Trie;

/// The constraints at one step.
///
/// `history` is what came after the start id: `forced` ids of a prompt or prefix, then what was
/// produced. N-grams and the repetition penalty look at all of it; `min_len` and allowed outputs are
/// about what was produced.
///
/// No id at all may be left, where constraints meet: an allowed output that repeats an n-gram, say.
/// Search then finds nothing.
#[derive(Debug, Clone, Copy)]
pub struct Filter<'a> {
    constraints: &'a Constraints<'a>,
    special: SpecialIds,
    history: &'a [TokenId],
    may_end: bool,
    node: Option<Trie<'a>>,
}

impl<'a> Filter<'a> {
    /// For the id that follows `history`.
    pub fn new(
        constraints: &'a Constraints<'a>,
        special: &SpecialIds,
        history: &'a [TokenId],
        forced: u16,
    ) -> Self {
        let produced = history.get(forced.into()..).unwrap_or_default();
        let node = constraints.allowed.map(|allowed| Trie::new(allowed).after(produced));
        let may_end = produced.len().saturating_add(1) >= usize::from(constraints.min_len)
            && node.is_none_or(Trie::is_complete);
        Self { constraints, special: *special, history, may_end, node }
    }

    /// Excludes every id that may not follow, then penalizes those produced before; `logits` is
    /// `[vocab]`.
    pub fn apply<L: Logit>(&self, logits: &mut [L]) {
        for (logit, id) in logits.iter_mut().zip(0..=TokenId::MAX) {
            if !self.allows(id) {
                *logit = L::EXCLUDED;
            }
        }
        self.repeated().for_each(|id| change(logits, id, |_| L::EXCLUDED));
        if self.constraints.penalizes() {
            self.penalize(logits);
        }
    }

    /// All but n-grams.
    fn allows(&self, id: TokenId) -> bool {
        if id == self.special.end {
            return self.may_end && !self.constraints.suppressed.contains(&id);
        }
        id != self.special.pad
            && id != self.special.start
            && !self.constraints.suppressed.contains(&id)
            && self.node.is_none_or(|node| node.allows(id))
    }

    /// The ids that followed the last `n - 1` ids before.
    fn repeated(&self) -> impl Iterator<Item = TokenId> {
        let context = self.constraints.no_repeat_ngram.map(|n| usize::from(n).saturating_sub(1));
        let context = context.filter(|context| *context < self.history.len());
        let start = self.history.len().saturating_sub(context.unwrap_or(0));
        let last = self.history.get(start..).unwrap_or_default();
        // Where there is no n-gram, no position is left.
        let followers = self.history.iter().enumerate().skip(context.unwrap_or(usize::MAX));
        followers.filter_map(move |(at, id)| {
            let before = self.history.get(at.saturating_sub(last.len())..at)?;
            before.iter().eq(last).then_some(*id)
        })
    }

    /// Once per id, however often it was produced.
    fn penalize<L: Logit>(&self, logits: &mut [L]) {
        for (at, id) in self.history.iter().enumerate() {
            if !self.history.iter().take(at).any(|earlier| earlier == id) {
                change(logits, *id, |logit| logit.penalized(self.constraints.repetition_penalty));
            }
        }
    }
}

fn change<L: Logit>(logits: &mut [L], id: TokenId, change: impl Fn(L) -> L) {
    if let Some(logit) = logits.get_mut(usize::from(id)) {
        *logit = change(*logit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q16;
    use std::vec::Vec;

    const SPECIAL: SpecialIds = SpecialIds { pad: 0, start: 1, end: 2, unknown: 3 };

    /// The ids below 8 that may follow.
    fn allowed(constraints: &Constraints<'_>, history: &[TokenId]) -> Vec<TokenId> {
        allowed_after(constraints, history, 0)
    }

    /// The same, the first `forced` ids of `history` being a prompt or prefix.
    fn allowed_after(
        constraints: &Constraints<'_>,
        history: &[TokenId],
        forced: u16,
    ) -> Vec<TokenId> {
        let mut logits = [5; 8];
        Filter::new(constraints, &SPECIAL, history, forced).apply(&mut logits);
        (0..8).filter(|id| logits[usize::from(*id)] != i32::EXCLUDED).collect()
    }

    #[test]
    fn a_prefix_counts_for_repetitions_and_for_nothing_else() {
        let outputs: [&[TokenId]; 2] = [&[4, 5], &[6]];
        let allowed = Constraints { allowed: Some(&outputs), ..Constraints::default() };
        assert_eq!(allowed_after(&allowed, &[7, 6], 2), [4, 6]);
        assert_eq!(allowed_after(&allowed, &[7, 6, 4], 2), [5]);
        let long = Constraints { min_len: 2, ..Constraints::default() };
        assert!(!allowed_after(&long, &[7, 6, 4], 3).contains(&2));
        assert!(allowed_after(&long, &[7, 6, 4], 2).contains(&2));
        let once = Constraints { no_repeat_ngram: Some(1), ..Constraints::default() };
        assert_eq!(allowed_after(&once, &[7, 6], 2), [2, 3, 4, 5]);
    }

    #[test]
    fn pad_and_start_never_follow() {
        assert_eq!(allowed(&Constraints::default(), &[]), [2, 3, 4, 5, 6, 7]);
        let suppressed = Constraints { suppressed: &[7, 3], ..Constraints::default() };
        assert_eq!(allowed(&suppressed, &[4]), [2, 4, 5, 6]);
        let endless = Constraints { suppressed: &[2], ..Constraints::default() };
        assert_eq!(allowed(&endless, &[4]), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn the_end_follows_when_the_shortest_output_is_reached_with_it() {
        let constraints = Constraints { min_len: 3, ..Constraints::default() };
        for (history, may_end) in [(&[][..], false), (&[4], false), (&[4, 4], true)] {
            assert_eq!(allowed(&constraints, history).contains(&2), may_end, "{history:?}");
        }
    }

    #[test]
    fn no_ngram_is_produced_twice() {
        let constraints = |n| Constraints { no_repeat_ngram: Some(n), ..Constraints::default() };
        assert_eq!(allowed(&constraints(1), &[4, 6, 4]), [2, 3, 5, 7]);
        assert_eq!(allowed(&constraints(2), &[4, 6, 5, 4, 7, 4]), [2, 3, 4, 5]);
        assert_eq!(allowed(&constraints(3), &[4, 6, 5, 4, 6]), [2, 3, 4, 6, 7]);
        // Overlapping ones count.
        assert_eq!(allowed(&constraints(3), &[4, 4, 4]), [2, 3, 5, 6, 7]);
        for history in [&[][..], &[4], &[4, 4]] {
            assert_eq!(allowed(&constraints(3), history), [2, 3, 4, 5, 6, 7]);
        }
        assert_eq!(allowed(&constraints(u16::MAX), &[4, 4]), [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn only_listed_outputs_are_produced_and_end_where_they_are_complete() {
        let outputs: [&[TokenId]; 3] = [&[4], &[4, 6], &[5, 5]];
        let constraints = Constraints { allowed: Some(&outputs), ..Constraints::default() };
        assert_eq!(allowed(&constraints, &[]), [4, 5]);
        assert_eq!(allowed(&constraints, &[4]), [2, 6]);
        assert_eq!(allowed(&constraints, &[4, 6]), [2]);
        assert_eq!(allowed(&constraints, &[5]), [5]);
        assert_eq!(allowed(&constraints, &[7]), []);
    }

    #[test]
    fn an_id_produced_before_is_penalized_once() {
        let constraints = Constraints { repetition_penalty: q16!(2.0), ..Constraints::default() };
        let mut logits = [8, 8, 8, 8, -8, 8, 0, 8];
        Filter::new(&constraints, &SPECIAL, &[5, 4, 5, 5, 99], 0).apply(&mut logits);
        assert_eq!(logits, [i32::EXCLUDED, i32::EXCLUDED, 8, 8, -16, 4, 0, 8]);
    }
}
