//! What a model says to one input, id after id.

use core::iter;

use model_format::Model;
use model_format::config::{Family, ModelConfig};

use crate::align::{Aligned, CrossAttention, Unaligned};
use crate::budget::{Cursor, Macs, Unlimited};
use crate::choice::Choice;
use crate::encoder;
use crate::error::{BudgetTooSmall, RunError};
use crate::precision::Precision;
use crate::search::Greedy;
use crate::session::Session;
use crate::steps::Stage;
use crate::tokenizer::{Ids, TokenId, write_ids};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum StopReason {
    /// The model produced its end id.
    EndToken,
    /// As many ids as allowed were produced.
    LengthLimit,
    /// No id was left: constraints excluded all that could follow, or no logit is a number. What was
    /// produced is no output.
    NothingAllowed,
    /// Every symbol has its label, or the text has; taggers and classifiers end so.
    AllLabelled,
    /// The caller asked for it.
    Cancelled,
}

/// What a caller may choose for one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GenerateOptions<'p> {
    /// Most ids to produce, end id included, those of a prompt or prefix not; the session's limit
    /// where that is less or this is `None`.
    pub max_len: Option<u16>,
    /// Ids that the output of an encoder-decoder begins with: read after the start id, and not
    /// produced again. Empty for other families: a decoder-only model has its prompt.
    pub prefix: &'p [TokenId],
}

/// What a bounded piece of work came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Poll {
    /// The budget is used up before the next id.
    Pending,
    /// The next id: a token, or a label.
    Token(TokenId),
    /// There are no more.
    Done(StopReason),
}

impl Poll {
    fn token(self) -> Option<TokenId> {
        match self {
            Self::Token(id) => Some(id),
            Self::Pending | Self::Done(_) => None,
        }
    }
}

/// A generation in progress: an iterator of ids, the end id not among them.
///
/// It chooses greedily, the largest logit and the lowest id of equals, unless told otherwise:
/// [`scored`](Self::scored), [`constrained`](Self::constrained), [`sampled`](Self::sampled),
/// [`beams`](Self::beams).
pub struct Generation<'s, 'm, 'a, P: Precision, C = Greedy<<P as Precision>::Logit>> {
    pub(crate) session: &'s mut Session<'m, 'a, P>,
    pub(crate) source_len: usize,
    /// What the decoder still reads before it chooses.
    pub(crate) forced: Ids<'s>,
    pub(crate) stage: Stage,
    pub(crate) cursor: Cursor,
    /// Ids after the start id so far, or labels.
    pub(crate) position: u16,
    /// What the decoder reads next.
    pub(crate) id: TokenId,
    pub(crate) max_len: u16,
    /// Ids of a prompt or prefix, the first ones after the start id.
    pub(crate) forced_len: u16,
    /// Where the cache of the beam lies.
    pub(crate) slot: u16,
    /// Whether it is the first beam at this position.
    pub(crate) moves: bool,
    pub(crate) choice: C,
}

impl<'s, 'm, 'a, P: Precision> Generation<'s, 'm, 'a, P> {
    /// Embeds the `len` ids of a source, or goes on with those of a prompt.
    pub(crate) fn new(
        session: &'s mut Session<'m, 'a, P>,
        ids: Ids<'s>,
        len: usize,
        options: &GenerateOptions<'s>,
    ) -> Self {
        let model = &session.model.model;
        let config = model.config();
        let limit = match config.family {
            Family::Tagger => label_count(config, len),
            Family::Classifier => 1,
            Family::EncoderDecoder | Family::DecoderOnly => session.plan.limits.target_len,
        };
        let (stage, forced, forced_len) = match config.has_encoder() {
            true => {
                let (low, memory) = encoder::buffers::<P>(model, &session.plan, session.arena, len);
                encoder::embed::<P>(model, ids, low, memory);
                (Stage::Encode, Ids::Given(options.prefix.iter()), options.prefix.len())
            }
            false => (Stage::Begin, ids, len),
        };
        session.last_stop = None;
        let forced_len = forced_len as u16;
        let max_len = options.max_len.unwrap_or(limit).saturating_add(forced_len).min(limit);
        Self {
            source_len: if config.has_encoder() { len } else { 0 },
            forced,
            stage,
            cursor: Cursor::START,
            position: 0,
            id: config.special.start,
            max_len,
            forced_len,
            slot: 0,
            moves: true,
            choice: Greedy::among_labels(),
            session,
        }
    }

    /// The same with another choice.
    pub(crate) fn choosing<C>(self, choice: C) -> Generation<'s, 'm, 'a, P, C> {
        let Self { session, source_len, forced, stage, cursor, position, id, .. } = self;
        let Self { max_len, forced_len, slot, moves, .. } = self;
        Generation {
            session,
            source_len,
            forced,
            stage,
            cursor,
            position,
            id,
            max_len,
            forced_len,
            slot,
            moves,
            choice,
        }
    }
}

impl<'m, P: Precision, C: Choice<P>> Generation<'_, 'm, '_, P, C> {
    /// How it chooses: with the scores, where it has them.
    pub fn choice(&self) -> &C {
        &self.choice
    }

    pub(crate) fn model(&self) -> &'m Model<'m> {
        &self.session.model.model
    }

    /// The next id, showing all logits to `observe`; `None` at the end.
    #[inline(never)]
    pub fn next_observed(&mut self, mut observe: impl FnMut(TokenId, P::Logit)) -> Option<TokenId> {
        self.advance(&mut Unlimited, &mut observe, &mut Unaligned).token()
    }

    /// As [`next_observed`](Self::next_observed), and shows the weights of cross-attention to `align`:
    /// which source positions each head of each layer attends to.
    pub fn next_aligned(
        &mut self,
        mut observe: impl FnMut(TokenId, P::Logit),
        align: impl FnMut(CrossAttention<'_>),
    ) -> Option<TokenId> {
        self.advance(&mut Unlimited, &mut observe, &mut Aligned(align)).token()
    }

    /// Generates to the end and writes the ids as text into `buffer`.
    ///
    /// ```
    /// # use runtime::{FixedModel, Session, search::Probability};
    /// # fn command(session: &mut Session<'_, '_, runtime::FixedPoint>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut generation = session.generate_text("kilobyte", &Default::default())?.scored();
    /// let mut buffer = [0; 64];
    /// let text = generation.write_into(&mut buffer)?;
    /// if generation.choice().score().confidence() < Probability::from_percent(80) {
    ///     println!("{text}? Say that again.");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the text does not fit.
    pub fn write_into<'b>(&mut self, buffer: &'b mut [u8]) -> Result<&'b str, RunError> {
        self.write_observed(buffer, |_, _| ())
    }

    /// As [`write_into`](Self::write_into), and shows every logit of every step to `observe`.
    ///
    /// # Errors
    /// When the text does not fit.
    pub fn write_observed<'b>(
        &mut self,
        buffer: &'b mut [u8],
        mut observe: impl FnMut(TokenId, P::Logit),
    ) -> Result<&'b str, RunError> {
        let model = self.model();
        write_ids(model, iter::from_fn(|| self.next_observed(&mut observe)), buffer)
    }

    /// Works on the next id for at most `budget` multiply-accumulates: encoder, cross-attention's keys
    /// and values, decoder and output are all cut into units, and the result is the same to the bit.
    ///
    /// Counted are the products of matrices; what goes along with them (normalisation, softmax) is
    /// proportional to the same positions. Not counted, and never divided: the embedding of a source,
    /// which is done when the generation is made (`source_len * d_model` additions), and the choice of
    /// an id once all logits are there. A choice is a comparison for each id of the vocabulary; scores
    /// take an exponential for each, sampling with top-p up to 64 passes, suppressed ids, a list of
    /// allowed outputs and n-grams their own number of comparisons.
    ///
    /// ```
    /// # use runtime::{Poll, Precision, RunError, Session};
    /// # fn kick_the_watchdog() {}
    /// # fn speak<P: Precision>(session: &mut Session<'_, '_, P>) -> Result<(), Box<dyn std::error::Error>> {
    /// let budget = session.smallest_budget().max(50_000);
    /// let mut generation = session.generate_text("kilobyte", &Default::default())?;
    /// loop {
    ///     match generation.poll(budget)? {
    ///         Poll::Pending => kick_the_watchdog(),
    ///         Poll::Token(id) => println!("{id}"),
    ///         Poll::Done(reason) => break println!("{reason:?}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When `budget` is less than [`Plan::smallest_budget`](crate::Plan::smallest_budget).
    pub fn poll(&mut self, budget: u32) -> Result<Poll, BudgetTooSmall> {
        self.poll_observed(budget, |_, _| ())
    }

    /// As [`poll`](Self::poll), and shows every logit to `observe`.
    ///
    /// # Errors
    /// As `poll`.
    pub fn poll_observed(
        &mut self,
        budget: u32,
        mut observe: impl FnMut(TokenId, P::Logit),
    ) -> Result<Poll, BudgetTooSmall> {
        let mut budget = self.check_budget(budget)?;
        Ok(self.advance(&mut budget, &mut observe, &mut Unaligned))
    }

    /// As [`poll_observed`](Self::poll_observed), with the weights of cross-attention as in
    /// [`next_aligned`](Self::next_aligned).
    ///
    /// # Errors
    /// As `poll`.
    pub fn poll_aligned(
        &mut self,
        budget: u32,
        mut observe: impl FnMut(TokenId, P::Logit),
        align: impl FnMut(CrossAttention<'_>),
    ) -> Result<Poll, BudgetTooSmall> {
        let mut budget = self.check_budget(budget)?;
        Ok(self.advance(&mut budget, &mut observe, &mut Aligned(align)))
    }

    fn check_budget(&self, given: u32) -> Result<Macs, BudgetTooSmall> {
        let needed = self.session.smallest_budget();
        match given < needed {
            true => Err(BudgetTooSmall { needed, given }),
            false => Ok(Macs(given)),
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
}

/// Symbols among `source_len` ids.
pub(crate) fn label_count(config: &ModelConfig, source_len: usize) -> u16 {
    (source_len as u16).saturating_sub(config.source_frame.len())
}

impl<P: Precision, C: Choice<P>> Iterator for Generation<'_, '_, '_, P, C> {
    type Item = TokenId;

    fn next(&mut self) -> Option<TokenId> {
        self.next_observed(|_, _| ())
    }
}
