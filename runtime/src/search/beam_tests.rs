//! Beam search against all outputs there are, over models made of random numbers.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::vec::Vec;

use bytemuck::Zeroable;

use super::beam::{Beam, BeamBuffers, BeamSearch, Candidate, Hypothesis, Link};
use super::log_prob::{LogProb, LogSumExp};
use super::options::BeamOptions;
use super::q16::Q16;
use super::rank::normalized;
use crate::logit::Logit;
use crate::q16;
use crate::tokenizer::TokenId;

const END: TokenId = 0;
const FRAC_BITS: u32 = 10;

/// Logits that depend on every id before.
#[derive(Clone, Copy)]
struct FakeModel {
    seed: u64,
    vocab: u16,
    /// Added to the end id's logit.
    end_bias: i32,
}

impl FakeModel {
    fn logits(&self, prefix: &[TokenId]) -> Vec<i32> {
        let mut state = self.seed.wrapping_add(1);
        for id in prefix {
            state = mix(state ^ (u64::from(*id) + 1));
        }
        let random = |id| (mix(state.wrapping_mul(31) ^ u64::from(id)) as i32) >> 20;
        let mut logits: Vec<i32> = (0..self.vocab).map(random).collect();
        logits[usize::from(END)] += self.end_bias;
        logits
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[derive(Debug, Clone, PartialEq)]
struct Output {
    ids: Vec<TokenId>,
    score: LogProb,
    sum: LogProb,
    has_end: bool,
}

/// Memory, with contents that must not matter.
struct Memory {
    live: Vec<Beam>,
    candidates: Vec<Candidate>,
    finished: Vec<Hypothesis>,
    links: Vec<Link>,
}

impl Memory {
    fn new(options: &BeamOptions, max_len: u16) -> Self {
        let [beams, n_best] = [options.beams, options.n_best].map(usize::from);
        Self {
            live: vec![Zeroable::zeroed(); beams],
            candidates: vec![Zeroable::zeroed(); 2 * beams],
            finished: vec![Zeroable::zeroed(); n_best],
            links: vec![Zeroable::zeroed(); beams * usize::from(max_len)],
        }
    }

    fn buffers(&mut self) -> BeamBuffers<'_> {
        BeamBuffers {
            live: &mut self.live,
            candidates: &mut self.candidates,
            finished: &mut self.finished,
            links: &mut self.links,
        }
    }
}

/// Runs a search with a cache per slot, copied as told; the outputs and the number of steps.
fn search(
    options: &BeamOptions,
    max_len: u16,
    logits_of: impl Fn(&[TokenId]) -> Vec<i32>,
) -> (Vec<Output>, u16) {
    assert_eq!(options.check(), Ok(()));
    let mut memory = Memory::new(options, max_len);
    let mut buffers = memory.buffers();
    let mut search = BeamSearch::new(options, [99, END], max_len, buffers.reborrow());
    let mut caches = vec![Vec::new(); options.beams.into()];
    while search.is_running() {
        let live = search.live(&buffers).to_vec();
        for (rank, beam) in live.iter().enumerate() {
            let mut history = vec![0; max_len.into()];
            let len = search.history(&buffers, rank, &mut history);
            assert_eq!(caches[usize::from(beam.slot)], history[..len], "cache and history");
            let logits = logits_of(&history[..len]);
            let log_sum = LogSumExp::of(&logits, FRAC_BITS);
            search.extend(buffers.reborrow(), rank, &logits, (log_sum, FRAC_BITS));
        }
        search.advance(buffers.reborrow());
        check_slots(search.live(&buffers));
        // In place, in any order: here the worst first.
        for beam in search.live(&buffers).iter().rev().filter(|beam| beam.slot != beam.parent) {
            caches[usize::from(beam.slot)] = caches[usize::from(beam.parent)].clone();
        }
        for beam in search.live(&buffers) {
            caches[usize::from(beam.slot)].push(beam.id);
        }
    }
    (outputs(&search, &buffers, max_len), search.step())
}

/// No two beams share a slot, and what is copied from is not copied to.
fn check_slots(live: &[Beam]) {
    let slots: BTreeSet<u16> = live.iter().map(|beam| beam.slot).collect();
    assert_eq!(slots.len(), live.len());
    for beam in live.iter().filter(|beam| beam.slot != beam.parent) {
        assert!(live.iter().any(|other| other.slot == beam.parent && other.parent == beam.parent));
    }
}

fn outputs(search: &BeamSearch, buffers: &BeamBuffers<'_>, max_len: u16) -> Vec<Output> {
    let output = |(index, hypothesis): (usize, &Hypothesis)| {
        let mut ids = vec![0; max_len.into()];
        let len = search.ids(buffers, index, &mut ids);
        ids.truncate(len);
        let total = hypothesis.total();
        assert_eq!(usize::from(total.tokens), len + usize::from(hypothesis.has_end()));
        Output { ids, score: hypothesis.score, sum: total.sum, has_end: hypothesis.has_end() }
    };
    search.finished(buffers).iter().enumerate().map(output).collect()
}

/// Every output there is, the best first: those that ended, and those as long as allowed.
fn exhaustive(model: FakeModel, max_len: u16, alpha: Q16) -> Vec<Output> {
    let mut all = Vec::new();
    let mut prefixes = vec![(Vec::new(), LogProb::CERTAIN)];
    for len in 1..=max_len {
        let mut longer = Vec::new();
        for (prefix, sum) in &prefixes {
            let logits = model.logits(prefix);
            let log_sum = LogSumExp::of(&logits, FRAC_BITS);
            for (id, logit) in (0..).zip(&logits) {
                let sum = sum.and(log_sum.log_prob(*logit, FRAC_BITS));
                let score = normalized(sum, len, alpha);
                if id == END {
                    all.push(Output { ids: prefix.clone(), score, sum, has_end: true });
                } else {
                    longer.push(([&prefix[..], &[id]].concat(), sum));
                }
            }
        }
        prefixes = longer;
    }
    all.extend(prefixes.into_iter().map(|(ids, sum)| Output {
        ids,
        score: normalized(sum, max_len, alpha),
        sum,
        has_end: false,
    }));
    let len = |output: &Output| output.ids.len() + usize::from(output.has_end);
    all.sort_by(|a, b| {
        let scores = b.score.cmp(&a.score).then(len(a).cmp(&len(b)));
        scores.then(b.has_end.cmp(&a.has_end)).then(b.sum.cmp(&a.sum))
    });
    all
}

fn options(beams: u16, n_best: u16, length_penalty: Q16) -> BeamOptions {
    BeamOptions { beams, n_best, length_penalty }
}

const ALPHAS: [Q16; 4] = [Q16::ZERO, q16!(0.6), Q16::ONE, q16!(2.0)];

#[test]
fn a_beam_wide_enough_finds_exactly_the_best_of_all_outputs() {
    for seed in 0..40 {
        for (vocab, max_len, beams) in [(3, 5, 100), (4, 4, 120), (2, 9, 8), (6, 2, 40)] {
            for end_bias in [-3000, 0, 1500] {
                let model = FakeModel { seed, vocab, end_bias };
                for alpha in ALPHAS {
                    let best = exhaustive(model, max_len, alpha);
                    for n_best in [1, 5] {
                        let options = options(beams, n_best, alpha);
                        let (found, _) = search(&options, max_len, |ids| model.logits(ids));
                        let expected = &best[..found.len()];
                        assert_eq!(found, expected, "{seed} {vocab} {alpha:?}");
                        assert_eq!(found.len(), best.len().min(n_best.into()));
                    }
                }
            }
        }
    }
}

/// Beam search word by word from its definition: sorts all candidates, stops at the limit only.
fn by_definition(options: &BeamOptions, max_len: u16, model: FakeModel) -> Vec<Output> {
    let beams = usize::from(options.beams);
    let output = |ids: &[TokenId], sum, len, has_end| Output {
        ids: ids.to_vec(),
        score: normalized(sum, len, options.length_penalty),
        sum,
        has_end,
    };
    let (mut live, mut finished) = (vec![(Vec::new(), LogProb::CERTAIN)], Vec::new());
    for len in 1..=max_len {
        let mut candidates = Vec::new();
        for (prefix, sum) in &live {
            let logits = model.logits(prefix);
            let log_sum = LogSumExp::of(&logits, FRAC_BITS);
            let sums = logits.iter().map(|logit| sum.and(log_sum.log_prob(*logit, FRAC_BITS)));
            candidates.extend((0..).zip(sums).map(|(id, sum)| (prefix.clone(), id, sum)));
        }
        candidates.sort_by_key(|candidate| Reverse(candidate.2));
        candidates.truncate(2 * beams);
        let ended = candidates.iter().take(beams).filter(|candidate| candidate.1 == END);
        finished.extend(ended.map(|(prefix, _, sum)| output(prefix, *sum, len, true)));
        live = candidates
            .into_iter()
            .filter(|candidate| candidate.1 != END)
            .map(|(prefix, id, sum)| ([&prefix[..], &[id]].concat(), sum))
            .take(beams)
            .collect();
    }
    finished.extend(live.iter().map(|(ids, sum)| output(ids, *sum, max_len, false)));
    finished.sort_by_key(|output| Reverse(output.score));
    finished.truncate(options.n_best.into());
    finished
}

#[test]
fn a_beam_of_any_width_finds_what_its_definition_says_though_it_stops_early() {
    for seed in 0..60 {
        for (vocab, max_len) in [(2, 8), (5, 7), (30, 6), (100, 2)] {
            for end_bias in [-2000, 0, 800, 2500] {
                let model = FakeModel { seed, vocab, end_bias };
                for alpha in ALPHAS {
                    for (beams, n_best) in [(1, 1), (2, 1), (3, 3), (8, 4)] {
                        let options = options(beams, n_best, alpha);
                        let (found, _) = search(&options, max_len, |ids| model.logits(ids));
                        assert_eq!(found, by_definition(&options, max_len, model), "{options:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_n_best_of_a_narrow_beam_are_sorted_real_and_distinct() {
    for seed in 0..100 {
        let model = FakeModel { seed, vocab: 5, end_bias: 0 };
        for alpha in ALPHAS {
            let all = exhaustive(model, 4, alpha);
            for beams in 1..=6 {
                let options = options(beams, beams, alpha);
                let (found, _) = search(&options, 4, |ids| model.logits(ids));
                assert!(!found.is_empty());
                assert!(found.iter().all(|output| all.contains(output)), "a score is wrong");
                assert!(found.windows(2).all(|pair| pair[0].score >= pair[1].score));
                let distinct: BTreeSet<_> = found.iter().map(|o| (&o.ids, o.has_end)).collect();
                assert_eq!(distinct.len(), found.len());
            }
        }
    }
}

#[test]
fn one_beam_without_length_penalty_is_greedy_search_until_it_ends() {
    for seed in 0..200 {
        let model = FakeModel { seed, vocab: 7, end_bias: 500 };
        let (found, _) = search(&options(1, 1, Q16::ZERO), 6, |ids| model.logits(ids));
        let mut greedy = Vec::new();
        while greedy.len() < 6 {
            let logits = model.logits(&greedy);
            let best = logits.iter().max().unwrap();
            match logits.iter().position(|logit| logit == best).unwrap() as TokenId {
                END => break,
                id => greedy.push(id),
            }
        }
        // An end that is second best ends no output of one beam.
        assert_eq!(found[0].ids, greedy, "{seed}");
        assert_eq!(found[0].has_end, greedy.len() < 6);
    }
}

#[test]
fn early_stop_changes_no_output_and_saves_steps() {
    let mut saved = 0;
    for seed in 0..200 {
        let model = FakeModel { seed, vocab: 5, end_bias: 1000 };
        for alpha in ALPHAS {
            let (found, steps) = search(&options(4, 2, alpha), 8, |ids| model.logits(ids));
            // As many outputs as beams: it stops later, and the best must be the same.
            let (longer, _) = search(&options(4, 4, alpha), 8, |ids| model.logits(ids));
            assert_eq!(found[..], longer[..2]);
            saved += 8 - steps;
        }
    }
    assert!(saved > 800, "{saved} steps saved");
}

#[test]
fn a_beam_wider_than_the_vocabulary_works_from_the_first_step_on() {
    let model = FakeModel { seed: 5, vocab: 3, end_bias: 0 };
    let (found, _) = search(&options(50, 3, Q16::ONE), 4, |ids| model.logits(ids));
    assert_eq!(found[..], exhaustive(model, 4, Q16::ONE)[..3]);
}

#[test]
fn the_first_step_extends_one_beam_so_that_beams_differ() {
    let options = options(3, 3, Q16::ONE);
    let mut memory = Memory::new(&options, 5);
    let mut buffers = memory.buffers();
    let mut search = BeamSearch::new(&options, [99, END], 5, buffers.reborrow());
    assert_eq!(search.live(&buffers).iter().map(|b| b.id).collect::<Vec<_>>(), [99]);
    let log_sum = LogSumExp::of(&[0, 4, 9, 7], 0);
    search.extend(buffers.reborrow(), 0, &[0, 4, 9, 7], (log_sum, 0));
    search.advance(buffers.reborrow());
    let live: Vec<_> = search.live(&buffers).iter().map(|b| (b.id, b.slot, b.parent)).collect();
    assert_eq!(live, [(2, 0, 0), (3, 1, 0), (1, 2, 0)]);
}

#[test]
fn beams_that_finish_at_different_steps_keep_their_own_lengths_and_scores() {
    // The ends of [], [1] and [1, 1] are almost as probable as what goes on.
    let logits_of = |ids: &[TokenId]| match ids.len() {
        0..3 => vec![1000, 1024, -8000],
        _ => vec![8000, 0, 0],
    };
    let (found, _) = search(&options(4, 4, Q16::ONE), 6, logits_of);
    let mut lengths: Vec<_> = found.iter().map(|output| output.ids.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [0, 1, 2, 3]);
    for output in found {
        let tokens = output.ids.len() as u16 + 1;
        assert_eq!(output.score, normalized(output.sum, tokens, Q16::ONE));
    }
}

#[test]
fn a_finished_output_frees_its_place_for_another_beam() {
    // An end in every step: live beams must stay two, with the scores that are theirs.
    let options = options(2, 2, Q16::ZERO);
    let mut memory = Memory::new(&options, 9);
    let mut buffers = memory.buffers();
    let mut search = BeamSearch::new(&options, [99, END], 9, buffers.reborrow());
    let logits = [9, 9, 9];
    let log_sum = LogSumExp::of(&logits, 0);
    search.extend(buffers.reborrow(), 0, &logits, (log_sum, 0));
    search.advance(buffers.reborrow());
    assert_eq!(search.finished(&buffers).len(), 1);
    let live = search.live(&buffers);
    assert_eq!(live.iter().map(|beam| beam.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(live[0].sum, log_sum.log_prob(9, 0));
}

#[test]
fn ties_go_to_the_lower_beam_and_then_to_the_lower_id() {
    let (found, _) = search(&options(3, 3, Q16::ZERO), 2, |ids| match ids.len() {
        0 => vec![i32::EXCLUDED, 5, 5],
        _ => vec![i32::EXCLUDED, 5, 5],
    });
    let ids: Vec<_> = found.into_iter().map(|output| output.ids).collect();
    assert_eq!(ids, [[1, 1], [1, 2], [2, 1]]);
}

#[test]
fn outputs_at_the_length_limit_are_given_as_they_are() {
    let never = |_: &[TokenId]| vec![i32::EXCLUDED, 3, 4];
    let (found, steps) = search(&options(2, 2, Q16::ONE), 3, never);
    assert_eq!((found.len(), steps), (2, 3));
    assert!(found.iter().all(|output| !output.has_end && output.ids.len() == 3));
}

#[test]
fn where_nothing_may_follow_what_was_finished_before_remains() {
    let (found, _) = search(&options(2, 2, Q16::ONE), 5, |ids| match ids.len() {
        0 => vec![3, 4, i32::EXCLUDED],
        _ => vec![i32::EXCLUDED; 3],
    });
    assert_eq!(found.iter().map(|output| output.ids.len()).collect::<Vec<_>>(), [0]);
    let (nothing, steps) = search(&options(2, 2, Q16::ONE), 5, |_| vec![i32::EXCLUDED; 3]);
    assert_eq!((nothing, steps), (vec![], 1));
    let (nothing, steps) = search(&options(2, 2, Q16::ONE), 0, |_| vec![1; 3]);
    assert_eq!((nothing, steps), (vec![], 0));
}

#[test]
fn buffers_that_are_too_short_shorten_the_search_and_break_nothing() {
    let options = options(4, 3, Q16::ONE);
    for missing in 0..4 {
        let mut memory = Memory::new(&options, 4);
        match missing {
            0 => memory.live.clear(),
            1 => memory.candidates.truncate(1),
            2 => memory.finished.clear(),
            _ => memory.links.clear(),
        }
        let mut buffers = memory.buffers();
        let mut search = BeamSearch::new(&options, [99, END], 4, buffers.reborrow());
        while search.is_running() {
            for rank in 0..search.live(&buffers).len() {
                let log_sum = LogSumExp::of(&[1, 2, 3], 0);
                search.extend(buffers.reborrow(), rank, &[1, 2, 3], (log_sum, 0));
            }
            search.advance(buffers.reborrow());
        }
        let mut ids = [0; 4];
        (0..4).for_each(|index| assert!(search.ids(&buffers, index, &mut ids) <= 4));
    }
}
