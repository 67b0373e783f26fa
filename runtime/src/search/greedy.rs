//! Greedy search: a sink of (id, logit), which sees nothing else.

use model_format::config::SpecialIds;

use crate::logit::Logit;
use crate::tokenizer::TokenId;

/// Greedy search: the largest logit, the lowest id among equals; never padding, never start.
#[derive(Debug, Clone, Copy)]
pub struct Greedy<L> {
    best: Option<(TokenId, L)>,
    never: [TokenId; 2],
}

impl<L: Logit> Greedy<L> {
    pub(crate) fn new(special: &SpecialIds) -> Self {
        Self { best: None, never: [special.pad, special.start] }
    }

    /// Among labels, none of which is special.
    pub(crate) fn among_labels() -> Self {
        // A vocabulary has at most `u16::MAX` ids, the last of which is one less.
        Self { best: None, never: [TokenId::MAX; 2] }
    }

    /// Takes the next logit, ids ascending.
    pub(crate) fn push(&mut self, id: TokenId, logit: L) {
        let is_better = match self.best {
            // Neither an excluded one nor what is not a number.
            None => logit > L::EXCLUDED,
            Some((_, best)) => logit > best,
        };
        if is_better && !self.never.contains(&id) {
            self.best = Some((id, logit));
        }
    }

    /// Whether none of these is the best so far; `false` where that is not known at once.
    #[inline(always)]
    pub(crate) fn is_above(&self, logits: &[L]) -> bool {
        const LANES: usize = 16;
        match (self.best, <&[L; LANES]>::try_from(logits)) {
            (Some((_, best)), Ok(logits)) => {
                !logits.iter().fold(false, |any, &logit| any | (logit > best))
            }
            _ => false,
        }
    }

    /// The token and its logit; `None` where every id is excluded.
    pub(crate) fn finish(&self) -> Option<(TokenId, L)> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lowest_id_and_special_ids_never_win() {
        let mut greedy = Greedy::new(&SpecialIds::default());
        for (id, logit) in [(0, 100), (1, 90), (2, -3), (3, 5), (4, 5)] {
            greedy.push(id, logit);
        }
        assert_eq!(greedy.finish(), Some((3, 5)));
    }

    #[test]
    fn an_excluded_logit_and_what_is_not_a_number_never_win() {
        let mut greedy = Greedy::new(&SpecialIds::default());
        greedy.push(3, f32::NAN);
        greedy.push(4, f32::EXCLUDED);
        greedy.push(5, -7.0);
        greedy.push(6, f32::NAN);
        assert_eq!(greedy.finish().map(|(id, _)| id), Some(5));
        let mut greedy = Greedy::new(&SpecialIds::default());
        greedy.push(3, i32::EXCLUDED);
        assert_eq!(greedy.finish(), None);
    }
}
