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
        max_source_len: 15,
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
            activation: Activation::Gelu,
            ..base
        },
        // One embedding for source, target and output.
        ModelConfig {
            source_vocab: base.target_vocab,
            shared_embedding: true,
            source_frame: SourceFrame::StartEnd,
            activation: Activation::GeluTanh,
            ..base
        },
        // As Marian has it.
        ModelConfig {
            source_vocab: base.target_vocab,
            shared_embedding: true,
            positions: Positions::SinusoidalHalves,
            output: Output::TiedBias,
            final_norm: false,
            activation: Activation::Silu,
            special: SpecialIds { pad: 10, start: 10, end: 0, unknown: 1 },
            ..post
        },
        ModelConfig {
            scale_embedding: false,
            source_frame: SourceFrame::Bare,
            activation: Activation::GeluTanh,
            ..post
        },
    ]
    .into_iter()
    .chain(families())
    .collect()
}

/// A language model, a tagger and a classifier, of odd sizes.
pub fn families() -> [ModelConfig; 3] {
    let base = ModelConfig {
        family: Family::Tagger,
        shared_embedding: false,
        scale_embedding: true,
        source_frame: SourceFrame::StartEnd,
        d_model: 15,
        encoder: StackConfig { n_layers: 2, n_heads: 3, d_ff: 19 },
        decoder: StackConfig::NONE,
        source_vocab: 9,
        target_vocab: 5,
        max_source_len: 15,
        max_target_len: 0,
        norm: NormPlace::Pre,
        final_norm: true,
        positions: Positions::Learned,
        output: Output::UntiedBias,
        activation: Activation::Gelu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    };
    let language = ModelConfig {
        family: Family::DecoderOnly,
        encoder: StackConfig::NONE,
        decoder: StackConfig { n_layers: 2, n_heads: 5, d_ff: 17 },
        source_vocab: 0,
        target_vocab: 11,
        max_source_len: 0,
        max_target_len: 12,
        output: Output::Tied,
        activation: Activation::Silu,
        ..base
    };
    let classifier = ModelConfig {
        family: Family::Classifier,
        source_frame: SourceFrame::End,
        output: Output::Untied,
        // Smooth: among five labels a single kink counts.
        activation: Activation::GeluTanh,
        norm: NormPlace::Post,
        ..base
    };
    [language, base, classifier]
}

type Choices = fn(ModelConfig) -> Vec<ModelConfig>;

/// Every combination of norms, positions and outputs of every family; what else there is to choose
/// varies among them.
pub fn every_choice() -> Vec<ModelConfig> {
    let choices: [Choices; 4] = [
        |c| [NormPlace::Pre, NormPlace::Post].map(|norm| ModelConfig { norm, ..c }).into(),
        |c| [true, false].map(|final_norm| ModelConfig { final_norm, ..c }).into(),
        |c| {
            [Positions::SinusoidalInterleaved, Positions::SinusoidalHalves, Positions::Learned]
                .map(|positions| ModelConfig { positions, ..c })
                .into()
        },
        |c| {
            let all = [Output::Untied, Output::UntiedBias, Output::Tied, Output::TiedBias];
            let possible = all.into_iter().filter(|output| !output.is_tied() || c.has_decoder());
            possible.map(|output| ModelConfig { output, ..c }).collect()
        },
    ];
    // Sinusoids need an even width.
    let even = families().map(|c| ModelConfig { d_model: 30, ..c });
    let base = [architectures()[0]].into_iter().chain(even).collect();
    let all = choices
        .into_iter()
        .fold(base, |all: Vec<ModelConfig>, choice| all.into_iter().flat_map(choice).collect());
    all.into_iter().enumerate().map(|(i, config)| varied(config, i as u64)).collect()
}

/// `config` with a choice of all that [`every_choice`] does not combine.
fn varied(config: ModelConfig, number: u64) -> ModelConfig {
    let pick = |which: u64, n: u64| (rng::key(&[number, which]) % n) as usize;
    let activations = [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];
    let frames = [SourceFrame::End, SourceFrame::StartEnd, SourceFrame::Bare];
    let shared_embedding = config.has_cross_attention() && pick(3, 2) == 1;
    ModelConfig {
        activation: activations[pick(0, 4)],
        source_frame: frames[pick(1, 3)],
        scale_embedding: pick(2, 2) == 1,
        shared_embedding,
        source_vocab: if shared_embedding { config.target_vocab } else { config.source_vocab },
        ..config
    }
}

/// Examples of different lengths, the shortest of one symbol.
pub fn examples(config: &ModelConfig) -> Vec<Example> {
    let ids = |key: u64, len: usize, first: u16, vocab: u16| -> Vec<u32> {
        let id = |i| {
            let place = rng::uniform(rng::key(&[key]), i) * f32::from(vocab - first);
            u32::from(first) + place as u32
        };
        (0..len as u64).map(id).collect()
    };
    let example = |s: usize, t: usize, i: u64| {
        let source = match config.has_encoder() {
            true => ids(2 * i, s, 3, config.source_vocab),
            false => Vec::new(),
        };
        let labels = |n| ids(2 * i + 1, n, 0, config.target_vocab);
        let target = match config.family {
            Family::EncoderDecoder | Family::DecoderOnly => {
                ids(2 * i + 1, t, 3, config.target_vocab)
            }
            Family::Tagger => labels(s),
            Family::Classifier => labels(1),
        };
        Example { source, target }
    };
    let sizes = [(1, 1), (5, 3), (13, 11), (8, 2), (2, 7)];
    sizes.into_iter().zip(0u64..).map(|((s, t), i)| example(s, t, i)).collect()
}

/// Those of [`architectures`] that have a decoder.
pub fn decoders() -> impl Iterator<Item = ModelConfig> {
    architectures().into_iter().filter(ModelConfig::has_decoder)
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
    let pairs = Pairs::pack(examples, &network.config);
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
                "{}: slope {slope}, gradient {norm}: {config:?}",
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
            network.forward(&params, &Pairs::pack(examples, &config), None, &mut workspace);
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
    for config in decoders() {
        let network = Network::new(&config).unwrap();
        let params = network.layout.init(3);
        let mut example = examples(&config)[2].clone();
        let vocab = usize::from(config.target_vocab);
        let logits = |example: &Example| {
            let mut workspace = Workspace::default();
            let pairs = Pairs::pack([example], &config);
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
    for config in decoders() {
        let network = Network::new(&config).unwrap();
        let params = network.layout.init(11);
        let examples = examples(&config);
        let is_language = config.family == Family::DecoderOnly;
        let given = |e: &Example| if is_language { e.target.clone() } else { e.source.clone() };
        let sources: Vec<Vec<u32>> = examples.iter().map(given).collect();
        let sources: Vec<&[u32]> = sources.iter().map(Vec::as_slice).collect();
        let vocab = usize::from(config.target_vocab);
        let special = config.special;
        for (decoded, source) in network.greedy(&params, &sources).iter().zip(sources) {
            let prompt = if is_language { source } else { &[] };
            let mut example = Example { source: source.to_vec(), target: prompt.to_vec() };
            let mut ended = false;
            while !ended && example.target.len() < usize::from(config.max_target_len) {
                let mut workspace = Workspace::default();
                let pairs = Pairs::pack([&example], &config);
                network.forward(&params, &pairs, None, &mut workspace);
                let row = &workspace.logits[example.target.len() * vocab..];
                let allowed =
                    (0..config.target_vocab).filter(|&id| id != special.pad && id != special.start);
                let best = allowed
                    .max_by(|&a, &b| row[usize::from(a)].total_cmp(&row[usize::from(b)]))
                    .unwrap();
                ended = best == special.end;
                if !ended {
                    example.target.push(best.into());
                }
            }
            assert_eq!((&decoded.ids[..], decoded.ended), (&example.target[prompt.len()..], ended));
        }
    }
}

#[test]
fn a_prompt_that_fills_the_limit_gets_nothing_more() {
    let [language, ..] = families();
    let network = Network::new(&language).unwrap();
    let params = network.layout.init(2);
    for len in [12, 13] {
        let prompt = vec![4; len];
        let decoded = network.greedy(&params, &[&prompt]);
        assert_eq!(decoded, [decode::Decoded { ids: Vec::new(), ended: false }]);
    }
}

#[test]
fn labels_are_the_largest_logits_of_each_symbol_or_sentence() {
    let [_, tagger, classifier] = families();
    for frame in [SourceFrame::End, SourceFrame::StartEnd, SourceFrame::Bare] {
        for config in [tagger, classifier] {
            let config = ModelConfig { source_frame: frame, ..config };
            let network = Network::new(&config).unwrap();
            let params = network.layout.init(4);
            let examples = examples(&config);
            let sources: Vec<&[u32]> = examples.iter().map(|e| e.source.as_slice()).collect();
            for (decoded, example) in network.greedy(&params, &sources).iter().zip(&examples) {
                assert!(decoded.ended && decoded.ids.len() == example.target.len());
                let mut workspace = Workspace::default();
                network.forward(&params, &Pairs::pack([example], &config), None, &mut workspace);
                let rows = workspace.logits.chunks_exact(config.target_vocab.into());
                assert_eq!(rows.len(), decoded.ids.len());
                for (row, &id) in rows.zip(&decoded.ids) {
                    assert!(row.iter().all(|&logit| logit <= row[id as usize]));
                }
            }
        }
    }
}

#[test]
fn a_source_without_symbols_gives_no_label_or_a_finite_one() {
    let [_, tagger, classifier] = families();
    for (config, labels) in [(tagger, 0), (classifier, 1)] {
        let config = ModelConfig { source_frame: SourceFrame::Bare, ..config };
        let network = Network::new(&config).unwrap();
        let params = network.layout.init(4);
        let decoded = network.greedy(&params, &[&[], &[4, 5]]);
        assert_eq!(decoded[0].ids.len(), labels);
        let example = Example { source: vec![], target: vec![2; labels] };
        let (loss, grads) = loss_and_gradient(&network, &params, &[example], None);
        assert!(loss.smoothed.is_finite() && grads.iter().all(|g| g.is_finite()));
    }
}
