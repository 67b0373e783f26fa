//! Pairs of texts: from a file to examples.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use model_format::config::{Family, ModelConfig};

use super::batch::Example;
use super::tokenizer::Tokenizer;

/// One pair of texts and the line that it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// What is given; empty for a language model.
    pub source: String,
    /// What is wanted: a text, or labels.
    pub target: String,
    /// Counted from 1.
    pub line: usize,
}

/// Most symbols of each side, those of the frame and the end id not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of a source.
    pub source: usize,
    /// Of a target; a side without one is not limited.
    pub target: usize,
}

impl Limits {
    /// Those of a model.
    pub fn of(model: &ModelConfig) -> Self {
        let all_but = |len: u16, frame: u16| usize::from(len.saturating_sub(frame));
        Self {
            source: match model.has_encoder() {
                true => all_but(model.max_source_len, model.source_frame.len()),
                false => usize::MAX,
            },
            target: match model.has_decoder() {
                true => all_but(model.max_target_len, 1),
                false => usize::MAX,
            },
        }
    }
}

/// Reads what a model of `family` learns from: a text a line for a language model, else
/// `source<TAB>target` lines, where a target is a text or labels.
pub fn read(path: &Path, family: Family) -> Result<Vec<Pair>> {
    match family {
        Family::DecoderOnly => read_by(path, parse_texts),
        Family::EncoderDecoder | Family::Tagger | Family::Classifier => read_by(path, parse_tsv),
    }
}

/// Reads a `source<TAB>target` file in UTF-8; empty lines and a byte order mark are skipped.
pub fn read_tsv(path: &Path) -> Result<Vec<Pair>> {
    read_by(path, parse_tsv)
}

fn read_by(path: &Path, parse: fn(&str) -> Result<Vec<Pair>>) -> Result<Vec<Pair>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let pairs = utf8(&bytes).and_then(parse).with_context(|| path.display().to_string())?;
    ensure!(!pairs.is_empty(), "{}: no pair", path.display());
    Ok(pairs)
}

/// The text of a file, or the line that is no text.
fn utf8(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        anyhow!("line {line}: not UTF-8 (byte {} of the file)", error.valid_up_to() + 1)
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Parses `source<TAB>target` lines.
pub fn parse_tsv(text: &str) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let number = i + 1;
        if line.is_empty() {
            continue;
        }
        let Some((source, target)) = line.split_once('\t') else {
            bail!("line {number}: no tab between source and target");
        };
        ensure!(!target.contains('\t'), "line {number}: more than one tab");
        ensure!(!source.trim().is_empty(), "line {number}: the source is empty");
        ensure!(!target.trim().is_empty(), "line {number}: the target is empty");
        pairs.push(Pair { source: source.into(), target: target.into(), line: number });
    }
    Ok(pairs)
}

/// Parses one text a line, for a language model.
pub fn parse_texts(text: &str) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let number = i + 1;
        ensure!(
            !line.contains('\t'),
            "line {number}: a tab, but a decoder-only model learns from one text a line"
        );
        if !line.trim().is_empty() {
            pairs.push(Pair { source: String::new(), target: line.into(), line: number });
        }
    }
    Ok(pairs)
}

/// Encodes pairs for `model`; one that exceeds a limit is an error with its line, and so is one whose
/// labels are not known or not as many as they must be.
pub fn encode(
    pairs: &[Pair],
    (source, target): (&Tokenizer, &Tokenizer),
    model: &ModelConfig,
) -> Result<Vec<Example>> {
    let limits = Limits::of(model);
    let encoded = pairs.iter().map(|pair| {
        let line = pair.line;
        let example = Example {
            source: source.encode(&pair.source),
            target: match model.has_decoder() {
                true => target.encode(&pair.target),
                false => labels(pair, target)?,
            },
        };
        for (name, ids, limit) in
            [("source", &example.source, limits.source), ("target", &example.target, limits.target)]
        {
            let n = ids.len();
            ensure!(n <= limit, "line {line}: the {name} has {n} symbols, the limit is {limit}");
        }
        let (symbols, labels) = (example.source.len(), example.target.len());
        match model.family {
            Family::Tagger => {
                ensure!(symbols == labels, "line {line}: {labels} labels for {symbols} symbols");
            }
            Family::Classifier => {
                ensure!(labels == 1, "line {line}: {labels} labels, a classifier's text has one");
            }
            Family::EncoderDecoder | Family::DecoderOnly => {}
        }
        Ok(example)
    });
    encoded.collect()
}

/// The ids of a pair's labels.
fn labels(pair: &Pair, labels: &Tokenizer) -> Result<Vec<u32>> {
    let ids = labels.encode_known(&pair.target);
    ids.map_err(|label| anyhow!("line {}: the label `{label}` is not the model's", pair.line))
}

#[cfg(test)]
mod tests {
    use model_format::config::SourceFrame;

    use super::*;
    use crate::config::RunConfig;
    use crate::data::tasks::Task;
    use crate::data::tokenizer::{Splitting, Unit};

    #[test]
    fn bad_lines_are_named() {
        let error = |text| parse_tsv(text).unwrap_err().to_string();
        assert_eq!(error("a\tb\nxy\n"), "line 2: no tab between source and target");
        assert_eq!(error("a\t \n"), "line 1: the target is empty");
        assert_eq!(error("\tb\n"), "line 1: the source is empty");
        assert_eq!(error("a\tb\tc\n"), "line 1: more than one tab");
        assert_eq!(parse_tsv("a\tb\n\nc\td").unwrap()[1].line, 3);
    }

    #[test]
    fn what_is_not_utf8_is_named_and_a_byte_order_mark_skipped() {
        let error = utf8(b"a\tb\nc\t\xff\n").unwrap_err().to_string();
        assert_eq!(error, "line 2: not UTF-8 (byte 7 of the file)");
        assert_eq!(utf8(b"\xef\xbb\xbfa\tb").unwrap(), "a\tb");
    }

    #[test]
    fn a_text_with_a_tab_is_no_text_of_a_language_model() {
        let error = parse_texts("ab\nc\td\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2: a tab, but a decoder-only model"), "{error}");
        let pairs = parse_texts("ab\n\nc d\n").unwrap();
        assert_eq!((pairs[1].target.as_str(), pairs[1].line), ("c d", 3));
    }

    const LETTERS: Splitting = Splitting { unit: Unit::Character, lowercase: false };
    const WORDS: Splitting = Splitting { unit: Unit::Word, lowercase: false };

    fn error(text: &str, target: Tokenizer, model: ModelConfig) -> String {
        let pairs = parse_tsv(text).unwrap();
        let source = Tokenizer::build(LETTERS, ["ab"]).unwrap();
        encode(&pairs, (&source, &target), &model).unwrap_err().to_string()
    }

    #[test]
    fn too_long_a_target_is_refused_with_line_and_limit() {
        let model =
            ModelConfig { max_source_len: 3, max_target_len: 3, ..RunConfig::default().model };
        let target = Tokenizer::build(WORDS, ["A B"]).unwrap();
        assert_eq!(
            error("ab\tA B\nab\tA B A\n", target.clone(), model),
            "line 2: the target has 3 symbols, the limit is 2"
        );
        assert_eq!(
            error("aab\tA B\n", target.clone(), model),
            "line 1: the source has 3 symbols, the limit is 2"
        );
        let model = ModelConfig { source_frame: SourceFrame::StartEnd, ..model };
        assert_eq!(
            error("ab\tA B\n", target, model),
            "line 1: the source has 2 symbols, the limit is 1"
        );
    }

    #[test]
    fn labels_that_do_not_fit_are_refused_with_their_line() {
        let labels = Tokenizer::build_labels(WORDS, ["X Y"]).unwrap();
        let model = |task| RunConfig::of_task(task).model;
        let tagger = model(Task::Stress);
        assert_eq!(
            error("ab\tX Y\nab\tX Y X\n", labels.clone(), tagger),
            "line 2: 3 labels for 2 symbols"
        );
        assert_eq!(
            error("ab\tX Z\n", labels.clone(), tagger),
            "line 1: the label `Z` is not the model's"
        );
        assert_eq!(
            error("ab\tX Y\n", labels, model(Task::Syllables)),
            "line 1: 2 labels, a classifier's text has one"
        );
    }
}
