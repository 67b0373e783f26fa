//! Every layout of a model gives the same logits, bit by bit, whatever the architecture.

use std::path::Path;

use kiloformer_tests::answer::answer;
use kiloformer_tests::for_precision;
use kiloformer_tests::precision::BOTH;
use kiloformer_tests::random_model::{Storage, like_g2p, random_model, random_model_with, tiny};
use model_format::config::Precision as Stored;
use model_format::directory::{Kind, Slot};
use model_format::layout::{Layout, LinearInt};
use model_format::{AlignedBytes, FileBuilder, Model, Vocabulary, repack};
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
    let four_bit = Storage { four_bit: true, ..Storage::default() };
    let file = random_model_with(Stored::FixedPoint, &like_g2p(), 3, four_bit);
    models.push(("random, 4 bits".to_owned(), file));
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

/// The same model with the products of weights and factors in 8 bits.
fn expanded(model: &Model<'_>) -> AlignedBytes {
    let texts = |vocabulary: &Vocabulary<'_>| {
        (0..vocabulary.len()).map(|id| vocabulary.text(id).to_owned()).collect()
    };
    let [source, target] = [model.source_vocabulary(), model.target_vocabulary()].map(texts);
    let mut file = FileBuilder::new(*model.header(), source, target);
    file.formats(|slot| model.formats().get(slot));
    let done: Result<(), std::convert::Infallible> = file.tensors(|slot, kind| {
        assert_ne!(kind, Kind::LinearI4, "nobody asked for it");
        if model.kind(slot) != Kind::LinearI4 {
            return Ok(model.bytes(slot).to_vec());
        }
        let linear = model.linear_int(slot);
        let weights: Vec<i8> = (0..linear.rows).flat_map(|row| linear.row(row)).collect();
        let (bias, multipliers): (Vec<i32>, Vec<i32>) =
            (0..linear.rows).map(|row| linear.constants(row)).unzip();
        Ok(LinearInt::pack(model.header().layout, &weights, &bias, &multipliers))
    });
    let Ok(()) = done;
    file.finish().expect("products of 4 bits fit into 8")
}

#[test]
fn weights_of_4_bits_answer_as_their_products_in_8_bits() {
    for (config, seed) in [(like_g2p(), 3), (tiny(), 5)] {
        for layout in [Layout::RowMajor, Layout::PairedRows, Layout::QuadRows] {
            let storage = Storage { layout, four_bit: true };
            let file = random_model_with(Stored::FixedPoint, &config, seed, storage);
            let model = Model::from_bytes(&file).expect("a sound file");
            let slots = Slot::all(model.config());
            assert!(slots.filter(|slot| model.kind(*slot) == Kind::LinearI4).count() >= 16);
            let wide = expanded(&model);
            assert!(wide.len() > file.len(), "{} and {}", wide.len(), file.len());
            assert_eq!(run(&file), run(&wide), "{layout:?}");
        }
    }
}
