//! What the firmware answered to a batch of words.

/// The answers and the totals of one `:batch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Word and answer, or word and `! error`.
    pub answers: Vec<(String, String)>,
    /// FNV-1a-64 of the logits of every step of every word.
    pub hash: u64,
    /// Instructions, or ticks, of all words.
    pub cost: u64,
    /// What `cost` counts.
    pub unit: String,
    /// Bytes of the arena.
    pub arena: u64,
    /// Bytes of stack at the deepest moment since boot.
    pub stack: u64,
}

/// The lines that make the firmware answer `words` and end.
pub fn batch_input<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut input = String::from(":batch\n");
    for word in words {
        input.push_str(word);
        input.push('\n');
    }
    input.push_str("\n:quit\n");
    input
}

impl Batch {
    /// Reads the one batch in the firmware's output.
    ///
    /// # Panics
    /// When it is not complete.
    pub fn parse(output: &str) -> Self {
        let answers: Vec<_> = output
            .lines()
            .filter_map(|line| line.trim_start_matches("> ").split_once('\t'))
            .map(|(word, answer)| (word.to_owned(), answer.to_owned()))
            .collect();
        let total = |name: &str| {
            let mut values = output.lines().filter_map(|line| line.strip_prefix(name));
            values.next().unwrap_or_else(|| panic!("no line `{name}` in:\n{output}"))
        };
        let (cost, unit) = total("cost ").split_once(' ').expect("a number and its unit");
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("no number: {text}"));
        assert_eq!(number(total("words ")), answers.len() as u64, "answers are missing");
        Self {
            hash: u64::from_str_radix(total("hash "), 16).expect("a hash"),
            cost: number(cost),
            unit: unit.to_owned(),
            arena: number(total("arena ")),
            stack: number(total("stack ")),
            answers,
        }
    }
}
