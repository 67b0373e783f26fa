//! Hugging Face's `config.json` of a Marian model in the fields of ours.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// The fields of our config.
///
/// # Errors
/// Another kind of model, or a choice that Marian models do not make and that is not carried out.
pub fn translate(theirs: &Map<String, Value>) -> Result<Map<String, Value>> {
    check(theirs)?;
    let get =
        |field: &str| theirs.get(field).cloned().with_context(|| format!("`{field}` is missing"));
    let flag = |field: &str, default| theirs.get(field).and_then(Value::as_bool).unwrap_or(default);
    let stack = |side: &str| -> Result<Value> {
        Ok(json!({
            "n_layers": get(&format!("{side}_layers"))?,
            "n_heads": get(&format!("{side}_attention_heads"))?,
            "d_ff": get(&format!("{side}_ffn_dim"))?,
        }))
    };
    let vocab = get("vocab_size")?;
    let target_vocab = theirs.get("decoder_vocab_size").filter(|size| !size.is_null());
    let target_vocab = target_vocab.unwrap_or(&vocab).clone();
    let fields = json!({
        "d_model": get("d_model")?,
        "encoder": stack("encoder")?,
        "decoder": stack("decoder")?,
        "source_vocab": vocab,
        "target_vocab": target_vocab,
        "max_source_len": get("max_position_embeddings")?,
        "max_target_len": get("max_position_embeddings")?,
        "norm": "post",
        "final_norm": false,
        "positions": "sinusoidal-halves",
        "output": if flag("tie_word_embeddings", true) { "tied-bias" } else { "untied-bias" },
        "shared_embedding": flag("share_encoder_decoder_embeddings", true),
        "scale_embedding": flag("scale_embedding", false),
        "source_frame": "end",
        "activation": activation(&get("activation_function")?)?,
        "layer_norm_eps": 1e-5,
        "special": {
            "pad": get("pad_token_id")?,
            "start": get("decoder_start_token_id")?,
            "end": get("eos_token_id")?,
        },
    });
    fields.as_object().cloned().context("not a JSON object")
}

/// Refuses other kinds of models, and LayerNorms where Marian models have none.
fn check(theirs: &Map<String, Value>) -> Result<()> {
    let kind = theirs.get("model_type").and_then(Value::as_str).unwrap_or_default();
    ensure!(kind == "marian", "model_type is `{kind}`; of Hugging Face's only `marian` is read");
    for field in ["normalize_before", "normalize_embedding", "add_final_layer_norm"] {
        let is_set = theirs.get(field).and_then(Value::as_bool).unwrap_or(false);
        ensure!(!is_set, "`{field}` is true: no Marian model of Hugging Face is so");
    }
    Ok(())
}

fn activation(name: &Value) -> Result<&'static str> {
    match name.as_str() {
        Some("swish" | "silu") => Ok("silu"),
        Some("relu") => Ok("relu"),
        Some("gelu") => Ok("gelu"),
        Some("gelu_new" | "gelu_pytorch_tanh") => Ok("gelu-tanh"),
        _ => bail!("`activation_function` is {name}: not swish, silu, relu, gelu or gelu_new"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_marian_models_do_not_do_is_refused() {
        let error = |theirs: Value| translate(theirs.as_object().unwrap()).unwrap_err().to_string();
        assert!(error(json!({ "model_type": "bart" })).starts_with("model_type is `bart`"));
        let pre = json!({ "model_type": "marian", "normalize_before": true });
        assert!(error(pre).starts_with("`normalize_before` is true"));
        assert_eq!(error(json!({ "model_type": "marian" })), "`vocab_size` is missing");
        assert!(activation(&json!("mish")).unwrap_err().to_string().contains("\"mish\""));
    }
}
