//! Beam search over a model.

use crate::beam_cache::{SearchBuffers, copy_cache};
use crate::choice::{Choice, Chosen, Context, logit_bits};
use crate::error::{BudgetTooSmall, RunError};
use crate::generation::{Generation, Poll, StopReason};
use crate::precision::Precision;
use crate::search::{BeamOptions, BeamSearch, Constraints, Filter, Hypothesis, LogSumExp};
use crate::tokenizer::{TokenId, write_ids};

/// The state of a beam search between two steps.
#[derive(Debug, Clone, Copy)]
pub struct BeamChoice<'c> {
    constraints: Constraints<'c>,
    options: BeamOptions,
    /// None before the first logits: until then the encoder may lie where the lists will.
    search: Option<BeamSearch>,
    /// Which of the live beams is next.
    rank: usize,
}

impl<'c> BeamChoice<'c> {
    pub(crate) fn new(constraints: &Constraints<'c>, options: &BeamOptions) -> Self {
        let (constraints, options) = (*constraints, *options);
        Self { constraints, options, search: None, rank: 0 }
    }

    /// The search, which begins after the prompt or prefix.
    fn search<P: Precision>(
        &mut self,
        context: &Context<'_, '_, P>,
        buffers: &mut SearchBuffers<'_, P>,
    ) -> BeamSearch {
        let options = &self.options;
        *self.search.get_or_insert_with(|| {
            let ends = [context.id, context.model.config().special.end];
            let max_len = context.max_len.saturating_sub(context.position);
            BeamSearch::new(options, ends, max_len, buffers.beams.reborrow())
        })
    }
}

impl<P: Precision> Choice<P> for BeamChoice<'_> {
    fn choose(&mut self, mut context: Context<'_, '_, P>) -> Chosen {
        let Some(mut buffers) = context.buffers.take() else {
            return Chosen::Finished(StopReason::NothingAllowed);
        };
        let mut search = self.search(&context, &mut buffers);
        let Context { model, plan, position, forced, caches, .. } = context;
        let SearchBuffers { logits, history, beams } = &mut buffers;
        let frac_bits = logit_bits(model);
        let log_sum = LogSumExp::of(logits, frac_bits);
        let produced = history.get_mut(forced.into()..).unwrap_or_default();
        let len = search.history(beams, self.rank, produced);
        let history = history.get(..len.saturating_add(forced.into())).unwrap_or_default();
        Filter::new(&self.constraints, &model.config().special, history, forced).apply(logits);
        search.extend(beams.reborrow(), self.rank, logits, (log_sum, frac_bits));
        self.rank = self.rank.saturating_add(1);
        let moves = self.rank >= search.live(beams).len();
        if moves {
            search.advance(beams.reborrow());
            self.rank = 0;
            // Those of the step that has just ended.
            let len = usize::from(position).saturating_add(1);
            for beam in search.live(beams).iter().filter(|beam| beam.slot != beam.parent) {
                copy_cache::<P>(model, plan, caches, [beam.parent, beam.slot], len);
            }
        }
        self.search = Some(search);
        match search.live(beams).get(self.rank) {
            Some(beam) => Chosen::Beam { id: beam.id, slot: beam.slot, moves },
            None => Chosen::Finished(match search.finished(beams).first() {
                Some(best) if best.has_end() => StopReason::EndToken,
                Some(_) => StopReason::LengthLimit,
                None => StopReason::NothingAllowed,
            }),
        }
    }
}

/// A beam search in progress; what it found, once it has ended.
pub struct Beams<'s, 'm, 'a, 'c, P: Precision> {
    pub(crate) generation: Generation<'s, 'm, 'a, P, BeamChoice<'c>>,
}

impl<P: Precision> Beams<'_, '_, '_, '_, P> {
    /// Searches to the end. Why the best output ended; [`StopReason::NothingAllowed`] where there is
    /// none.
    pub fn run(&mut self) -> StopReason {
        // No id comes before the end.
        let _ = self.generation.next();
        self.generation.stop_reason().unwrap_or(StopReason::NothingAllowed)
    }

    /// Searches for at most `budget` multiply-accumulates, as [`Generation::poll`]; no id comes before
    /// the end. Choosing among `beams * vocab` continuations, and copying the caches of beams that
    /// divide, are not counted.
    ///
    /// # Errors
    /// When `budget` is less than [`Plan::smallest_budget`](crate::Plan::smallest_budget).
    pub fn poll(&mut self, budget: u32) -> Result<Poll, BudgetTooSmall> {
        self.generation.poll(budget)
    }

    /// Ends the search before its end.
    pub fn cancel(&mut self) {
        self.generation.cancel();
    }

    /// Why the best output ended; `None` while the search goes on.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.generation.stop_reason()
    }

    /// What was found, the best first: as many outputs as asked for, fewer where there are no more or
    /// the search has not ended.
    pub fn hypotheses(&mut self) -> &[Hypothesis] {
        match self.found() {
            Some((search, buffers)) => {
                let SearchBuffers { beams, .. } = buffers;
                let found = search.finished(&beams).len();
                beams.finished.get(..found).unwrap_or_default()
            }
            None => &[],
        }
    }

    /// The ids of output `index`, those of a prompt or prefix and the end id not among them; empty
    /// where there is no such output.
    pub fn ids(&mut self, index: usize) -> &[TokenId] {
        let forced = usize::from(self.generation.forced_len);
        match self.found() {
            Some((search, buffers)) => {
                let SearchBuffers { beams, history, .. } = buffers;
                // The search still needs what was forced.
                let produced = history.get_mut(forced..).unwrap_or_default();
                let len = search.ids(&beams, index, produced);
                produced.get(..len).unwrap_or_default()
            }
            None => &[],
        }
    }

    /// Writes output `index` as text into `buffer`.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn write_into<'b>(
        &mut self,
        index: usize,
        buffer: &'b mut [u8],
    ) -> Result<&'b str, RunError> {
        let model = self.generation.model();
        write_ids(model, self.ids(index).iter().copied(), buffer)
    }

    fn found(&mut self) -> Option<(BeamSearch, SearchBuffers<'_, P>)> {
        let search = self.generation.choice().search?;
        Some((search, self.generation.search_buffers()))
    }
}
