//! Every layout of a model gives the same logits, bit by bit, whatever the architecture.

use std::path::Path;

use kiloformer_tests::answer::answer;
use kiloformer_tests::for_precision;
use kiloformer_tests::precision::BOTH;
use kiloformer_tests::random_model::{like_g2p, random_model};
use model_format::config::Precision as Stored;
use model_format::directory::Slot;
use model_format::layout::Layout;
use model_format::{AlignedBytes, Model, repack};
use runtime::{LogitsHash, Precision, Session, TypedModel, arena_len};

/// Golden files, and one of the size of the model that ships.
fn models() -> Vec<(String, AlignedBytes)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/v1");
    let mut models: Vec<(String, AlignedBytes)> = std::fs::read_dir(folder)
        .expect("golden files")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "kfm"))
        .map(|path| {
            (path.display().to_string(), AlignedBytes::from(&*std::fs::read(&path).unwrap()))
        })
        .collect();
    for precision in BOTH {
        models.push((format!("random {precision:?}"), random_model(precision, &like_g2p(), 3)));
    }
    models
}

/// Answers and the hash of all logits.
fn run(file: &[u8]) -> (Vec<Option<String>>, u64) {
    let precision = Model::from_bytes(file).expect("a sound file").header().precision;
    for_precision!(precision, run_as(file))
}

fn run_as<P: Precision>(file: &[u8]) -> (Vec<Option<String>>, u64) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut arena = AlignedBytes::filled(0xA5, arena_len(file));
    let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
    let mut hash = LogitsHash::default();
    let words = ["a", "kilobyte", "no", "transformer", "zz"];
    let answers = words.map(|word| answer(&mut session, word, &mut hash).ok());
    (answers.into(), hash.value())
}

#[test]
fn every_layout_answers_in_the_same_bits() {
    for (name, file) in models() {
        let model = Model::from_bytes(&file).expect("a sound file");
        let expected = run(&file);
        assert!(expected.0.iter().any(Option::is_some), "{name} refuses every text");
        for layout in Layout::ALL.into_iter().filter(|l| l.suits(model.header().precision)) {
            let packed = repack(&model, layout).expect("a layout that suits");
            assert_eq!(run(&packed), expected, "{name} in {layout:?}");
            let packed = Model::from_bytes(&packed).expect("a sound file");
            assert_eq!(*repack(&packed, model.header().layout).unwrap(), *file, "{name}: and back");
        }
    }
}

#[test]
fn a_layout_of_the_other_precision_is_refused() {
    let file = random_model(Stored::FixedPoint, &like_g2p(), 1);
    let model = Model::from_bytes(&file).expect("a sound file");
    assert!(repack(&model, Layout::SixteenRows).is_err());
}

#[test]
fn a_damaged_weight_of_any_layout_is_found() {
    let file = random_model(Stored::FixedPoint, &like_g2p(), 1);
    let model = Model::from_bytes(&file).expect("a sound file");
    for (layout, minus_128) in
        [(Layout::RowMajor, 0x80), (Layout::PairedRows, 0), (Layout::QuadRows, 0)]
    {
        let mut packed = repack(&model, layout).expect("a layout that suits");
        let blob = Model::from_bytes(&packed).unwrap().bytes(Slot::SourceEmbedding).as_ptr();
        let at = blob.addr() - packed.as_ptr().addr();
        packed[at] = minus_128;
        assert!(Model::from_bytes_with(&packed, model_format::Checks::SkipCrc).is_err());
    }
}
