//! The model that ships, on the host.

use std::path::{Path, PathBuf};

use model_format::AlignedBytes;
use runtime::{FixedModel, Session, arena_len, macs};

/// Where it lies.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/g2p-en.kfm")
}

/// Multiply-accumulates of all its matrix products over these words.
pub fn macs(words: &[&str]) -> u64 {
    let file = std::fs::read(path()).expect("the model that ships");
    let file = AlignedBytes::from(&file[..]);
    let model = FixedModel::from_bytes(&file).expect("a sound integer model");
    let mut arena = AlignedBytes::filled(0, arena_len(&file));
    let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
    let _ = macs::take();
    for word in words {
        session.run::<256>(word).expect("an answer");
    }
    macs::take()
}
