//! Instructions of every operator while the model runs.
//!
//! `:profile` prints `encoder or decoder<TAB>operator<TAB>calls<TAB>instructions of them all`; reading the
//! counter at the boundaries is taken off.

use embedded_io::{Read, Write};
use runtime::profile::{self, Operator, Spent};

use crate::{board, console::Console};

const OPERATORS: [(Operator, &str); 15] = [
    (Operator::Embedding, "embedding"),
    (Operator::Positions, "positions"),
    (Operator::LayerNorm, "layer-norm"),
    (Operator::Input, "input"),
    (Operator::Query, "query"),
    (Operator::Key, "key"),
    (Operator::Value, "value"),
    (Operator::Scores, "scores"),
    (Operator::Softmax, "softmax"),
    (Operator::Context, "context"),
    (Operator::Output, "output"),
    (Operator::FeedForward1, "feed-forward-1"),
    (Operator::FeedForward2, "feed-forward-2"),
    (Operator::Logits, "logits"),
    (Operator::Other, "other"),
];

/// What a boundary costs, in units of a [`SAMPLES`]th.
#[derive(Clone, Copy)]
struct Overhead {
    /// The operator that begins.
    inside: u64,
    /// The one around it.
    outside: u64,
}

/// Boundaries that the overhead is measured with.
const SAMPLES: u64 = 256;

/// What the model has spent so far.
pub struct Profile {
    overhead: Overhead,
    spent: [[(u64, u64); OPERATORS.len()]; 2],
}

impl Profile {
    /// Nothing, yet.
    pub fn new() -> Self {
        profile::start(now);
        for _ in 0..SAMPLES {
            profile::run(Operator::Embedding, || ());
        }
        let [spent, _] = profile::take();
        let at = |operator: Operator| spent.get(operator as usize).copied().unwrap_or_default();
        let overhead = Overhead {
            inside: at(Operator::Embedding).count.into(),
            outside: at(Operator::Other).count.into(),
        };
        Self { overhead, spent: [[(0, 0); OPERATORS.len()]; 2] }
    }

    /// Runs `work`, which runs the model.
    pub fn watch<R>(&mut self, work: impl FnOnce() -> R) -> R {
        profile::start(now);
        let result = work();
        let taken = profile::take();
        for (side, taken) in self.spent.iter_mut().zip(taken) {
            for ((calls, count), (operator, _)) in side.iter_mut().zip(OPERATORS) {
                let spent = taken.get(operator as usize).copied().unwrap_or_default();
                *calls += u64::from(spent.begun);
                *count += self.overhead.taken_off(spent);
            }
        }
        result
    }

    /// Shows all of it.
    pub fn show<S: Read + Write>(&self, console: &mut Console<S>) {
        for (side, spent) in ["encoder", "decoder"].into_iter().zip(self.spent) {
            for ((calls, count), (_, operator)) in spent.into_iter().zip(OPERATORS) {
                console.text(side).text("\t").text(operator).text("\t").number(calls);
                console.text("\t").number(count).end_line();
            }
        }
    }
}

impl Overhead {
    fn taken_off(self, spent: Spent) -> u64 {
        let boundaries =
            u64::from(spent.begun) * self.inside + u64::from(spent.inner) * self.outside;
        u64::from(spent.count).saturating_sub(boundaries / SAMPLES)
    }
}

/// Differences of these are right modulo 2^32.
fn now() -> u32 {
    board::count() as u32
}
