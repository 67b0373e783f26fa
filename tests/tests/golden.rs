//! Model files of every released version of the format, and the answers and logits they have had ever
//! since: a later reader must still give them.
//!
//! Each `golden/vN/NAME.kfm` has a `NAME.tsv` beside it: a word, the answer, the hash of all logits.

use std::fs;
use std::path::{Path, PathBuf};

use kiloformer_tests::answer::run;
use kiloformer_tests::random_model::{SOURCE_VOCAB, Storage, of_family, random_model_with, tiny};
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, Precision as Stored,
    SourceFrame, SpecialIds, StackConfig,
};
use model_format::header::VERSION;
use model_format::layout::Layout;
use model_format::{AlignedBytes, Model};
use runtime::{FixedPoint, HalfFloat, Precision, Session, TypedModel, arena_len};

/// From one letter to as many as the files take, with upper case and with the apostrophe.
const WORDS: [&str; 8] =
    ["a", "ox", "Abbey", "o'neill", "zurich", "kilobyte", "transformer", "QUICKBROWNFOXJU"];

/// Of the first two hundred, one with which answers differ most from word to word.
const FIRST_SEED: u64 = 14;

fn folder(version: u16) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/v{version}"))
}

/// All golden files of a version, sorted.
fn models(version: u16) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(version)).expect("golden files are part of the repository");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "kfm"));
    paths.sort();
    paths
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One line for every word, as the `.tsv` has it.
fn answers<'w>(file: &[u8], words: impl Iterator<Item = &'w str>) -> String {
    let file = AlignedBytes::from(file);
    let model = Model::from_bytes(&file).unwrap_or_else(|error| panic!("{error}"));
    match model.header().precision {
        Stored::FixedPoint => answers_of::<FixedPoint>(&file, words),
        Stored::HalfFloat => answers_of::<HalfFloat>(&file, words),
    }
}

fn answers_of<'w, P: Precision>(
    file: &AlignedBytes,
    words: impl Iterator<Item = &'w str>,
) -> String {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut arena = AlignedBytes::filled(0, arena_len(file));
    let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
    let mut line = |word| {
        let answer = run(&mut session, word);
        format!("{word}\t{}\t{:016x}\n", answer.text.expect("an answer"), answer.hash)
    };
    words.map(&mut line).collect()
}

#[test]
fn golden_files_have_the_answers_they_always_had() {
    for version in 1..=VERSION {
        let models = models(version);
        assert!(models.len() >= 18, "golden files of version {version} are missing: {models:?}");
        for path in models {
            let expected = read(&path.with_extension("tsv"));
            let words = expected.lines().filter_map(|line| line.split('\t').next());
            let file = fs::read(&path).expect("a golden file");
            assert_eq!(answers(&file, words), expected, "{}", path.display());
            assert!(expected.lines().count() >= 5, "{} has few words", path.display());
        }
    }
}

/// A name, and what the file has.
type Choice = (&'static str, Stored, ModelConfig, Storage);

/// Small models that together have every choice of the configuration.
fn choices() -> Vec<Choice> {
    use Positions::{Learned, SinusoidalHalves, SinusoidalInterleaved};
    let stack = |n_layers, n_heads, d_ff| StackConfig { n_layers, n_heads, d_ff };
    let small = ModelConfig {
        d_model: 12,
        encoder: stack(1, 3, 18),
        decoder: stack(1, 2, 10),
        target_vocab: 24,
        max_source_len: 16,
        max_target_len: 9,
        ..tiny()
    };
    let odd = ModelConfig {
        d_model: 15,
        encoder: stack(1, 5, 7),
        decoder: stack(2, 3, 13),
        norm: NormPlace::Post,
        positions: Learned,
        ..small
    };
    let choices = [
        (
            "fixed-pre-interleaved-tied",
            Stored::FixedPoint,
            ModelConfig { positions: SinusoidalInterleaved, ..small },
        ),
        (
            "fixed-pre-halves-tied-bias",
            Stored::FixedPoint,
            ModelConfig {
                positions: SinusoidalHalves,
                output: Output::TiedBias,
                encoder: stack(2, 1, 9),
                final_norm: false,
                ..small
            },
        ),
        (
            "fixed-post-learned-untied-bias",
            Stored::FixedPoint,
            ModelConfig { output: Output::UntiedBias, final_norm: false, ..odd },
        ),
        ("half-pre-interleaved-tied", Stored::HalfFloat, small),
        (
            "half-post-learned-untied",
            Stored::HalfFloat,
            ModelConfig { output: Output::Untied, ..odd },
        ),
    ];
    let row_major = choices.into_iter().chain(other_families(&small, &odd));
    let row_major = row_major.map(|(name, precision, config)| {
        let storage = Storage::default();
        (name, precision, config, storage)
    });
    row_major.chain(other_storage(&small, &odd)).collect()
}

/// The layouts, and weights of 4 bits, with rows and columns that leave every tail.
fn other_storage(small: &ModelConfig, odd: &ModelConfig) -> [Choice; 5] {
    use Layout::{PairedRows, QuadRows, RowMajor, SixteenRows};
    use Stored::{FixedPoint, HalfFloat};
    let in_layout = |layout| Storage { layout, four_bit: false };
    let in_four_bits = |layout| Storage { layout, four_bit: true };
    let untied = ModelConfig { output: Output::UntiedBias, ..*odd };
    // Two groups of columns, and the second has a tail.
    let wide =
        ModelConfig { d_model: 22, encoder: StackConfig { n_heads: 2, ..small.encoder }, ..*small };
    [
        ("fixed-paired-rows", FixedPoint, untied, in_layout(PairedRows)),
        ("fixed-quad-rows", FixedPoint, untied, in_layout(QuadRows)),
        ("half-sixteen-rows", HalfFloat, untied, in_layout(SixteenRows)),
        ("fixed-four-bits-tied", FixedPoint, wide, in_four_bits(RowMajor)),
        ("fixed-four-bits-paired-rows", FixedPoint, untied, in_four_bits(PairedRows)),
    ]
}

/// The families and activations that `choices` does not have, frames and embeddings among them.
fn other_families(
    small: &ModelConfig,
    odd: &ModelConfig,
) -> [(&'static str, Stored, ModelConfig); 8] {
    use Stored::{FixedPoint, HalfFloat};
    let untied = ModelConfig { output: Output::UntiedBias, ..*odd };
    let shared = ModelConfig {
        shared_embedding: true,
        scale_embedding: false,
        target_vocab: SOURCE_VOCAB,
        source_frame: SourceFrame::StartEnd,
        // Start is pad, as in Marian.
        special: SpecialIds { pad: 0, start: 0, end: 2, unknown: 3 },
        ..*small
    };
    let with = |activation, config: ModelConfig| ModelConfig { activation, ..config };
    let family = |family, config: &ModelConfig| of_family(family, config);
    [
        ("fixed-shared-silu", FixedPoint, with(Activation::Silu, shared)),
        ("half-shared-gelu", HalfFloat, {
            let config = ModelConfig { output: Output::Untied, ..shared };
            with(Activation::Gelu, ModelConfig { scale_embedding: true, ..config })
        }),
        ("fixed-decoder-only-gelu", FixedPoint, {
            with(Activation::Gelu, family(Family::DecoderOnly, small))
        }),
        ("half-decoder-only-silu", HalfFloat, {
            with(Activation::Silu, family(Family::DecoderOnly, odd))
        }),
        ("fixed-tagger-gelu-tanh", FixedPoint, {
            with(Activation::GeluTanh, family(Family::Tagger, &untied))
        }),
        ("half-tagger-bare", HalfFloat, {
            let config = family(Family::Tagger, &untied);
            ModelConfig { source_frame: SourceFrame::Bare, ..config }
        }),
        ("fixed-classifier-start-end", FixedPoint, {
            let config = family(Family::Classifier, small);
            ModelConfig { source_frame: SourceFrame::StartEnd, ..config }
        }),
        ("half-classifier-gelu-tanh", HalfFloat, {
            with(Activation::GeluTanh, family(Family::Classifier, small))
        }),
    ]
}

/// `cargo test -p kiloformer-tests --test golden -- --ignored` adds the files of the current version.
/// One that exists is never written again: it stands for the files in the field.
#[test]
#[ignore = "writes files"]
fn write_missing_golden_files() {
    let folder = folder(VERSION);
    fs::create_dir_all(&folder).expect("a folder");
    for (seed, (name, precision, config, storage)) in (FIRST_SEED..).zip(choices()) {
        let path = folder.join(name).with_extension("kfm");
        if path.exists() {
            println!("{} exists", path.display());
            continue;
        }
        let file = random_model_with(precision, &config, seed, storage);
        fs::write(&path, &*file).expect("a new file");
        let limit = match config.has_encoder() {
            true => config.max_source_len - config.source_frame.len(),
            false => config.max_target_len - 1,
        };
        let words = WORDS.into_iter().filter(|word| word.len() <= limit.into());
        let expected = answers(&file, words);
        fs::write(path.with_extension("tsv"), &expected).expect("a new file");
        println!("{}: {} bytes\n{expected}", path.display(), file.len());
    }
}
