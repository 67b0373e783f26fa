//! Which token follows. Sees ids and logits only, owns no memory.
//!
//! ```text
//! options     what a caller may choose, checked once        q16  numbers without floats
//! filter      which ids may follow; uses trie
//! greedy      the largest logit                             hash of all logits
//! sample      temperature, top-k, top-p
//! beam        the outputs of the highest score            rank  lists of the best
//!   log_prob  log-probabilities, scores, confidence
//!     exp_log exponentials and logarithms in integers
//! ```
//!
//! What a search needs of the caller, in elements; `vocab` is the target vocabulary's size, and
//! `max_len` the most ids produced, end id included:
//!
//! | for | slices |
//! | --- | --- |
//! | greedy | none; logits come one by one |
//! | its score | none: [`LogSumExp`] takes logits one by one, [`LogSum::log_prob`] the best one after |
//! | constraints | logits `[vocab]` of [`Logit`](crate::Logit), 4 bytes each; history `[max_len]` of [`TokenId`](crate::TokenId), a prompt or prefix included |
//! | sampling | logits `[vocab]`; no scratch |
//! | beam search | logits `[vocab]` (one beam's at a time) and [`BeamBuffers`] |
//!
//! One step of any search over a buffer of logits:
//!
//! ```text
//! 1. the decoder fills logits [vocab]
//! 2. log_sum = LogSumExp::of(logits, frac_bits)      where scores are wanted; before the filter
//! 3. Filter::new(constraints, special, history, forced).apply(logits)
//! 4. draw(logits, ..), or Greedy, or BeamSearch::extend(.., logits, log_sum)
//! 5. score.push(log_sum.log_prob(logits[id]))        a penalized logit gives a penalized score
//! ```
//!
//! `frac_bits` is that of the file's `ActivationSlot::Logits`; floats ignore it.

mod beam;
#[cfg(test)]
mod beam_tests;
mod error;
mod exp_log;
mod filter;
mod greedy;
mod hash;
mod log_prob;
mod options;
mod q16;
mod rank;
mod sample;
mod trie;

pub use beam::{Beam, BeamBuffers, BeamSearch, Candidate, Hypothesis, Link};
pub use error::OptionsError;
pub use filter::Filter;
pub use greedy::Greedy;
pub use hash::LogitsHash;
pub use log_prob::{LogProb, LogSum, LogSumExp, Probability, Score};
pub use options::{BeamOptions, Constraints, Sampling};
pub use q16::Q16;
pub use sample::draw;
pub use trie::Trie;
