//! What a caller may choose: plain data, checked once.

use model_format::config::SpecialIds;

use crate::tokenizer::TokenId;

use super::error::OptionsError;
use super::q16::Q16;

/// What may be produced. The [`Default`] constrains nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constraints<'a> {
    /// Fewest ids to produce, end id included; those of a prompt or prefix do not count.
    pub min_len: u16,
    /// Ids that are never produced; pad and start never are.
    pub suppressed: &'a [TokenId],
    /// Divides positive logits and multiplies negative ones of ids produced before (Keskar et al.
    /// 2019, section 4.1); 1 changes nothing, and less than 1 is refused: a sum of log-probabilities
    /// could grow.
    pub repetition_penalty: Q16,
    /// No sequence of this many ids is produced twice.
    pub no_repeat_ngram: Option<u16>,
    /// The only outputs that there are, without end id, in ascending order; after a prompt or prefix,
    /// its only continuations.
    pub allowed: Option<&'a [&'a [TokenId]]>,
}

impl Default for Constraints<'_> {
    fn default() -> Self {
        Self {
            min_len: 0,
            suppressed: &[],
            repetition_penalty: Q16::ONE,
            no_repeat_ngram: None,
            allowed: None,
        }
    }
}

impl Constraints<'_> {
    /// Whether the value of a logit is changed, not only whether its id is allowed.
    pub fn penalizes(&self) -> bool {
        self.repetition_penalty != Q16::ONE
    }

    /// Against a target vocabulary of `vocab` ids and the most ids that will be produced.
    ///
    /// # Errors
    /// What is out of range, or contradicts itself.
    pub fn check(
        &self,
        vocab: u16,
        special: &SpecialIds,
        max_len: u16,
    ) -> Result<(), OptionsError> {
        if self.min_len > max_len {
            return Err(OptionsError::MinAboveMax { min_len: self.min_len, max_len });
        }
        if self.repetition_penalty < Q16::ONE {
            return Err(OptionsError::RepetitionPenalty { penalty: self.repetition_penalty });
        }
        if self.no_repeat_ngram == Some(0) {
            return Err(OptionsError::EmptyNgram);
        }
        if let Some((index, &id)) = out_of(self.suppressed, vocab) {
            return Err(OptionsError::SuppressedOutOfRange { index, id, vocab });
        }
        let never = [special.pad, special.start, special.end];
        match self.allowed {
            Some([]) => Err(OptionsError::NothingAllowed),
            Some(allowed) => {
                for (index, sequence) in allowed.iter().enumerate() {
                    self.check_allowed(index, sequence, vocab, never, max_len)?;
                }
                check_sorted(allowed)
            }
            None => Ok(()),
        }
    }

    /// One allowed output.
    fn check_allowed(
        &self,
        index: usize,
        sequence: &[TokenId],
        vocab: u16,
        never: [TokenId; 3],
        max_len: u16,
    ) -> Result<(), OptionsError> {
        if let Some((_, &id)) = out_of(sequence, vocab) {
            return Err(OptionsError::AllowedOutOfRange { index, id, vocab });
        }
        let is_never = |id: &&TokenId| never.contains(id) || self.suppressed.contains(id);
        if let Some(&id) = sequence.iter().find(is_never) {
            return Err(OptionsError::AllowedNeverProduced { index, id });
        }
        let len = sequence.len().saturating_add(1);
        if len > usize::from(max_len) || len < usize::from(self.min_len) {
            let min_len = self.min_len;
            return Err(OptionsError::AllowedLength { index, len, min_len, max_len });
        }
        Ok(())
    }
}

fn check_sorted(allowed: &[&[TokenId]]) -> Result<(), OptionsError> {
    let mut pairs = allowed.iter().zip(allowed.iter().skip(1)).enumerate();
    match pairs.find(|(_, (a, b))| a.iter().ge(b.iter())) {
        Some((before, _)) => Err(OptionsError::AllowedNotSorted { index: before + 1 }),
        None => Ok(()),
    }
}

/// The first id that is not below `vocab`.
fn out_of(ids: &[TokenId], vocab: u16) -> Option<(usize, &TokenId)> {
    ids.iter().enumerate().find(|(_, id)| **id >= vocab)
}

/// How ids are drawn. Greedy search is the way to say temperature 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Divides the logits.
    pub temperature: Q16,
    /// Only the most probable ids, this many.
    pub top_k: Option<u16>,
    /// Only the fewest most probable ids whose mass reaches this (Holtzman et al. 2020, section 3.1).
    pub top_p: Option<Q16>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: Q16::ONE, top_k: None, top_p: None }
    }
}

impl Sampling {
    /// Against a target vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self, vocab: u16) -> Result<(), OptionsError> {
        if self.temperature <= Q16::ZERO {
            return Err(OptionsError::Temperature { temperature: self.temperature });
        }
        match self.top_k {
            Some(top_k) if top_k == 0 || top_k > vocab => {
                return Err(OptionsError::TopK { top_k, vocab });
            }
            _ => {}
        }
        match self.top_p {
            Some(top_p) if top_p <= Q16::ZERO || top_p > Q16::ONE => {
                Err(OptionsError::TopP { top_p })
            }
            _ => Ok(()),
        }
    }
}

/// How wide beam search is, and what it prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeamOptions {
    /// Hypotheses that are followed at once.
    pub beams: u16,
    /// Outputs to give, best first; at most `beams`.
    pub n_best: u16,
    /// Outputs are ranked by `log-probability / length^length_penalty`, the end id being counted; 0
    /// ranks by log-probability.
    pub length_penalty: Q16,
}

impl Default for BeamOptions {
    fn default() -> Self {
        Self { beams: 1, n_best: 1, length_penalty: Q16::ONE }
    }
}

impl BeamOptions {
    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), OptionsError> {
        if self.beams == 0 {
            return Err(OptionsError::NoBeams);
        }
        if self.n_best == 0 || self.n_best > self.beams {
            return Err(OptionsError::NBest { n_best: self.n_best, beams: self.beams });
        }
        if self.length_penalty < Q16::ZERO {
            return Err(OptionsError::LengthPenalty { length_penalty: self.length_penalty });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q16;

    fn constraints(change: impl FnOnce(&mut Constraints<'static>)) -> Result<(), OptionsError> {
        let mut constraints = Constraints::default();
        change(&mut constraints);
        constraints.check(10, &SpecialIds::default(), 5)
    }

    #[test]
    fn defaults_are_sound_and_limits_are_included() {
        assert_eq!(constraints(|_| ()), Ok(()));
        assert_eq!(constraints(|c| (c.min_len, c.suppressed) = (5, &[9, 0])), Ok(()));
        assert_eq!(constraints(|c| c.allowed = Some(&[&[], &[3], &[3, 3, 3, 9]])), Ok(()));
        assert_eq!(Sampling::default().check(10), Ok(()));
        let top = Sampling { top_k: Some(10), top_p: Some(Q16::ONE), ..Sampling::default() };
        assert_eq!(top.check(10), Ok(()));
        assert_eq!(BeamOptions::default().check(), Ok(()));
    }

    #[test]
    fn constraints_that_cannot_hold_are_refused_with_their_numbers() {
        use OptionsError as E;
        let refused = |change: fn(&mut Constraints<'static>)| constraints(change).unwrap_err();
        assert_eq!(refused(|c| c.min_len = 6), E::MinAboveMax { min_len: 6, max_len: 5 });
        assert_eq!(
            refused(|c| c.suppressed = &[3, 10]),
            E::SuppressedOutOfRange { index: 1, id: 10, vocab: 10 }
        );
        for penalty in [Q16::ZERO, q16!(-1.0), q16!(0.999)] {
            let check = constraints(|c| c.repetition_penalty = penalty);
            assert_eq!(check, Err(E::RepetitionPenalty { penalty }));
        }
        assert_eq!(refused(|c| c.no_repeat_ngram = Some(0)), E::EmptyNgram);
    }

    #[test]
    fn allowed_outputs_that_cannot_be_produced_are_refused_with_their_place() {
        use OptionsError as E;
        let refused = |allowed: &'static [&'static [TokenId]]| {
            constraints(|c| (c.min_len, c.allowed) = (2, Some(allowed))).unwrap_err()
        };
        assert_eq!(refused(&[]), E::NothingAllowed);
        assert_eq!(
            refused(&[&[4], &[4, 10]]),
            E::AllowedOutOfRange { index: 1, id: 10, vocab: 10 }
        );
        for id in [0, 1, 2] {
            let outputs = [&[3, id][..]];
            let constraints = Constraints { allowed: Some(&outputs), ..Constraints::default() };
            let check = constraints.check(10, &SpecialIds::default(), 5);
            assert_eq!(check, Err(E::AllowedNeverProduced { index: 0, id }));
        }
        let length = |len| E::AllowedLength { index: 0, len, min_len: 2, max_len: 5 };
        assert_eq!(refused(&[&[3, 3, 3, 4, 5]]), length(6));
        assert_eq!(refused(&[&[]]), length(1));
        assert_eq!(refused(&[&[3], &[4], &[3, 9]]), E::AllowedNotSorted { index: 2 });
        assert_eq!(refused(&[&[3], &[3]]), E::AllowedNotSorted { index: 1 });
    }

    #[test]
    fn sampling_out_of_range_is_refused_with_its_number() {
        let with = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            sampling.check(10).unwrap_err()
        };
        let top_k = |top_k| OptionsError::TopK { top_k, vocab: 10 };
        assert_eq!(with(|s| s.top_k = Some(0)), top_k(0));
        assert_eq!(with(|s| s.top_k = Some(11)), top_k(11));
        let top_p = |top_p| OptionsError::TopP { top_p };
        assert_eq!(with(|s| s.top_p = Some(Q16::ZERO)), top_p(Q16::ZERO));
        assert_eq!(with(|s| s.top_p = Some(q16!(1.1))), top_p(q16!(1.1)));
        let temperature = |temperature| OptionsError::Temperature { temperature };
        assert_eq!(with(|s| s.temperature = Q16::ZERO), temperature(Q16::ZERO));
        assert_eq!(with(|s| s.temperature = q16!(-0.5)), temperature(q16!(-0.5)));
    }

    #[test]
    fn beams_out_of_range_are_refused_with_their_numbers() {
        let beams = |beams, n_best| BeamOptions { beams, n_best, ..BeamOptions::default() }.check();
        assert_eq!(beams(0, 1), Err(OptionsError::NoBeams));
        assert_eq!(beams(2, 0), Err(OptionsError::NBest { n_best: 0, beams: 2 }));
        assert_eq!(beams(2, 3), Err(OptionsError::NBest { n_best: 3, beams: 2 }));
        let length_penalty = q16!(-0.1);
        let negative = BeamOptions { length_penalty, ..BeamOptions::default() };
        assert_eq!(negative.check(), Err(OptionsError::LengthPenalty { length_penalty }));
    }
}
