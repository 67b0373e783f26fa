//! What a model says to one input, id after id.

use model_format::config::{Family, ModelConfig};

use crate::arena::Carver;
use crate::budget::{Budget, Costs, Cursor, Macs, OUTPUT_ROWS, Unlimited};
use crate::decoder::{Decoder, project_logits, remember_memory};
use crate::encoder::{self, Shape, encode};
use crate::error::BudgetTooSmall;
use crate::precision::Precision;
use crate::search::Greedy;
use crate::session::Session;
use crate::tokenizer::{Ids, TokenId};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum StopReason {
    /// The model produced its end id.
    EndToken,
    /// As many ids as allowed were produced.
    LengthLimit,
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

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The encoder's layers.
    Encode,
    /// Cross keys and values.
    Remember,
    /// The input of the next id.
    Begin,
    /// The decoder's layers.
    Decode,
    /// The output projection.
    Output,
}

/// A generation in progress: an iterator of ids, the end id not among them.
pub struct Generation<'s, 'm, 'a, P: Precision> {
    session: &'s mut Session<'m, 'a, P>,
    source_len: usize,
    /// What the decoder still reads before it chooses.
    forced: Ids<'s>,
    stage: Stage,
    cursor: Cursor,
    /// Ids after the start id so far, or labels.
    position: u16,
    /// What the decoder reads next.
    id: TokenId,
    max_len: u16,
    greedy: Greedy<P::Logit>,
}

impl<'s, 'm, 'a, P: Precision> Generation<'s, 'm, 'a, P> {
    /// Embeds the `len` ids of a source.
    pub(crate) fn of_source(
        session: &'s mut Session<'m, 'a, P>,
        ids: Ids<'_>,
        len: usize,
        options: &GenerateOptions<'s>,
    ) -> Self {
        let model = session.model;
        let config = model.model.config();
        let limit = match config.family {
            Family::Tagger => label_count(config, len),
            Family::Classifier => 1,
            Family::EncoderDecoder | Family::DecoderOnly => session.plan.limits.target_len,
        };
        let (low, memory) = session.encoder_buffers();
        encoder::embed::<P>(&model.model, ids, low, memory);
        let forced = (Ids::Given(options.prefix.iter()), options.prefix.len());
        Self::new(session, (Stage::Encode, len), forced, (limit, options.max_len))
    }

    /// Goes on with the `len` ids of a prompt.
    pub(crate) fn of_prompt(
        session: &'s mut Session<'m, 'a, P>,
        ids: Ids<'s>,
        len: usize,
        options: &GenerateOptions<'s>,
    ) -> Self {
        let limit = session.plan.limits.target_len;
        Self::new(session, (Stage::Begin, 0), (ids, len), (limit, options.max_len))
    }

    fn new(
        session: &'s mut Session<'m, 'a, P>,
        (stage, source_len): (Stage, usize),
        (forced, forced_len): (Ids<'s>, usize),
        (limit, max_len): (u16, Option<u16>),
    ) -> Self {
        session.last_stop = None;
        let max_len = max_len.unwrap_or(limit).saturating_add(forced_len as u16).min(limit);
        let id = session.model.model.config().special.start;
        let greedy = Greedy::among_labels();
        let cursor = Cursor::START;
        Self { session, source_len, forced, stage, cursor, position: 0, id, max_len, greedy }
    }

    /// The next id, showing all logits to `observe`; `None` at the end.
    #[inline(never)]
    pub fn next_observed(&mut self, mut observe: impl FnMut(TokenId, P::Logit)) -> Option<TokenId> {
        match self.advance(&mut Unlimited, &mut observe) {
            Poll::Token(id) => Some(id),
            Poll::Pending | Poll::Done(_) => None,
        }
    }

    /// Works on the next id for at most `budget` multiply-accumulates: encoder, cross-attention's keys
    /// and values, decoder and output are all cut into units, and the result is the same to the bit.
    ///
    /// Counted are the products of matrices; what goes along with them (normalisation, softmax,
    /// embedding) is proportional to the same positions.
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
        let needed = self.session.smallest_budget();
        if budget < needed {
            return Err(BudgetTooSmall { needed, given: budget });
        }
        Ok(self.advance(&mut Macs(budget), &mut observe))
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

    #[inline(always)]
    fn advance(
        &mut self,
        budget: &mut impl Budget,
        observe: &mut impl FnMut(TokenId, P::Logit),
    ) -> Poll {
        loop {
            if let Some(reason) = self.stop_reason() {
                return Poll::Done(reason);
            }
            let is_done = match self.stage {
                Stage::Encode => self.encode(budget),
                Stage::Remember => self.remember(budget),
                Stage::Begin => self.begin(),
                Stage::Decode => self.decode(budget),
                Stage::Output => self.output(budget, observe),
            };
            if !is_done {
                return Poll::Pending;
            }
            if let Some(id) = self.next_stage() {
                return Poll::Token(id);
            }
        }
    }

    /// Goes on to the stage that follows; the id, where one was chosen.
    fn next_stage(&mut self) -> Option<TokenId> {
        let config = self.session.model.model.config();
        self.cursor = Cursor::START;
        self.stage = match self.stage {
            Stage::Encode if config.has_cross_attention() => Stage::Remember,
            Stage::Encode | Stage::Remember => Stage::Begin,
            Stage::Begin if config.has_decoder() => Stage::Decode,
            Stage::Begin => Stage::Output,
            Stage::Decode => match self.forced.next() {
                Some(id) => {
                    self.accept(id);
                    Stage::Begin
                }
                None => Stage::Output,
            },
            Stage::Output => {
                self.stage = Stage::Begin;
                return self.choose();
            }
        };
        None
    }

    /// The decoder reads `id` next.
    fn accept(&mut self, id: TokenId) {
        self.position = self.position.saturating_add(1);
        self.id = id;
    }

    /// The id that the logits are for; `None` where that ends the generation.
    fn choose(&mut self) -> Option<TokenId> {
        let config = self.session.model.model.config();
        match self.greedy.finish() {
            Some(id) if !config.has_decoder() || id != config.special.end => {
                self.accept(id);
                Some(id)
            }
            _ => {
                self.session.last_stop = Some(StopReason::EndToken);
                None
            }
        }
    }

    fn encode(&mut self, budget: &mut impl Budget) -> bool {
        let model = &self.session.model.model;
        let config = model.config();
        let shape = Shape {
            len: self.source_len,
            capacity: self.session.plan.limits.source_len.into(),
            d_model: config.d_model.into(),
            d_ff: config.encoder.d_ff.into(),
        };
        let len = shape.len.saturating_mul(shape.d_model);
        let (low, memory) = self.session.encoder_buffers();
        let memory = memory.get_mut(..len).unwrap_or_default();
        encode::<P>(model, shape, &mut self.cursor, budget, low, memory)
    }

    fn remember(&mut self, budget: &mut impl Budget) -> bool {
        let (model, plan) = (&self.session.model.model, self.session.plan);
        let len = self.source_len.saturating_mul(model.config().d_model.into());
        let (low, memory) = self.session.encoder_buffers();
        let memory = memory.get(..len).unwrap_or_default();
        remember_memory::<P>(model, &plan, &mut self.cursor, budget, memory, low)
    }

    /// Embeds the next id, or makes the mean of `memory`; ends where there is no room.
    fn begin(&mut self) -> bool {
        let model = &self.session.model.model;
        let config = model.config();
        self.greedy = match config.has_decoder() {
            true => Greedy::new(&config.special),
            false => Greedy::among_labels(),
        };
        if self.position >= self.max_len {
            self.session.last_stop = Some(self.full());
        } else if config.has_decoder() {
            let id = self.id;
            self.decoder().embed(model, id);
        } else if config.family == Family::Classifier {
            let d_model = usize::from(config.d_model);
            let len = self.source_len.saturating_mul(d_model);
            let (low, memory) = self.session.encoder_buffers();
            P::mean(memory.get(..len).unwrap_or_default(), Carver::new(low).take(d_model));
        }
        true
    }

    /// Why nothing follows the last id that fits.
    fn full(&self) -> StopReason {
        let config = self.session.model.model.config();
        let labels = match config.family {
            Family::Tagger => label_count(config, self.source_len),
            Family::Classifier => 1,
            Family::EncoderDecoder | Family::DecoderOnly => u16::MAX,
        };
        match self.position < labels {
            true => StopReason::LengthLimit,
            false => StopReason::AllLabelled,
        }
    }

    fn decode(&mut self, budget: &mut impl Budget) -> bool {
        let (model, plan) = (&self.session.model.model, self.session.plan);
        let mut cursor = self.cursor;
        let is_done = self.decoder().decode(model, &plan, &mut cursor, budget);
        self.cursor = cursor;
        is_done
    }

    fn decoder(&mut self) -> Decoder<'_, P> {
        let Session { model, plan, arena, .. } = &mut *self.session;
        let place = (usize::from(self.position), self.source_len);
        Decoder::new(&model.model, plan, arena, place)
    }

    fn output(
        &mut self,
        budget: &mut impl Budget,
        observe: &mut impl FnMut(TokenId, P::Logit),
    ) -> bool {
        let model = &self.session.model.model;
        let config = model.config();
        let rows = usize::from(config.target_vocab);
        let units = (rows.div_ceil(OUTPUT_ROWS), Costs::of(config).output());
        let (mut cursor, mut greedy) = (self.cursor, Greedy::among_labels());
        core::mem::swap(&mut greedy, &mut self.greedy);
        let hidden = self.hidden();
        let is_done = cursor.advance(budget, units, |range| {
            let range = range.start.saturating_mul(OUTPUT_ROWS)
                ..range.end.saturating_mul(OUTPUT_ROWS).min(rows);
            project_logits::<P>(model, hidden, range, |id, logit| {
                observe(id, logit);
                greedy.push(id, logit);
            });
        });
        (self.cursor, self.greedy) = (cursor, greedy);
        is_done
    }

    /// What the output projection reads, `[d_model]`.
    fn hidden(&mut self) -> &[P::Activation] {
        let config = self.session.model.model.config();
        let d_model = usize::from(config.d_model);
        match config.family {
            Family::EncoderDecoder | Family::DecoderOnly => self.decoder().into_hidden(),
            Family::Classifier => {
                let (low, _) = self.session.encoder_buffers();
                Carver::new(low).take(d_model)
            }
            Family::Tagger => {
                let position = self.position.saturating_add(config.source_frame.has_start().into());
                let first = usize::from(position).saturating_mul(d_model);
                let (_, memory) = self.session.encoder_buffers();
                memory.get(first..first.saturating_add(d_model)).unwrap_or_default()
            }
        }
    }
}

/// Symbols among `source_len` ids.
fn label_count(config: &ModelConfig, source_len: usize) -> u16 {
    (source_len as u16).saturating_sub(config.source_frame.len())
}

impl<P: Precision> Iterator for Generation<'_, '_, '_, P> {
    type Item = TokenId;

    fn next(&mut self) -> Option<TokenId> {
        self.next_observed(|_, _| ())
    }
}
