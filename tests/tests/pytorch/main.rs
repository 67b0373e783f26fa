//! Level 3: PyTorch is the judge. The fixtures of `tests/pytorch/` hold what it computes, for every
//! option of a model; the README there says how they are made and why the tolerances are what they are.

mod beams;
mod files;
mod fixture;
mod live;
mod network;
mod sessions;

use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, SourceFrame,
};

/// Largest difference of a logit or of any other activation, over the largest of its tensor.
const ACTIVATIONS: f64 = 1e-5;

/// The largest difference so far, over the largest number of its tensor.
#[derive(Default)]
struct Worst {
    ratio: f64,
    name: String,
}

impl Worst {
    /// Compares a tensor, which may not be empty or all zero.
    fn compare(&mut self, name: &str, found: &[f32], expected: &[f32]) {
        let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
        assert!(largest > 0.0, "{name}: nothing to compare with");
        self.compare_above(name, found, expected, 0.0);
    }

    /// Compares a tensor; differences up to `floor` do not matter.
    fn compare_above(&mut self, name: &str, found: &[f32], expected: &[f32], floor: f64) {
        assert_eq!(found.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
        for (&found, &expected) in found.iter().zip(expected) {
            assert!(found.is_finite(), "{name}: {found}");
            let difference = f64::from((found - expected).abs());
            let ratio = difference / f64::from(largest);
            if difference > floor && ratio > self.ratio {
                *self = Self { ratio, name: name.to_owned() };
            }
        }
    }

    /// Prints and checks it.
    fn is_within(&self, what: &str, tolerance: f64) {
        println!("{what}: at most {:.1e} of the largest ({})", self.ratio, self.name);
        assert!(self.ratio <= tolerance, "{}: {:e} > {tolerance:e}", self.name, self.ratio);
    }
}

/// Greedy search's choice: the largest logit, the lowest id among equals; a decoder never says pad or
/// start.
fn best_id(config: &ModelConfig, logits: &[f32]) -> u16 {
    let is_silent = |id| id == config.special.pad || id == config.special.start;
    let allowed = (0u16..).zip(logits).filter(|(id, _)| !config.has_decoder() || !is_silent(*id));
    let best = allowed.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.expect("a symbol").0
}

#[test]
fn every_value_of_every_option_has_a_fixture() {
    let configs: Vec<ModelConfig> =
        fixture::fixtures(&fixture::folder()).iter().map(|fixture| *fixture.config()).collect();
    let has = |what: &str, has: &dyn Fn(&ModelConfig) -> bool| {
        assert!(configs.iter().any(has), "no fixture with {what}");
    };
    use Family::{Classifier, DecoderOnly, EncoderDecoder, Tagger};
    for family in [EncoderDecoder, DecoderOnly, Tagger, Classifier] {
        for norm in [NormPlace::Pre, NormPlace::Post] {
            has(&format!("{family:?} {norm:?}"), &|c| c.family == family && c.norm == norm);
        }
    }
    for norm in [NormPlace::Pre, NormPlace::Post] {
        for last in [true, false] {
            has(&format!("{norm:?} {last}"), &|c| c.norm == norm && c.final_norm == last);
        }
    }
    use Positions::{Learned, SinusoidalHalves, SinusoidalInterleaved};
    for positions in [SinusoidalInterleaved, SinusoidalHalves, Learned] {
        has(&format!("{positions:?}"), &|c| c.positions == positions);
    }
    for output in [Output::Tied, Output::TiedBias, Output::Untied, Output::UntiedBias] {
        has(&format!("{output:?}"), &|c| c.output == output);
    }
    for activation in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        has(&format!("{activation:?}"), &|c| c.activation == activation);
    }
    for frame in [SourceFrame::End, SourceFrame::StartEnd, SourceFrame::Bare] {
        has(&format!("{frame:?}"), &|c| c.source_frame == frame);
    }
    for tied in [true, false] {
        has("a shared embedding", &|c| c.shared_embedding && c.output.is_tied() == tied);
    }
    has("an unscaled embedding", &|c| !c.scale_embedding);
    has("stacks of unequal depth", &|c| c.encoder.n_layers != c.decoder.n_layers);
    has("stacks of unequal heads", &|c| c.encoder.n_heads != c.decoder.n_heads);
    has("heads of an odd size", &|c| c.encoder_d_k() % 2 == 1 && c.decoder_d_k() % 2 == 1);
    has("a start id that is pad", &|c| c.special.start == c.special.pad);
    has("another epsilon", &|c| c.layer_norm_eps > 5e-4);
}
