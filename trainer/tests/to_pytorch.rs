//! Models that PyTorch loads: `./ci.sh --with-pytorch` runs this, and then `tests/pytorch/ours.py`.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{trainer, write_pairs};
use serde_json::json;
use trainer::data::corpus;
use trainer::model::TrainedModel;

/// Names the folder to fill: a subfolder for each model.
const FOLDER: &str = "KILOFORMER_FOR_PYTORCH";

/// What is trained: a name, and options. The first is what `trainer train` does by default.
const MODELS: [(&str, &[&str]); 6] = [
    ("default", &[]),
    (
        "post",
        &[
            "--norm=post",
            "--final-norm=false",
            "--positions=learned",
            "--output=untied-bias",
            "--activation=gelu",
            "--source-frame=start-end",
            "--decoder-layers=2",
        ],
    ),
    (
        "shared",
        &[
            "--shared-embedding=true",
            "--scale-embedding=false",
            "--positions=sinusoidal-halves",
            "--output=tied-bias",
            "--activation=silu",
        ],
    ),
    ("decoder-only", &["--family=decoder-only", "--target-unit=character"]),
    ("tagger", &["--family=tagger", "--source-frame=bare"]),
    ("classifier", &["--family=classifier", "--activation=gelu-tanh"]),
];

/// What the model of this name learns from.
fn write_data(folder: &Path, name: &str) -> PathBuf {
    let pairs = write_pairs(folder);
    let line = |line: &str| {
        let (source, target) = line.split_once('\t').unwrap();
        match name {
            "decoder-only" => format!("{source}\n"),
            "classifier" => format!("{source}\t{}\n", &target[..1]),
            _ => format!("{line}\n"),
        }
    };
    let text: String = std::fs::read_to_string(pairs).unwrap().lines().map(line).collect();
    let path = folder.join("data.txt");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
#[ignore = "needs a folder to fill; part of `./ci.sh --with-pytorch`"]
fn trained_models_are_written_for_pytorch() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect(FOLDER));
    for (name, options) in MODELS {
        let (work, folder) = (tempfile::tempdir().unwrap(), folder.join(name));
        std::fs::create_dir_all(&folder).unwrap();
        let (data, run) = (write_data(work.path(), name), work.path().join("run"));
        let mut train = trainer(&["--epochs=20", "--batch-size=24", "--warmup-steps=20"]);
        train.args(["--d-model=16", "--eval-epochs=20", "--ema-decay=0.9"]);
        train.args(options).arg("--data").arg(&data).arg("--out").arg(&run);
        assert!(train.stdout(Stdio::null()).status().unwrap().success(), "{name}");
        let mut export = Command::new(env!("CARGO_BIN_EXE_trainer"));
        export.arg("export").arg(&run).arg("--safetensors").arg(folder.join("model.safetensors"));
        assert!(export.status().unwrap().success(), "{name}");
        write_answers(&folder, &TrainedModel::load(&run).unwrap(), &data);
    }
}

/// The config, and what the engine answers to some texts (of a language model their beginnings).
fn write_answers(folder: &Path, model: &TrainedModel, data: &Path) {
    let config = model.config();
    let pairs = corpus::read(data, config.family).unwrap();
    let given: Vec<Vec<u32>> = pairs
        .iter()
        .step_by(4)
        .map(|pair| match config.has_encoder() {
            true => model.source.encode(&pair.source),
            false => model.target.encode(&model.target.splitting.first_half(&pair.target)),
        })
        .collect();
    let slices: Vec<&[u32]> = given.iter().map(Vec::as_slice).collect();
    let answers = model.network.greedy(&model.params, &slices).into_iter().zip(&given);
    let rows: Vec<_> = answers
        .map(|(answer, given)| json!({ "given": given, "ids": answer.ids, "ended": answer.ended }))
        .collect();
    let distinct: std::collections::BTreeSet<String> =
        rows.iter().map(|row| row["ids"].to_string()).collect();
    assert!(distinct.len() >= 3, "{}: {distinct:?} say little", folder.display());
    std::fs::write(folder.join("config.json"), serde_json::to_string(config).unwrap()).unwrap();
    std::fs::write(folder.join("answers.json"), serde_json::to_string(&rows).unwrap()).unwrap();
}
