//! The model: the only file that calls the runtime, but for the self-test.

use runtime::model_format::{
    config::Precision as Stored,
    header::{Header, HeaderError},
};
use runtime::{
    ArenaTooSmall, Checks, FixedPoint, HalfFloat, Limits, LoadError, LogitsHash, Plan, Precision,
    RunError, Session, StaticArena, TypedModel,
};

/// The file that `build.rs` chose, in flash.
pub static MODEL: &[u8] = runtime::include_model!(env!("KILOFORMER_MODEL_FILE"));

/// Its configuration, read by the compiler.
pub const HEADER: Header = match Header::read(MODEL) {
    Ok(header) => header,
    Err(HeaderError::UnsupportedVersion { .. }) => {
        panic!("the model has a format version that this runtime does not read")
    }
    Err(_) => panic!("KILOFORMER_MODEL is not a Kiloformer model"),
};

/// The longest sequences of the model; with feature `search` also its beams.
const LIMITS: Limits = {
    let limits = Limits::of(&HEADER.config);
    #[cfg(feature = "search")]
    let limits = limits.with_beams(crate::searches::BEAMS);
    limits
};
/// All of the model's memory, sized by the compiler.
static ARENA: StaticArena<ARENA_LEN> = StaticArena::new();
/// Bytes of the arena.
pub const ARENA_LEN: usize = Plan::new(&HEADER, LIMITS).total;

/// Most letters of a word.
pub const LETTER_LIMIT: usize = match HEADER.config.has_encoder() {
    true => (HEADER.config.max_source_len - HEADER.config.source_frame.len()) as usize,
    // A prompt leaves room for an id.
    false => HEADER.config.max_target_len as usize - 1,
};
/// Most bytes of an answer.
const ANSWER_LIMIT: usize = 256;

/// The arithmetic of the model in flash; a firmware for one kind of model just names `FixedPoint`
/// or `HalfFloat`.
pub type Arithmetic = <Kind<IS_HALF> as Choice>::Arithmetic;
/// The other one.
pub type OtherArithmetic = <Kind<{ !IS_HALF }> as Choice>::Arithmetic;

const IS_HALF: bool = matches!(HEADER.precision, Stored::HalfFloat);

/// Turns a constant into a type.
pub struct Kind<const HALF: bool>;

/// The type of a [`Kind`].
pub trait Choice {
    /// The type.
    type Arithmetic: Precision;
}

impl Choice for Kind<false> {
    type Arithmetic = FixedPoint;
}

impl Choice for Kind<true> {
    type Arithmetic = HalfFloat;
}

/// The model of this firmware, checked.
pub type Model = TypedModel<'static, Arithmetic>;

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The file.
    Load(LoadError),
    /// The arena serves one speller only.
    ArenaInUse,
    /// The arena.
    Arena(ArenaTooSmall),
    /// The word.
    Run(RunError),
}

/// Checks the model.
pub fn load(checks: Checks) -> Result<Model, Failure> {
    Model::from_bytes_with(MODEL, checks).map_err(Failure::Load)
}

/// Turns words into their phones.
pub struct Speller<'m> {
    session: Session<'m, 'static, Arithmetic>,
    answer: [u8; ANSWER_LIMIT],
}

impl<'m> Speller<'m> {
    /// Takes the arena.
    pub fn new(model: &'m Model) -> Result<Self, Failure> {
        let arena = ARENA.take().ok_or(Failure::ArenaInUse)?;
        let session = Session::with_limits(model, arena, LIMITS).map_err(Failure::Arena)?;
        Ok(Self { session, answer: [0; ANSWER_LIMIT] })
    }

    /// The phones of `word`.
    pub fn spell(&mut self, word: &str) -> Result<&str, Failure> {
        self.session.run_into(word, &mut self.answer).map_err(Failure::Run)
    }

    /// The same, adding the logits of every step to `hash`.
    pub fn spell_hashed(&mut self, word: &str, hash: &mut LogitsHash) -> Result<&str, Failure> {
        let observe = |_, logit| hash.push(logit);
        self.session.run_observed(word, &mut self.answer, observe).map_err(Failure::Run)
    }

    /// All outputs of `word`.
    #[cfg(feature = "search")]
    pub fn search(
        &mut self,
        word: &str,
        show: impl FnMut(crate::searches::Found<'_>),
    ) -> Result<(), crate::searches::SearchFailure> {
        crate::searches::search_all(&mut self.session, word, &mut self.answer, show)
    }

    /// For those who need more than words.
    pub fn session(&mut self) -> &mut Session<'m, 'static, Arithmetic> {
        &mut self.session
    }
}
