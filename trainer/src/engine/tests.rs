//! The engine against finite differences, and against itself on single sentences.

use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, SourceFrame, SpecialIds,
    StackConfig,
};

use super::*;
use crate::data::batch::Example;
use crate::rng;

/// Small architectures that use every choice at least once.
pub fn architectures() -> Vec<ModelConfig> {
    let base = ModelConfig {
        family: Family::EncoderDecoder,
        shared_embedding: false,
        scale_embedding: true,
        source_frame: SourceFrame::End,
        d_model: 12,
        encoder: StackConfig { n_layers: 2, n_heads: 3, d_ff: 20 },
        decoder: StackConfig { n_layers: 2, n_heads: 2, d_ff: 18 },
        source_vocab: 9,
        target_vocab: 11,
        max_source_len: 14,
        max_target_len: 12,
        norm: NormPlace::Pre,
        final_norm: true,
        positions: Positions::SinusoidalInterleaved,
        output: Output::Tied,
        activation: Activation::Relu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    };
    let post = ModelConfig { norm: NormPlace::Post, ..base };
    vec![
        base,
        ModelConfig { final_norm: false, positions: Positions::Learned, ..base },
        ModelConfig { output: Output::UntiedBias, positions: Positions::SinusoidalHalves, ..base },
        ModelConfig { output: Output::TiedBias, ..post },
        ModelConfig {
            output: Output::Untied,
            final_norm: false,
            positions: Positions::Learned,
            ..post
        },
        // Odd sizes, and a decoder deeper than the encoder.
        ModelConfig {
            d_model: 15,
            encoder: StackConfig { n_layers: 1, n_heads: 5, d_ff: 7 },
            decoder: StackConfig { n_layers: 3, n_heads: 3, d_ff: 33 },
            positions: Positions::Learned,
            ..base
        },
    ]
}

/// Every combination of choices, at the sizes of the first of [`architectures`].
pub fn every_choice() -> Vec<ModelConfig> {
    let base = architectures()[0];
    let mut all = vec![base];
    let each = |all: Vec<ModelConfig>, f: fn(ModelConfig) -> Vec<ModelConfig>| {
        all.into_iter().flat_map(f).collect::<Vec<_>>()
    };
    all = each(all, |c| {
        [NormPlace::Pre, NormPlace::Post].map(|norm| ModelConfig { norm, ..c }).into()
    });
    all = each(all, |c| [true, false].map(|final_norm| ModelConfig { final_norm, ..c }).into());
    all = each(all, |c| {
        [Positions::SinusoidalInterleaved, Positions::SinusoidalHalves, Positions::Learned]
            .map(|positions| ModelConfig { positions, ..c })
            .into()
    });
    each(all, |c| {
        [Output::Tied, Output::TiedBias, Output::Untied, Output::UntiedBias]
            .map(|output| ModelConfig { output, ..c })
            .into()
    })
}

/// Examples of different lengths, the shortest of one symbol.
pub fn examples(config: &ModelConfig) -> Vec<Example> {
    let ids = |key: u64, len: usize, vocab: u16| -> Vec<u32> {
        let id = |i| 3 + (rng::uniform(rng::key(&[key]), i) * f32::from(vocab - 3)) as u32;
        (0..len as u64).map(id).collect()
    };
    [(1, 1), (5, 3), (13, 11), (8, 2), (2, 7)]
        .iter()
        .zip(0u64..)
        .map(|(&(s, t), i)| Example {
            source: ids(2 * i, s, config.source_vocab),
            target: ids(2 * i + 1, t, config.target_vocab),
        })
        .collect()
}

const DROPOUT: Dropout =
    Dropout { key: 99, rates: DropoutRates { residual: 0.2, attention: 0.1, activation: 0.15 } };

/// Loss of the packed examples, and its gradient.
pub fn loss_and_gradient(
    network: &Network,
    params: &[f32],
    examples: &[Example],
    dropout: Option<&Dropout>,
) -> (LossSum, Vec<f32>) {
    let pairs = Pairs::pack(examples, network.config.special);
    let mut workspace = Workspace::default();
    let mut grads = vec![0.0; params.len()];
    network.forward(params, &pairs, dropout, &mut workspace);
    let options = LossOptions { smoothing: 0.1, scale: 1.0 / pairs.labels.len() as f32 };
    let loss = network.loss(&pairs, options, &mut workspace);
    network.backward(params, &pairs, dropout, &mut grads, &mut workspace);
    (loss, grads)
}

#[test]
fn gradients_match_finite_differences() {
    for (config, dropout) in architectures().iter().flat_map(|c| [(c, None), (c, Some(&DROPOUT))]) {
        let network = Network::new(config).unwrap();
        let params = network.layout.init(5);
        let examples = examples(config);
        let (_, grads) = loss_and_gradient(&network, &params, &examples, dropout);
        for spec in &network.layout.specs {
            // The derivative along the gradient of one tensor is that gradient's norm.
            let gradient = &grads[spec.range()];
            let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
            if spec.name.ends_with("key.bias") {
                // A constant added to all scores of a query changes nothing.
                assert!(norm < 1e-5, "{}: {norm}", spec.name);
                continue;
            }
            assert!(norm > 1e-5, "{} has no gradient", spec.name);
            let h = 1e-3;
            let at = |sign: f32| {
                let mut moved = params.clone();
                for (p, g) in moved[spec.range()].iter_mut().zip(gradient) {
                    *p += sign * h * g / norm;
                }
                let (loss, _) = loss_and_gradient(&network, &moved, &examples, dropout);
                loss.smoothed / loss.tokens as f64
            };
            let slope = (at(1.0) - at(-1.0)) / (2.0 * f64::from(h));
            // The loss is good to about 1e-7, so the slope to 1e-4; kinks of ReLU add a little.
            let error = (slope - f64::from(norm)).abs();
            assert!(
                error < 0.02 * f64::from(norm) + 3e-4,
                "{:?} {}: slope {slope}, gradient {norm}",
                config.norm,
                spec.name
            );
        }
    }
}

#[test]
fn a_sentence_has_the_same_logits_alone_and_in_company() {
    for config in architectures() {
        let network = Network::new(&config).unwrap();
        let params = network.layout.init(3);
        let examples = examples(&config);
        let logits = |examples: &[Example]| {
            let mut workspace = Workspace::default();
            network.forward(&params, &Pairs::pack(examples, config.special), None, &mut workspace);
            workspace.logits
        };
        let together = logits(&examples);
        let alone: Vec<f32> =
            examples.iter().flat_map(|e| logits(std::slice::from_ref(e))).collect();
        assert_eq!(together.len(), alone.len());
        // Equal in exact arithmetic; matrix products of other sizes may sum in another order.
        for (a, b) in together.iter().zip(&alone) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
}

#[test]
fn the_future_does_not_change_the_past() {
    for config in architectures() {
        let network = Network::new(&config).unwrap();
        let params = network.layout.init(3);
        let mut example = examples(&config)[2].clone();
        let vocab = usize::from(config.target_vocab);
        let logits = |example: &Example| {
            let mut workspace = Workspace::default();
            let pairs = Pairs::pack([example], config.special);
            network.forward(&params, &pairs, None, &mut workspace);
            workspace.logits
        };
        let before = logits(&example);
        example.target[6] = if example.target[6] == 4 { 5 } else { 4 };
        let after = logits(&example);
        // Position 7 is the first that reads the changed symbol.
        assert_eq!(before[..7 * vocab], after[..7 * vocab]);
        assert_ne!(before[7 * vocab..], after[7 * vocab..]);
    }
}

#[test]
fn greedy_with_a_cache_equals_greedy_without() {
    for config in architectures() {
        let network = Network::new(&config).unwrap();
        let params = network.layout.init(11);
        let examples = examples(&config);
        let sources: Vec<&[u32]> = examples.iter().map(|e| e.source.as_slice()).collect();
        let vocab = usize::from(config.target_vocab);
        for (decoded, source) in network.greedy(&params, &sources).iter().zip(sources) {
            let mut example = Example { source: source.to_vec(), target: Vec::new() };
            let mut ended = false;
            while !ended && example.target.len() < usize::from(config.max_target_len) {
                let mut workspace = Workspace::default();
                let pairs = Pairs::pack([&example], config.special);
                network.forward(&params, &pairs, None, &mut workspace);
                let row = &workspace.logits[example.target.len() * vocab..];
                let best = (2..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
                ended = best == 2;
                if !ended {
                    example.target.push(best as u32);
                }
            }
            assert_eq!((&decoded.ids, decoded.ended), (&example.target, ended));
        }
    }
}
