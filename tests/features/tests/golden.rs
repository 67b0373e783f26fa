//! The golden files, in a build that reads integer models with ReLU and 8 bits: a file is answered to the
//! letter, or refused with the feature it needs. On hosts every layout is read, but where
//! `cfg(kiloformer_layout)` says that the kernels know one alone.

use std::fs;
use std::path::{Path, PathBuf};

use runtime::{FixedModel, HalfModel, LoadError, Session, arena_len};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/v1")
}

/// A copy of `bytes` on a multiple of 16.
fn with_aligned<R>(bytes: &[u8], work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut room = vec![0; bytes.len() + 16];
    let skip = room.as_ptr().addr().wrapping_neg() % 16;
    let aligned = &mut room[skip..][..bytes.len()];
    aligned.copy_from_slice(bytes);
    work(aligned)
}

/// The feature that the file called `name` needs first, in the order in which they are missed.
fn needed(name: &str) -> Option<&'static str> {
    let has = |part| name.contains(part);
    if has("half-") {
        Some("half-float")
    } else if cfg!(kiloformer_layout = "paired-rows") && !has("paired-rows") {
        Some("layouts")
    } else if has("four-bits") {
        Some("int4")
    } else if has("gelu") || has("silu") {
        Some("gated")
    } else {
        None
    }
}

fn answer(file: &[u8], word: &str) -> String {
    let model = FixedModel::from_bytes(file).expect("it was loaded before");
    with_aligned(&vec![0; arena_len(file)], |arena| {
        let mut session = Session::new(&model, arena).expect("an arena of exact size");
        session.run_into(word, &mut [0; 256]).expect("an answer").to_owned()
    })
}

#[test]
fn golden_files_are_answered_or_name_the_feature_they_need() {
    let mut answered = 0;
    for entry in fs::read_dir(golden()).expect("golden files are part of the repository") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "kfm") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        with_aligned(&fs::read(&path).expect("a file"), |file| {
            let loaded = match name.starts_with("half-") {
                true => HalfModel::from_bytes(file).err(),
                false => FixedModel::from_bytes(file).err(),
            };
            let expected = needed(&name).map(|feature| LoadError::Unsupported { feature });
            assert_eq!(loaded, expected, "{name}");
            if expected.is_some() {
                return;
            }
            let lines = fs::read_to_string(path.with_extension("tsv")).expect("its answers");
            for line in lines.lines() {
                let mut parts = line.split('\t');
                let word = parts.next().expect("a word");
                assert_eq!(parts.next(), Some(&*answer(file, word)), "{name} {word}");
                answered += 1;
            }
        });
    }
    assert!(answered > 0);
}

/// A golden file whose last symbol of a prompt, a letter, is an é: a byte more in the vocabulary, one less
/// in the padding before the weights.
#[cfg(not(kiloformer_layout = "paired-rows"))]
fn with_accent(file: &mut [u8]) {
    use runtime::model_format::{Model, header};

    let model = Model::from_bytes(file).expect("a sound model");
    let vocabulary = model.target_vocabulary();
    let n = usize::from(vocabulary.len());
    let place = |id| vocabulary.text(id).as_ptr().addr() - file.as_ptr().addr();
    let last = (0..vocabulary.len()).max_by_key(|&id| vocabulary.text(id)).expect("a symbol");
    let (texts, letter) = (place(0), place(last));
    // Formats, directory and vocabulary: a length in groups of seven bits, and as many bytes.
    let length_at = |at: usize| {
        let groups = file[at..].iter().position(|byte| byte & 0x80 == 0).expect("an end") + 1;
        let bits = file[at..at + groups].iter().rev();
        (groups, bits.fold(0, |len, byte| len << 7 | usize::from(byte & 0x7F)))
    };
    let next = |at| {
        let (groups, len) = length_at(at);
        at + groups + len
    };
    let vocabulary_at = next(next(header::BLOCK_OFFSET + header::BLOCK_LEN));
    let padding_at = next(vocabulary_at);
    file[vocabulary_at] += 1;
    file.copy_within(letter..padding_at + 1, letter + 1);
    file[letter..letter + 2].copy_from_slice("é".as_bytes());
    file[padding_at + 1] -= 1;
    for id in usize::from(last) + 1..=n {
        file[texts - 2 * n - 4 * (n + 1 - id)] += 1;
    }
}

#[cfg(not(kiloformer_layout = "paired-rows"))]
#[test]
fn a_vocabulary_of_more_than_ascii_needs_its_feature() {
    use runtime::{Checks, model_format::Model};

    let file = fs::read(golden().join("fixed-decoder-only-gelu.kfm")).expect("a golden file");
    with_aligned(&file, |file| {
        with_accent(file);
        let model = Model::from_bytes_with(file, Checks::SkipCrc).expect("a sound model");
        assert!(model.text().fold_case && model.target_vocabulary().id("é").is_some());
        let error = FixedModel::from_bytes_with(file, Checks::SkipCrc).expect_err("an é");
        assert_eq!(error, LoadError::Unsupported { feature: "unicode-case" });
    });
}

#[test]
fn a_number_type_that_nobody_knows_is_not_taken_for_a_missing_feature() {
    let file = fs::read(golden().join("half-sixteen-rows.kfm")).expect("a golden file");
    with_aligned(&file, |file| {
        file[model_format::header::BLOCK_OFFSET] = 9;
        let error = HalfModel::from_bytes(file).expect_err("there is no such precision");
        assert!(matches!(error, LoadError::Model(_)), "{error}");
    });
}
