//! How a generation chooses its next id.

use model_format::Model;
use model_format::config::ModelConfig;
use model_format::formats::ActivationSlot;

use crate::beam_cache::SearchBuffers;
use crate::generation::StopReason;
use crate::logit::Logit;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::search::{Constraints, Filter, Greedy, LogProb, LogSumExp, Sampling, Score, draw};
use crate::tokenizer::TokenId;

mod sealed {
    pub trait Sealed {}
    impl<L> Sealed for crate::search::Greedy<L> {}
    impl<L> Sealed for super::Scored<L> {}
    impl Sealed for super::Constrained<'_> {}
    impl<R> Sealed for super::Sampled<'_, R> {}
    impl Sealed for crate::beams::BeamChoice<'_> {}
}

/// What a choice sees after a step.
pub struct Context<'x, 'm, P: Precision> {
    pub(crate) model: &'x Model<'m>,
    pub(crate) plan: &'x Plan,
    /// Ids after the start id, or labels, so far.
    pub(crate) position: u16,
    /// Most of them.
    pub(crate) max_len: u16,
    /// Ids of a prompt or prefix.
    pub(crate) forced: u16,
    /// What the decoder read last.
    pub(crate) id: TokenId,
    /// Self-attention caches of all beams; empty unless buffers are needed.
    pub(crate) caches: &'x mut [u8],
    /// `None` unless buffers are needed.
    pub(crate) buffers: Option<SearchBuffers<'x, P>>,
}

/// What follows.
pub enum Chosen {
    /// This id; none where every id is excluded.
    Id(Option<TokenId>),
    /// The decoder reads another beam.
    Beam {
        /// Its last id.
        id: TokenId,
        /// Where its cache lies.
        slot: u16,
        /// Whether it is the first at the next position.
        moves: bool,
    },
    /// A beam search has ended: why its best output did.
    Finished(StopReason),
}

/// A way to choose the next id. The choices of this crate are all there are.
pub trait Choice<P: Precision>: sealed::Sealed {
    /// Whether logits and history are kept in the arena.
    #[doc(hidden)]
    const NEEDS_BUFFERS: bool = true;

    /// Before the logits of a step.
    #[doc(hidden)]
    fn begin(&mut self, _model: &Model<'_>) {}

    /// Takes the next logits, those of the ids from `first` on.
    #[doc(hidden)]
    fn push(&mut self, _first: TokenId, _logits: &[P::Logit]) {}

    /// After the logits of a step.
    #[doc(hidden)]
    fn choose(&mut self, context: Context<'_, '_, P>) -> Chosen;
}

/// Fractional bits of the logits; 0 for floats.
pub(crate) fn logit_bits(model: &Model<'_>) -> u32 {
    u32::from(model.formats().get(ActivationSlot::Logits).frac_bits.unsigned_abs())
}

fn greedy<L: Logit>(config: &ModelConfig) -> Greedy<L> {
    match config.has_decoder() {
        true => Greedy::new(&config.special),
        false => Greedy::among_labels(),
    }
}

impl<P: Precision> Choice<P> for Greedy<P::Logit> {
    const NEEDS_BUFFERS: bool = false;

    fn begin(&mut self, model: &Model<'_>) {
        *self = greedy(model.config());
    }

    #[inline(always)]
    fn push(&mut self, first: TokenId, logits: &[P::Logit]) {
        // Vectors tell sooner that none of them is the best.
        if cfg!(kiloformer_x86) && self.is_above(logits) {
            return;
        }
        for (&logit, id) in logits.iter().zip(first..) {
            Greedy::push(self, id, logit);
        }
    }

    fn choose(&mut self, _: Context<'_, '_, P>) -> Chosen {
        Chosen::Id(self.finish().map(|(id, _)| id))
    }
}

/// Greedy search that says how probable its ids are; needs no buffer.
#[derive(Debug, Clone, Copy)]
pub struct Scored<L> {
    greedy: Greedy<L>,
    sum: LogSumExp,
    frac_bits: u32,
    scores: Scores,
}

/// Log-probabilities of the last id and of all.
#[derive(Debug, Clone, Copy)]
struct Scores {
    last: LogProb,
    score: Score,
}

impl Scores {
    const NONE: Self =
        Self { last: LogProb::CERTAIN, score: Score { sum: LogProb::CERTAIN, tokens: 0 } };

    fn push(&mut self, log_prob: LogProb) {
        self.last = log_prob;
        self.score.push(log_prob);
    }
}

/// What choices with scores say.
macro_rules! scores {
    () => {
        /// The log-probability of the last id, or of the end id at the end.
        pub fn last(&self) -> LogProb {
            self.scores.last
        }

        /// The log-probability of all ids so far, the end id included, those of a prompt or prefix
        /// not.
        pub fn score(&self) -> Score {
            self.scores.score
        }
    };
}

impl<L: Logit> Scored<L> {
    pub(crate) fn new() -> Self {
        let (greedy, sum) = (Greedy::among_labels(), LogSumExp::default());
        Self { greedy, sum, frac_bits: 0, scores: Scores::NONE }
    }

    scores!();
}

impl<P: Precision> Choice<P> for Scored<P::Logit> {
    const NEEDS_BUFFERS: bool = false;

    fn begin(&mut self, model: &Model<'_>) {
        self.greedy = greedy(model.config());
        self.sum = LogSumExp::default();
        self.frac_bits = logit_bits(model);
    }

    fn push(&mut self, first: TokenId, logits: &[P::Logit]) {
        for (&logit, id) in logits.iter().zip(first..) {
            self.greedy.push(id, logit);
            self.sum.push(logit, self.frac_bits);
        }
    }

    fn choose(&mut self, _: Context<'_, '_, P>) -> Chosen {
        let best = self.greedy.finish();
        if let Some((_, logit)) = best {
            self.scores.push(self.sum.finish().log_prob(logit, self.frac_bits));
        }
        Chosen::Id(best.map(|(id, _)| id))
    }
}

/// The most probable of the ids that constraints leave, with scores.
#[derive(Debug, Clone, Copy)]
pub struct Constrained<'c> {
    constraints: Constraints<'c>,
    scores: Scores,
}

impl<'c> Constrained<'c> {
    pub(crate) fn new(constraints: &Constraints<'c>) -> Self {
        Self { constraints: *constraints, scores: Scores::NONE }
    }

    scores!();
}

impl<P: Precision> Choice<P> for Constrained<'_> {
    fn choose(&mut self, context: Context<'_, '_, P>) -> Chosen {
        choose_filtered(context, &self.constraints, &mut self.scores, |logits, model| {
            let mut greedy = greedy(model.config());
            logits.iter().zip(0..=TokenId::MAX).for_each(|(&logit, id)| greedy.push(id, logit));
            greedy.finish().map(|(id, _)| id)
        })
    }
}

/// An id drawn from those that constraints leave, with scores.
#[derive(Debug, Clone, Copy)]
pub struct Sampled<'c, R> {
    constraints: Constraints<'c>,
    sampling: Sampling,
    random: R,
    scores: Scores,
}

impl<'c, R> Sampled<'c, R> {
    pub(crate) fn new(constraints: &Constraints<'c>, sampling: &Sampling, random: R) -> Self {
        let (constraints, sampling) = (*constraints, *sampling);
        Self { constraints, sampling, random, scores: Scores::NONE }
    }

    scores!();
}

impl<P: Precision, R: FnMut() -> u64> Choice<P> for Sampled<'_, R> {
    fn choose(&mut self, context: Context<'_, '_, P>) -> Chosen {
        let (sampling, random) = (&self.sampling, &mut self.random);
        choose_filtered(context, &self.constraints, &mut self.scores, |logits, model| {
            draw(logits, logit_bits(model), sampling, random())
        })
    }
}

/// Filters the logits of a step and lets `choose` take one.
fn choose_filtered<P: Precision>(
    context: Context<'_, '_, P>,
    constraints: &Constraints<'_>,
    scores: &mut Scores,
    choose: impl FnOnce(&[P::Logit], &Model<'_>) -> Option<TokenId>,
) -> Chosen {
    let Context { model, position, forced, buffers: Some(buffers), .. } = context else {
        return Chosen::Id(None);
    };
    let frac_bits = logit_bits(model);
    let SearchBuffers { logits, history, .. } = buffers;
    let log_sum = LogSumExp::of(logits, frac_bits);
    let history = history.get(..usize::from(position)).unwrap_or_default();
    Filter::new(constraints, &model.config().special, history, forced).apply(logits);
    let id = choose(logits, model);
    let logit = id.and_then(|id| logits.get(usize::from(id)));
    scores.push(match logit {
        Some(logit) => log_sum.log_prob(*logit, frac_bits),
        None => LogProb::IMPOSSIBLE,
    });
    Chosen::Id(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FixedPoint;

    #[test]
    fn the_largest_of_all_ids_can_be_chosen() {
        const LAST: TokenId = TokenId::MAX - 1;
        let mut greedy = Greedy::among_labels();
        Choice::<FixedPoint>::push(&mut greedy, LAST - 1, &[1, 2]);
        assert_eq!(greedy.finish(), Some((LAST, 2)));
    }
}
