//! The models that host and device both run.

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
};

use kiloformer_tests::{
    answer::answer,
    random_model::{like_g2p, random_model, tiny},
};
use model_format::{
    AlignedBytes, Model,
    config::{ModelConfig, Precision as Stored},
    header::VERSION,
};
use runtime::{
    FixedPoint, HalfFloat, Limits, LogitsHash, Plan, Precision, Session, TypedModel, arena_len,
};

use crate::searches::{BEAMS, Found, search_all};

/// A model file that firmware can be built with.
pub struct ModelFile {
    /// What messages call it.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    bytes: AlignedBytes,
}

/// What the host makes of a list of words.
pub struct Expected {
    /// The text of each word, `None` where the word is refused.
    pub answers: Vec<Option<String>>,
    /// The hash of all logits.
    pub hash: u64,
}

/// Integer models: random weights in the shape of the one that ships, and itself if it is there.
pub fn fixed_point() -> Vec<ModelFile> {
    let random = random("random-fixed", Stored::FixedPoint, &shorter());
    [random].into_iter().chain(shipped("g2p-en")).collect()
}

/// The same in half floats.
pub fn half_float() -> Vec<ModelFile> {
    let random = random("random-half", Stored::HalfFloat, &shorter());
    [random].into_iter().chain(shipped("g2p-en-f16")).collect()
}

/// An integer model for 16 KB of RAM.
pub fn tiny_fixed_point() -> ModelFile {
    random("random-tiny", Stored::FixedPoint, &tiny())
}

/// The golden files of the current version of the format, which have every choice of the configuration;
/// sorted.
pub fn golden() -> Vec<ModelFile> {
    of_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/v{VERSION}")))
}

/// All models of a folder, sorted.
pub fn of_folder(folder: &Path) -> Vec<ModelFile> {
    let entries = std::fs::read_dir(folder).expect("a folder of models");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "kfm"));
    paths.sort();
    paths.into_iter().filter_map(ModelFile::read).collect()
}

/// A model that ships, if it is there.
pub fn shipped(name: &str) -> Option<ModelFile> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    ModelFile::read(folder.join(name).with_extension("kfm"))
}

/// Random models seldom end an answer: a lower limit saves time.
fn shorter() -> ModelConfig {
    ModelConfig { max_target_len: 16, ..like_g2p() }
}

fn random(name: &str, precision: Stored, config: &ModelConfig) -> ModelFile {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("kfm");
    let bytes = random_model(precision, config, 1);
    // Tests run at the same time and share the file: none of them rewrites it under a build.
    static WRITING: Mutex<()> = Mutex::new(());
    let _turn = WRITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if std::fs::read(&path).ok().as_deref() != Some(&*bytes) {
        std::fs::write(&path, &*bytes).expect("writing a model");
    }
    ModelFile { name: name.to_owned(), path, bytes }
}

impl ModelFile {
    /// The file at `path`, if there is one.
    fn read(path: PathBuf) -> Option<Self> {
        let bytes = std::fs::read(&path).ok()?;
        let name = path.file_stem()?.to_string_lossy().into_owned();
        Some(Self { name, path, bytes: AlignedBytes::from(&bytes[..]) })
    }

    /// The architecture.
    pub fn config(&self) -> ModelConfig {
        *self.model().config()
    }

    /// Whether its numbers are half floats.
    pub fn is_half_float(&self) -> bool {
        self.model().header().precision == Stored::HalfFloat
    }

    /// Most letters of a word.
    pub fn letter_limit(&self) -> usize {
        let config = self.config();
        usize::from(match config.has_encoder() {
            true => config.max_source_len - config.source_frame.len(),
            false => config.max_target_len - 1,
        })
    }

    /// Bytes of the arena on the host.
    pub fn arena(&self) -> usize {
        arena_len(&self.bytes)
    }

    /// Runs `words` on this machine.
    pub fn run<'a>(&self, words: impl Iterator<Item = &'a str>) -> Expected {
        match self.model().header().precision {
            Stored::FixedPoint => self.run_as::<FixedPoint>(words),
            Stored::HalfFloat => self.run_as::<HalfFloat>(words),
        }
    }

    fn run_as<'a, P: Precision>(&self, words: impl Iterator<Item = &'a str>) -> Expected {
        let model = TypedModel::<P>::from_bytes(&self.bytes).expect("a sound model");
        let mut arena = AlignedBytes::filled(0, self.arena());
        let mut session = Session::new(&model, &mut arena).expect("an arena of exact size");
        let mut hash = LogitsHash::default();
        let answers = words.map(|word| answer(&mut session, word, &mut hash).ok()).collect();
        Expected { answers, hash: hash.value() }
    }

    /// All that `:search` finds for `words`, as [`transcript::searches`](crate::transcript::searches)
    /// gives it.
    pub fn searches(&self, words: &[&str]) -> Vec<String> {
        match self.is_half_float() {
            true => self.searches_as::<HalfFloat>(words),
            false => self.searches_as::<FixedPoint>(words),
        }
    }

    fn searches_as<P: Precision>(&self, words: &[&str]) -> Vec<String> {
        let model = TypedModel::<P>::from_bytes(&self.bytes).expect("a sound model");
        let limits = Limits::of(model.model().config()).with_beams(BEAMS);
        let total = Plan::new(model.model().header(), limits).total;
        let mut arena = AlignedBytes::filled(0, total);
        let mut session = Session::with_limits(&model, &mut arena, limits).expect("exact size");
        let (mut found, mut buffer) = (Vec::new(), [0; 256]);
        for word in words {
            let show = |Found { way, text, numbers: [first, second] }: Found<'_>| {
                found.push(format!("{way}\t{text}\t{first:016x}\t{second:016x}"));
            };
            search_all(&mut session, word, &mut buffer, show).expect("sound options");
        }
        found
    }

    fn model(&self) -> Model<'_> {
        Model::from_bytes(&self.bytes).expect("a sound model")
    }
}
