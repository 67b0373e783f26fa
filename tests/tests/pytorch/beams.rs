//! The runtime's beam search, given the engine's logits, against PyTorch's.

use bytemuck::Zeroable;
use runtime::search::{
    Beam as Live, BeamBuffers, BeamOptions, BeamSearch, Candidate, Constraints, Filter, Hypothesis,
    Link, LogSumExp, Q16,
};
use trainer::data::batch::Pairs;

use crate::fixture::{Beam, Fixture, fixtures, folder};
use crate::network::engine_logits;

/// Up to 8 log-probabilities are summed up, each rounded to 2^-16; logits themselves are good to 1e-5.
const SCORES: f64 = 2e-4;

/// Logits after `ids`, the start id not among them.
fn logits_after(fixture: &Fixture, beam: &Beam, ids: &[u16]) -> Vec<f32> {
    let config = fixture.config();
    let mut pairs = Pairs::default();
    let source = fixture.facts.greedy[beam.sentence].source.as_deref().unwrap_or_default();
    pairs.source.push(source.iter().map(|&id| id.into()));
    pairs.target.push([config.special.start].iter().chain(ids).map(|&id| id.into()));
    let logits = engine_logits(fixture, &pairs);
    logits[logits.len() - usize::from(config.target_vocab)..].to_vec()
}

/// Ids with their end id, and scores; the best first.
fn search(fixture: &Fixture, beam: &Beam) -> Vec<(Vec<u16>, f64)> {
    let config = fixture.config();
    let max_len = config.max_target_len;
    let alpha = Q16::from_f32(beam.alpha as f32).expect("an exponent");
    let options =
        BeamOptions { beams: beam.beams as u16, n_best: beam.n as u16, length_penalty: alpha };
    let mut buffers = BeamBuffers {
        live: &mut vec![Live::zeroed(); beam.beams],
        candidates: &mut vec![Candidate::zeroed(); 2 * beam.beams],
        finished: &mut vec![Hypothesis::zeroed(); beam.n],
        links: &mut vec![Link::zeroed(); beam.beams * usize::from(max_len)],
    };
    let ends = [config.special.start, config.special.end];
    let mut search = BeamSearch::new(&options, ends, max_len, buffers.reborrow());
    let mut ids = vec![0; max_len.into()];
    while search.is_running() {
        for rank in 0..search.live(&buffers).len() {
            let len = search.history(&buffers, rank, &mut ids);
            let mut logits = logits_after(fixture, beam, &ids[..len]);
            let log_sum = LogSumExp::of(&logits, 0);
            Filter::new(&Constraints::default(), &config.special, &ids[..len], 0)
                .apply(&mut logits);
            search.extend(buffers.reborrow(), rank, &logits, (log_sum, 0));
        }
        search.advance(buffers.reborrow());
    }
    let found = search.finished(&buffers).iter().enumerate().map(|(index, hypothesis)| {
        let len = search.ids(&buffers, index, &mut ids);
        let end = hypothesis.has_end().then_some(config.special.end);
        let ids = ids[..len].iter().copied().chain(end).collect();
        (ids, f64::from(hypothesis.score.to_bits()) / 65_536.0)
    });
    found.collect()
}

#[test]
fn beam_search_finds_what_pytorch_finds() {
    let mut worst = 0.0_f64;
    let mut compared = 0;
    for fixture in fixtures(&folder()) {
        for beam in &fixture.facts.beam {
            let found = search(&fixture, beam);
            assert_eq!(found.len(), beam.best.len(), "{}", fixture.name);
            for ((ids, score), expected) in found.iter().zip(&beam.best) {
                assert_eq!(ids, &expected.ids, "{}: beams {}", fixture.name, beam.beams);
                worst = worst.max((score - expected.score).abs());
                compared += 1;
            }
        }
    }
    println!("{compared} hypotheses, scores off by {worst:.1e} at most");
    assert!(worst <= SCORES && compared > 500, "{worst:e}, {compared}");
}
