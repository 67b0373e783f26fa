//! The golden files, in a build that reads integer models with ReLU and 8 bits: a file is answered to the
//! letter, or refused with the feature it needs. (On hosts every layout is read.)

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

#[test]
fn a_number_type_that_nobody_knows_is_not_taken_for_a_missing_feature() {
    let file = fs::read(golden().join("half-sixteen-rows.kfm")).expect("a golden file");
    with_aligned(&file, |file| {
        file[model_format::header::BLOCK_OFFSET] = 9;
        let error = HalfModel::from_bytes(file).expect_err("there is no such precision");
        assert!(matches!(error, LoadError::Model(_)), "{error}");
    });
}
