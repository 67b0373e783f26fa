//! Beam search without models: the bookkeeping of hypotheses.
//!
//! Each step takes the logits of every live beam, keeps the best `2 * beams` candidates of all, and
//! makes of them finished hypotheses (those that end, where they rank within the first `beams`) and
//! the first `beams` that live on. An output is ranked by `log-probability / length^alpha`: the
//! simple power, not the form of Wu et al. 2016 (section 7).
//!
//! A beam lives in a slot, which is where the caller keeps its cache. A beam's first continuation
//! stays in its slot, the others move to slots whose beams died, so caches are copied in place, in any
//! order, and only where there are several continuations.
//!
//! ```text
//! loop while is_running:
//!   for rank in 0..live(..).len():
//!     decode live[rank].id with the cache of live[rank].slot -> logits; filter them
//!     extend(buffers, rank, logits, ..)
//!   advance(buffers)
//!   for every live beam where parent != slot: copy the cache of parent to slot
//! read finished(..), ids(..)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::logit::Logit;
use crate::tokenizer::TokenId;

use super::log_prob::{LogProb, LogSum, Score};
use super::options::BeamOptions;
use super::rank::{insert, normalized};

/// A hypothesis that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Beam {
    /// Its log-probability.
    pub sum: LogProb,
    /// Where its cache lies.
    pub slot: u16,
    /// Where the cache of the beam it continues lies.
    pub parent: u16,
    /// Its last id, which the decoder reads next.
    pub id: TokenId,
    reserved: u16,
}

/// A continuation of a beam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Candidate {
    sum: LogProb,
    /// Slot of the beam.
    parent: u16,
    id: TokenId,
}

/// An output: ended, or as long as allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Hypothesis {
    /// `sum / tokens^length_penalty`: what it is ranked by.
    pub score: LogProb,
    sum: LogProb,
    tokens: u16,
    /// Slot at its last step; that of the beam it ended where it has an end.
    slot: u16,
    has_end: u16,
    reserved: u16,
}

impl Hypothesis {
    /// Its log-probability and its number of ids, the end id included.
    pub fn total(&self) -> Score {
        Score { sum: self.sum, tokens: self.tokens }
    }

    /// Whether it ended; otherwise it reached the length limit.
    pub fn has_end(&self) -> bool {
        self.has_end != 0
    }
}

/// An id at one step: which one, and in which slot its hypothesis was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Link {
    parent: u16,
    id: TokenId,
}

/// The caller's memory; what it holds at the start does not matter.
///
/// The same memory with the same contents goes into every call.
#[derive(Debug)]
pub struct BeamBuffers<'a> {
    /// `[beams]`, 12 bytes each.
    pub live: &'a mut [Beam],
    /// `[2 * beams]`, 8 bytes each.
    pub candidates: &'a mut [Candidate],
    /// `[n_best]`, 16 bytes each.
    pub finished: &'a mut [Hypothesis],
    /// `[max_len * beams]`, 4 bytes each: step by step, slot by slot.
    pub links: &'a mut [Link],
}

impl BeamBuffers<'_> {
    /// The buffers again, for a call.
    pub fn reborrow(&mut self) -> BeamBuffers<'_> {
        BeamBuffers {
            live: self.live,
            candidates: self.candidates,
            finished: self.finished,
            links: self.links,
        }
    }
}

/// A beam search between two steps: numbers only, its lists lie in [`BeamBuffers`].
///
/// Buffers shorter than stated shorten the lists.
#[derive(Debug, Clone, Copy)]
pub struct BeamSearch {
    options: BeamOptions,
    end: TokenId,
    max_len: u16,
    /// Ids of every live beam.
    len: u16,
    live: usize,
    candidates: usize,
    finished: usize,
}

impl BeamSearch {
    /// Before the first step: one live beam in slot 0, whose last id is `start`, or the last of a
    /// forced prefix, which the decoder has read up to there and which is not in the score.
    ///
    /// `max_len` is the most ids to produce, end id included.
    pub fn new(
        options: &BeamOptions,
        [start, end]: [TokenId; 2],
        max_len: u16,
        buffers: BeamBuffers<'_>,
    ) -> Self {
        let mut search =
            Self { options: *options, end, max_len, len: 0, live: 0, candidates: 0, finished: 0 };
        if let Some(beam) = buffers.live.first_mut().filter(|_| max_len > 0) {
            *beam = Beam { sum: LogProb::CERTAIN, slot: 0, parent: 0, id: start, reserved: 0 };
            search.live = 1;
        }
        search
    }

    /// Whether another step can change what is finished.
    pub fn is_running(&self) -> bool {
        self.live > 0
    }

    /// Ids of every live beam.
    pub fn step(&self) -> u16 {
        self.len
    }

    /// The live beams, the most probable first: `[1..=beams]` while running, empty after.
    pub fn live<'a>(&self, buffers: &'a BeamBuffers<'_>) -> &'a [Beam] {
        buffers.live.get(..self.live).unwrap_or_default()
    }

    /// What is finished, the best first; equal scores in the order they were found.
    pub fn finished<'a>(&self, buffers: &'a BeamBuffers<'_>) -> &'a [Hypothesis] {
        buffers.finished.get(..self.finished).unwrap_or_default()
    }

    /// Takes the logits `[vocab]` that follow live beam `rank`; ranks ascending, each once per step.
    ///
    /// The logits are filtered; `log_sum` is of those before the filter, or after it where
    /// probabilities shall be among the allowed ids only.
    pub fn extend<L: Logit>(
        &mut self,
        buffers: BeamBuffers<'_>,
        rank: usize,
        logits: &[L],
        (log_sum, frac_bits): (LogSum, u32),
    ) {
        let Some(&beam) = self.live(&buffers).get(rank) else { return };
        let wanted = usize::from(self.options.beams).saturating_mul(2);
        let most = wanted.min(buffers.candidates.len());
        let list = buffers.candidates.get_mut(..most).unwrap_or_default();
        for (&logit, id) in logits.iter().zip(0..=TokenId::MAX) {
            let sum = beam.sum.and(log_sum.log_prob(logit, frac_bits));
            if sum != LogProb::IMPOSSIBLE {
                let candidate = Candidate { sum, parent: beam.slot, id };
                insert(list, &mut self.candidates, candidate, |candidate| candidate.sum);
            }
        }
    }

    /// Ends a step, after [`extend`](Self::extend) of every live beam.
    ///
    /// Caches of live beams whose `parent` is not their `slot` are to be copied from there.
    pub fn advance(&mut self, buffers: BeamBuffers<'_>) {
        let BeamBuffers { live, candidates, finished, links } = buffers;
        let beams = usize::from(self.options.beams).min(live.len());
        let found = candidates.get(..self.candidates).unwrap_or_default();
        self.candidates = 0;
        self.len = self.len.saturating_add(1);
        let end = self.end;
        for candidate in found.iter().take(beams).filter(|candidate| candidate.id == end) {
            self.finish(finished, candidate.sum, candidate.parent, true);
        }
        let going_on = found.iter().filter(|candidate| candidate.id != end);
        self.live = 0;
        for (beam, candidate) in live.iter_mut().take(beams).zip(going_on) {
            let Candidate { sum, parent, id } = *candidate;
            *beam = Beam { sum, slot: parent, parent, id, reserved: 0 };
            self.live = self.live.saturating_add(1);
        }
        let live = live.get_mut(..self.live).unwrap_or_default();
        assign_slots(live);
        self.link(live, links);
        self.stop_where_nothing_improves(live, finished);
    }

    /// Writes the ids of live beam `rank` since the start or the forced prefix; `out` is
    /// `[step]`. Their number.
    pub fn history(&self, buffers: &BeamBuffers<'_>, rank: usize, out: &mut [TokenId]) -> usize {
        match self.live(buffers).get(rank) {
            Some(beam) => self.trace(buffers.links, self.len.into(), beam.slot, out),
            None => 0,
        }
    }

    /// Writes the ids of finished hypothesis `index` without its end id; `out` is `[max_len]`. Their
    /// number.
    pub fn ids(&self, buffers: &BeamBuffers<'_>, index: usize, out: &mut [TokenId]) -> usize {
        match self.finished(buffers).get(index) {
            Some(hypothesis) => {
                let len = usize::from(hypothesis.tokens.saturating_sub(hypothesis.has_end));
                self.trace(buffers.links, len, hypothesis.slot, out)
            }
            None => 0,
        }
    }

    /// Follows the links back from `slot`, where a hypothesis has `len` ids.
    fn trace(&self, links: &[Link], len: usize, mut slot: u16, out: &mut [TokenId]) -> usize {
        let out = out.get_mut(..len).unwrap_or_default();
        for (step, id) in out.iter_mut().enumerate().rev() {
            if let Some(link) = links.get(self.link_index(step, slot)) {
                (*id, slot) = (link.id, link.parent);
            }
        }
        out.len()
    }

    fn link_index(&self, step: usize, slot: u16) -> usize {
        step.saturating_mul(self.options.beams.into()).saturating_add(slot.into())
    }

    fn link(&self, live: &[Beam], links: &mut [Link]) {
        let step = usize::from(self.len).saturating_sub(1);
        for beam in live {
            if let Some(link) = links.get_mut(self.link_index(step, beam.slot)) {
                *link = Link { parent: beam.parent, id: beam.id };
            }
        }
    }

    fn finish(&mut self, finished: &mut [Hypothesis], sum: LogProb, slot: u16, has_end: bool) {
        let hypothesis = Hypothesis {
            score: normalized(sum, self.len, self.options.length_penalty),
            sum,
            tokens: self.len,
            slot,
            has_end: has_end.into(),
            reserved: 0,
        };
        let most = usize::from(self.options.n_best).min(finished.len());
        let list = finished.get_mut(..most).unwrap_or_default();
        insert(list, &mut self.finished, hypothesis, |hypothesis| hypothesis.score);
    }

    /// At the length limit live beams are outputs as they are. Before it, no live beam can reach more
    /// than its present sum, which never grows, divided by the largest power.
    fn stop_where_nothing_improves(&mut self, live: &[Beam], finished: &mut [Hypothesis]) {
        if self.len >= self.max_len {
            live.iter().for_each(|beam| self.finish(finished, beam.sum, beam.slot, false));
            self.live = 0;
            return;
        }
        let worst = usize::from(self.options.n_best).checked_sub(1).and_then(|i| finished.get(i));
        let is_full = self.finished >= self.options.n_best.into();
        if let (Some(best), Some(worst), true) = (live.first(), worst, is_full) {
            let reachable = normalized(best.sum, self.max_len, self.options.length_penalty);
            if reachable <= worst.score {
                self.live = 0;
            }
        }
    }
}

/// The first continuation of a beam keeps its slot, the others get those that are free.
fn assign_slots(live: &mut [Beam]) {
    const NONE: u16 = u16::MAX;
    let mut moved = 0_usize;
    for index in 0..live.len() {
        let (before, from) = live.split_at_mut_checked(index).unwrap_or_default();
        if let Some(beam) = from.first_mut()
            && before.iter().any(|other| other.slot == beam.parent)
        {
            beam.slot = NONE;
            moved = moved.saturating_add(1);
        }
    }
    let mut free = 0_u16;
    for _ in 0..moved {
        while live.iter().any(|beam| beam.slot == free) {
            free = free.saturating_add(1);
        }
        if let Some(beam) = live.iter_mut().find(|beam| beam.slot == NONE) {
            beam.slot = free;
        }
    }
}
