//! The architecture of a checkpoint: our JSON or Marian's, completed by what the tensors tell.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model_format::config::{Family, ModelConfig, SpecialIds};
use serde_json::{Map, Value, json};

use super::marian;
use super::names::sizes::Seen;

/// What a config file says of the special ids; the vocabulary's usual names say the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialDraft {
    /// Fills a batch.
    pub pad: Option<u16>,
    /// The first id the decoder reads.
    pub start: Option<u16>,
    /// Ends a sequence.
    pub end: Option<u16>,
    /// Stands for unknown source symbols.
    pub unknown: Option<u16>,
}

/// What a config file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Of [`ModelConfig`]; without the special ids, and where sizes may be missing.
    fields: Map<String, Value>,
    /// The special ids.
    pub special: SpecialDraft,
}

/// Limits that the command line sets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lengths {
    /// Most source ids, those of the frame included.
    pub source: Option<u16>,
    /// Most target ids, the end id included.
    pub target: Option<u16>,
}

impl Draft {
    /// Reads a config file: our `ModelConfig`, a run's config with one under `model`, or Hugging
    /// Face's `config.json` of a Marian model.
    pub fn read(path: &Path, lengths: Lengths) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text, lengths).with_context(|| path.display().to_string())
    }

    fn parse(text: &str, lengths: Lengths) -> Result<Self> {
        let Value::Object(mut fields) = serde_json::from_str(text)? else {
            bail!("not a JSON object");
        };
        if fields.contains_key("model_type") {
            fields = marian::translate(&fields)?;
        } else if let Some(Value::Object(model)) = fields.get("model") {
            fields = model.clone();
        }
        for (name, len) in [("max_source_len", lengths.source), ("max_target_len", lengths.target)]
        {
            if let Some(len) = len {
                fields.insert(name.into(), len.into());
            }
        }
        spread(&mut fields)?;
        let special = special(fields.remove("special"))?;
        check_fields(&fields)?;
        let draft = Self { fields, special };
        draft.require()?;
        Ok(draft)
    }

    /// Refuses a config that leaves out what no tensor tells.
    fn require(&self) -> Result<()> {
        let family = self.family()?;
        for (stack, is_there) in stacks(family) {
            let heads = self.fields.get(stack).and_then(|stack| stack.get("n_heads"));
            ensure!(
                !is_there || heads.is_some(),
                "`{stack}.n_heads` (or `n_heads` for both stacks) is missing: tensors do not tell it"
            );
        }
        let [(_, has_encoder), (_, has_decoder)] = stacks(family);
        for (name, is_needed) in
            [("norm", true), ("max_source_len", has_encoder), ("max_target_len", has_decoder)]
        {
            ensure!(
                !is_needed || self.fields.contains_key(name),
                "`{name}` is missing: tensors do not tell it"
            );
        }
        Ok(())
    }

    /// Which stacks there are.
    pub fn family(&self) -> Result<Family> {
        match self.fields.get("family") {
            Some(family) => Ok(serde_json::from_value(family.clone())?),
            None => Ok(Family::default()),
        }
    }

    /// The whole config: what the file says, then what the tensors tell, then the usual choice.
    pub fn complete(&self, seen: &Seen, special: SpecialIds) -> Result<ModelConfig> {
        let family = self.family()?;
        let is_shared = self.fields.get("shared_embedding") == Some(&Value::Bool(true));
        let mut fields = self.fields.clone();
        let [(_, has_encoder), (_, has_decoder)] = stacks(family);
        // Limits for both sides may be given where a family has one.
        for (name, is_there) in [("max_source_len", has_encoder), ("max_target_len", has_decoder)] {
            if !is_there {
                fields.insert(name.into(), 0.into());
            }
        }
        let mut fill = |name: &str, value: Option<Value>| {
            if let (false, Some(value)) = (fields.contains_key(name), value) {
                fields.insert(name.to_owned(), value);
            }
        };
        let vocabs = seen.vocabularies(has_decoder, is_shared);
        fill("d_model", seen.d_model().map(Value::from));
        fill("source_vocab", if has_encoder { vocabs.0.map(Value::from) } else { Some(0.into()) });
        fill("target_vocab", vocabs.1.map(Value::from));
        fill("final_norm", Some(seen.has_final_norm().into()));
        fill("output", Some(serde_json::to_value(seen.output(has_decoder))?));
        fill("positions", Some("sinusoidal-interleaved".into()));
        fill("activation", Some("relu".into()));
        fill("layer_norm_eps", Some(1e-5.into()));
        fields.insert("special".into(), serde_json::to_value(special)?);
        for (stack, is_there) in stacks(family) {
            fields.insert(
                stack.into(),
                complete_stack(self.fields.get(stack), stack, is_there, seen),
            );
        }
        let require = |name: &str| {
            ensure!(
                fields.contains_key(name),
                "`{name}` is not in the config, and no tensor that tells it was found"
            );
            Ok(())
        };
        // What a whole stack lacks is said before what it would have told.
        require("d_model")?;
        for (stack, is_there) in stacks(family) {
            ensure!(!is_there || fields[stack]["n_layers"] != 0, no_stack(stack));
        }
        require("source_vocab")?;
        require("target_vocab")?;
        Ok(serde_json::from_value(Value::Object(fields))?)
    }
}

/// The stacks' names and whether a family has them.
const fn stacks(family: Family) -> [(&'static str, bool); 2] {
    let has_encoder = !matches!(family, Family::DecoderOnly);
    let has_decoder = matches!(family, Family::EncoderDecoder | Family::DecoderOnly);
    [("encoder", has_encoder), ("decoder", has_decoder)]
}

/// That a checkpoint has nothing of a stack, and which families do without.
fn no_stack(stack: &str) -> String {
    let others = match stack {
        "encoder" => "\"decoder-only\"",
        _ => "\"tagger\" or \"classifier\"",
    };
    format!(
        "no {stack} tensors were found; a model without {stack} has `\"family\"` {others} in the config"
    )
}

fn complete_stack(given: Option<&Value>, name: &str, is_there: bool, seen: &Seen) -> Value {
    if !is_there {
        return json!({ "n_layers": 0, "n_heads": 0, "d_ff": 0 });
    }
    let mut stack = given.cloned().unwrap_or_else(|| json!({}));
    let found = [("n_layers", seen.n_layers(name)), ("d_ff", seen.d_ff(name).unwrap_or(0))];
    for (field, size) in found {
        if stack.get(field).is_none() {
            stack[field] = size.into();
        }
    }
    stack
}

/// `n_heads`, `n_layers` and `d_ff` outside of the stacks are for both of them.
fn spread(fields: &mut Map<String, Value>) -> Result<()> {
    for name in ["n_layers", "n_heads", "d_ff"] {
        let Some(value) = fields.remove(name) else { continue };
        for stack in ["encoder", "decoder"] {
            let stack = fields.entry(stack).or_insert_with(|| json!({}));
            let stack = stack.as_object_mut().context("a stack is no JSON object")?;
            stack.entry(name).or_insert_with(|| value.clone());
        }
    }
    Ok(())
}

fn special(value: Option<Value>) -> Result<SpecialDraft> {
    let mut draft = SpecialDraft::default();
    let Some(value) = value else { return Ok(draft) };
    for (name, id) in value.as_object().context("`special` is no JSON object")? {
        let place = match name.as_str() {
            "pad" => &mut draft.pad,
            "start" => &mut draft.start,
            "end" => &mut draft.end,
            "unknown" => &mut draft.unknown,
            other => bail!("`special.{other}` is no special id: pad, start, end, unknown"),
        };
        *place = serde_json::from_value(id.clone())
            .with_context(|| format!("`special.{name}` is {id}, not an id"))?;
    }
    Ok(draft)
}

/// Refuses fields that there are not, and values that a field cannot have.
fn check_fields(fields: &Map<String, Value>) -> Result<()> {
    let template = serde_json::to_value(crate::config::RunConfig::default().model)?;
    for (name, value) in fields {
        let known = template.get(name);
        let known = known.with_context(|| format!("`{name}` is no field of the config"))?;
        let mut changed = template.clone();
        match (known, value) {
            (Value::Object(known), Value::Object(stack)) => {
                for (field, value) in stack {
                    ensure!(
                        known.contains_key(field),
                        "`{name}.{field}` is no field of the config"
                    );
                    changed[name][field] = value.clone();
                }
            }
            _ => changed[name] = value.clone(),
        }
        serde_json::from_value::<ModelConfig>(changed)
            .with_context(|| format!("`{name}` is {value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", Draft::parse(text, Lengths::default()).unwrap_err())
    }

    #[test]
    fn what_a_config_lacks_or_cannot_say_is_named() {
        let whole = r#""n_heads": 2, "norm": "post", "max_source_len": 8, "max_target_len": 8"#;
        assert!(Draft::parse(&format!("{{{whole}}}"), Lengths::default()).is_ok());
        let more = |field: &str| error(&format!("{{{whole}, {field}}}"));
        assert_eq!(more(r#""d_modl": 8"#), "`d_modl` is no field of the config");
        assert_eq!(more(r#""encoder": {"heads": 8}"#), "`encoder.heads` is no field of the config");
        assert!(more(r#""d_model": -8"#).starts_with("`d_model` is -8: invalid value"));
        assert!(more(r#""positions": "rotary""#).contains("unknown variant `rotary`"));
        assert!(more(r#""special": {"eos": 1}"#).starts_with("`special.eos` is no special id"));
        assert!(more(r#""special": {"end": 70000}"#).starts_with("`special.end` is 70000"));
        assert!(error(r#"{"norm": "pre"}"#).starts_with("`encoder.n_heads` (or `n_heads`"));
        assert!(error(r#"{"n_heads": 2}"#).starts_with("`norm` is missing"));
        assert!(error(r#"{"model_type": "bart"}"#).contains("`bart`"));
        assert_eq!(error("[]"), "not a JSON object");
    }

    #[test]
    fn lengths_of_the_command_line_win() {
        let text = r#"{"model": {"n_heads": 2, "norm": "post", "max_source_len": 8}}"#;
        let lengths = Lengths { source: Some(5), target: Some(6) };
        let draft = Draft::parse(text, lengths).unwrap();
        assert_eq!(
            (&draft.fields["max_source_len"], &draft.fields["max_target_len"]),
            (&json!(5), &json!(6))
        );
    }
}
