//! What the firmware answered.

use std::collections::BTreeMap;

/// The answers to a `:batch`, and what comes after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Word and answer, or word and `! error`.
    pub answers: Vec<(String, String)>,
    /// The hash of the logits of every step of every word.
    pub hash: u64,
    /// Bytes of the arena.
    pub arena: u64,
}

/// The answers to a `:cost`, and what comes after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// Word and answer, or word and `! error`.
    pub answers: Vec<(String, String)>,
    /// Instructions, or ticks, of all words.
    pub total: u64,
    /// What `total` counts.
    pub unit: String,
    /// Bytes of stack in the runtime, at the deepest moment since boot.
    pub stack: u64,
    /// Bytes of stack in all.
    pub stack_of_all: u64,
}

/// What the banner says of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the file, laid out for the board.
    pub model: u64,
    /// Bytes of the arena.
    pub arena: u64,
}

/// The lines that make the firmware provoke its errors, answer both lists of words and end.
pub fn input(words: &[&str], costed: &[&str]) -> String {
    let lines = |words: &[&str]| words.iter().map(|word| format!("{word}\n")).collect::<String>();
    format!(":errors\n:batch\n{}\n:cost\n{}\n:quit\n", lines(words), lines(costed))
}

impl Batch {
    /// Reads the one batch in the firmware's output.
    ///
    /// # Panics
    /// When it is not complete.
    pub fn parse(output: &str) -> Self {
        let (batch, _) = parts(output);
        let hash = u64::from_str_radix(value(batch, "hash "), 16).expect("a hash");
        Self { answers: answers(batch), hash, arena: number(value(batch, "arena ")) }
    }
}

impl Cost {
    /// Reads the one list with costs in the firmware's output.
    ///
    /// # Panics
    /// When it is not complete.
    pub fn parse(output: &str) -> Self {
        let (_, cost) = parts(output);
        let (total, unit) = value(cost, "cost ").split_once(' ').expect("a number and its unit");
        Self {
            answers: answers(cost),
            total: number(total),
            unit: unit.to_owned(),
            stack: number(value(cost, "stack ")),
            stack_of_all: number(value(cost, "stack-of-all ")),
        }
    }
}

impl Sizes {
    /// Reads the firmware's banner.
    ///
    /// # Panics
    /// When it is not one.
    pub fn parse(banner: &str) -> Self {
        let line = value(banner, "model ");
        let (model, rest) = line.split_once(" B: ").expect("bytes of the model");
        let (_, arena) = rest.split_once("arena ").expect("an arena");
        let bytes = |text: &str| number(&text.trim_end_matches(" B").replace(',', ""));
        Self { model: bytes(model), arena: bytes(arena) }
    }
}

/// A number as the firmware shows it to a person: a comma between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The output up to the end of the batch, and the rest.
fn parts(output: &str) -> (&str, &str) {
    let hash = output.find("\nhash ").unwrap_or_else(|| panic!("no hash in:\n{output}"));
    let prompt = output[hash..].find("\n> ").unwrap_or_else(|| panic!("no prompt in:\n{output}"));
    output.split_at(hash + prompt)
}

fn answers(part: &str) -> Vec<(String, String)> {
    let answers: Vec<_> = part
        .lines()
        .filter_map(|line| line.trim_start_matches("> ").split_once('\t'))
        .map(|(word, answer)| (word.to_owned(), answer.to_owned()))
        .collect();
    assert_eq!(number(value(part, "words ")), answers.len() as u64, "answers are missing");
    answers
}

fn value<'a>(part: &'a str, name: &str) -> &'a str {
    let mut values = part.lines().filter_map(|line| line.strip_prefix(name));
    values.next().unwrap_or_else(|| panic!("no line `{name}` in:\n{part}"))
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

/// What `:search` found, line by line, and what each way costs a word.
pub fn searches(output: &str) -> (Vec<String>, String) {
    let (mut found, mut costs) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for line in output.lines().filter(|line| line.matches('\t').count() == 4) {
        let (line, cost) = line.rsplit_once('\t').expect("four tabs");
        let way = line.split('\t').next().expect("a way");
        *costs.entry(way).or_default() += cost.parse::<u64>().expect("a cost");
        found.push(line.to_owned());
    }
    let words = found.iter().filter(|line| line.starts_with("scored")).count().max(1) as u64;
    let costs = costs.iter().map(|(way, total)| format!("{way} {}", total / words));
    (found, costs.collect::<Vec<_>>().join(", "))
}
