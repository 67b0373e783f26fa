//! Cross-attention weights on request.

use kiloformer_tests::random_model::{random_model, tiny};
use model_format::AlignedBytes;
use model_format::config::{ModelConfig, Precision as Stored, SourceFrame, StackConfig};
use runtime::{
    FixedPoint, GenerateOptions, HalfFloat, LogitsHash, Poll, Precision, Session, TypedModel,
    arena_len,
};

fn config() -> ModelConfig {
    let decoder = StackConfig { n_layers: 2, n_heads: 5, d_ff: 13 };
    ModelConfig { decoder, source_frame: SourceFrame::Bare, ..tiny() }
}

/// The weights of every head of every layer of one step.
type Step = Vec<(u16, u16, Vec<u16>)>;

/// All steps, and the hash of all logits.
fn steps<P: Precision>(session: &mut Session<'_, '_, P>, text: &str) -> (Vec<Step>, LogitsHash) {
    let mut hash = LogitsHash::default();
    let mut generation = session.generate_text(text, &GenerateOptions::default()).expect("a text");
    let mut steps = Vec::new();
    loop {
        let mut step = Vec::new();
        let id = generation.next_aligned(
            |_, logit| hash.push(logit),
            |seen| step.push((seen.layer, seen.head, seen.weights.to_vec())),
        );
        if !step.is_empty() {
            steps.push(step);
        }
        if id.is_none() {
            return (steps, hash);
        }
    }
}

fn every_head_shows_a_distribution<P: Precision>(file: &AlignedBytes) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut memory = AlignedBytes::filled(0xA5, arena_len(file));
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    for text in ["a", "queen", "zebra", "abcdefghijklmnopqrst"] {
        let (steps, hash) = steps(&mut session, text);
        let mut plain = LogitsHash::default();
        let mut generation =
            session.generate_text(text, &GenerateOptions::default()).expect("a text");
        let mut ids = 0;
        while generation.next_observed(|_, logit| plain.push(logit)).is_some() {
            ids += 1;
        }
        assert_eq!(hash, plain, "looking changes nothing");
        // The step that gave the end id is shown too.
        assert!((ids..=ids + 1).contains(&steps.len()));
        let places: Vec<_> =
            (0..2).flat_map(|layer| (0..5).map(move |head| (layer, head))).collect();
        for step in &steps {
            assert!(step.iter().map(|(layer, head, _)| (*layer, *head)).eq(places.clone()));
            for (_, _, weights) in step {
                assert_eq!(weights.len(), text.len());
                let sum: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
                assert!((sum - (1 << 15)).abs() <= weights.len() as i64 / 2 + 1, "{sum}");
            }
        }
        let first = &steps[0][0].2;
        assert!(text.len() == 1 || first.iter().any(|weight| weight != &first[0]), "{first:?}");
    }
}

#[test]
fn every_head_of_every_layer_shows_a_distribution_over_the_source() {
    every_head_shows_a_distribution::<FixedPoint>(&random_model(Stored::FixedPoint, &config(), 1));
    every_head_shows_a_distribution::<HalfFloat>(&random_model(Stored::HalfFloat, &config(), 1));
}

#[test]
fn polling_shows_the_same_weights() {
    let file = random_model(Stored::FixedPoint, &config(), 1);
    let model = TypedModel::<FixedPoint>::from_bytes(&file).expect("a sound model");
    let mut memory = AlignedBytes::filled(0, arena_len(&file));
    let mut session = Session::new(&model, &mut memory).expect("an arena of exact size");
    let (expected, _) = steps(&mut session, "queen");
    let budget = session.smallest_budget();
    let mut generation =
        session.generate_text("queen", &GenerateOptions::default()).expect("a text");
    let mut seen = Vec::new();
    loop {
        let poll = generation.poll_aligned(
            budget,
            |_, _| (),
            |attention| seen.push((attention.layer, attention.head, attention.weights.to_vec())),
        );
        if let Poll::Done(_) = poll.expect("enough") {
            break;
        }
    }
    assert_eq!(seen, expected.concat());
}
