//! Checkpoints that PyTorch wrote give PyTorch's logits and tokens.

#[path = "common/checkpoints.rs"]
mod checkpoints;
mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoints::{data, import_files};
use model_format::AlignedBytes;
use model_format::config::{Family, ModelConfig, Output, Precision, StackConfig, UnknownPolicy};
use serde_json::Value;
use trainer::config::RunConfig;
use trainer::data::corpus::Pair;
use trainer::data::tokenizer::{Splitting, Tokenizer, Unit};
use trainer::engine::Network;
use trainer::export::export;
use trainer::import::Imported;
use trainer::import::names::NameMap;
use trainer::import::way_back::state_dict;
use trainer::model::TrainedModel;

/// Largest difference of a logit from PyTorch's, relative to the largest: both sum in f32, in
/// another order.
const TOLERANCE: f32 = 1e-5;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares with what PyTorch computed, see `make_checkpoints.py`.
fn judge(imported: &Imported, expected: &str) {
    let text = std::fs::read_to_string(data(expected)).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let model = &imported.model;
    let sources: Vec<Vec<u32>> = expected["sources"].as_array().unwrap().iter().map(ids).collect();
    let mut first = sources[0].clone();
    first.push(model.config().special.end.into());
    let logits = model.forward_observed(&first, &ids(&expected["target_in"]), &mut |_, _, _| {});
    let theirs: Vec<f32> = expected["logits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|logit| logit.as_f64().unwrap() as f32)
        .collect();
    // PyTorch has no column for an id that was added.
    assert_eq!(logits.len(), theirs.len());
    let largest = theirs.iter().fold(0.0_f32, |max, logit| max.max(logit.abs()));
    for (i, (ours, theirs)) in logits.iter().zip(&theirs).enumerate() {
        assert!((ours - theirs).abs() <= TOLERANCE * largest, "logit {i}: {ours}, {theirs}");
    }
    let sources: Vec<&[u32]> = sources.iter().map(Vec::as_slice).collect();
    let answers: Vec<Vec<u32>> = expected["answers"].as_array().unwrap().iter().map(ids).collect();
    let ours = model.network.greedy(&model.params, &sources);
    assert_eq!(ours.into_iter().map(|decoded| decoded.ids).collect::<Vec<_>>(), answers);
}

fn tutorial(checkpoint: &std::path::Path) -> Imported {
    import_files(checkpoint, &data("tutorial.json"), &data("vocab.json"), "auto").unwrap()
}

#[test]
fn a_tutorials_checkpoint_gives_pytorchs_logits_and_tokens() {
    let imported = tutorial(&data("tutorial.pt"));
    assert_eq!(imported.names, "tutorial");
    let config = imported.model.config();
    assert_eq!((config.d_model, config.encoder.n_layers, config.decoder.n_layers), (8, 2, 1));
    assert_eq!((config.encoder.d_ff, config.source_vocab, config.target_vocab), (12, 10, 10));
    assert_eq!((config.final_norm, config.output), (false, Output::UntiedBias));
    judge(&imported, "tutorial.expected.json");
}

#[test]
fn torch_nn_transformer_gives_pytorchs_logits_and_tokens() {
    let (config, vocab) = (data("torch.json"), data("vocab.json"));
    let imported = import_files(&data("torch.pt"), &config, &vocab, "auto").unwrap();
    assert_eq!(imported.names, "torch");
    judge(&imported, "torch.expected.json");
}

#[test]
fn a_marian_model_of_hugging_face_gives_its_logits_and_tokens() {
    let (config, vocab) = (data("marian/config.json"), data("marian/vocab.json"));
    let imported =
        import_files(&data("marian/model.safetensors"), &config, &vocab, "auto").unwrap();
    assert_eq!(imported.names, "marian");
    let special = imported.model.config().special;
    assert_eq!((special.pad, special.start, special.end, special.unknown), (11, 11, 0, 1));
    judge(&imported, "marian.expected.json");
}

/// bf16, f16 and f64, transposed views, shared storages, parameters, DataParallel's names, a state
/// dict beside an optimizer's: the same numbers.
#[test]
fn a_training_checkpoint_holds_the_same_tensors() {
    let (plain, training) = (tutorial(&data("tutorial.pt")), tutorial(&data("training.pt")));
    assert_eq!(plain.model.tensors(), training.model.tensors());
}

#[test]
fn the_way_back_gives_the_same_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let original = tutorial(&data("tutorial.pt"));
    std::fs::write(&path, state_dict(&original.model).unwrap()).unwrap();
    // The added id of unknown symbols is part of the embedding now, and the vocabulary names it.
    let vocab = folder.path().join("vocab.json");
    std::fs::write(
        &vocab,
        r#"{"source": ["<pad>", "<start>", "<end>", "a", "b", "c", "d", "e", "f", "<unk>"],
            "target": ["<pad>", "<start>", "<end>", "A", "B", "C", "D", "E", "F", "G"]}"#,
    )
    .unwrap();
    let back = import_files(&path, &data("tutorial.json"), &vocab, "auto").unwrap();
    assert_eq!(back.names, "tutorial");
    assert_eq!(back.model.tensors(), original.model.tensors());
    assert_eq!(back.model.config(), original.model.config());
}

#[test]
fn what_was_trained_here_goes_to_pytorch_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let (pairs, run) = (common::write_pairs(folder.path()), folder.path().join("run"));
    let mut train = common::trainer(&["--epochs", "1", "--d-model", "8", "--encoder-layers", "2"]);
    train.arg("--data").arg(&pairs).arg("--out").arg(&run);
    assert!(train.stdout(std::process::Stdio::null()).status().unwrap().success());
    let path = folder.path().join("model.safetensors");
    let mut export = Command::new(env!("CARGO_BIN_EXE_trainer"));
    export.arg("export").arg(&run).arg("--safetensors").arg(&path);
    assert!(export.status().unwrap().success());
    let mut half = Command::new(env!("CARGO_BIN_EXE_trainer"));
    half.arg("export").arg(&run).arg("-o").arg(folder.path().join("model.kfm"));
    let said = half.args(["--precision", "half", "--calibration", "no.tsv"]).output().unwrap();
    let expected = "no.tsv: not read, since --precision half has no ranges to measure\n";
    assert!(said.status.success() && said.stderr == expected.as_bytes());
    let model = TrainedModel::load(&run).unwrap();
    let vocab = folder.path().join("vocab.json");
    let symbols = serde_json::json!({
        "source": model.source.symbols(), "target": model.target.symbols()
    });
    std::fs::write(&vocab, symbols.to_string()).unwrap();
    let back = import_files(&path, &run.join("config.json"), &vocab, "auto").unwrap();
    assert_eq!(back.model.tensors(), model.tensors());
}

#[test]
fn a_checkpoint_becomes_a_file_that_answers() {
    let folder = tempfile::tempdir().unwrap();
    let texts = folder.path().join("texts.txt");
    std::fs::write(&texts, "abc\nfed\tignored\n\nbb\n").unwrap();
    for precision in ["half", "fixed"] {
        let output = folder.path().join("model.kfm");
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.arg("import").arg(data("tutorial.pt")).arg("-o").arg(&output);
        command.arg("--config").arg(data("tutorial.json")).arg("--vocab").arg(data("vocab.json"));
        command.args(["--precision", precision]).arg("--calibration").arg(&texts);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        assert!(String::from_utf8_lossy(&said.stdout).contains("names of `tutorial`"));
        let file = trainer::device::read(&output).unwrap();
        let model = trainer::device::check(&file).unwrap();
        let answers = trainer::device::run_all(model, &["bcd".to_owned()], 1).unwrap();
        let imported = tutorial(&data("tutorial.pt"));
        let expected = imported.model.transcribe(&["bcd".to_owned()], 1)[0].join(" ");
        let answer = answers[0].as_ref().unwrap();
        assert_eq!(answer.text.replace(' ', ""), expected.replace(' ', ""), "{precision}");
    }
}

/// Here `f` stands for unknown symbols.
#[test]
fn unknown_symbols_become_the_checkpoints_unknown_id_unless_they_are_to_be_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (output, config) = (folder.path().join("model.kfm"), folder.path().join("config.json"));
    let mut json: Value =
        serde_json::from_str(&std::fs::read_to_string(data("tutorial.json")).unwrap()).unwrap();
    json["special"]["unknown"] = 8.into();
    std::fs::write(&config, json.to_string()).unwrap();
    let answer = |unknown: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.arg("import").arg(data("tutorial.pt")).arg("-o").arg(&output);
        command.arg("--config").arg(&config).arg("--vocab").arg(data("vocab.json"));
        assert!(command.args(["--precision", "half"]).args(unknown).status().unwrap().success());
        let file = trainer::device::read(&output).unwrap();
        let model = trainer::device::check(&file).unwrap();
        trainer::device::run_all(model, &["b?d".to_owned()], 1).unwrap().remove(0)
    };
    assert!(answer(&[]).is_ok());
    assert!(answer(&["--unknown", "refuse"]).unwrap_err().contains("`?`"));
}

/// A small model of any family, with random weights.
fn random_model(family: Family) -> TrainedModel {
    let stack = |is_there| match is_there {
        true => StackConfig { n_layers: 2, n_heads: 2, d_ff: 12 },
        false => StackConfig::NONE,
    };
    let (has_encoder, has_decoder) = (family != Family::DecoderOnly, family == Family::DecoderOnly);
    let config = ModelConfig {
        family,
        d_model: 8,
        encoder: stack(has_encoder),
        decoder: stack(has_decoder),
        source_vocab: if has_encoder { 9 } else { 0 },
        target_vocab: 9,
        max_source_len: if has_encoder { 12 } else { 0 },
        max_target_len: if has_decoder { 12 } else { 0 },
        output: Output::UntiedBias,
        ..RunConfig::default().model
    };
    let symbols: Vec<String> =
        ["<pad>", "<start>", "<end>", "<unk>", "a", "b", "c", "d", "e"].map(String::from).into();
    let splitting = Splitting { unit: Unit::Character, lowercase: false };
    let with = |is_there, special| match is_there {
        true => Tokenizer::with_special(splitting, symbols.clone(), special),
        false => Tokenizer::none(splitting),
    };
    let network = Network::new(&config).unwrap();
    let params = network.layout.init(1);
    let source = with(has_encoder, Some(config.special));
    let target = with(true, has_decoder.then_some(config.special));
    TrainedModel { network, source, target, params, unknown: UnknownPolicy::Refuse }
}

/// What a model writes may be longer than what the runtime reads.
#[test]
fn a_symbol_longer_than_the_runtime_reads_is_not_exported() {
    for (family, len, fits) in [
        (Family::DecoderOnly, 64, true),
        (Family::DecoderOnly, 65, false),
        (Family::Tagger, 64, true),
        (Family::Tagger, 65, false),
    ] {
        let mut model = random_model(family);
        let is_read = |tokenizer: &Tokenizer| tokenizer.special().is_some();
        for tokenizer in [&mut model.source, &mut model.target] {
            let mut symbols = tokenizer.symbols().to_vec();
            if let Some(last) = symbols.last_mut() {
                *last = "e".repeat(if is_read(tokenizer) { len } else { 99 });
            }
            let words = Splitting { unit: Unit::Word, lowercase: false };
            *tokenizer = Tokenizer::with_special(words, symbols, tokenizer.special());
        }
        match export(&model, Precision::HalfFloat, &[]) {
            Ok(_) => assert!(fits, "{family:?} {len}"),
            Err(error) => {
                let said = format!("{error:#}");
                assert!(!fits && said.contains("has 65 bytes; the runtime reads"), "{said}");
            }
        }
    }
}

/// The checkpoint, the config and the vocabulary of a model, as files of `folder`.
fn write_files(folder: &Path, model: &TrainedModel) -> [PathBuf; 3] {
    let [path, config, vocab] =
        ["model.safetensors", "config.json", "vocab.json"].map(|name| folder.join(name));
    std::fs::write(&path, state_dict(model).unwrap()).unwrap();
    let text = serde_json::json!({
        "family": model.config().family, "n_heads": 2, "norm": "pre",
        "max_source_len": 12, "max_target_len": 12
    });
    std::fs::write(&config, text.to_string()).unwrap();
    let symbols = serde_json::json!({
        "source": model.source.symbols(), "target": model.target.symbols()
    });
    std::fs::write(&vocab, symbols.to_string()).unwrap();
    [path, config, vocab]
}

#[test]
fn models_with_one_stack_go_to_pytorch_and_back() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::DecoderOnly, Family::Tagger, Family::Classifier] {
        let model = random_model(family);
        let [path, config, vocab] = write_files(folder.path(), &model);
        let back = import_files(&path, &config, &vocab, "auto").unwrap();
        assert_eq!(back.model.config(), model.config(), "{family:?}");
        assert_eq!(back.model.tensors(), model.tensors(), "{family:?}");
    }
}

/// `trainer import` of the files; what it printed and said.
fn import_command(files: &[PathBuf; 3], args: &[&str], output: &Path) -> (bool, String, String) {
    let [path, config, vocab] = files;
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.arg("import").arg(path).arg("--config").arg(config).arg("--vocab").arg(vocab);
    let said = command.args(args).arg("-o").arg(output).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (said.status.success(), text(said.stdout), text(said.stderr))
}

/// The file of a language model whose ranges are those of prompts with what follows.
fn calibrated_on_whole_texts(mut model: TrainedModel, prompts: &[String]) -> AlignedBytes {
    model.unknown = UnknownPolicy::Replace;
    let outputs = model.transcribe(prompts, 1);
    let pair = |(prompt, output): (&String, &Vec<String>)| Pair {
        source: String::new(),
        target: format!("{prompt}{}", output.concat()).chars().take(11).collect(),
        line: 1,
    };
    let pairs: Vec<Pair> = prompts.iter().zip(&outputs).map(pair).collect();
    export(&model, Precision::FixedPoint, &pairs).unwrap()
}

/// Ranges that were measured on nothing would give other continuations.
#[test]
fn one_stack_is_calibrated_on_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (output, texts) = (folder.path().join("model.kfm"), folder.path().join("texts.txt"));
    let prompts = ["a", "bc", "dea", "cab", "ee", "abcde", "bad"].map(String::from);
    for family in [Family::DecoderOnly, Family::Tagger, Family::Classifier] {
        let mut model = random_model(family);
        if family == Family::DecoderOnly {
            // Few texts end at once, and no special id is produced.
            let specs = &model.network.layout.specs;
            let bias = specs.iter().find(|spec| spec.name == "output.bias").unwrap().range();
            model.params[bias][..4].fill(-2.0);
        }
        let files = write_files(folder.path(), &model);
        let args = ["--calibration", texts.to_str().unwrap()];
        std::fs::write(&texts, prompts.join("\n")).unwrap();
        let (success, _, error) = import_command(&files, &args, &output);
        assert!(success, "{family:?}: {error}");
        let file = trainer::device::read(&output).unwrap();
        let exported = trainer::device::check(&file).unwrap();
        let given = trainer::device::evaluate(exported, &prompts, 1).unwrap().outputs;
        assert_eq!(given, model.transcribe(&prompts, 1), "{family:?}");
        if family == Family::DecoderOnly {
            assert!(given.concat().len() > 40, "{given:?}");
            assert_eq!(*file, *calibrated_on_whole_texts(model.clone(), &prompts));
        }
        // A text that the file would refuse.
        std::fs::write(&texts, "abx\n").unwrap();
        let (success, _, error) =
            import_command(&files, &[&args[..], &["--unknown", "refuse"]].concat(), &output);
        assert!(!success && error.contains("line 1: symbol \"x\" is not in"), "{error}");
    }
    std::fs::write(&texts, "abcdeabcdeabc\n").unwrap();
    let files = write_files(folder.path(), &random_model(Family::DecoderOnly));
    let args = ["--calibration", texts.to_str().unwrap()];
    let (success, _, error) = import_command(&files, &args, &output);
    assert!(!success && error.contains("line 1: 13 symbols, the limit is 11"), "{error}");
}

#[test]
fn biases_that_no_layer_has_are_zero_and_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = random_model(Family::Tagger);
    let is_key = |name: &str| name.ends_with("attention.key.bias");
    for spec in model.network.layout.specs.iter().filter(|spec| is_key(&spec.name)) {
        model.params[spec.range()].fill(0.0);
    }
    let files = write_files(folder.path(), &model);
    let bytes = std::fs::read(&files[0]).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors = whole.tensors().into_iter().filter(|(name, _)| !name.ends_with("W_k.bias"));
    std::fs::write(&files[0], safetensors::serialize(tensors, None).unwrap()).unwrap();
    let back = import_files(&files[0], &files[1], &files[2], "auto").unwrap();
    assert_eq!(back.model.tensors(), model.tensors());
    let (output, texts) = (folder.path().join("model.kfm"), "texts.txt");
    let args = ["--precision", "half", "--calibration", texts];
    let (success, printed, said) = import_command(&files, &args, &output);
    assert!(success, "{said}");
    assert!(printed.contains("\nbiases that the checkpoint lacks are zero: key\n"), "{printed}");
    assert_eq!(said, "texts.txt: not read, since --precision half has no ranges to measure\n");
}

#[test]
fn the_map_in_the_documentation_is_one() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/import.md");
    let text = std::fs::read_to_string(path).unwrap();
    let map = text.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    NameMap::parse("docs/import.md", map).unwrap();
    let built_in = text.split("- `torch`:").nth(1).unwrap();
    for name in ["marian", "tutorial"] {
        assert!(NameMap::built_in(name).is_some() && built_in.contains(&format!("- `{name}`:")));
    }
}
