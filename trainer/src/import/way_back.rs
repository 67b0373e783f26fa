//! The way back: a trained model as a state dict that PyTorch loads.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anyhow::Result;
use safetensors::tensor::{Dtype, View};

use crate::model::{Tensor, TrainedModel};

/// What parts of our names are called there.
const RENAMED: [(&str, &str); 16] = [
    ("source_embedding", "encoder_embedding"),
    ("target_embedding", "decoder_embedding"),
    ("source_positions", "encoder_position_embedding"),
    ("target_positions", "decoder_position_embedding"),
    ("encoder.layers", "encoder_layers"),
    ("decoder.layers", "decoder_layers"),
    ("encoder.norm", "encoder_norm"),
    ("decoder.norm", "decoder_norm"),
    ("self_attention", "self_attn"),
    ("cross_attention", "cross_attn"),
    (".query.", ".W_q."),
    (".key.", ".W_k."),
    (".value.", ".W_v."),
    (".output.", ".W_o."),
    (".linear1.", ".fc1."),
    (".linear2.", ".fc2."),
];

/// The name that a tutorial's module gives to one of our tensors.
fn foreign_name(ours: &str) -> String {
    if let Some(part) = ours.strip_prefix("output.") {
        return format!("fc.{part}");
    }
    RENAMED.iter().fold(ours.to_owned(), |name, (part, theirs)| name.replace(part, theirs))
}

/// All tensors in a safetensors file, by the names of the `tutorial` map. A tied output and a shared
/// embedding stand there under both names, as in PyTorch.
pub fn state_dict(model: &TrainedModel) -> Result<Vec<u8>> {
    let mut tensors = model.tensors();
    let config = model.config();
    for (is_copied, name) in [
        (config.output.is_tied(), "output.weight"),
        (config.shared_embedding, "source_embedding.weight"),
    ] {
        if let (true, Some(tensor)) = (is_copied, tensors.get("target_embedding.weight")) {
            let copy = tensor.clone();
            tensors.insert(name.to_owned(), copy);
        }
    }
    let tensors: BTreeMap<_, _> =
        tensors.into_iter().map(|(name, tensor)| (foreign_name(&name), tensor)).collect();
    let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    Ok(safetensors::serialize(views, None)?)
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }
    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_tutorials() {
        for (ours, theirs) in [
            ("source_embedding.weight", "encoder_embedding.weight"),
            ("encoder.layers.3.self_attention.query.bias", "encoder_layers.3.self_attn.W_q.bias"),
            (
                "decoder.layers.0.cross_attention.output.weight",
                "decoder_layers.0.cross_attn.W_o.weight",
            ),
            (
                "decoder.layers.0.feed_forward.linear2.bias",
                "decoder_layers.0.feed_forward.fc2.bias",
            ),
            ("decoder.layers.0.norm3.weight", "decoder_layers.0.norm3.weight"),
            ("encoder.norm.weight", "encoder_norm.weight"),
            ("output.weight", "fc.weight"),
        ] {
            assert_eq!(foreign_name(ours), theirs);
        }
    }
}
