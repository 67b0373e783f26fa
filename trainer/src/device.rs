//! What the device does, on the workstation: runs an exported file through the runtime.

use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use model_format::config::{Precision, Segmentation};
use model_format::{AlignedBytes, Model};
use runtime::{FixedModel, HalfModel, LoadError, LogitsHash, Session, StopReason, TypedModel};

use crate::data::tokenizer::{Splitting, Unit};

/// Bytes of one answer: more than any vocabulary's longest symbols at the longest length.
const ANSWER_LEN: usize = 1 << 16;

/// Reads a model file.
pub fn read(path: &std::path::Path) -> Result<AlignedBytes> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(AlignedBytes::from(&bytes[..]))
}

/// The checked view of a file.
pub fn check(file: &[u8]) -> Result<Model<'_>> {
    Model::from_bytes(file).map_err(|error| anyhow!("not a usable model: {error}"))
}

/// What one text gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The generated text.
    pub text: String,
    /// Why it ended.
    pub stop: Option<StopReason>,
    /// Of all logits of all steps.
    pub hash: u64,
}

/// A model with its session: answers texts, or says why one is refused.
pub type Answers<'a> = &'a mut dyn FnMut(&str) -> Result<Answer, String>;

/// Opens `model` in an arena of exactly its length and hands the session to `f`.
pub fn with_session<T>(model: Model<'_>, f: impl FnOnce(Answers<'_>) -> T) -> Result<T> {
    match model.header().precision {
        Precision::FixedPoint => open(FixedModel::new(model), f),
        Precision::HalfFloat => open(HalfModel::new(model), f),
    }
}

fn open<P: runtime::Precision, T>(
    model: Result<TypedModel<'_, P>, LoadError>,
    f: impl FnOnce(Answers<'_>) -> T,
) -> Result<T> {
    let model = model?;
    let mut arena = AlignedBytes::filled(0, model.plan().total);
    let mut session = Session::new(&model, &mut arena)?;
    let mut buffer = vec![0; ANSWER_LEN];
    Ok(f(&mut |text| {
        let mut hash = LogitsHash::default();
        let answer = session.run_observed(text, &mut buffer, |_, logit| hash.push(logit));
        let text = answer.map_err(|error| error.to_string())?.to_owned();
        Ok(Answer { text, stop: session.last_stop(), hash: hash.value() })
    }))
}

/// The answer to every text, on `threads` threads.
pub fn run_all(
    model: Model<'_>,
    texts: &[String],
    threads: usize,
) -> Result<Vec<Result<Answer, String>>> {
    let part = texts.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let run = |texts: &[String]| {
            with_session(model, |answer| texts.iter().map(|text| answer(text)).collect::<Vec<_>>())
        };
        let parts: Vec<_> =
            texts.chunks(part).map(|texts| scope.spawn(move || run(texts))).collect();
        let mut answers = Vec::with_capacity(texts.len());
        for part in parts {
            answers.extend(part.join().map_err(|_| anyhow!("a worker panicked"))??);
        }
        Ok(answers)
    })
}

/// The outputs of an exported file and how fast they came.
pub struct Evaluation {
    /// Symbols of every output; none where the text was refused.
    pub outputs: Vec<Vec<String>>,
    /// Texts per second.
    pub texts_per_second: f64,
}

/// Runs `texts` and cuts the answers into symbols.
pub fn evaluate(model: Model<'_>, texts: &[String], threads: usize) -> Result<Evaluation> {
    let start = Instant::now();
    let answers = run_all(model, texts, threads)?;
    let texts_per_second = texts.len() as f64 / start.elapsed().as_secs_f64();
    let splitting = target_splitting(&model);
    let outputs = answers.iter().map(|answer| match answer {
        Ok(answer) => splitting.symbols(&answer.text),
        Err(_) => Vec::new(),
    });
    Ok(Evaluation { outputs: outputs.collect(), texts_per_second })
}

/// How the answers of a file are cut into symbols.
pub fn target_splitting(model: &Model<'_>) -> Splitting {
    Splitting { unit: unit(model.text().target), lowercase: false }
}

/// How a file cuts its sources into symbols.
pub fn source_splitting(model: &Model<'_>) -> Splitting {
    Splitting { unit: unit(model.text().source), lowercase: model.text().fold_case }
}

fn unit(segmentation: Segmentation) -> Unit {
    match segmentation {
        Segmentation::Characters => Unit::Character,
        Segmentation::Symbols => Unit::Word,
    }
}
