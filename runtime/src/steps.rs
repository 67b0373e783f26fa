//! From input to ids: the stages of a generation, each in units that a budget pays for.

use model_format::Model;
use model_format::config::Family;

use crate::align::{Align, Unaligned};
use crate::arena::Carver;
use crate::beam_cache::SearchBuffers;
use crate::budget::{Budget, Costs, Cursor, OUTPUT_ROWS};
use crate::choice::{Choice, Chosen, Context};
use crate::decoder::{Decoder, OutputInput, Place, project_logits};
use crate::encoder;
use crate::generation::{Generation, Poll, StopReason, label_count};
use crate::plan::Plan;
use crate::precision::Precision;
use crate::profile::{self, Side};
use crate::session::Session;
use crate::slices::CopyFrom;
use crate::stack::{Run, Task};
use crate::tokenizer::TokenId;

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
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

impl<P: Precision, C: Choice<P>> Generation<'_, '_, '_, P, C> {
    /// Works until an id is chosen, the end is reached or `budget` is used up.
    #[inline(always)]
    pub(crate) fn advance(
        &mut self,
        budget: &mut impl Budget,
        observe: &mut impl FnMut(TokenId, P::Logit),
        align: &mut impl Align<P>,
    ) -> Poll {
        loop {
            if let Some(reason) = self.stop_reason() {
                return Poll::Done(reason);
            }
            let is_done = match self.stage {
                Stage::Encode => self.encode(Task::Encode, budget),
                Stage::Remember => self.encode(Task::Remember, budget),
                Stage::Begin => self.begin(),
                Stage::Decode => self.decode(budget, align),
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
        if C::NEEDS_BUFFERS {
            let at = usize::from(self.position);
            if let Some(place) = self.search_buffers().history.get_mut(at) {
                *place = id;
            }
        }
        self.position = self.position.saturating_add(1);
        self.id = id;
    }

    /// The id that the logits are for; `None` where that ends the generation.
    fn choose(&mut self) -> Option<TokenId> {
        let config = self.model().config();
        let chosen = self.ask();
        match chosen {
            Chosen::Id(Some(id)) if !config.has_decoder() || id != config.special.end => {
                self.accept(id);
                return Some(id);
            }
            Chosen::Id(Some(_)) => self.session.last_stop = Some(StopReason::EndToken),
            Chosen::Id(None) => self.session.last_stop = Some(StopReason::NothingAllowed),
            Chosen::Finished(reason) => self.session.last_stop = Some(reason),
            Chosen::Beam { id, slot, moves } => {
                (self.id, self.slot, self.moves) = (id, slot, moves);
                self.position = self.position.saturating_add(moves.into());
            }
        }
        None
    }

    fn ask(&mut self) -> Chosen {
        let Session { model, plan, arena, .. } = &mut *self.session;
        let (caches, buffers) = match C::NEEDS_BUFFERS {
            true => {
                let (caches, buffers) = SearchBuffers::with_caches(&model.model, plan, arena);
                (caches, Some(buffers))
            }
            false => (&mut [][..], None),
        };
        self.choice.choose(Context {
            model: &model.model,
            plan,
            position: self.position,
            max_len: self.max_len,
            forced: self.forced_len,
            id: self.id,
            caches,
            buffers,
        })
    }

    /// What a search has.
    pub(crate) fn search_buffers(&mut self) -> SearchBuffers<'_, P> {
        let Session { model, plan, arena, .. } = &mut *self.session;
        SearchBuffers::with_caches(&model.model, plan, arena).1
    }

    /// The encoder's layers, or cross keys and values.
    fn encode(&mut self, task: Task, budget: &mut impl Budget) -> bool {
        let Session { model, plan, arena, .. } = &mut *self.session;
        let model = &model.model;
        let source_len = self.source_len;
        let (low, x) = encoder::buffers::<P>(model, plan, arena, source_len);
        let mut carver = Carver::new(low);
        let cross = match task {
            Task::Remember => carver.take_bytes(plan.cross),
            Task::Encode | Task::Decode => &mut [],
        };
        let (caches, work) = (&mut [][..], carver.take_rest());
        let mut run =
            Run::<P> { task, positions: 0..source_len, source_len, x, cross, caches, work };
        run.advance((model, plan), &mut self.cursor, budget, &mut Unaligned)
    }

    /// Embeds the next id, or makes the mean of `memory`; ends where there is no room.
    fn begin(&mut self) -> bool {
        profile::side(Side::Decoder);
        let place = self.place();
        if self.position >= self.max_len {
            self.session.last_stop = Some(self.full());
            return true;
        }
        let Session { model, plan, arena, .. } = &mut *self.session;
        let model = &model.model;
        let config = model.config();
        self.choice.begin(model);
        if config.has_decoder() {
            Decoder::<P>::new(model, plan, arena, place).embed(model, self.id, self.moves);
        } else if config.family == Family::Classifier {
            let (low, memory) = encoder::buffers::<P>(model, plan, arena, self.source_len);
            P::mean(memory, Carver::new(low).take(config.d_model.into()));
        }
        true
    }

    /// Why nothing follows the last id that fits.
    fn full(&self) -> StopReason {
        let config = self.session.model.model.config();
        let is_whole = match config.family {
            Family::Tagger => self.position >= label_count(config, self.source_len),
            Family::Classifier => self.position >= 1,
            Family::EncoderDecoder | Family::DecoderOnly => false,
        };
        match is_whole {
            true => StopReason::AllLabelled,
            false => StopReason::LengthLimit,
        }
    }

    fn decode(&mut self, budget: &mut impl Budget, align: &mut impl Align<P>) -> bool {
        let place = self.place();
        let Session { model, plan, arena, .. } = &mut *self.session;
        let mut decoder = Decoder::<P>::new(&model.model, plan, arena, place);
        decoder.run.advance((&model.model, plan), &mut self.cursor, budget, align)
    }

    /// What the decoder works on.
    fn place(&self) -> Place {
        Place {
            position: self.position.into(),
            source_len: self.source_len,
            slot: if C::NEEDS_BUFFERS { self.slot.into() } else { 0 },
        }
    }

    /// The logits of the next id.
    fn output(
        &mut self,
        budget: &mut impl Budget,
        observe: &mut impl FnMut(TokenId, P::Logit),
    ) -> bool {
        let place = self.place();
        let Self { session, choice, cursor, .. } = self;
        let Session { model, plan, arena, .. } = &mut **session;
        let model = &model.model;
        let config = model.config();
        let rows = usize::from(config.target_vocab);
        let units = (rows.div_ceil(OUTPUT_ROWS), Costs::of(config).output());
        let OutputInput { hidden, inputs, search } = output_input::<P>(model, plan, arena, place);
        let logits = match C::NEEDS_BUFFERS {
            true => SearchBuffers::<P>::carve(model, plan, search).logits,
            false => &mut [],
        };
        cursor.advance(budget, units, |range| {
            let range = range.start.wrapping_mul(OUTPUT_ROWS)
                ..range.end.wrapping_mul(OUTPUT_ROWS).min(rows);
            project_logits::<P>(model, (hidden, inputs), range, |first, now| {
                // This way round: ids are not counted past the last, which may be the largest of all.
                for (&logit, id) in now.iter().zip(first..) {
                    observe(id, logit);
                }
                choice.push(first, now);
                if C::NEEDS_BUFFERS {
                    logits.get_mut(usize::from(first)..).unwrap_or_default().copy_from(now);
                }
            });
        })
    }
}

/// What the output projection works on.
fn output_input<'a, P: Precision>(
    model: &Model<'_>,
    plan: &Plan,
    arena: &'a mut [u8],
    place: Place,
) -> OutputInput<'a, P> {
    let config = model.config();
    let d_model = usize::from(config.d_model);
    match config.family {
        Family::EncoderDecoder | Family::DecoderOnly => {
            Decoder::<P>::new(model, plan, arena, place).into_output()
        }
        Family::Classifier => {
            let (low, _) = encoder::buffers::<P>(model, plan, arena, 0);
            let mut carver = Carver::new(low);
            let hidden = carver.take(d_model);
            OutputInput { hidden, inputs: carver.take_rest(), search: &mut [] }
        }
        Family::Tagger => {
            let row = place.position.wrapping_add(config.source_frame.has_start().into());
            let (inputs, memory) = encoder::buffers::<P>(model, plan, arena, row.wrapping_add(1));
            let hidden = memory.get(row.wrapping_mul(d_model)..).unwrap_or_default();
            OutputInput { hidden, inputs, search: &mut [] }
        }
    }
}
