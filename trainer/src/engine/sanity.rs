//! What no runtime could serve is refused, with the field's name and value.

use anyhow::{Result, bail, ensure};
use model_format::config::{ConfigField, Family, MAX_D_MODEL, ModelConfig, StackConfig};

/// Refuses what no runtime could serve, and vocabularies with nothing to say.
pub fn check(config: &ModelConfig) -> Result<()> {
    if let Some(field) = config.fault() {
        bail!("{}", explain(field, config));
    }
    let special = 4 - u16::from(config.special.start == config.special.pad);
    for (name, is_there, vocab) in [
        ("source", config.has_encoder(), config.source_vocab),
        ("target", config.has_decoder(), config.target_vocab),
    ] {
        ensure!(
            !is_there || vocab > special,
            "the {name} vocabulary needs a symbol besides the special ones"
        );
    }
    ensure!(config.has_decoder() || config.target_vocab > 1, "there must be two different labels");
    Ok(())
}

/// As [`check`], before the vocabularies are known.
pub fn check_without_vocabularies(config: &ModelConfig) -> Result<()> {
    let source_vocab = if config.has_encoder() { u16::MAX } else { 0 };
    check(&ModelConfig { source_vocab, target_vocab: u16::MAX, ..*config })
}

/// The family, for the reader.
pub const fn family_name(family: Family) -> &'static str {
    match family {
        Family::EncoderDecoder => "encoder-decoder model",
        Family::DecoderOnly => "decoder-only model",
        Family::Tagger => "tagger",
        Family::Classifier => "classifier",
    }
}

/// What is wrong with a field, by its name and value.
fn explain(field: ConfigField, config: &ModelConfig) -> String {
    let ModelConfig { d_model, encoder, decoder, special, .. } = config;
    let family = family_name(config.family);
    match field {
        ConfigField::DModel => format!(
            "d_model is {d_model}: it must be 1 to {MAX_D_MODEL}, and even with sinusoidal positions"
        ),
        ConfigField::EncoderLayers | ConfigField::EncoderHeads | ConfigField::EncoderDff => {
            explain_stack("encoder", field, encoder, config)
        }
        ConfigField::DecoderLayers | ConfigField::DecoderHeads | ConfigField::DecoderDff => {
            explain_stack("decoder", field, decoder, config)
        }
        ConfigField::MaxSourceLen if config.has_encoder() => "max_source_len is 0".into(),
        ConfigField::MaxTargetLen if config.has_decoder() => "max_target_len is 0".into(),
        ConfigField::MaxSourceLen => {
            format!("max_source_len is {}: a {family} has no encoder", config.max_source_len)
        }
        ConfigField::MaxTargetLen => {
            format!("max_target_len is {}: a {family} has no decoder", config.max_target_len)
        }
        ConfigField::Output => {
            format!("output is {:?}: a {family} has no target embedding", config.output)
        }
        ConfigField::SharedEmbedding => format!(
            "shared_embedding needs an encoder and a decoder with one vocabulary, not a {family} \
             with {} and {} symbols",
            config.source_vocab, config.target_vocab
        ),
        ConfigField::LayerNormEps => {
            format!("layer_norm_eps is {}: it must be between 0 and 1", config.layer_norm_eps)
        }
        ConfigField::SourceVocab if !config.has_encoder() => {
            format!("source_vocab is {}: a {family} has no encoder", config.source_vocab)
        }
        ConfigField::SourceVocab => {
            format!("source_vocab is {}: it must hold {special:?}", config.source_vocab)
        }
        ConfigField::TargetVocab if !config.has_decoder() => "target_vocab is 0: no label".into(),
        ConfigField::TargetVocab => {
            format!("target_vocab is {}: it must hold {special:?}", config.target_vocab)
        }
        ConfigField::SpecialIds => format!("special: {special:?} are not distinct"),
        other => format!("{other:?} has no usable value"),
    }
}

/// What is wrong with a stack that should have layers, or should not.
fn explain_stack(
    side: &str,
    field: ConfigField,
    stack: &StackConfig,
    config: &ModelConfig,
) -> String {
    let (name, value) = match field {
        ConfigField::EncoderLayers | ConfigField::DecoderLayers => ("n_layers", stack.n_layers),
        ConfigField::EncoderHeads | ConfigField::DecoderHeads => ("n_heads", stack.n_heads),
        _ => ("d_ff", stack.d_ff),
    };
    let is_there = if side == "encoder" { config.has_encoder() } else { config.has_decoder() };
    match (is_there, name) {
        (false, _) => {
            format!("{side}.{name} is {value}: a {} has no {side}", family_name(config.family))
        }
        (true, "n_heads") => {
            format!("{side}.n_heads is {value}: d_model {} is no multiple of it", config.d_model)
        }
        (true, _) => format!("{side}.{name} is {value}"),
    }
}

#[cfg(test)]
mod tests {
    use model_format::config::Output;

    use super::*;
    use crate::engine::Network;
    use crate::engine::tests::{architectures, families};

    #[test]
    fn what_cannot_be_is_refused_by_field_and_value() {
        let base = architectures()[0];
        let says = |config: ModelConfig, text: &str| {
            let error = Network::new(&config).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        says(ModelConfig { d_model: 13, ..base }, "d_model is 13");
        says(ModelConfig { d_model: 0, ..base }, "d_model is 0");
        let encoder = StackConfig { n_heads: 5, ..base.encoder };
        says(ModelConfig { encoder, ..base }, "encoder.n_heads is 5: d_model 12");
        let decoder = StackConfig { n_heads: 0, ..base.decoder };
        says(ModelConfig { decoder, ..base }, "decoder.n_heads is 0");
        says(ModelConfig { layer_norm_eps: f32::NAN, ..base }, "layer_norm_eps is NaN");
        says(ModelConfig { target_vocab: 4, ..base }, "the target vocabulary needs a symbol");
        says(ModelConfig { shared_embedding: true, ..base }, "with 9 and 11 symbols");
    }

    #[test]
    fn a_stack_that_the_family_lacks_is_refused_by_field_and_value() {
        let [language, tagger, classifier] = families();
        let says = |config: ModelConfig, text: &str| {
            let error = Network::new(&config).unwrap_err().to_string();
            assert_eq!(error, text);
        };
        let encoder = StackConfig { n_layers: 2, ..StackConfig::NONE };
        says(
            ModelConfig { encoder, ..language },
            "encoder.n_layers is 2: a decoder-only model has no encoder",
        );
        let decoder = StackConfig { d_ff: 8, ..StackConfig::NONE };
        says(ModelConfig { decoder, ..tagger }, "decoder.d_ff is 8: a tagger has no decoder");
        says(
            ModelConfig { output: Output::Tied, ..classifier },
            "output is Tied: a classifier has no target embedding",
        );
        says(ModelConfig { target_vocab: 1, ..tagger }, "there must be two different labels");
        says(
            ModelConfig { max_target_len: 5, ..tagger },
            "max_target_len is 5: a tagger has no decoder",
        );
        says(
            ModelConfig { max_source_len: 5, ..language },
            "max_source_len is 5: a decoder-only model has no encoder",
        );
    }
}
