//! Exported files in the runtime against PyTorch: HalfFloat, then FixedPoint.

use model_format::AlignedBytes;
use model_format::config::{ModelConfig, Precision as Stored};
use model_format::formats::ActivationSlot;
use runtime::{
    FixedPoint, GenerateOptions, HalfFloat, Precision, Session, StopReason, TypedModel, arena_len,
};
use trainer::data::corpus::Pair;
use trainer::export::export;

use crate::fixture::{Fixture, Greedy, fixtures, folder};
use crate::{ACTIVATIONS, Worst, best_id};

/// Largest distance of all FixedPoint logits of a model from those of PyTorch, over what 8-bit weights,
/// keys and values alone cost in PyTorch. Measured: 1.25; 16-bit activations add little, and chance
/// takes or gives some.
const FIXED_DISTANCE: f64 = 1.5;

/// The file of a fixture's model, its ranges taken from the sentences that are compared.
pub fn file(fixture: &Fixture, precision: Stored) -> AlignedBytes {
    let (model, config) = (fixture.model(), fixture.config());
    let text = |ids: &[u32]| ids.iter().map(|id| format!("s{id}")).collect::<Vec<_>>().join(" ");
    let pair = |source: &[u32], target: &[u32]| Pair {
        source: text(source),
        target: text(target),
        line: 1,
    };
    let mut pairs = Vec::new();
    for (b, sentence) in fixture.sentences().iter().enumerate() {
        let symbols = sentence.symbols(config);
        let read = if config.has_decoder() { &sentence.target[1..] } else { &sentence.labels };
        pairs.push(pair(symbols, read));
        if let Some(Greedy { prompt, ids, .. }) = fixture.facts.greedy.get(b) {
            // The last id is not read.
            let read = prompt.iter().chain(ids).take(prompt.len() + ids.len() - 1);
            pairs.push(pair(symbols, &read.map(|&id| id.into()).collect::<Vec<_>>()));
        }
    }
    let file = export(&model, precision, &pairs);
    file.unwrap_or_else(|error| panic!("{}: {error:#}", fixture.name))
}

/// What PyTorch says to one input.
struct Expected {
    /// What the runtime is given.
    input: Vec<u16>,
    /// Ids, the end id included where it was reached, or labels.
    ids: Vec<u16>,
    /// `[ids, target_vocab]`
    logits: Vec<f32>,
}

/// All inputs of a fixture.
fn expected(fixture: &Fixture) -> Vec<Expected> {
    let config = fixture.config();
    let vocab = usize::from(config.target_vocab);
    if !config.has_decoder() {
        let sentences = fixture.sentences();
        let labelled = sentences.iter().enumerate().map(|(b, sentence)| {
            let logits = fixture.activation("logits", b, sentence);
            let ids = logits.chunks_exact(vocab).map(|row| best_id(config, row)).collect();
            let input = sentence.source.iter().map(|&id| id as u16).collect();
            Expected { input, ids, logits }
        });
        return labelled.collect();
    }
    let mut rows = fixture.numbers("greedy_logits").chunks_exact(vocab);
    let answers = fixture.facts.greedy.iter().map(|answer| Expected {
        input: answer.source.as_ref().unwrap_or(&answer.prompt).clone(),
        ids: answer.ids.clone(),
        logits: rows.by_ref().take(answer.ids.len()).flatten().copied().collect(),
    });
    answers.collect()
}

/// Ids, the end id included where it was reached, and the logits of all steps.
pub fn generate<P: Precision>(
    session: &mut Session<'_, '_, P>,
    input: &[u16],
    options: &GenerateOptions<'_>,
    end: u16,
    number: impl Fn(P::Logit) -> f32,
) -> (Vec<u16>, Vec<f32>) {
    let (mut ids, mut logits) = (Vec::new(), Vec::new());
    let mut generation = session.generate(input, options).expect("sound ids");
    while let Some(id) = generation.next_observed(|_, logit| logits.push(number(logit))) {
        ids.push(id);
    }
    if generation.stop_reason() == Some(StopReason::EndToken) {
        ids.push(end);
    }
    (ids, logits)
}

#[test]
fn half_float_gives_the_tokens_and_logits_of_pytorch() {
    let mut worst = Worst::default();
    for fixture in fixtures(&folder()) {
        let file = file(&fixture, Stored::HalfFloat);
        let model = TypedModel::<HalfFloat>::from_bytes(&file).expect("a sound file");
        let mut arena = AlignedBytes::filled(0, arena_len(&file));
        let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
        let options = GenerateOptions::default();
        for expected in expected(&fixture) {
            let end = fixture.config().special.end;
            let (ids, logits) =
                generate(&mut session, &expected.input, &options, end, |logit| logit);
            assert_eq!(ids, expected.ids, "{}: {:?}", fixture.name, expected.input);
            worst.compare(&fixture.name, &logits, &expected.logits);
        }
    }
    worst.is_within("HalfFloat logits", ACTIVATIONS);
}

/// All logits of all inputs in FixedPoint. Every step reads the ids that PyTorch chose before it, so
/// that each can be compared.
fn fixed_logits(config: &ModelConfig, file: &AlignedBytes, inputs: &[Expected]) -> Vec<f32> {
    let model = TypedModel::<FixedPoint>::from_bytes(file).expect("a sound file");
    let format = model.model().formats().get(ActivationSlot::Logits);
    let number = |logit: i32| logit as f32 * 2f32.powi(-i32::from(format.frac_bits));
    let mut arena = AlignedBytes::filled(0, arena_len(file));
    let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
    let mut logits = Vec::new();
    let mut run = |input: &[u16], options| {
        logits.extend(generate(&mut session, input, &options, config.special.end, number).1);
    };
    for Expected { input, ids, .. } in inputs {
        if !config.has_decoder() {
            run(input, GenerateOptions::default());
            continue;
        }
        for before in (0..ids.len()).map(|step| &ids[..step]) {
            let max_len = Some(1);
            match config.has_encoder() {
                true => run(input, GenerateOptions { max_len, prefix: before }),
                false => run(&[input, before].concat(), GenerateOptions { max_len, prefix: &[] }),
            }
        }
    }
    logits
}

/// Length of a vector.
fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn fixed_point_is_as_close_to_pytorch_as_8_bits_are() {
    let (mut steps, mut equal, mut worst) = (0, 0, 0.0);
    for fixture in fixtures(&folder()) {
        let config = fixture.config();
        let inputs = expected(&fixture);
        let found = fixed_logits(config, &file(&fixture, Stored::FixedPoint), &inputs);
        let wanted: Vec<f32> = inputs.iter().flat_map(|input| input.logits.clone()).collect();
        assert_eq!(found.len(), wanted.len());
        let distance = norm(found.iter().zip(&wanted).map(|(a, b)| a - b));
        let ratio = distance / norm(wanted.iter().copied()) / fixture.facts.quantization;
        assert!(ratio <= FIXED_DISTANCE, "{}: {ratio}", fixture.name);
        worst = f64::max(worst, ratio);
        let vocab = usize::from(config.target_vocab);
        for (found, wanted) in found.chunks_exact(vocab).zip(wanted.chunks_exact(vocab)) {
            steps += 1;
            equal += usize::from(best_id(config, found) == best_id(config, wanted));
        }
    }
    println!(
        "FixedPoint: {equal} of {steps} ids of PyTorch; distance at most {worst:.2} of that of 8 bits"
    );
    // A wrong sign or scale anywhere leaves no more than chance.
    assert!(equal * 100 > steps * 95);
}
