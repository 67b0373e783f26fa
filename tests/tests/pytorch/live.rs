//! Checkpoints that PyTorch has just written, imported as a user's are: `./ci.sh --with-pytorch`.

use std::fs;
use std::path::{Path, PathBuf};

use model_format::AlignedBytes;
use model_format::config::Precision as Stored;
use runtime::{GenerateOptions, HalfFloat, Limits, Session, TypedModel, arena_len, arena_len_with};
use serde::Deserialize;
use trainer::data::corpus::Pair;
use trainer::export::export;
use trainer::import::config::Lengths;
use trainer::import::vocabulary::SplittingChoice;
use trainer::import::{Imported, Request, import};
use trainer::model::TrainedModel;

use crate::files::generate;
use crate::fixture::{Beam, Greedy};
use crate::sessions::beam_search;

/// Names the folder that `tests/pytorch/live.py` has filled.
const FOLDER: &str = "KILOFORMER_PYTORCH";
/// Names the folder for models that a board runs next, with their texts.
const FOR_BOARDS: &str = "KILOFORMER_BOARD_MODELS";
/// Models of B's size, which the emulated board's flash holds.
const MOST_PARAMETERS: usize = 500_000;
/// Scores of hypotheses in HalfFloat, whose weights are rounded here: a logit near 10 is off by some
/// 5e-3, and up to 24 are summed up where there is no length penalty.
const SCORES: f64 = 0.05;

/// What PyTorch says of a checkpoint.
#[derive(Deserialize)]
struct Expected {
    /// Numbers in all tensors.
    parameters: usize,
    /// The map of names that fits.
    names: String,
    greedy: Vec<Greedy>,
    beam: Vec<Beam>,
}

fn imported(folder: &Path) -> Imported {
    let pt = folder.join("model.pt");
    let checkpoint = if pt.exists() { pt } else { folder.join("model.safetensors") };
    let request = Request {
        checkpoint: &checkpoint,
        key: None,
        config: &folder.join("config.json"),
        vocab: &folder.join("vocab.json"),
        names: "auto",
        lengths: Lengths::default(),
        source: SplittingChoice::default(),
        target: SplittingChoice::default(),
    };
    import(request).unwrap_or_else(|error| panic!("{}: {error:#}", folder.display()))
}

/// The engine in `f32` with the checkpoint's own weights.
fn engine_agrees(name: &str, model: &TrainedModel, expected: &Expected) {
    let config = model.config();
    let frame = usize::from(config.source_frame.has_end());
    let symbols = |answer: &Greedy| {
        let source = answer.source.as_deref().unwrap_or_default();
        source[..source.len() - frame].iter().map(|&id| id.into()).collect::<Vec<u32>>()
    };
    let sources: Vec<Vec<u32>> = expected.greedy.iter().map(symbols).collect();
    let sources: Vec<&[u32]> = sources.iter().map(Vec::as_slice).collect();
    let found = model.network.greedy(&model.params, &sources);
    for (found, answer) in found.iter().zip(&expected.greedy) {
        let mut ids: Vec<u16> = found.ids.iter().map(|&id| id as u16).collect();
        ids.extend(found.ended.then_some(config.special.end));
        assert_eq!(ids, answer.ids, "{name}: engine, {:?}", answer.source);
    }
}

/// The exported file in the runtime.
fn half_float_agrees(name: &str, file: &AlignedBytes, expected: &Expected) {
    let model = TypedModel::<HalfFloat>::from_bytes(file).expect("a sound file");
    let mut arena = AlignedBytes::filled(0, arena_len(file));
    let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
    let config = model.model().config();
    for answer in &expected.greedy {
        let source = answer.source.as_deref().unwrap_or_default();
        let options = GenerateOptions::default();
        let (ids, _) = generate(&mut session, source, &options, config.special.end, |v| v);
        assert_eq!(ids, answer.ids, "{name}: HalfFloat, {source:?}");
    }
    for beam in &expected.beam {
        let limits = Limits::of(config).with_beams(beam.beams as u16);
        let len = arena_len_with(file, limits).expect("a sound file");
        let mut arena = AlignedBytes::filled(0, len);
        let source = expected.greedy[beam.sentence].source.as_deref().unwrap_or_default();
        let found = beam_search(&model, &mut arena, (source, beam));
        assert_eq!(found.len(), beam.best.len(), "{name}: {source:?}");
        for ((ids, score), best) in found.iter().zip(&beam.best) {
            assert_eq!(ids, &best.ids, "{name}: {} beams, {source:?}", beam.beams);
            assert!((score - best.score).abs() < SCORES, "{name}: {score}, not {}", best.score);
        }
    }
}

/// Both number types of a model, and the texts of its answers, one a line.
fn write_for_boards(name: &str, model: &TrainedModel, half: &AlignedBytes, expected: &Expected) {
    let Some(folder) = std::env::var_os(FOR_BOARDS).map(PathBuf::from) else { return };
    let text = |ids: &[u16]| {
        let special = model.config().special;
        let symbols = ids.iter().filter(|id| **id != special.end && **id != special.start);
        model.source.decode(&symbols.map(|&id| id.into()).collect::<Vec<u32>>())
    };
    let sources = expected.greedy.iter().map(|answer| answer.source.as_deref());
    let texts: Vec<String> = sources.map(|ids| text(ids.unwrap_or_default())).collect();
    let answers = model.transcribe(&texts, 1);
    let pair = |(source, target): (&String, Vec<String>)| Pair {
        source: source.clone(),
        target: target.join(model.target.separator()),
        line: 0,
    };
    let pairs: Vec<Pair> = texts.iter().zip(answers).map(pair).collect();
    let fixed = export(model, Stored::FixedPoint, &pairs).expect("an integer file");
    for (kind, file) in [("half", half), ("fixed", &fixed)] {
        let path = folder.join(format!("{name}-{kind}.kfm"));
        fs::write(&path, &**file).expect("a file");
        fs::write(path.with_extension("txt"), texts.join("\n")).expect("a file");
    }
}

#[test]
#[ignore = "needs what PyTorch writes: ./ci.sh --with-pytorch"]
fn imported_checkpoints_say_what_pytorch_says() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect(FOLDER));
    let folders = fs::read_dir(&folder).expect("the folder of checkpoints");
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.expect("an entry").path()).collect();
    folders.sort();
    assert!(folders.len() >= 5, "only {} checkpoints", folders.len());
    for folder in folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let expected = fs::read(folder.join("expected.json")).expect("what PyTorch says");
        let expected: Expected = serde_json::from_slice(&expected).expect("its JSON");
        let Imported { model, names, .. } = imported(&folder);
        assert_eq!(names, expected.names, "{name}");
        assert_eq!(model.network.layout.len(), expected.parameters, "{name}");
        engine_agrees(&name, &model, &expected);
        let file = export(&model, Stored::HalfFloat, &[]).expect("a file");
        half_float_agrees(&name, &file, &expected);
        if expected.parameters <= MOST_PARAMETERS {
            write_for_boards(&name, &model, &file, &expected);
        }
        let (greedy, beam) = (expected.greedy.len(), expected.beam.len());
        let parameters = expected.parameters;
        println!(
            "{name}: {parameters} parameters, {greedy} answers and {beam} beam searches alike"
        );
    }
}
