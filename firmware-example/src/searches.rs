//! Every way to search, for one text. Host tests include this file too: both must find the same.

use runtime::search::{BeamOptions, Constraints, Sampling};
use runtime::{
    BudgetTooSmall, GenerateOptions, LogitsHash, Poll, Precision, RunError, SearchError, Session,
    q16,
};

/// Beams that the arena is planned with.
pub const BEAMS: u16 = 4;

/// One output.
pub struct Found<'t> {
    /// How it was found.
    pub way: &'static str,
    /// The output.
    pub text: &'t str,
    /// Scores or hashes, which depend on every bit.
    pub numbers: [u64; 2],
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchFailure {
    /// The text.
    Run(RunError),
    /// The options.
    Search(SearchError),
    /// The budget.
    Budget(BudgetTooSmall),
}

impl From<RunError> for SearchFailure {
    fn from(error: RunError) -> Self {
        Self::Run(error)
    }
}

impl From<SearchError> for SearchFailure {
    fn from(error: SearchError) -> Self {
        Self::Search(error)
    }
}

impl From<BudgetTooSmall> for SearchFailure {
    fn from(error: BudgetTooSmall) -> Self {
        Self::Budget(error)
    }
}

/// Bits of a signed number, as an unsigned one.
fn bits(number: i32) -> u64 {
    number.cast_unsigned().into()
}

/// Searches for outputs of `text` in every way and shows each to `show`.
pub fn search_all<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    buffer: &mut [u8],
    mut show: impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    scored(session, text, buffer, &mut show)?;
    constrained(session, text, buffer, &mut show)?;
    sampled(session, text, buffer, &mut show)?;
    beams(session, text, buffer, &mut show)?;
    polled(session, text, &mut show)?;
    aligned(session, text, &mut show)
}

/// Greedy search, with its log-probability in Q16 nats and a confidence in Q15.
fn scored<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    buffer: &mut [u8],
    show: &mut impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    let mut generation = session.generate_text(text, &GenerateOptions::default())?.scored();
    let text = generation.write_into(buffer)?;
    let score = generation.choice().score();
    let numbers = [bits(score.sum.to_bits()), score.confidence().to_bits().into()];
    show(Found { way: "scored", text, numbers });
    Ok(())
}

/// No pair of symbols twice, and symbols that were produced are less probable.
fn constrained<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    buffer: &mut [u8],
    show: &mut impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    let constraints = Constraints {
        min_len: 3,
        repetition_penalty: q16!(1.2),
        no_repeat_ngram: Some(2),
        ..Constraints::default()
    };
    let generation = session.generate_text(text, &GenerateOptions::default())?;
    let mut generation = generation.constrained(&constraints)?;
    let text = generation.write_into(buffer)?;
    let score = generation.choice().score();
    show(Found { way: "constrained", text, numbers: [bits(score.sum.to_bits()), 0] });
    Ok(())
}

/// Draws, with a counter through a mixing function as the generator (Steele et al. 2014, SplitMix).
fn sampled<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    buffer: &mut [u8],
    show: &mut impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    let sampling = Sampling { temperature: q16!(1.5), top_k: Some(10), top_p: Some(q16!(0.95)) };
    let mut state = 1_u64;
    let random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let generation = session.generate_text(text, &GenerateOptions::default())?;
    let mut generation = generation.sampled(&Constraints::default(), &sampling, random)?;
    let text = generation.write_into(buffer)?;
    let score = generation.choice().score();
    show(Found { way: "sampled", text, numbers: [bits(score.sum.to_bits()), 0] });
    Ok(())
}

/// The four best outputs, with their scores in Q16 nats.
fn beams<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    buffer: &mut [u8],
    show: &mut impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    let options = BeamOptions { beams: BEAMS, n_best: BEAMS, length_penalty: q16!(0.6) };
    let generation = session.generate_text(text, &GenerateOptions::default())?;
    let mut beams = generation.beams(&Constraints::default(), &options)?;
    beams.run();
    for index in 0..beams.hypotheses().len() {
        let score = beams.hypotheses().get(index).map_or(0, |found| bits(found.score.to_bits()));
        let text = beams.write_into(index, buffer)?;
        show(Found { way: "beam", text, numbers: [score, 0] });
    }
    Ok(())
}

/// In pieces of the smallest budget: how many, and the hash of all logits.
fn polled<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    show: &mut impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    let budget = session.smallest_budget();
    let mut generation = session.generate_text(text, &GenerateOptions::default())?;
    let (mut hash, mut polls) = (LogitsHash::default(), 0);
    loop {
        polls += 1;
        if let Poll::Done(_) = generation.poll_observed(budget, |_, logit| hash.push(logit))? {
            break;
        }
    }
    show(Found { way: "polled", text: "", numbers: [polls, hash.value()] });
    Ok(())
}

/// How many weights of cross-attention there are, and their hash.
fn aligned<P: Precision>(
    session: &mut Session<'_, '_, P>,
    text: &str,
    show: &mut impl FnMut(Found<'_>),
) -> Result<(), SearchFailure> {
    let mut generation = session.generate_text(text, &GenerateOptions::default())?;
    let (mut hash, mut weights) = (LogitsHash::default(), 0);
    let mut take = |shown: runtime::CrossAttention<'_>| {
        for &weight in shown.weights {
            hash.push(i32::from(weight));
            weights += 1;
        }
    };
    while generation.next_aligned(|_, _| (), &mut take).is_some() {}
    show(Found { way: "aligned", text: "", numbers: [weights, hash.value()] });
    Ok(())
}
