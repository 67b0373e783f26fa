//! The trainer's engine and its candle reference against PyTorch.

use candle_core::{DType, Device};
use trainer::data::batch::Pairs;
use trainer::engine::{Dropout, DropoutRates, LossOptions, Workspace};
use trainer::reference::Reference;
use trainer::workers::Slice;

use crate::fixture::{Beam, Fixture, fixtures, folder};
use crate::{ACTIVATIONS, Worst, best_id};

/// Largest difference of a gradient, over the largest of its tensor.
const GRADIENTS: f64 = 1e-4;
/// What a gradient may be off in any case: that of a key's bias is zero, and what is computed of it
/// is rounding.
const GRADIENT_FLOOR: f64 = 1e-7;

fn reference(fixture: &Fixture) -> Reference {
    let model = fixture.model();
    let reference = Reference::new(&fixture.network(), &Device::Cpu, DType::F32);
    let reference = reference.expect("candle takes the network");
    reference.set(&model.params).expect("candle takes the weights");
    reference
}

/// Packed logits `[targets, vocab]` of the trainer's engine.
pub fn engine_logits(fixture: &Fixture, pairs: &Pairs) -> Vec<f32> {
    let model = fixture.model();
    let mut workspace = Workspace::default();
    model.network.forward(&model.params, pairs, None, &mut workspace);
    workspace.logits
}

fn candle_logits(fixture: &Fixture, pairs: &Pairs) -> Vec<f32> {
    let logits = reference(fixture).logits(pairs).expect("candle computes");
    logits.into_iter().map(|logit| logit as f32).collect()
}

/// Both implementations, by name.
type Logits = fn(&Fixture, &Pairs) -> Vec<f32>;
const BOTH: [(&str, Logits); 2] = [("engine", engine_logits), ("candle", candle_logits)];

#[test]
fn engine_and_candle_give_the_logits_of_pytorch() {
    let mut worst = Worst::default();
    for fixture in fixtures(&folder()) {
        let expected = fixture.packed_logits();
        for (who, logits) in BOTH {
            let found = logits(&fixture, &fixture.pairs());
            worst.compare(&format!("{}: {who}", fixture.name), &found, &expected);
        }
    }
    worst.is_within("logits", ACTIVATIONS);
}

#[test]
fn engine_has_every_activation_of_pytorch() {
    let mut worst = Worst::default();
    for fixture in fixtures(&folder()) {
        let model = fixture.model();
        for (b, sentence) in fixture.sentences().iter().enumerate() {
            let mut missing = fixture.names("activations.");
            let mut compare = |name: &str, values: &[f32], _: &[usize]| {
                if let Some(at) = missing.iter().position(|wanted| wanted == name) {
                    missing.swap_remove(at);
                    let expected = fixture.activation(name, b, sentence);
                    worst.compare(&format!("{}: {name}", fixture.name), values, &expected);
                }
            };
            model.forward_observed(&sentence.source, &sentence.target, &mut compare);
            assert!(missing.is_empty(), "{}: never seen: {missing:?}", fixture.name);
        }
    }
    worst.is_within("activations", ACTIVATIONS);
}

/// Loss and gradient of the whole batch by the engine.
fn engine_gradient(fixture: &Fixture, options: LossOptions) -> (f64, Vec<f32>) {
    let (model, pairs) = (fixture.model(), fixture.pairs());
    let mut workspace = Workspace::default();
    let mut gradient = vec![0.0; model.params.len()];
    model.network.forward(&model.params, &pairs, None, &mut workspace);
    let loss = model.network.loss(&pairs, options, &mut workspace);
    model.network.backward(&model.params, &pairs, None, &mut gradient, &mut workspace);
    (loss.smoothed_mean(), gradient)
}

fn candle_gradient(fixture: &Fixture, options: LossOptions) -> (f64, Vec<f32>) {
    let rates = DropoutRates { residual: 0.0, attention: 0.0, activation: 0.0 };
    let slice = Slice { pairs: fixture.pairs(), dropout: Dropout { key: 0, rates } };
    let gradient = reference(fixture).gradient(&[slice], options);
    let (gradient, loss) = gradient.expect("every parameter has a gradient");
    (loss.smoothed_mean(), gradient)
}

#[test]
fn engine_and_candle_give_the_loss_and_every_gradient_of_pytorch() {
    type Gradient = fn(&Fixture, LossOptions) -> (f64, Vec<f32>);
    let both: [(&str, Gradient); 2] = [("engine", engine_gradient), ("candle", candle_gradient)];
    let mut worst = Worst::default();
    for fixture in fixtures(&folder()) {
        let network = fixture.network();
        let scale = 1.0 / fixture.pairs().labels.len() as f32;
        let options = LossOptions { smoothing: fixture.facts.smoothing, scale };
        for (who, gradient) in both {
            let (loss, found) = gradient(&fixture, options);
            let expected = fixture.facts.loss;
            assert!((loss - expected).abs() < 1e-5 * expected, "{}: {who} {loss}", fixture.name);
            for spec in &network.layout.specs {
                let name = format!("{}: {who}: {}", fixture.name, spec.name);
                let expected = fixture.numbers(&format!("gradients.{}", spec.name));
                worst.compare_above(&name, &found[spec.range()], expected, GRADIENT_FLOOR);
            }
        }
    }
    worst.is_within("gradients", GRADIENTS);
}

/// Reads PyTorch's greedy answers, and must want the same id next, for the same logits.
#[test]
fn engine_and_candle_choose_the_greedy_tokens_of_pytorch() {
    let mut worst = Worst::default();
    for fixture in fixtures(&folder()) {
        let (config, mut pairs) = (*fixture.config(), Pairs::default());
        let mut first_rows = Vec::new();
        for answer in &fixture.facts.greedy {
            first_rows.push(pairs.labels.len() + answer.prompt.len());
            let ids: Vec<u32> =
                answer.prompt.iter().chain(&answer.ids).map(|&id| id.into()).collect();
            pairs.source.push(answer.source.iter().flatten().map(|&id| id.into()));
            let read = ids[..ids.len() - 1].iter().copied();
            pairs.target.push([u32::from(config.special.start)].into_iter().chain(read));
            pairs.labels.extend(ids);
        }
        if pairs.labels.is_empty() {
            continue;
        }
        let vocab = usize::from(config.target_vocab);
        for (who, logits) in BOTH {
            let name = format!("{}: {who}", fixture.name);
            let logits = logits(&fixture, &pairs);
            let mut found = Vec::new();
            for (&first, answer) in first_rows.iter().zip(&fixture.facts.greedy) {
                let rows = &logits[first * vocab..][..answer.ids.len() * vocab];
                found.extend_from_slice(rows);
                let ids: Vec<u16> = rows.chunks_exact(vocab).map(|r| best_id(&config, r)).collect();
                assert_eq!(ids, answer.ids, "{name}");
            }
            worst.compare(&name, &found, fixture.numbers("greedy_logits"));
        }
    }
    worst.is_within("greedy logits", ACTIVATIONS);
}

/// The engine's own search, which keeps keys and values in caches.
#[test]
fn engine_says_what_pytorch_says() {
    for fixture in fixtures(&folder()) {
        let (model, config) = (fixture.model(), fixture.config());
        let (sentences, greedy) = (fixture.sentences(), &fixture.facts.greedy);
        let prompts: Vec<Vec<u32>> = greedy
            .iter()
            .map(|answer| answer.prompt.iter().map(|&id| id.into()).collect())
            .collect();
        let inputs: Vec<&[u32]> = match config.has_encoder() {
            true => sentences.iter().map(|sentence| sentence.symbols(config)).collect(),
            false => prompts.iter().map(Vec::as_slice).collect(),
        };
        let found = model.network.greedy(&model.params, &inputs);
        let wanted: Vec<Vec<u16>> = match config.has_decoder() {
            true => greedy.iter().map(|answer| answer.ids.clone()).collect(),
            false => fixture.best_labels(),
        };
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(wanted) {
            let mut ids: Vec<u16> = found.ids.iter().map(|&id| id as u16).collect();
            ids.extend((config.has_decoder() && found.ended).then_some(config.special.end));
            assert_eq!(ids, wanted, "{}", fixture.name);
        }
    }
}

/// What a hypothesis of PyTorch's beam search is worth by the engine's logits: the sum of its
/// log-probabilities over length^alpha.
fn engine_score(fixture: &Fixture, beam: &Beam, ids: &[u16]) -> f64 {
    let config = fixture.config();
    let ids: Vec<u32> = ids.iter().map(|&id| id.into()).collect();
    let mut pairs = Pairs::default();
    let source = fixture.facts.greedy[beam.sentence].source.as_deref().unwrap_or_default();
    pairs.source.push(source.iter().map(|&id| id.into()));
    let start = u32::from(config.special.start);
    pairs.target.push([start].into_iter().chain(ids[..ids.len() - 1].iter().copied()));
    let logits = engine_logits(fixture, &pairs);
    let rows = logits.chunks_exact(config.target_vocab.into());
    let log_probability = |(row, &id): (&[f32], &u32)| {
        let sum: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
        f64::from(row[id as usize]) - sum.ln()
    };
    let sum: f64 = rows.zip(&ids).map(log_probability).sum();
    sum / (ids.len() as f64).powf(beam.alpha)
}

/// Logits near 3 are good to 1e-5, and at most 8 of them are summed up.
#[test]
fn hypotheses_of_pytorch_are_worth_their_scores() {
    let (mut compared, mut wide) = (0, 0);
    for fixture in fixtures(&folder()) {
        let end = fixture.config().special.end;
        for beam in &fixture.facts.beam {
            wide += usize::from(beam.beams > fixture.config().target_vocab.into());
            assert!(!beam.best.is_empty() && beam.best.len() <= beam.n, "{}", fixture.name);
            assert!(beam.best.is_sorted_by(|a, b| a.score >= b.score), "{}", fixture.name);
            for hypothesis in &beam.best {
                let (ids, score) = (&hypothesis.ids, hypothesis.score);
                let is_whole = ids.ends_with(&[end])
                    || ids.len() == usize::from(fixture.config().max_target_len);
                assert!(is_whole, "{}: {ids:?}", fixture.name);
                let found = engine_score(&fixture, beam, ids);
                assert!((found - score).abs() < 1e-4, "{}: {found}, not {score}", fixture.name);
                compared += 1;
            }
        }
    }
    assert!(compared > 500 && wide > 50, "{compared} hypotheses, {wide} wide beams");
}
