//! What a model answers, and the logits by which two machines are compared.

use runtime::{LogitsHash, Precision, RunError, Session, StopReason};

/// All that one run shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The text, or why there is none.
    pub text: Result<String, RunError>,
    /// The hash of every logit of every step.
    pub hash: u64,
    /// Why it ended.
    pub stop: Option<StopReason>,
}

/// Most bytes of an answer.
const ANSWER_LIMIT: usize = 4096;

/// Runs `word`, adding its logits to `hash`.
pub fn answer<P: Precision>(
    session: &mut Session<'_, '_, P>,
    word: &str,
    hash: &mut LogitsHash,
) -> Result<String, RunError> {
    let mut buffer = [0; ANSWER_LIMIT];
    session.run_observed(word, &mut buffer, |_, logit| hash.push(logit)).map(str::to_owned)
}

/// Runs `word`.
pub fn run<P: Precision>(session: &mut Session<'_, '_, P>, word: &str) -> Answer {
    let mut hash = LogitsHash::default();
    let text = answer(session, word, &mut hash);
    Answer { text, hash: hash.value(), stop: session.last_stop() }
}
