//! Has the firmware measure itself on a board.

use std::time::Duration;

use crate::board::Board;
use crate::counts::Counts;
use crate::{model, qemu};

/// An emulated board takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// A board, and what CMSIS-NN's figures call its core.
pub struct Subject {
    /// The board.
    pub board: Board,
    /// Its core.
    pub core: &'static str,
}

/// One operator, alone.
#[derive(Debug, Clone)]
pub struct Line {
    /// `raw`, `full`, `add` of a matrix, or another one's name.
    pub operator: String,
    /// How the matrix is packed.
    pub packing: String,
    /// `columns x rows`.
    pub shape: String,
    /// Tokens of the input.
    pub tokens: u64,
    /// Instructions of one call.
    pub count: u64,
}

/// One operator in the model, over all words.
#[derive(Debug, Clone)]
pub struct Share {
    /// `encoder` or `decoder`.
    pub side: String,
    /// Its name.
    pub operator: String,
    /// How often it was called.
    pub calls: u64,
    /// Instructions of all calls.
    pub count: u64,
}

/// What was measured on a board.
pub struct Measured<'s> {
    /// Where.
    pub subject: &'s Subject,
    /// Operators alone.
    pub lines: Vec<Line>,
    /// Operators in the model.
    pub shares: Vec<Share>,
    /// Instructions of all words, counted in a firmware without boundaries between operators.
    pub total: u64,
}

impl Line {
    /// Products of the shape and the tokens.
    pub fn products(&self) -> u64 {
        let (cols, rows) = self.shape.split_once(" x ").expect("a shape");
        number(cols) * number(rows) * self.tokens
    }
}

/// Builds both firmwares of a board and runs `words` and the bench in them.
pub fn measure<'s>(subject: &'s Subject, words: &[&str]) -> Measured<'s> {
    let board = &subject.board;
    let list = |command: &str| format!("{command}\n{}\n\n", words.join("\n"));
    let plain = board.build(&model::path());
    let plain = qemu::talk(board, &plain, &(list(":cost") + ":quit\n"), LIMIT);
    let total = plain.lines().find_map(|line| line.strip_prefix("cost "));
    let total = total.and_then(|line| line.strip_suffix(" instructions")).expect("instructions");

    let bench = board.build_with(&model::path(), Some("bench"));
    let input = list(":profile") + ":bench\n:quit\n";
    let output = qemu::talk(board, &bench, &input, LIMIT);
    let fields = output.lines().map(|line| line.trim_start_matches("> ").split('\t').collect());
    let fields: Vec<Vec<&str>> = fields.collect();
    Measured {
        subject,
        lines: fields.iter().filter_map(|fields| line(fields)).collect(),
        shares: fields.iter().filter_map(|fields| share(fields)).collect(),
        total: number(total),
    }
}

fn line(fields: &[&str]) -> Option<Line> {
    let &[operator, packing, shape, tokens, count] = fields else { return None };
    Some(Line {
        operator: operator.to_owned(),
        packing: packing.to_owned(),
        shape: shape.to_owned(),
        tokens: number(tokens),
        count: number(count),
    })
}

fn share(fields: &[&str]) -> Option<Share> {
    let &[side, operator, calls, count] = fields else { return None };
    Some(Share {
        side: side.to_owned(),
        operator: operator.to_owned(),
        calls: number(calls),
        count: number(count),
    })
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

impl Measured<'_> {
    /// What is committed of it.
    pub fn counts(&self) -> Counts {
        let board = self.subject.board.name;
        let lines = self.lines.iter().map(|line| {
            let Line { operator, packing, shape, tokens, count } = line;
            (format!("{board}\t{operator}\t{packing}\t{shape}\t{tokens}"), *count)
        });
        lines.chain([(format!("{board}\tmodel\t-\t-\t-"), self.total)]).collect()
    }
}
