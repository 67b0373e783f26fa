//! Beam search of a whole session, with its caches in the arena, against PyTorch's.

use model_format::AlignedBytes;
use model_format::config::Precision as Stored;
use runtime::search::{BeamOptions, Constraints, Q16};
use runtime::{GenerateOptions, HalfFloat, Limits, Session, TypedModel, arena_len_with};

use crate::files::file;
use crate::fixture::{Beam, fixtures, folder};

/// Up to 8 log-probabilities are summed up, each rounded to 2^-16; logits themselves are good to 1e-5.
const SCORES: f64 = 2e-4;

/// Ids with their end id, and scores; the best first.
pub fn beam_search(
    model: &TypedModel<'_, HalfFloat>,
    arena: &mut [u8],
    (source, beam): (&[u16], &Beam),
) -> Vec<(Vec<u16>, f64)> {
    let config = model.model().config();
    let options = BeamOptions {
        beams: beam.beams as u16,
        n_best: beam.n as u16,
        length_penalty: Q16::from_f32(beam.alpha as f32).expect("an exponent"),
    };
    let limits = Limits::of(config).with_beams(options.beams);
    let mut session = Session::with_limits(model, arena, limits).expect("an arena of exact size");
    let generation = session.generate(source, &GenerateOptions::default()).expect("sound ids");
    let mut beams = generation.beams(&Constraints::default(), &options).expect("sound options");
    beams.run();
    let scored = beams.hypotheses().iter().map(|h| (h.has_end(), h.score)).collect::<Vec<_>>();
    let hypothesis = |(index, (has_end, score)): (usize, (bool, _))| {
        let mut ids = beams.ids(index).to_vec();
        ids.extend(has_end.then_some(config.special.end));
        (ids, number(score))
    };
    scored.into_iter().enumerate().map(hypothesis).collect()
}

fn number(score: runtime::search::LogProb) -> f64 {
    f64::from(score.to_bits()) / 65_536.0
}

#[test]
fn a_session_searches_beams_as_pytorch_does() {
    let (mut compared, mut worst) = (0, 0.0_f64);
    for fixture in fixtures(&folder()) {
        let file = file(&fixture, Stored::HalfFloat);
        let model = TypedModel::<HalfFloat>::from_bytes(&file).expect("a sound file");
        for beam in &fixture.facts.beam {
            let limits = Limits::of(fixture.config()).with_beams(beam.beams as u16);
            let len = arena_len_with(&file, limits).expect("a sound file");
            let mut arena = AlignedBytes::filled(0xA5, len);
            let source = fixture.facts.greedy[beam.sentence].source.as_deref();
            let found = beam_search(&model, &mut arena, (source.unwrap_or_default(), beam));
            let name = format!("{}: {} beams", fixture.name, beam.beams);
            assert_eq!(found.len(), beam.best.len(), "{name}");
            for ((ids, score), expected) in found.iter().zip(&beam.best) {
                assert_eq!(ids, &expected.ids, "{name}");
                worst = worst.max((score - expected.score).abs());
                compared += 1;
            }
        }
    }
    println!("{compared} hypotheses of sessions, scores off by {worst:.1e} at most");
    assert!(worst <= SCORES && compared > 500, "{worst:e}, {compared}");
}
