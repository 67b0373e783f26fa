//! Checkpoints that cannot be imported: what is wrong is said, nothing is written.

#[path = "common/checkpoints.rs"]
mod checkpoints;

use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoints::{archive, data, pickle_of};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use trainer::import::state_dict::{self, StateDict};

/// What a `trainer import` is given; the good files where a test does not change it.
struct Case {
    folder: TempDir,
    checkpoint: PathBuf,
    config: PathBuf,
    vocab: PathBuf,
    options: Vec<String>,
}

impl Case {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            checkpoint: data("tutorial.pt"),
            config: data("tutorial.json"),
            vocab: data("vocab.json"),
            options: vec!["--precision".into(), "half".into()],
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn checkpoint(mut self, bytes: &[u8]) -> Self {
        self.checkpoint = self.write("checkpoint", bytes);
        self
    }

    /// The tutorial's config with some fields changed.
    fn config(mut self, changes: serde_json::Value) -> Self {
        let text = std::fs::read_to_string(data("tutorial.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (name, value) in changes.as_object().unwrap() {
            config[name] = value.clone();
        }
        self.config = self.write("config.json", config.to_string().as_bytes());
        self
    }

    fn vocab(mut self, text: &str) -> Self {
        self.vocab = self.write("vocab.json", text.as_bytes());
        self
    }

    fn names(mut self, text: &str) -> Self {
        let path = self.write("names.toml", text.as_bytes());
        self.options.extend(["--names".into(), path.display().to_string()]);
        self
    }

    /// Runs; all of `expected` must be said, and the file that was there must stay.
    fn fails(&self, expected: &[&str]) {
        let output = self.write("model.kfm", b"the file before");
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.arg("import").arg(&self.checkpoint).arg("--config").arg(&self.config);
        command.arg("--vocab").arg(&self.vocab).args(&self.options).arg("-o").arg(&output);
        let said = command.output().unwrap();
        let error = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{error}");
        assert!(error.starts_with("error: "), "{error}");
        for expected in expected {
            assert!(error.contains(expected), "{expected:?} is not in:\n{error}");
        }
        assert_eq!(std::fs::read(&output).unwrap(), b"the file before");
        assert!(!Path::new(&output).with_extension("tmp").exists());
    }
}

fn tutorial() -> StateDict {
    state_dict::read(&data("tutorial.pt"), None).unwrap()
}

/// The tensors as a safetensors file.
fn safetensors(dict: &StateDict) -> Vec<u8> {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = dict
        .iter()
        .map(|(name, found)| {
            let values = found.values.as_ref().unwrap().iter();
            (name.clone(), found.shape.clone(), values.flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

#[test]
fn numbers_that_are_none_are_named_by_tensor_and_index() {
    for (value, said) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut dict = tutorial();
        let found = dict.get_mut("encoder_layers.1.feed_forward.fc1.weight").unwrap();
        found.values.as_mut().unwrap()[8 * 3 + 5] = value;
        let expected =
            format!("unusable: `encoder_layers.1.feed_forward.fc1.weight` holds {said} at [3, 5]");
        Case::new().checkpoint(&safetensors(&dict)).fails(&[&expected]);
    }
}

#[test]
fn missing_extra_and_misshaped_tensors_are_all_named_at_once() {
    let mut dict = tutorial();
    dict.remove("encoder_layers.0.norm1.weight");
    let norm = dict.remove("decoder_layers.0.norm2.bias").unwrap();
    dict.insert("decoder_layers.0.extra_norm.bias".into(), norm);
    dict.get_mut("fc.bias").unwrap().shape = vec![2, 5];
    Case::new().checkpoint(&safetensors(&dict)).fails(&[
        "none of the 3 built-in maps; nearest: tutorial",
        "missing: `encoder.layers.0.norm1.weight` [8], in tutorial `{top}{encoder}.0.{norm1}.weight`",
        "extra: `decoder_layers.0.extra_norm.bias` [8]",
        "mis-shaped: `fc.bias` [2, 5], `output.bias` needs [10]",
    ]);
}

#[test]
fn a_config_that_contradicts_the_tensors_says_which() {
    let says = |changes, expected: &[&str]| Case::new().config(changes).fails(expected);
    says(
        serde_json::json!({ "d_ff": 16 }),
        &["mis-shaped: `encoder_layers.0.feed_forward.fc1.weight` [12, 8], \
           `encoder.layers.0.feed_forward.linear1.weight` needs [16, 8]"],
    );
    says(
        serde_json::json!({ "encoder": { "n_layers": 1, "n_heads": 2 } }),
        &[
            "extra: `encoder_layers.1.norm2.bias` [8], which would be `encoder.layers.1.norm2.bias`: \
           the config has no such tensor",
        ],
    );
    says(
        serde_json::json!({ "output": "untied" }),
        &["extra: `fc.bias` [10], which would be `output.bias`"],
    );
    says(
        serde_json::json!({ "output": "tied-bias" }),
        &["ambiguous: `target_embedding.weight` may be `decoder_embedding.weight` or `fc.weight`"],
    );
    says(serde_json::json!({ "final_norm": true }), &["missing: `encoder.norm.weight` [8]"]);
    says(serde_json::json!({ "n_heads": 3 }), &["encoder.n_heads is 3: d_model 8"]);
    says(
        serde_json::json!({ "source_vocab": 12 }),
        &["mis-shaped: `encoder_embedding.weight` [9, 8], `source_embedding.weight` needs [12, 8]"],
    );
    says(
        serde_json::json!({ "positions": "sinusoidal-halves" }),
        &["positions `positional_encoding.pe` are not the config's SinusoidalHalves: \
         they are \"sinusoidal-interleaved\""],
    );
    says(
        serde_json::json!({ "norms": "post" }),
        &["config.json: `norms` is no field of the config"],
    );
}

#[test]
fn a_vocabulary_of_another_size_is_refused() {
    let target = r#""target": ["<pad>", "<start>", "<end>", "A", "B", "C", "D", "E", "F", "G"]"#;
    let fails = |source: &str, expected| {
        Case::new().vocab(&format!("{{\"source\": {source}, {target}}}")).fails(&[expected]);
    };
    fails(
        r#"{"a": 3, "b": 4, "c": 5}"#,
        "vocab.json: source vocabulary: 6 ids, but 9 rows of the checkpoint's tensor",
    );
    fails(r#"{"a": 3, "b": 4, "c": 5, "d": 6, "e": 8}"#, "source vocabulary: id 7 has no symbol");
    fails(r#"{"a": 3, "b": 3}"#, "\"a\" and \"b\" have the same id 3");
}

#[test]
fn a_wrong_dtype_is_named() {
    // As a buffer of numbers would be saved; the storage class alone says the type.
    let long = pickle_of("LongStorage", 2, &[2], &[1]);
    let bytes = archive(&[("data.pkl", &long), ("data/0", &[0; 16])]);
    let names = "[tensors]\n\"encoder.norm.weight\" = \"w\"";
    Case::new().config(serde_json::json!({
        "d_model": 2, "d_ff": 2, "n_layers": 1, "n_heads": 1, "source_vocab": 9, "target_vocab": 10,
        "final_norm": true
    })).names(names).checkpoint(&bytes).fails(&["unusable: `w` is long, not f16, bf16, f32 or f64"]);
}

#[test]
fn a_pickle_that_calls_something_is_refused_by_name() {
    let calls = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.";
    Case::new()
        .checkpoint(&archive(&[("data.pkl", calls)]))
        .fails(&["data.pkl: byte 26", "the pickle calls `posix.system`: refused"]);
    let whole_model = b"\x80\x02c__main__\nTransformer\n)\x81}b.";
    Case::new().checkpoint(&archive(&[("data.pkl", whole_model)])).fails(&[
        "the pickle calls `__main__.Transformer`: refused",
        "torch.save(model.state_dict(), ...)",
    ]);
}

#[test]
fn a_storage_that_is_longer_than_the_file_is_refused() {
    let refused = |pickle: &[u8], expected| {
        let bytes =
            archive(&[("data.pkl", pickle), ("byteorder", b"little"), ("data/0", &[0; 16])]);
        Case::new().checkpoint(&bytes).fails(&[expected]);
    };
    let absurd = 1 << 60;
    refused(
        &pickle_of("FloatStorage", absurd, &[4], &[1]),
        "tensor `w`: its storage `0` should have 1152921504606846976 x 4 bytes, and has 16",
    );
    refused(&pickle_of("FloatStorage", 4, &[5], &[1]), "reaches element 5 of a storage of 4");
    refused(&pickle_of("FloatStorage", 4, &[2, 2], &[1, 3]), "reaches element 5 of a storage of 4");
    refused(
        &pickle_of("FloatStorage", 4, &[u32::MAX, 1], &[0, 1]),
        "all views together are larger than the file",
    );
    refused(&pickle_of("FloatStorage", 4, &[u32::MAX; 4], &[0; 4]), "is beyond all memory");
    refused(&pickle_of("FloatStorage", 4, &[2, 2], &[1]), "2 dimensions have 1 strides")
}

#[test]
fn archives_that_are_not_whole_or_not_pytorchs_are_refused() {
    let whole = std::fs::read(data("tutorial.pt")).unwrap();
    Case::new().checkpoint(&whole[..whole.len() / 2]).fails(&["not a whole zip archive"]);
    Case::new().checkpoint(&archive(&[("a", b"b")])).fails(&["no `data.pkl` in the archive"]);
    let pickle = pickle_of("FloatStorage", 4, &[4], &[1]);
    Case::new()
        .checkpoint(&archive(&[("data.pkl", &pickle), ("byteorder", b"big")]))
        .fails(&["byte order `big`"]);
    Case::new().checkpoint(&archive(&[("data.pkl", &pickle)])).fails(&["entry `model/data/0`"]);
    Case::new()
        .checkpoint(&archive(&[("data.pkl", b"\x80\x02].")]))
        .fails(&["holds no dictionary"]);
    Case::new().checkpoint(&archive(&[("data.pkl", b"\x80\x02}.")])).fails(&["no state dict"]);
    Case::new().checkpoint(b"hello").fails(&["neither a .pt file (zip) nor a safetensors file"]);
    let tensors = safetensors(&tutorial());
    Case::new().checkpoint(&tensors[..tensors.len() - 1]).fails(&["checkpoint: "]);
}

#[test]
fn the_legacy_pickle_form_is_recognised() {
    let mut case = Case::new();
    case.checkpoint = data("legacy.pt");
    case.fails(&["legacy pickle form", "torch.save(torch.load(\"old.pt\""]);
}

#[test]
fn mistakes_in_a_map_of_names_are_named() {
    let fails = |text: &str, expected: &str| Case::new().names(text).fails(&[expected]);
    fails("[tensors]\n[tensor]", "unknown field `tensor`");
    fails("[tensors]\n\"encoder.norms\" = \"a\"", "no model has a tensor `encoder.norms.weight`");
    fails("[tensors", "names");
    let nothing = "[tensors]\n\"source_embedding.weight\" = \"emb.weight\"";
    fails(nothing, "no tensor that tells it was found");
    let mut case = Case::new().config(serde_json::json!({
        "d_model": 8, "source_vocab": 9, "target_vocab": 10, "n_layers": 1, "d_ff": 12
    }));
    case = case.names(nothing);
    case.fails(&["missing: `source_embedding.weight` [9, 8]", "`emb.weight`"]);
}

#[test]
fn an_integer_file_needs_texts_that_the_model_takes() {
    let mut case = Case::new();
    case.options.clear();
    case.fails(&["an integer file needs --calibration TEXTS"]);
    let texts = case.write("texts.txt", b"abc\nabx\n");
    case.options = vec!["--calibration".into(), texts.display().to_string()];
    case.fails(&["texts.txt: line 2: symbol \"x\" is not in the vocabulary"]);
    case.write("texts.txt", b"abcabcabcabcabc\n");
    case.fails(&["texts.txt: line 1: 15 symbols, the limit is 11"]);
    case.write("texts.txt", b"\n");
    case.fails(&["texts.txt: no text"]);
}

#[test]
fn keys_choose_a_state_dict() {
    let mut case = Case::new();
    case.checkpoint = data("training.pt");
    case.options.extend(["--key".into(), "weights".into()]);
    case.fails(&["no key `weights` in the checkpoint: `epoch`, `optimizer_state_dict`"]);
    let dict = state_dict::read(&data("training.pt"), Some("model_state_dict")).unwrap();
    assert!(dict.contains_key("fc.weight"));
}

/// Whatever stands in the file, the reader ends with tensors or an error.
#[test]
fn no_damage_to_a_checkpoint_makes_the_reader_panic() {
    let whole = std::fs::read(data("tutorial.pt")).unwrap();
    let mut random = 1_u64;
    let mut refused = 0;
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
        }
        refused += usize::from(state_dict::parse(&bytes, None).is_err());
    }
    // The zip's checksums find nearly every change.
    assert!(refused > 1000, "{refused}");
    // The pickle alone, without a checksum around it.
    let pickle = pickle_of("FloatStorage", 4, &[2, 2], &[1, 2]);
    for at in 0..pickle.len() {
        for byte in 0..=255 {
            let mut damaged = pickle.clone();
            damaged[at] = byte;
            let _ = trainer::import::pickle::Pickle::parse(&damaged);
        }
    }
}

#[test]
fn a_bias_that_is_absent_beside_others_of_its_kind_is_missing() {
    let mut dict = tutorial();
    dict.remove("encoder_layers.0.norm1.bias").unwrap();
    dict.remove("decoder_layers.0.feed_forward.fc1.bias").unwrap();
    Case::new().checkpoint(&safetensors(&dict)).fails(&[
        "missing: `encoder.layers.0.norm1.bias` [8], in tutorial",
        "missing: `decoder.layers.0.feed_forward.linear1.bias` [12], in tutorial",
    ]);
}

#[test]
fn a_layer_of_an_absurd_number_is_refused_at_once() {
    let mut dict = tutorial();
    let norm = dict["encoder_layers.0.norm1.weight"].clone();
    dict.insert("encoder_layers.65000.norm1.weight".into(), norm);
    Case::new()
        .checkpoint(&safetensors(&dict))
        .fails(&["encoder.n_layers is 65001, but the checkpoint has 64 tensors in all"]);
}

#[test]
fn a_message_lists_twenty_problems_and_counts_the_rest() {
    let mut dict = tutorial();
    for i in 0..30 {
        let norm = dict["encoder_layers.0.norm1.weight"].clone();
        dict.insert(format!("extra.{i}"), norm);
    }
    Case::new()
        .checkpoint(&safetensors(&dict))
        .fails(&["extra: `extra.0` [8]\n", "\n  ... and 10 more\n"]);
}

#[test]
fn a_stack_without_tensors_is_named_with_the_family_that_has_none() {
    for (gone, expected) in [
        (
            "decoder",
            "no decoder tensors were found; a model without decoder has `\"family\"` \"tagger\"",
        ),
        (
            "encoder",
            "no encoder tensors were found; a model without encoder has `\"family\"` \"decod",
        ),
    ] {
        let mut dict = tutorial();
        dict.retain(|name, _| !name.starts_with(gone));
        Case::new().checkpoint(&safetensors(&dict)).fails(&[expected]);
    }
}

#[test]
fn what_no_text_could_ever_use_is_refused_by_name() {
    let mut case = Case::new();
    case.options.extend(["--max-source-len", "1"].map(String::from));
    case.fails(&["max_source_len is 1 (--max-source-len): no room for a symbol"]);
    let mut case = Case::new();
    case.options.extend(["--unknown", "replace"].map(String::from));
    case.fails(&["--unknown replace: the checkpoint has no unknown id"]);
    let long = "a".repeat(65);
    for (symbol, options, expected) in [
        (long.as_str(), [].as_slice(), "has 65 bytes; the runtime reads symbols of at most 64"),
        ("a b", &[], "symbol \"a b\" has white space in it, and the unit `word` cuts texts there"),
        ("Ab", &["--source-lowercase", "true"], "symbol \"Ab\" has upper case"),
    ] {
        let vocab = serde_json::json!({
            "source": { symbol: 3, "b": 4, "c": 5, "d": 6, "e": 7, "f": 8 },
            "target": ["<pad>", "<start>", "<end>", "A", "B", "C", "D", "E", "F", "G"],
        });
        let mut case = Case::new().vocab(&vocab.to_string());
        case.options.extend(options.iter().map(|option| (*option).to_owned()));
        case.fails(&["vocab.json: source vocabulary: ", expected]);
    }
}
