//! What no runtime could serve is refused, with the field's name and value.

use anyhow::{Result, bail, ensure};
use model_format::config::{ConfigField, Family, MAX_D_MODEL, ModelConfig};

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
    let ModelConfig { d_model, encoder, decoder, special, source_vocab, target_vocab, .. } = config;
    let family = family_name(config.family);
    match field {
        ConfigField::DModel => format!(
            "d_model is {d_model}: it must be 1 to {MAX_D_MODEL}, and even with sinusoidal positions"
        ),
        ConfigField::EncoderLayers => size("encoder.n_layers", encoder.n_layers, config),
        ConfigField::EncoderHeads => heads("encoder.n_heads", encoder.n_heads, config),
        ConfigField::EncoderDff => size("encoder.d_ff", encoder.d_ff, config),
        ConfigField::DecoderLayers => size("decoder.n_layers", decoder.n_layers, config),
        ConfigField::DecoderHeads => heads("decoder.n_heads", decoder.n_heads, config),
        ConfigField::DecoderDff => size("decoder.d_ff", decoder.d_ff, config),
        ConfigField::MaxSourceLen => size("max_source_len", config.max_source_len, config),
        ConfigField::MaxTargetLen => size("max_target_len", config.max_target_len, config),
        ConfigField::Output => {
            format!("output is {:?}: a {family} has no target embedding", config.output)
        }
        ConfigField::SharedEmbedding => format!(
            "shared_embedding needs an encoder and a decoder with one vocabulary, not a {family} \
             with {source_vocab} and {target_vocab} symbols"
        ),
        ConfigField::LayerNormEps => {
            format!("layer_norm_eps is {}: it must be between 0 and 1", config.layer_norm_eps)
        }
        ConfigField::SourceVocab if config.has_encoder() => {
            format!("source_vocab is {source_vocab}: it must hold {special:?}")
        }
        ConfigField::SourceVocab => size("source_vocab", *source_vocab, config),
        ConfigField::TargetVocab if config.has_decoder() => {
            format!("target_vocab is {target_vocab}: it must hold {special:?}")
        }
        ConfigField::TargetVocab => "target_vocab is 0: no label".into(),
        ConfigField::SpecialIds => format!("special: {special:?} are not distinct"),
        other => format!("{other:?} has no usable value"),
    }
}

/// What is wrong with a size that is 0, or should be because its stack is not there.
fn size(name: &str, value: u16, config: &ModelConfig) -> String {
    let is_encoder = name.starts_with("encoder") || name.contains("source");
    let (stack, is_there) = match is_encoder {
        true => ("encoder", config.has_encoder()),
        false => ("decoder", config.has_decoder()),
    };
    match is_there {
        true => format!("{name} is {value}"),
        false => format!("{name} is {value}: a {} has no {stack}", family_name(config.family)),
    }
}

/// What is wrong with a number of heads: most often that it does not divide the width.
fn heads(name: &str, value: u16, config: &ModelConfig) -> String {
    let explained = size(name, value, config);
    match explained.contains(':') {
        true => explained,
        false => format!("{explained}: d_model {} is no multiple of it", config.d_model),
    }
}

#[cfg(test)]
mod tests {
    use model_format::config::{Output, StackConfig};

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
