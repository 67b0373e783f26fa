//! The dialogue: one word a line, or a command.
//!
//! | line | what happens |
//! | --- | --- |
//! | a word | its phones, then what they cost |
//! | `:batch` | the words that follow, up to an empty line, one answer a line; then the hash of all logits |
//! | `:cost` | the same words without the hash; then what they cost |
//! | `:search` | the same words, in every way to search; with feature `search` |
//! | `:bench` | instructions of every operator; with feature `bench` |
//! | `:profile` | the same words, then instructions of every operator in them; with feature `bench` |
//! | `:errors` | every way to fail, provoked |
//! | `:selftest` | the kernels against the numeric contract; with feature `selftest` |
//! | `:fault` | an instruction that there is not; the run ends with status 1 |
//! | `:help` | this list |
//! | `:quit` | ends |

use embedded_io::{Read, Write};
use runtime::{Checks, LogitsHash};
#[cfg(feature = "selftest")]
use runtime::{kernels::suite, model_format::layout::Packing};

use crate::{
    board,
    console::{Console, Line},
    explain::explain,
    provoke::provoke,
    speller::{self, ARENA_LEN, Failure, HEADER, MODEL, Model, Speller},
    stack,
};

/// Most bytes of a line.
const LINE_LIMIT: usize = 120;

/// Runs until `:quit` or the end of the stream; `false` if the model cannot be used.
pub fn run<S: Read + Write>(console: &mut Console<S>) -> bool {
    let model = match load(console) {
        Ok(model) => model,
        Err(failure) => {
            explain(console, failure);
            return false;
        }
    };
    match stack::watch(|| Speller::new(&model)) {
        Ok(mut speller) => talk(console, &model, &mut speller),
        Err(failure) => {
            explain(console, failure);
            return false;
        }
    }
    true
}

/// Loads the model, and says what each depth of checking costs. On its own stack, which is gone when
/// words are answered.
#[inline(never)]
fn load<S: Read + Write>(console: &mut Console<S>) -> Result<Model, Failure> {
    banner(console);
    let mut load = |what, checks| -> Result<Model, Failure> {
        let (model, cost) = timed(|| speller::load(checks));
        let model = model?;
        console.text(what).grouped(cost).text(" ").text(board::UNIT).end_line();
        Ok(model)
    };
    load("load with all checks      ", Checks::Full)?;
    load("load without the checksum ", Checks::SkipCrc)?;
    load("load without the weights  ", Checks::Structure)
}

fn talk<S: Read + Write>(console: &mut Console<S>, model: &Model, speller: &mut Speller<'_>) {
    let mut buffer = [0; LINE_LIMIT];
    loop {
        console.text("> ");
        match console.read_line(&mut buffer) {
            Line::Text(":quit") => return,
            Line::End => return console.end_line(),
            Line::Text(":batch") => batch(console, speller),
            Line::Text(":cost") => cost(console, speller),
            #[cfg(feature = "search")]
            Line::Text(":search") => search(console, speller),
            #[cfg(feature = "bench")]
            Line::Text(":bench") => crate::bench::run(console, model.model()),
            #[cfg(feature = "bench")]
            Line::Text(":profile") => profile(console, speller),
            Line::Text(":errors") => provoke(console, model, speller),
            #[cfg(feature = "selftest")]
            Line::Text(":selftest") => self_test(console),
            Line::Text(":fault") => board::fault(),
            Line::Text(":help") => help(console),
            Line::Text(word) if word.starts_with(':') => {
                console.text("no such command; try :help").end_line();
            }
            Line::Text(word) => answer(console, speller, word),
            Line::TooLong => line_too_long(console),
            Line::NotText => not_text(console),
        }
    }
}

fn banner<S: Read + Write>(console: &mut Console<S>) {
    console.text("Kiloformer on ").text(board::name()).text("; :help for help").end_line();
    let config = &HEADER.config;
    console.text("model ").grouped(MODEL.len() as u64).text(" B: ");
    console.number(config.d_model.into()).text(" wide, ");
    console.number(config.encoder.n_layers.into()).text(" + ");
    console.number(config.decoder.n_layers.into()).text(" layers; arena ");
    console.grouped(ARENA_LEN as u64).text(" B").end_line();
}

fn help<S: Read + Write>(console: &mut Console<S>) {
    for line in [
        "a word     its phones, and what they cost",
        ":batch     answers words up to an empty line, then the hash of their logits",
        ":cost      answers words up to an empty line, then what they cost",
        #[cfg(feature = "search")]
        ":search    answers words up to an empty line in every way to search",
        #[cfg(feature = "bench")]
        ":bench     counts the instructions of every operator",
        #[cfg(feature = "bench")]
        ":profile   answers words up to an empty line, then counts those of every operator in them",
        ":errors    every way to fail",
        #[cfg(feature = "selftest")]
        ":selftest  the kernels against the numeric contract",
        ":fault     an instruction that there is not, which ends the run with status 1",
        ":quit      ends",
    ] {
        console.text(line).end_line();
    }
}

/// The result of `work`, and what it cost; the stack is watched.
fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let mut cost = 0;
    let result = stack::watch(|| {
        let begin = board::count();
        let result = work();
        cost = board::count().wrapping_sub(begin);
        result
    });
    (result, cost)
}

/// One word for a person: the phones, then a line with their cost.
fn answer<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller<'_>, word: &str) {
    match timed(|| speller.spell(word)) {
        (Ok(phones), cost) => {
            console.text(phones).end_line();
            console.text("  ").grouped(cost).text(" ").text(board::UNIT);
            console.text(", arena ").grouped(ARENA_LEN as u64).text(" B");
            console.text(", stack ").grouped(stack::in_runtime() as u64);
            console.text(" B of ").grouped(stack::in_all() as u64).text(" B").end_line();
        }
        (Err(failure), _) => explain(console, failure),
    }
}

/// Many words for a machine, and the hash of all their logits.
fn batch<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller<'_>) {
    let mut hash = LogitsHash::default();
    let words = for_each_word(console, |console, word| {
        match stack::watch(|| speller.spell_hashed(word, &mut hash)) {
            Ok(phones) => console.text(phones).end_line(),
            Err(failure) => explain(console, failure),
        }
    });
    console.text("words ").number(words).end_line();
    console.text("hash ").hex::<16>(hash.value()).end_line();
    memory(console);
}

/// Many words for a machine, and what they cost.
fn cost<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller<'_>) {
    let mut total = 0;
    let words = for_each_word(console, |console, word| {
        let (result, cost) = timed(|| speller.spell(word));
        total += cost;
        match result {
            Ok(phones) => console.text(phones).end_line(),
            Err(failure) => explain(console, failure),
        }
    });
    console.text("words ").number(words).end_line();
    console.text("cost ").number(total).text(" ").text(board::UNIT).end_line();
    memory(console);
}

/// Many words for a machine, and what every operator has spent on them.
#[cfg(feature = "bench")]
fn profile<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller<'_>) {
    let mut profile = crate::bench::profile::Profile::new();
    let words =
        for_each_word(console, |console, word| match profile.watch(|| speller.spell(word)) {
            Ok(phones) => console.text(phones).end_line(),
            Err(failure) => explain(console, failure),
        });
    console.text("words ").number(words).end_line();
    profile.show(console);
}

/// Every way to search: `way text number number cost` in a line, separated by tabs.
#[cfg(feature = "search")]
fn search<S: Read + Write>(console: &mut Console<S>, speller: &mut Speller<'_>) {
    let words = for_each_word(console, |console, word| {
        console.end_line();
        let mut begin = board::count();
        let found = speller.search(word, |found| {
            let cost = board::count().wrapping_sub(begin);
            let [first, second] = found.numbers;
            console.text(found.way).text("\t").text(found.text).text("\t");
            console.hex::<16>(first).text("\t").hex::<16>(second).text("\t");
            console.number(cost).end_line();
            begin = board::count();
        });
        if found.is_err() {
            console.text("! a search failed").end_line();
        }
    });
    console.text("words ").number(words).end_line();
    memory(console);
}

/// Reads words up to an empty line and has each answered after `word<TAB>`; the number of words.
fn for_each_word<S: Read + Write>(
    console: &mut Console<S>,
    mut answer: impl FnMut(&mut Console<S>, &str),
) -> u64 {
    let mut buffer = [0; LINE_LIMIT];
    let mut words = 0;
    console.quiet(true);
    loop {
        match console.read_line(&mut buffer) {
            Line::End | Line::Text("") => break,
            Line::TooLong => line_too_long(console),
            Line::NotText => not_text(console),
            Line::Text(word) => {
                console.text(word).text("\t");
                answer(console, word);
                words += 1;
            }
        }
    }
    console.quiet(false);
    words
}

fn memory<S: Read + Write>(console: &mut Console<S>) {
    console.text("arena ").number(ARENA_LEN as u64).end_line();
    console.text("stack ").number(stack::in_runtime() as u64).end_line();
    console.text("stack-of-all ").number(stack::in_all() as u64).end_line();
}

#[cfg(feature = "selftest")]
#[inline(never)]
fn self_test<S: Read + Write>(console: &mut Console<S>) {
    match suite::run() {
        Ok(comparisons) => {
            console.text("the kernels equal the contract in ").number(comparisons);
            console.text(" cases").end_line();
        }
        Err(suite::Difference { kernel, packing, rows, cols, tokens }) => {
            let packing = match packing {
                Packing::RowMajor => "row-major",
                Packing::PairedRows => "paired-rows",
                Packing::QuadRows => "quad-rows",
                Packing::Nibbles => "nibbles",
            };
            console.text("! ").text(kernel).text(" differs from the contract: ").text(packing);
            console.text(", ").number(rows as u64).text(" rows, ").number(cols as u64);
            console.text(" columns, ").number(tokens as u64).text(" tokens").end_line();
        }
    }
}

fn line_too_long<S: Read + Write>(console: &mut Console<S>) {
    console.text("! the line is longer than ").number(LINE_LIMIT as u64).text(" bytes").end_line();
}

fn not_text<S: Read + Write>(console: &mut Console<S>) {
    console.text("! the line is not UTF-8 text").end_line();
}
