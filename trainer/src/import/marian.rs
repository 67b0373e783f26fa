//! Hugging Face's `config.json` of a Marian model in the fields of ours.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// The fields of our config.
///
/// # Errors
/// Another kind of model, or a choice that Marian models do not make and that is not carried out.
pub fn translate(theirs: &Map<String, Value>) -> Result<Map<String, Value>> {
    let kind = theirs.get("model_type").and_then(Value::as_str).unwrap_or_default();
    ensure!(kind == "marian", "model_type is `{kind}`; of Hugging Face's only `marian` is read");
    for (field, expected) in [
        ("normalize_before", false),
        ("normalize_embedding", false),
        ("add_final_layer_norm", false),
    ] {
        let value = theirs.get(field).and_then(Value::as_bool).unwrap_or(expected);
        ensure!(value == expected, "`{field}` is {value}: no Marian model of Hugging Face is so");
    }
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
    let target_vocab = match theirs.get("decoder_vocab_size") {
        Some(Value::Null) | None => vocab.clone(),
        Some(size) => size.clone(),
    };
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
    match fields {
        Value::Object(fields) => Ok(fields),
        _ => bail!("not a JSON object"),
    }
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
