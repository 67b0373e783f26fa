//! The dialogue: one word a line, or a batch of words with a hash at its end.
//!
//! | line | what happens |
//! | --- | --- |
//! | a word | its phones, then what they cost |
//! | `:batch` | the words that follow, up to an empty line, one answer a line; then hash and totals |
//! | `:help` | this list |
//! | `:quit` | ends |

use embedded_io::{Read, Write};

use crate::{
    board,
    console::{Console, Line},
    fnv::Fnv,
    speller::{Failure, Speller},
    stack,
};

/// Most bytes of a line.
const LINE_LIMIT: usize = 120;

/// Runs until `:quit` or the end of the stream; `false` if the model cannot be used.
pub fn run<S: Read + Write>(console: &mut Console<S>) -> bool {
    let mut speller = match Speller::load() {
        Ok(speller) => speller,
        Err(failure) => {
            explain(console, failure);
            return false;
        }
    };
    banner(console);
    let mut buffer = [0; LINE_LIMIT];
    loop {
        console.text("> ");
        match console.read_line(&mut buffer) {
            Line::Text(":quit") => return true,
            Line::End => {
                console.end_line();
                return true;
            }
            Line::Text(":batch") => batch(console, &mut speller),
            Line::Text(":help") => help(console),
            Line::Text(word) if word.starts_with(':') => {
                console.text("no such command; try :help").end_line();
            }
            Line::Text(word) => answer(console, &mut speller, word),
            Line::TooLong => line_too_long(console),
            Line::NotText => not_text(console),
        }
    }
}

fn banner<S: Read + Write>(console: &mut Console<S>) {
    console.text("Kiloformer on ").text(board::NAME).text(": ").text(Speller::MODEL);
    console.text(", arena ").grouped(Speller::ARENA as u64).text(" B; :help for help").end_line();
}

fn help<S: Read + Write>(console: &mut Console<S>) {
    console.text("a word   its phones, and what they cost").end_line();
    console
        .text(":batch   answers words up to an empty line, then their hash and totals")
        .end_line();
    console.text(":quit    ends").end_line();
}

/// One word for a person: the phones, then a line with their cost.
fn answer<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller, word: &str) {
    let begin = board::count();
    let result = speller.spell(word);
    let cost = board::count().wrapping_sub(begin);
    match result {
        Ok(phones) => {
            console.text(phones).end_line();
            console.text("  ").grouped(cost).text(" ").text(board::UNIT);
            console.text(", arena ").grouped(Speller::ARENA as u64).text(" B");
            console.text(", stack ").grouped(stack::high_water() as u64).text(" B").end_line();
        }
        Err(failure) => explain(console, failure),
    }
}

/// Many words for a machine: `word<TAB>phones` or `word<TAB>!error` each, then the totals.
///
/// Every word runs twice: once for its cost, once for the hash of its logits.
fn batch<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller) {
    let mut buffer = [0; LINE_LIMIT];
    let mut hash = Fnv::new();
    let (mut words, mut total) = (0, 0);
    console.quiet(true);
    loop {
        match console.read_line(&mut buffer) {
            Line::End | Line::Text("") => break,
            Line::TooLong => line_too_long(console),
            Line::NotText => not_text(console),
            Line::Text(word) => {
                console.text(word).text("\t");
                let begin = board::count();
                let plain = speller.spell(word).map(str::len);
                total += board::count().wrapping_sub(begin);
                words += 1;
                match (plain, speller.spell_hashed(word, &mut hash)) {
                    (Ok(length), Ok(phones)) if length == phones.len() => {
                        console.text(phones).end_line();
                    }
                    (_, Err(failure)) => explain(console, failure),
                    _ => console.text("! two runs differ").end_line(),
                }
            }
        }
    }
    console.quiet(false);
    console.text("words ").number(words).end_line();
    console.text("hash ").hex(hash.finish()).end_line();
    console.text("cost ").number(total).text(" ").text(board::UNIT).end_line();
    console.text("arena ").number(Speller::ARENA as u64).end_line();
    console.text("stack ").number(stack::high_water() as u64).end_line();
}

fn line_too_long<S: Read + Write>(console: &mut Console<S>) {
    console.text("! the line is longer than ").number(LINE_LIMIT as u64).text(" bytes").end_line();
}

fn not_text<S: Read + Write>(console: &mut Console<S>) {
    console.text("! the line is not UTF-8 text").end_line();
}

/// Says why there is no answer.
fn explain<S: Read + Write>(console: &mut Console<S>, failure: Failure) {
    console.text("! ");
    match failure {
        Failure::Empty => console.text("no word given"),
        Failure::UnknownLetter(letter) => {
            let mut utf8 = [0; 4];
            console.text("the model does not know `").text(letter.encode_utf8(&mut utf8)).text("`")
        }
        Failure::TooLong { given, limit } => console
            .number(given as u64)
            .text(" letters are too many: the model takes ")
            .number(limit as u64),
    }
    .end_line();
}
