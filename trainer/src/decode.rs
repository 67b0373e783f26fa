//! Searches other than the plain greedy one, through the runtime, on texts.

use anyhow::{Context, Result, anyhow, ensure};
use model_format::config::{Family, Precision as Stored};
use model_format::{AlignedBytes, Model};
use runtime::search::{BeamOptions, Constraints, OptionsError, Q16, Sampling, Score};
use runtime::{
    Choice, FixedModel, GenerateOptions, Generation, HalfModel, Limits, LoadError, Plan, Precision,
    Session, StopReason, TokenId, TypedModel,
};

use crate::device::target_splitting;
use crate::engine::sanity::family_name;
use crate::rng;

/// What may be produced, in target text; nothing here counts what stands before it, a prefix or prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextConstraints {
    /// Fewest ids, end id included.
    pub min_len: u16,
    /// Most ids, end id included; what the file allows where absent.
    pub max_len: Option<u16>,
    /// What the output begins with; empty for a language model, which has its prompt.
    pub prefix: String,
    /// Symbols that are never produced.
    pub suppressed: String,
    /// The only outputs that there are, or continuations of the prefix or prompt.
    pub choices: Option<Vec<String>>,
    /// Makes symbols that were produced less probable; 1 changes nothing, less is refused.
    pub repetition_penalty: Option<f32>,
    /// No sequence of this many symbols is produced twice.
    pub no_repeat_ngram: Option<u16>,
}

/// How ids are chosen.
#[derive(Debug, Clone, Copy)]
pub enum Search {
    /// The most probable.
    Greedy,
    /// At random.
    Sampling {
        /// How.
        options: Sampling,
        /// Of the generator.
        seed: u64,
    },
    /// The outputs of the highest score.
    Beams(BeamOptions),
}

/// One output.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// As text.
    pub text: String,
    /// Log-probability and number of ids.
    pub score: Score,
    /// What a beam search ranks by, in nats; the log-probability otherwise.
    pub rank: f32,
    /// Whether it ended or all is labelled; otherwise it reached the length limit.
    pub ended: bool,
}

/// A [`Q16`] with the option's name in its error.
pub fn q16(name: &str, value: f32) -> Result<Q16> {
    Q16::from_f32(value).map_err(|error| anyhow!("{name} is {value}: {error}"))
}

/// The error with its numbers as they were given: on the device, where floats are dear, they are
/// parts of 65,536.
fn explain(error: OptionsError) -> anyhow::Error {
    let decimal = |number: Q16| f64::from(number.to_bits()) / 65_536.0;
    match error {
        OptionsError::RepetitionPenalty { penalty } => {
            anyhow!("the repetition penalty is {}, not at least 1", decimal(penalty))
        }
        OptionsError::Temperature { temperature } => anyhow!(
            "the temperature is {}, not above 0; for 0 search greedily",
            decimal(temperature)
        ),
        OptionsError::TopP { top_p } => {
            anyhow!("top-p is {}, not above 0 and at most 1", decimal(top_p))
        }
        OptionsError::LengthPenalty { length_penalty } => {
            anyhow!("the length penalty is {}, below 0", decimal(length_penalty))
        }
        other => other.into(),
    }
}

/// Decodes texts with one session.
pub struct Decoder<'m> {
    model: Model<'m>,
    search: Search,
    ids: Ids,
}

/// [`TextConstraints`] as ids.
struct Ids {
    min_len: u16,
    max_len: Option<u16>,
    prefix: Vec<TokenId>,
    suppressed: Vec<TokenId>,
    choices: Option<Vec<Vec<TokenId>>>,
    repetition_penalty: Q16,
    no_repeat_ngram: Option<u16>,
}

impl<'m> Decoder<'m> {
    /// Checks that the texts of the constraints can be written in the model's target symbols.
    pub fn new(model: Model<'m>, constraints: &TextConstraints, search: Search) -> Result<Self> {
        let (family, unconstrained) = (model.config().family, TextConstraints::default());
        ensure!(
            model.config().has_decoder()
                || matches!(search, Search::Greedy) && *constraints == unconstrained,
            "a {} only labels: there is nothing to search or to constrain",
            family_name(family)
        );
        ensure!(
            family != Family::DecoderOnly || constraints.prefix.is_empty(),
            "a {} takes its prompt as the text, not as a prefix",
            family_name(family)
        );
        let ids = |text: &str| target_ids(&model, text);
        let choices = constraints.choices.as_ref().map(|choices| {
            let mut choices = choices.iter().map(|text| ids(text)).collect::<Result<Vec<_>>>()?;
            choices.sort_unstable();
            choices.dedup();
            Ok::<_, anyhow::Error>(choices)
        });
        let penalty = constraints.repetition_penalty.map(|p| q16("the repetition penalty", p));
        let ids = Ids {
            min_len: constraints.min_len,
            max_len: constraints.max_len,
            prefix: ids(&constraints.prefix)?,
            suppressed: ids(&constraints.suppressed)?,
            choices: choices.transpose()?,
            repetition_penalty: penalty.transpose()?.unwrap_or(Q16::ONE),
            no_repeat_ngram: constraints.no_repeat_ngram,
        };
        let decoder = Self { model, search, ids };
        decoder.check()?;
        Ok(decoder)
    }

    /// Refuses options before the first text.
    fn check(&self) -> Result<()> {
        let config = self.model.config();
        if !config.has_decoder() {
            return Ok(());
        }
        let prefix = u16::try_from(self.ids.prefix.len()).unwrap_or(u16::MAX);
        let longest = config.max_target_len.saturating_sub(prefix);
        let max_len = self.ids.max_len.unwrap_or(longest).min(longest);
        let choices = self.choices();
        let constraints = self.constraints(choices.as_deref());
        let check = constraints.check(config.target_vocab, &config.special, max_len);
        check.map_err(explain)?;
        match self.search {
            Search::Greedy => {}
            Search::Sampling { options, .. } => {
                options.check(config.target_vocab).map_err(explain)?
            }
            Search::Beams(options) => options.check().map_err(explain)?,
        }
        Ok(())
    }

    fn choices(&self) -> Option<Vec<&[TokenId]>> {
        self.ids.choices.as_ref().map(|list| list.iter().map(Vec::as_slice).collect())
    }

    fn constraints<'a>(&'a self, allowed: Option<&'a [&'a [TokenId]]>) -> Constraints<'a> {
        Constraints {
            min_len: self.ids.min_len,
            suppressed: &self.ids.suppressed,
            repetition_penalty: self.ids.repetition_penalty,
            no_repeat_ngram: self.ids.no_repeat_ngram,
            allowed,
        }
    }

    /// The outputs of every text, the best first: several of a beam search, one otherwise.
    pub fn run(
        &self,
        texts: impl Iterator<Item = Result<String>>,
        each: impl FnMut(&str, Result<Vec<Output>>) -> Result<()>,
    ) -> Result<()> {
        match self.model.header().precision {
            Stored::FixedPoint => self.run_as(FixedModel::new(self.model), texts, each),
            Stored::HalfFloat => self.run_as(HalfModel::new(self.model), texts, each),
        }
    }

    fn run_as<P: Precision>(
        &self,
        model: Result<TypedModel<'_, P>, LoadError>,
        texts: impl Iterator<Item = Result<String>>,
        mut each: impl FnMut(&str, Result<Vec<Output>>) -> Result<()>,
    ) -> Result<()> {
        let model = model?;
        let beams = match self.search {
            Search::Beams(options) => options.beams,
            _ => 1,
        };
        let limits = Limits::of(self.model.config()).with_beams(beams.max(1));
        let total = Plan::new(self.model.header(), limits).total;
        let mut arena = AlignedBytes::filled(0, total);
        let mut session = Session::with_limits(&model, &mut arena, limits)?;
        for (index, text) in (0..).zip(texts) {
            let text = text?;
            each(&text, self.decode(&mut session, &text, index))?;
        }
        Ok(())
    }

    /// `index` tells the generator of one text from that of another.
    fn decode<P: Precision>(
        &self,
        session: &mut Session<'_, '_, P>,
        text: &str,
        index: u64,
    ) -> Result<Vec<Output>> {
        let choices = self.choices();
        let constraints = self.constraints(choices.as_deref());
        let options = GenerateOptions { max_len: self.ids.max_len, prefix: &self.ids.prefix };
        let generation = session.generate_text(text, &options)?;
        match self.search {
            Search::Greedy if !self.model.config().has_decoder() => {
                Ok(Vec::from_iter(self.follow(generation.scored(), |g| g.choice().score())))
            }
            Search::Greedy => {
                let generation = generation.constrained(&constraints)?;
                Ok(Vec::from_iter(self.follow(generation, |g| g.choice().score())))
            }
            Search::Sampling { options, seed } => {
                let mut drawn = 0;
                let random = || {
                    drawn += 1;
                    rng::key(&[seed, index, drawn])
                };
                let generation = generation.sampled(&constraints, &options, random)?;
                Ok(Vec::from_iter(self.follow(generation, |g| g.choice().score())))
            }
            Search::Beams(options) => {
                let mut beams = generation.beams(&constraints, &options)?;
                beams.run();
                let found = beams.hypotheses().to_vec();
                let output = |(i, hypothesis): (usize, &runtime::search::Hypothesis)| Output {
                    text: self.text(beams.ids(i)),
                    score: hypothesis.total(),
                    rank: nats(hypothesis.score),
                    ended: hypothesis.has_end(),
                };
                Ok(found.iter().enumerate().map(output).collect())
            }
        }
    }

    /// The output; `None` where the constraints leave none.
    fn follow<P: Precision, C: Choice<P>>(
        &self,
        mut generation: Generation<'_, '_, '_, P, C>,
        score: impl Fn(&Generation<'_, '_, '_, P, C>) -> Score,
    ) -> Option<Output> {
        let ids: Vec<TokenId> = generation.by_ref().collect();
        let score = score(&generation);
        let stop = generation.stop_reason();
        let ended = stop != Some(StopReason::LengthLimit);
        let output = Output { text: self.text(&ids), score, rank: nats(score.sum), ended };
        (stop != Some(StopReason::NothingAllowed)).then_some(output)
    }

    fn text(&self, ids: &[TokenId]) -> String {
        let vocabulary = self.model.target_vocabulary();
        let texts = ids.iter().map(|id| vocabulary.text(*id)).filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join(target_splitting(&self.model).separator())
    }
}

/// How probable a language model's file finds each text, end id included: the only output that is
/// allowed after an empty prompt.
///
/// A text that the model's symbols cannot write, or that is too long, is an error that says which.
pub fn score_texts(model: Model<'_>, texts: &[String]) -> Result<Vec<Score>> {
    match model.header().precision {
        Stored::FixedPoint => score_as(FixedModel::new(model), texts),
        Stored::HalfFloat => score_as(HalfModel::new(model), texts),
    }
}

fn score_as<P: Precision>(
    model: Result<TypedModel<'_, P>, LoadError>,
    texts: &[String],
) -> Result<Vec<Score>> {
    let model = model?;
    let file = model.model();
    let limits = Limits::of(file.config()).with_beams(1);
    let mut arena = AlignedBytes::filled(0, Plan::new(file.header(), limits).total);
    let mut session = Session::with_limits(&model, &mut arena, limits)?;
    let mut score = |text: &String| -> Result<Score> {
        let ids = target_ids(file, text)?;
        let allowed = [ids.as_slice()];
        let constraints = Constraints { allowed: Some(&allowed), ..Constraints::default() };
        let generation = session.generate(&[], &GenerateOptions::default())?;
        let mut generation = generation.constrained(&constraints)?;
        generation.by_ref().for_each(drop);
        Ok(generation.choice().score())
    };
    texts.iter().map(|text| score(text).with_context(|| format!("{text:?}"))).collect()
}

/// A log-probability as a float.
pub fn nats(log_prob: runtime::search::LogProb) -> f32 {
    log_prob.to_bits() as f32 / 65_536.0
}

/// The ids of target text.
fn target_ids(model: &Model<'_>, text: &str) -> Result<Vec<TokenId>> {
    let symbols = target_splitting(model).symbols(text);
    let id = |symbol: &String| {
        let id = model.target_vocabulary().id(symbol);
        id.ok_or_else(|| anyhow!("`{symbol}` is no symbol of the model's target vocabulary"))
    };
    symbols.iter().map(id).collect()
}
