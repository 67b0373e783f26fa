//! Text -> text. Owns no arithmetic.

use model_format::config::{Family, ModelConfig, SpecialIds};

use crate::error::{ArenaTooSmall, RunError};
use crate::generation::{GenerateOptions, Generation, StopReason};
use crate::model::TypedModel;
use crate::plan::{Limits, Plan, fit};
use crate::precision::Precision;
use crate::tokenizer::{EncodeError, Frame, Ids, TextIds, TokenId};

/// A model with its memory, ready to run; one text after the other.
pub struct Session<'m, 'a, P> {
    pub(crate) model: &'m TypedModel<'m, P>,
    pub(crate) plan: Plan,
    /// Exactly `plan.total` bytes from a multiple of 16 on.
    pub(crate) arena: &'a mut [u8],
    pub(crate) last_stop: Option<StopReason>,
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

    /// The model.
    pub fn model(&self) -> &'m TypedModel<'m, P> {
        self.model
    }

    /// Bytes of the arena in use.
    pub fn arena_len(&self) -> usize {
        self.arena.len()
    }

    /// The sequences this session takes.
    pub fn limits(&self) -> Limits {
        self.plan.limits
    }

    /// The least budget of [`Generation::poll`], in multiply-accumulates.
    pub fn smallest_budget(&self) -> u32 {
        self.plan.smallest_budget(self.model.model.header())
    }

    /// Why the last generation ended; `None` before the first, or where it was dropped in between.
    pub fn last_stop(&self) -> Option<StopReason> {
        self.last_stop
    }

    /// Runs `text` through the model and writes the answer into `buffer`: what was generated (without
    /// its prompt), or the labels, as target text.
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
        observe: impl FnMut(TokenId, P::Logit),
    ) -> Result<&'b str, RunError> {
        // By reference: moved out of the result, it would lie on the stack twice.
        match &mut self.generate_text(text, &GenerateOptions::default()) {
            Ok(generation) => generation.write_observed(buffer, observe),
            Err(error) => Err(*error),
        }
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

    /// Gives `ids` to the model; what it says comes one id after the other:
    ///
    /// | family | `ids` | what comes |
    /// | --- | --- | --- |
    /// | encoder-decoder | the source, its frame (the end id, mostly) included | tokens |
    /// | decoder-only | the prompt, which may be empty | the tokens after it |
    /// | tagger | the source, its frame included | a label for every id between the frame |
    /// | classifier | the source, its frame included | one label |
    ///
    /// # Errors
    /// When there are too many ids, no source ids, one outside the vocabulary, or padding; the same for
    /// the options' prefix.
    pub fn generate<'s>(
        &'s mut self,
        ids: &'s [TokenId],
        options: &GenerateOptions<'s>,
    ) -> Result<Generation<'s, 'm, 'a, P>, RunError> {
        let config = self.model.model.config();
        let (vocab, room) = match config.has_encoder() {
            true => (config.source_vocab, self.plan.limits.source_len),
            false => (config.target_vocab, u16::MAX),
        };
        check_ids(ids, vocab, &never_read(config, config.has_encoder()))?;
        check_len(config, ids.len(), room.into())?;
        self.start(Ids::Given(ids.iter()), ids.len(), options)
    }

    /// As [`generate`](Self::generate), for the ids of `text`: a source, whose frame is added, or a
    /// prompt, which is target text.
    ///
    /// # Errors
    /// When `text` cannot be encoded or is too long; for the options' prefix as in `generate`.
    #[inline(never)]
    pub fn generate_text<'s>(
        &'s mut self,
        text: &'s str,
        options: &GenerateOptions<'s>,
    ) -> Result<Generation<'s, 'm, 'a, P>, RunError> {
        let model = &self.model.model;
        let config = model.config();
        if !config.has_encoder() {
            let ids = TextIds::target(model, text);
            let len = ids.count_ids().map_err(RunError::Encode)?;
            return self.start(Ids::Text(ids), len, options);
        }
        let ids = TextIds::source(model, text);
        let len = ids.count_ids().map_err(RunError::Encode)?;
        let frame = config.source_frame.len();
        check_len(config, len, self.plan.limits.source_len.saturating_sub(frame).into())?;
        let len = len.saturating_add(frame.into());
        self.start(Ids::Framed(Frame::of(config), ids), len, options)
    }

    /// `ids` are `len` sound ones, a source or a prompt.
    fn start<'s>(
        &'s mut self,
        ids: Ids<'s>,
        len: usize,
        options: &GenerateOptions<'s>,
    ) -> Result<Generation<'s, 'm, 'a, P>, RunError> {
        let config = self.model.model.config();
        let target_len = self.plan.limits.target_len;
        let prefix = options.prefix;
        let prefix_limit = match config.family {
            Family::EncoderDecoder => usize::from(target_len).saturating_sub(1),
            Family::DecoderOnly | Family::Tagger | Family::Classifier => 0,
        };
        check_prefix(prefix.len(), prefix_limit)?;
        check_ids(prefix, config.target_vocab, &never_read(config, false))?;
        if !config.has_encoder() {
            check_prefix(len, usize::from(target_len).saturating_sub(1))?;
        }
        Ok(Generation::new(self, ids, len, options))
    }
}

/// Ids that no input has: padding, and in target text the start id, which is read before it.
fn never_read(config: &ModelConfig, is_source: bool) -> [TokenId; 2] {
    let SpecialIds { pad, start, .. } = config.special;
    match is_source {
        // A frame's start id may be pad's.
        true if config.source_frame.has_start() && pad == start => [TokenId::MAX; 2],
        true => [pad; 2],
        false => [pad, start],
    }
}

fn check_ids(ids: &[TokenId], vocab: u16, never: &[TokenId; 2]) -> Result<(), RunError> {
    let is_bad = |id: &TokenId| *id >= vocab || never.contains(id);
    match ids.iter().enumerate().find(|(_, id)| is_bad(id)) {
        Some((index, &id)) if id >= vocab => Err(RunError::IdOutOfRange { index, id, vocab }),
        Some((index, &id)) => Err(RunError::SpecialId { index, id }),
        None => Ok(()),
    }
}

/// A source has symbols, and at most `limit`; a prompt is looked at later.
fn check_len(config: &ModelConfig, len: usize, limit: usize) -> Result<(), RunError> {
    if !config.has_encoder() {
        Ok(())
    } else if len == 0 {
        Err(RunError::Encode(EncodeError::Empty))
    } else if len > limit {
        Err(RunError::Encode(EncodeError::TooLong { len, limit }))
    } else {
        Ok(())
    }
}

fn check_prefix(len: usize, limit: usize) -> Result<(), RunError> {
    match len > limit {
        true => Err(RunError::PrefixTooLong { len, limit }),
        false => Ok(()),
    }
}
