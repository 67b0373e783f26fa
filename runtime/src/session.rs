//! Text -> text. Owns no arithmetic.

use core::fmt;
use core::marker::PhantomData;

use model_format::{Checks, Model, ModelError};

use crate::arena::Carver;
use crate::decoder::{decode_step, remember_memory};
use crate::encoder::encode;
use crate::plan::{Limits, Plan, fit};
use crate::precision::Precision;
use crate::search::Greedy;
use crate::tokenizer::{self, EncodeError, TextWriter, TokenId};

/// A model whose numbers are `P`: the file, checked.
#[derive(Debug, Clone, Copy)]
pub struct TypedModel<'m, P> {
    model: Model<'m>,
    precision: PhantomData<P>,
}

/// An integer model.
pub type FixedModel<'m> = TypedModel<'m, crate::FixedPoint>;
/// An `f16` model.
pub type HalfModel<'m> = TypedModel<'m, crate::HalfFloat>;

/// Why a file cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LoadError {
    /// The file is not a sound model.
    Model(ModelError),
    /// The file is sound, but of another number type.
    WrongPrecision {
        /// Number type of the file.
        found: model_format::config::Precision,
    },
}

impl<'m, P: Precision> TypedModel<'m, P> {
    /// Checks all of `file`; nothing is copied.
    ///
    /// # Errors
    /// When the file is damaged, or of another number type.
    pub fn from_bytes(file: &'m [u8]) -> Result<Self, LoadError> {
        Self::from_bytes_with(file, Checks::Full)
    }

    /// Checks as much of `file` as `checks` asks for: the checksum and the scan of the weights read
    /// the whole file, which a device may skip for memory that it trusts.
    ///
    /// # Errors
    /// When the file is damaged, or of another number type.
    pub fn from_bytes_with(file: &'m [u8], checks: Checks) -> Result<Self, LoadError> {
        match Model::from_bytes_with(file, checks) {
            Ok(model) => Self::new(model),
            Err(error) => Err(LoadError::Model(error)),
        }
    }

    /// The typed view of a model that was checked before.
    ///
    /// # Errors
    /// When it is of another number type.
    pub fn new(model: Model<'m>) -> Result<Self, LoadError> {
        let found = model.header().precision;
        if found == P::STORED {
            Ok(Self { model, precision: PhantomData })
        } else {
            Err(LoadError::WrongPrecision { found })
        }
    }

    /// The file.
    pub fn model(&self) -> &Model<'m> {
        &self.model
    }

    /// How the arena is laid out for the longest sequences of the file.
    pub fn plan(&self) -> Plan {
        Plan::of(self.model.header())
    }
}

/// The arena is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ArenaTooSmall {
    /// Bytes needed in all.
    pub needed: usize,
    /// Bytes given.
    pub given: usize,
}

/// Why nothing could be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RunError {
    /// The text.
    Encode(EncodeError),
    /// A source id outside the vocabulary.
    IdOutOfRange {
        /// Its place.
        index: usize,
        /// The id.
        id: TokenId,
        /// Size of the vocabulary.
        vocab: u16,
    },
    /// The buffer for the text is full; the next symbol is not in it.
    BufferFull {
        /// Bytes of the buffer.
        capacity: usize,
    },
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum StopReason {
    /// The model produced its end id.
    EndToken,
    /// As many ids as allowed were produced.
    LengthLimit,
    /// The caller asked for it.
    Cancelled,
}

/// What a caller may choose for one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GenerateOptions {
    /// Most ids to produce, end id included; the session's limit where that is less or this is
    /// `None`.
    pub max_len: Option<u16>,
}

/// A model with its memory, ready to run; one text after the other.
pub struct Session<'m, 'a, P> {
    model: &'m TypedModel<'m, P>,
    plan: Plan,
    /// Exactly `plan.total` bytes from a multiple of 16 on.
    arena: &'a mut [u8],
    last_stop: Option<StopReason>,
}

impl<'m, 'a, P: Precision> Session<'m, 'a, P> {
    /// A session for the longest sequences of the file.
    ///
    /// # Errors
    /// When `arena` is too small, with the total it needs.
    pub fn new(model: &'m TypedModel<'m, P>, arena: &'a mut [u8]) -> Result<Self, ArenaTooSmall> {
        Self::with_limits(model, arena, Limits::of(model.model.config()))
    }

    /// A session for sequences up to `limits`, in a smaller arena.
    ///
    /// # Errors
    /// When `arena` is too small, with the total it needs.
    pub fn with_limits(
        model: &'m TypedModel<'m, P>,
        arena: &'a mut [u8],
        limits: Limits,
    ) -> Result<Self, ArenaTooSmall> {
        let plan = Plan::new(model.model.header(), limits);
        let given = arena.len();
        let arena = fit(arena, plan.total).map_err(|needed| ArenaTooSmall { needed, given })?;
        Ok(Self { model, plan, arena, last_stop: None })
    }

    /// Bytes of the arena in use.
    pub fn arena_len(&self) -> usize {
        self.arena.len()
    }

    /// The sequences this session takes.
    pub fn limits(&self) -> Limits {
        self.plan.limits
    }

    /// Why the last generation ended; `None` before the first, or where it was dropped in between.
    pub fn last_stop(&self) -> Option<StopReason> {
        self.last_stop
    }

    /// Runs `text` through the model and writes the answer into `buffer`.
    ///
    /// # Errors
    /// When `text` cannot be encoded or the answer does not fit; the session stays usable.
    pub fn run_into<'b>(&mut self, text: &str, buffer: &'b mut [u8]) -> Result<&'b str, RunError> {
        self.run_observed(text, buffer, |_, _| ())
    }

    /// As [`run_into`](Self::run_into), and shows every logit of every step to `observe`.
    ///
    /// # Errors
    /// When `text` cannot be encoded or the answer does not fit; the session stays usable.
    pub fn run_observed<'b>(
        &mut self,
        text: &str,
        buffer: &'b mut [u8],
        mut observe: impl FnMut(TokenId, P::Logit),
    ) -> Result<&'b str, RunError> {
        let model = &self.model.model;
        let capacity = buffer.len();
        let mut writer = TextWriter::new(buffer, model.text().target);
        let mut generation = self.start_text(text)?;
        while let Some(id) = generation.next_observed(&mut observe) {
            if !writer.push(model.target_vocabulary().text(id)) {
                return Err(RunError::BufferFull { capacity });
            }
        }
        Ok(writer.finish())
    }

    /// Runs `text` through the model; the answer as a string of at most `N` bytes.
    ///
    /// # Errors
    /// When `text` cannot be encoded or the answer does not fit; the session stays usable.
    pub fn run<const N: usize>(&mut self, text: &str) -> Result<heapless::String<N>, RunError> {
        let model = &self.model.model;
        let mut buffer = [0; N];
        let answer = self.run_into(text, &mut buffer)?;
        debug_assert!(answer.len() <= N && !model.target_vocabulary().is_empty());
        heapless::String::try_from(answer).map_err(|_| RunError::BufferFull { capacity: N })
    }

    /// Runs the encoder over `source_ids`, the end id included where the model was trained with one;
    /// the tokens come one by one.
    ///
    /// # Errors
    /// When there are no ids, too many, or one outside the vocabulary.
    pub fn generate(
        &mut self,
        source_ids: &[TokenId],
        options: &GenerateOptions,
    ) -> Result<Generation<'_, 'm, 'a, P>, RunError> {
        let vocab = self.model.model.config().source_vocab;
        if let Some((index, &id)) = source_ids.iter().enumerate().find(|(_, id)| **id >= vocab) {
            return Err(RunError::IdOutOfRange { index, id, vocab });
        }
        if source_ids.is_empty() {
            return Err(RunError::Encode(EncodeError::Empty));
        }
        let (len, limit) = (source_ids.len(), usize::from(self.plan.limits.source_len));
        if len > limit {
            return Err(RunError::Encode(EncodeError::TooLong { len, limit }));
        }
        Ok(self.start(source_ids.iter().copied(), len, options))
    }

    #[inline(never)]
    fn start_text(&mut self, text: &str) -> Result<Generation<'_, 'm, 'a, P>, RunError> {
        let model = self.model;
        let ids = tokenizer::encode(&model.model, text);
        let mut len = 0;
        for id in ids.clone() {
            id.map_err(RunError::Encode)?;
            len += 1;
        }
        if len == 0 {
            return Err(RunError::Encode(EncodeError::Empty));
        }
        let limit = usize::from(self.plan.limits.source_len).saturating_sub(1);
        if len > limit {
            return Err(RunError::Encode(EncodeError::TooLong { len, limit }));
        }
        let ids = ids.filter_map(Result::ok).chain([model.model.config().special.end]);
        Ok(self.start(ids, len + 1, &GenerateOptions::default()))
    }

    /// Encoder, then cross keys and values over the `len` ids; `memory` is dead after it.
    fn start(
        &mut self,
        ids: impl Iterator<Item = TokenId>,
        len: usize,
        options: &GenerateOptions,
    ) -> Generation<'_, 'm, 'a, P> {
        let (model, plan) = (&self.model.model, &self.plan);
        let d_model = usize::from(model.config().d_model);
        let capacity = usize::from(plan.limits.source_len);
        let mut carver = Carver::new(&mut *self.arena);
        let low = carver.take::<u8>(plan.memory_offset);
        let memory = carver.take::<P::Activation>(capacity.saturating_mul(d_model));
        encode::<P>(model, ids, capacity, low, memory);
        let memory = memory.get(..len.saturating_mul(d_model)).unwrap_or_default();
        remember_memory::<P>(model, plan, memory, low);
        self.last_stop = None;
        let limit = plan.limits.target_len;
        let max_len = options.max_len.unwrap_or(limit).min(limit);
        let start = model.config().special.start;
        Generation { session: self, source_len: len, position: 0, id: start, max_len }
    }
}

/// A generation in progress: an iterator of ids, the end id not among them.
pub struct Generation<'s, 'm, 'a, P> {
    session: &'s mut Session<'m, 'a, P>,
    source_len: usize,
    position: u16,
    /// What the decoder reads next.
    id: TokenId,
    max_len: u16,
}

impl<P: Precision> Generation<'_, '_, '_, P> {
    /// The next id, showing all logits to `observe`; `None` at the end.
    #[inline(never)]
    pub fn next_observed(&mut self, mut observe: impl FnMut(TokenId, P::Logit)) -> Option<TokenId> {
        if self.stop_reason().is_some() {
            return None;
        }
        if self.position >= self.max_len {
            return self.stop(StopReason::LengthLimit);
        }
        let Session { model, plan, arena, .. } = &mut *self.session;
        let special = &model.model.config().special;
        let mut greedy = Greedy::new(special);
        let step = (self.id, usize::from(self.position), self.source_len);
        decode_step::<P>(&model.model, plan, arena, step, |id, logit| {
            observe(id, logit);
            greedy.push(id, logit);
        });
        match greedy.finish() {
            Some(id) if id != special.end => {
                self.position += 1;
                self.id = id;
                Some(id)
            }
            _ => self.stop(StopReason::EndToken),
        }
    }

    /// Ends the generation before its end.
    pub fn cancel(&mut self) {
        if self.stop_reason().is_none() {
            self.session.last_stop = Some(StopReason::Cancelled);
        }
    }

    /// Why it ended; `None` while it has not.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.session.last_stop
    }

    fn stop(&mut self, reason: StopReason) -> Option<TokenId> {
        self.session.last_stop = Some(reason);
        None
    }
}

impl<P: Precision> Iterator for Generation<'_, '_, '_, P> {
    type Item = TokenId;

    fn next(&mut self) -> Option<TokenId> {
        self.next_observed(|_, _| ())
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::WrongPrecision { found } => write!(f, "the file holds a {found:?} model"),
        }
    }
}

impl fmt::Display for ArenaTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the arena has {} bytes and needs {}", self.given, self.needed)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(error) => error.fmt(f),
            Self::IdOutOfRange { index, id, vocab } => {
                write!(f, "source id {id} (number {}) is not below {vocab}", index + 1)
            }
            Self::BufferFull { capacity } => {
                write!(f, "the answer does not fit into {capacity} bytes")
            }
        }
    }
}

impl core::error::Error for LoadError {}
impl core::error::Error for ArenaTooSmall {}
impl core::error::Error for RunError {}
