//! `runtime::search`: every function of it, with any memory.

use bytemuck::Zeroable;
use model_format::config::SpecialIds;
use runtime::search::{
    Beam, BeamBuffers, BeamOptions, BeamSearch, Candidate, Constraints, Filter, Hypothesis, Link,
    LogProb, LogSum, LogSumExp, Probability, Q16, Sampling, Score, Trie, draw,
};
use runtime::{Logit, TokenId};

use crate::opaque::{any, print, sink};

/// Everything a caller can do with logits of both kinds.
pub fn probe() {
    numbers();
    let special = any(SpecialIds::default());
    let outputs = any([&[4_u16, 5][..], &[6]]);
    let constraints = any(Constraints {
        min_len: 2,
        suppressed: any(&[7]),
        repetition_penalty: Q16::ONE,
        no_repeat_ngram: Some(2),
        allowed: Some(any(&outputs)),
    });
    if let Err(error) = constraints.check(any(9), &special, any(5)) {
        print(&error);
    }
    sink(constraints.penalizes());
    trie(constraints.allowed.unwrap_or_default());
    with_logits(any(&mut [1_i32, 2, 3][..]), &constraints, &special);
    with_logits(any(&mut [1.0_f32, 2.0, 3.0][..]), &constraints, &special);
}

fn numbers() {
    match Q16::from_f32(any(0.5)) {
        Ok(q16) => sink((q16.to_bits(), q16.to_f32(), Q16::from_bits(any(3)))),
        Err(error) => print(&error),
    }
    let log_prob = LogProb::from_bits(any(-7)).and(any(LogProb::CERTAIN));
    sink((log_prob.to_bits(), log_prob.probability().to_bits()));
    sink((Probability::from_bits(any(7)), Probability::from_percent(any(7))));
    let mut score = any(Score::default());
    score.push(log_prob);
    sink((score.per_token(), score.confidence()));
}

fn trie(outputs: &[&[TokenId]]) {
    let node = Trie::new(outputs).after(any(&[4, 5])).child(any(6));
    sink((node.allows(any(6)), node.is_complete()));
}

fn with_logits<L: Logit>(logits: &mut [L], constraints: &Constraints<'_>, special: &SpecialIds) {
    let frac_bits = any(8);
    let mut streamed = LogSumExp::default();
    logits.iter().for_each(|logit| streamed.push(*logit, frac_bits));
    let log_sum = LogSumExp::of(logits, frac_bits);
    sink((log_sum, streamed.finish()));
    let filter = Filter::new(constraints, special, any(&[4, 5, 4]), any(1));
    filter.apply(logits);
    let sampling = any(Sampling { temperature: Q16::ONE, top_k: Some(3), top_p: Some(Q16::ONE) });
    if let Err(error) = sampling.check(any(9)) {
        print(&error);
    }
    sink(draw(logits, frac_bits, &sampling, any(7)));
    beams(logits, (log_sum, frac_bits));
}

fn beams<L: Logit>(logits: &[L], sum: (LogSum, u32)) {
    let options = any(BeamOptions { beams: 3, n_best: 2, length_penalty: Q16::ONE });
    if let Err(error) = options.check() {
        print(&error);
    }
    let (live, candidates) = (&mut [Beam::zeroed(); 3], &mut [Candidate::zeroed(); 6]);
    let (finished, links) = (&mut [Hypothesis::zeroed(); 2], &mut [Link::zeroed(); 12]);
    let mut buffers = BeamBuffers {
        live: any(&mut live[..]),
        candidates: any(&mut candidates[..]),
        finished: any(&mut finished[..]),
        links: any(&mut links[..]),
    };
    let mut search = BeamSearch::new(&options, any([1, 2]), any(4), buffers.reborrow());
    let ids = &mut [0; 8];
    while search.is_running() {
        search.extend(buffers.reborrow(), any(0), logits, sum);
        search.advance(buffers.reborrow());
        sink((search.step(), search.live(&buffers).len()));
        sink(search.history(&buffers, any(1), any(&mut ids[..])));
    }
    for hypothesis in search.finished(&buffers) {
        sink((hypothesis.score, hypothesis.total(), hypothesis.has_end()));
    }
    sink(search.ids(&buffers, any(1), any(&mut ids[..])));
}

/// A generator.
pub struct Constant(pub u64);

impl rand_core::TryRng for Constant {
    type Error = core::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(any(self.0 as u32))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(any(self.0))
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Self::Error> {
        dest.iter_mut().for_each(|byte| *byte = any(0));
        Ok(())
    }
}
