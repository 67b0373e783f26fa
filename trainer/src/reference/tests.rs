//! The engine against candle, and candle against the definitions.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use model_format::config::{Family, ModelConfig, Positions, SourceFrame};

use super::layers::{cross_entropy, masked_softmax, sinusoids};
use super::*;
use crate::data::batch::Example;
use crate::engine::network::sinusoids as engine_sinusoids;
use crate::engine::tests::{architectures, decoders, every_choice, examples, families};
use crate::engine::{Dropout, DropoutRates, Workspace};

const NO_DROPOUT: DropoutRates = DropoutRates { residual: 0.0, attention: 0.0, activation: 0.0 };
const DROPOUT: DropoutRates = DropoutRates { residual: 0.2, attention: 0.1, activation: 0.15 };

/// A network with starting weights, every one moved, so that no bias is zero and no gamma one.
fn network(config: &ModelConfig) -> (Arc<Network>, Vec<f32>) {
    let network = Arc::new(Network::new(config).unwrap());
    let mut params = network.layout.init(5);
    for (i, p) in params.iter_mut().enumerate() {
        *p += 0.2 * (crate::rng::uniform(17, i as u64) - 0.5);
    }
    (network, params)
}

fn reference(network: &Arc<Network>, params: &[f32], dtype: DType) -> Reference {
    let reference = Reference::new(network, &Device::Cpu, dtype).unwrap();
    reference.set(params).unwrap();
    reference
}

fn engine_logits(network: &Network, params: &[f32], pairs: &Pairs) -> Vec<f32> {
    let mut workspace = Workspace::default();
    network.forward(params, pairs, None, &mut workspace);
    workspace.logits
}

/// The examples in two slices of different sizes, as two workers would get them.
fn slices(config: &ModelConfig, rates: DropoutRates) -> Vec<Slice> {
    let examples = examples(config);
    let parts = [&examples[..2], &examples[2..]];
    let slice = |(part, key): (&[Example], u64)| Slice {
        pairs: Pairs::pack(part, config),
        dropout: Dropout { key, rates },
    };
    parts.into_iter().zip(7..).map(slice).collect()
}

/// Loss and gradient of the engine, summed over slices.
fn engine_gradient(
    network: &Network,
    params: &[f32],
    slices: &[Slice],
    options: LossOptions,
) -> (Vec<f32>, LossSum) {
    let mut grads = vec![0.0; params.len()];
    let mut loss = LossSum::default();
    let mut workspace = Workspace::default();
    for Slice { pairs, dropout } in slices {
        network.forward(params, pairs, Some(dropout), &mut workspace);
        loss += network.loss(pairs, options, &mut workspace);
        network.backward(params, pairs, Some(dropout), &mut grads, &mut workspace);
    }
    (grads, loss)
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|v| v * v).sum::<f64>().sqrt()
}

/// Logits are of order 1. An `f32` is good to 6e-8; a logit is the end of a chain of about a hundred
/// sums and products, whose errors add up to some 1e-6. The same chain in `f64` is taken as exact.
#[test]
fn engine_and_candle_give_the_same_logits() {
    for config in every_choice().into_iter().chain(architectures()) {
        let (network, params) = network(&config);
        let pairs = Pairs::pack(&examples(&config), &config);
        let engine = engine_logits(&network, &params, &pairs);
        let exact = reference(&network, &params, DType::F64).logits(&pairs).unwrap();
        let single = reference(&network, &params, DType::F32).logits(&pairs).unwrap();
        assert_eq!(engine.len(), exact.len());
        assert!(norm(exact.iter().copied()) > 0.1 * (exact.len() as f64).sqrt(), "trivial logits");
        for ((&engine, &single), &exact) in engine.iter().zip(&single).zip(&exact) {
            assert!((f64::from(engine) - exact).abs() < 1e-5, "engine {engine}, exact {exact}");
            assert!((single - exact).abs() < 1e-5, "candle in f32 {single}, exact {exact}");
        }
    }
}

/// Compared tensor by tensor, as the distance of both over the exact norm: entries may cancel, norms
/// do not. The bound is an order above what the chain of products loses in `f32`.
#[test]
fn engine_and_candle_give_the_same_gradients_and_none_is_lost() {
    let configs = every_choice().into_iter().chain(architectures());
    for (config, rates) in configs.flat_map(|c| [(c, NO_DROPOUT), (c, DROPOUT)]) {
        let (network, params) = network(&config);
        let slices = slices(&config, rates);
        let options = LossOptions { smoothing: 0.1, scale: 0.125 };
        let (engine, engine_loss) = engine_gradient(&network, &params, &slices, options);
        let (exact, loss) =
            reference(&network, &params, DType::F64).gradient(&slices, options).unwrap();
        let (single, _) =
            reference(&network, &params, DType::F32).gradient(&slices, options).unwrap();
        assert_eq!(loss.tokens, engine_loss.tokens);
        assert!((loss.smoothed - engine_loss.smoothed).abs() < 1e-5 * loss.smoothed);
        assert!((loss.nll - engine_loss.nll).abs() < 1e-5 * loss.nll);
        for spec in &network.layout.specs {
            let part = |flat: &[f32]| flat[spec.range()].iter().map(|&g| f64::from(g)).collect();
            let [engine, exact, single]: [Vec<f64>; 3] =
                [part(&engine), part(&exact), part(&single)];
            let size = norm(exact.iter().copied());
            if spec.name.ends_with("key.bias") {
                // A constant added to all scores of a query changes nothing: the gradient is zero, and
                // what is left of it is rounding.
                assert!(size < 1e-9, "{}: {size}", spec.name);
                assert!(norm(engine.iter().copied()) < 1e-5, "{}", spec.name);
                continue;
            }
            assert!(size > 1e-4, "{} has no gradient", spec.name);
            for (name, other) in [("engine", engine), ("candle in f32", single)] {
                let distance = norm(other.iter().zip(&exact).map(|(a, b)| a - b));
                assert!(distance < 2e-5 * size, "{name}: {} is off by {distance}", spec.name);
            }
        }
    }
}

/// Padding contributes exactly nothing; what remains is that sums over rows of another length run in
/// another order, which `f64` shows to be all there is.
#[test]
fn a_padded_batch_gives_the_logits_of_each_sentence_alone() {
    for config in architectures() {
        let (network, params) = network(&config);
        let examples = examples(&config);
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-13)] {
            let reference = reference(&network, &params, dtype);
            let logits =
                |examples: &[Example]| reference.logits(&Pairs::pack(examples, &config)).unwrap();
            let alone: Vec<f64> =
                examples.iter().flat_map(|e| logits(std::slice::from_ref(e))).collect();
            let together = logits(&examples);
            assert_eq!(together.len(), alone.len());
            for (a, b) in together.iter().zip(&alone) {
                assert!((a - b).abs() < tolerance, "{a} in company, {b} alone");
            }
        }
    }
}

#[test]
fn the_ids_of_padding_change_no_bit() {
    let config = architectures()[0];
    let (network, params) = network(&config);
    let reference = reference(&network, &params, DType::F32);
    let pairs = Pairs::pack(&examples(&config), &config);
    let logits = |pad| {
        let batch = Batch::new(&[&pairs], pad, &Device::Cpu).unwrap();
        let logits = reference.network.forward(&batch, None).unwrap();
        let counts = batch.counts.unsqueeze(2).unwrap().to_dtype(DType::F32).unwrap();
        let logits = logits.broadcast_mul(&counts).unwrap();
        logits.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(logits(0), logits(7));
}

#[test]
fn the_future_does_not_change_the_past() {
    for config in decoders() {
        let (network, params) = network(&config);
        let reference = reference(&network, &params, DType::F32);
        let mut example = examples(&config)[2].clone();
        let logits =
            |example: &Example| reference.logits(&Pairs::pack([example], &config)).unwrap();
        let before = logits(&example);
        example.target[6] = if example.target[6] == 4 { 5 } else { 4 };
        let after = logits(&example);
        // Position 7 is the first that reads the changed symbol.
        let boundary = 7 * usize::from(config.target_vocab);
        assert_eq!(before[..boundary], after[..boundary]);
        assert_ne!(before[boundary..], after[boundary..]);
    }
}

/// A source without any id, beside one that has some: cross-attention has nothing to look at.
#[test]
fn a_query_that_sees_nothing_gets_zeros_in_both() {
    for config in decoders().filter(ModelConfig::has_cross_attention) {
        let (network, params) = network(&config);
        let mut pairs = Pairs::pack(&examples(&config)[..2], &config);
        pairs.source.push([]);
        pairs.target.push([1, 5]);
        pairs.labels.extend([5, 2]);
        let exact = reference(&network, &params, DType::F64).logits(&pairs).unwrap();
        let engine = engine_logits(&network, &params, &pairs);
        assert!(exact.iter().all(|logit| logit.is_finite()));
        for (&engine, &exact) in engine.iter().zip(&exact) {
            assert!((f64::from(engine) - exact).abs() < 1e-5, "engine {engine}, exact {exact}");
        }
    }
}

#[test]
fn softmax_hides_exactly_and_never_divides_by_zero() {
    let scores = [[1f32, f32::INFINITY, 3.0], [f32::NAN, 2.0, 5e8], [9.0, 9.0, 9.0]];
    let scores = Var::new(&scores, &Device::Cpu).unwrap();
    let visible = Tensor::new(&[[1u8, 0, 1], [0, 1, 0], [0, 0, 0]], &Device::Cpu).unwrap();
    let probs = masked_softmax(&scores, &visible).unwrap();
    let [a, b, c] = probs.to_vec2::<f32>().unwrap().try_into().unwrap();
    let p = 1.0 / (1.0 + 2f32.exp());
    assert!((a[0] - p).abs() < 1e-7 && a[1] == 0.0 && (a[2] - (1.0 - p)).abs() < 1e-7, "{a:?}");
    assert_eq!((b, c), (vec![0.0, 1.0, 0.0], vec![0.0; 3]));
    let gradients = probs.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(&scores).unwrap().to_vec2::<f32>().unwrap();
    assert!(gradient.concat().iter().all(|g| g.is_finite()));
    assert_eq!((gradient[0][1], &gradient[2]), (0.0, &vec![0.0; 3]));
}

#[test]
fn padding_and_pad_take_no_part_in_the_loss() {
    let logits =
        Tensor::new(&[[0.5f64, -1.0, 2.0, 0.1], [9.0, 9.0, -9.0, 3.0]], &Device::Cpu).unwrap();
    let labels = Tensor::new(&[2u32, 0], &Device::Cpu).unwrap();
    let counts = Tensor::new(&[1u8, 0], &Device::Cpu).unwrap();
    let x = [0.5f64, -1.0, 2.0, 0.1];
    let log_sum = x.iter().map(|v| v.exp()).sum::<f64>().ln();
    let expected_nll = log_sum - 2.0;
    // 0.7 at the label, and 0.3 spread over the three ids that are not pad, or over all four.
    let without_pad = 0.7 * expected_nll + 0.1 * (3.0 * log_sum - (-1.0 + 2.0 + 0.1));
    let over_all = 0.7 * expected_nll + 0.075 * (4.0 * log_sum - (0.5 - 1.0 + 2.0 + 0.1));
    let number = |x: Tensor| x.to_scalar::<f64>().unwrap();
    for (pad, expected) in [(Some(0), without_pad), (None, over_all)] {
        let (smoothed, nll) = cross_entropy(&logits, &labels, &counts, pad, 0.3).unwrap();
        assert!((number(nll) - expected_nll).abs() < 1e-12);
        assert!((number(smoothed) - expected).abs() < 1e-12);
    }
}

/// An encoder's sentence without any id, beside some that have ids.
#[test]
fn a_sentence_without_ids_gives_no_nan() {
    for family in families().into_iter().filter(ModelConfig::has_encoder) {
        let config = ModelConfig { source_frame: SourceFrame::Bare, ..family };
        let (network, params) = network(&config);
        let mut examples = examples(&config);
        let target = examples[0].target[..usize::from(config.family == Family::Classifier)].into();
        examples[0] = Example { source: Vec::new(), target };
        let pairs = Pairs::pack(&examples, &config);
        let exact = reference(&network, &params, DType::F64).logits(&pairs).unwrap();
        let engine = engine_logits(&network, &params, &pairs);
        assert_eq!(engine.len(), exact.len());
        for (&engine, &exact) in engine.iter().zip(&exact) {
            assert!((f64::from(engine) - exact).abs() < 1e-5, "engine {engine}, exact {exact}");
        }
        let dropout = Dropout { key: 3, rates: DROPOUT };
        let slices = [Slice { pairs, dropout }];
        let options = LossOptions { smoothing: 0.1, scale: 1.0 };
        let (gradient, _) =
            reference(&network, &params, DType::F32).gradient(&slices, options).unwrap();
        let (engine, _) = engine_gradient(&network, &params, &slices, options);
        assert!(gradient.iter().chain(&engine).all(|g| g.is_finite()));
    }
}

#[test]
fn both_compute_the_same_sinusoids() {
    for config in architectures() {
        let halves = match config.positions {
            Positions::Learned => continue,
            Positions::SinusoidalInterleaved => false,
            Positions::SinusoidalHalves => true,
        };
        let engine = engine_sinusoids(&config);
        let d_model = usize::from(config.d_model);
        let table = sinusoids(engine.len() / d_model, d_model, halves, &Device::Cpu).unwrap();
        let table: Vec<f64> = table.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(table.len(), engine.len());
        for (&a, &b) in engine.iter().zip(&table) {
            assert!((f64::from(a) - b).abs() < 1e-7, "{a} {b}");
        }
    }
}
