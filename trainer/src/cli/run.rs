//! `trainer run`.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;
use runtime::StopReason;
use runtime::search::{BeamOptions, Sampling};

use crate::decode::{Decoder, Output, Search, TextConstraints, nats, q16};
use crate::device::{self, Answer};

/// Runs texts through an exported file, as the device does.
#[derive(ClapArgs)]
pub struct Args {
    /// The exported file.
    model: PathBuf,
    /// Texts; lines of standard input where there are none.
    texts: Vec<String>,
    /// Print the hash of all logits behind every answer.
    #[arg(long, conflicts_with_all = ["ConstraintOptions", "SearchOptions"])]
    hash: bool,
    #[command(flatten)]
    constraints: Option<ConstraintOptions>,
    #[command(flatten)]
    search: Option<SearchOptions>,
}

/// What may be produced.
#[derive(ClapArgs, Default)]
#[group(multiple = true)]
struct ConstraintOptions {
    /// Fewest ids, end id included, those of a prefix or prompt not.
    #[arg(long, value_name = "N")]
    min_len: Option<u16>,
    /// Most ids, end id included, those of a prefix or prompt not.
    #[arg(long, value_name = "N")]
    max_len: Option<u16>,
    /// Target text that the output begins with; it is not printed again. A language model takes its
    /// prompt as the text.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Target symbols that are never produced.
    #[arg(long, value_name = "SYMBOLS")]
    suppress: Option<String>,
    /// A file with the only outputs that there are, one a line; with a prefix or prompt, how they go on
    /// after it. Blank lines are skipped.
    #[arg(long, value_name = "FILE")]
    choices: Option<PathBuf>,
    /// Makes symbols that were produced less probable, above 1.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// No sequence of so many symbols is produced twice.
    #[arg(long, value_name = "N")]
    no_repeat_ngram: Option<u16>,
}

/// How ids are chosen.
#[derive(ClapArgs, Default)]
#[group(multiple = true)]
struct SearchOptions {
    /// Print log-probability and confidence behind every answer.
    #[arg(long)]
    scores: bool,
    /// Beam search with so many beams, at most 1024.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024), conflicts_with_all = ["temperature", "top_k", "top_p", "seed"])]
    beams: Option<u16>,
    /// Answers of a beam search [default: 1].
    #[arg(long, value_name = "N", requires = "beams")]
    n_best: Option<u16>,
    /// A beam search ranks by log-probability / length^X [default: 1].
    #[arg(long, value_name = "X", requires = "beams", allow_negative_numbers = true)]
    length_penalty: Option<f32>,
    /// Draws ids at random, their logits divided by X [default: 1].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Draws from the N most probable ids.
    #[arg(long, value_name = "N")]
    top_k: Option<u16>,
    /// Draws from the fewest ids that have this probability together.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Of the generator that draws [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl ConstraintOptions {
    fn read(&self) -> Result<TextConstraints> {
        let choices = self.choices.as_ref().map(|path| {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("reading {}", path.display()))?;
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            let choices: Vec<_> = lines.map(str::to_owned).collect();
            ensure!(!choices.is_empty(), "{}: no output in it", path.display());
            Ok(choices)
        });
        Ok(TextConstraints {
            min_len: self.min_len.unwrap_or(0),
            max_len: self.max_len,
            prefix: self.prefix.clone().unwrap_or_default(),
            suppressed: self.suppress.clone().unwrap_or_default(),
            choices: choices.transpose()?,
            repetition_penalty: self.repetition_penalty,
            no_repeat_ngram: self.no_repeat_ngram,
        })
    }
}

impl SearchOptions {
    fn read(&self) -> Result<Search> {
        if let Some(beams) = self.beams {
            let length_penalty = q16("the length penalty", self.length_penalty.unwrap_or(1.0))?;
            let n_best = self.n_best.unwrap_or(1);
            return Ok(Search::Beams(BeamOptions { beams, n_best, length_penalty }));
        }
        let is_greedy = self.temperature.is_none()
            && self.top_k.is_none()
            && self.top_p.is_none()
            && self.seed.is_none();
        if is_greedy {
            return Ok(Search::Greedy);
        }
        let options = Sampling {
            temperature: q16("the temperature", self.temperature.unwrap_or(1.0))?,
            top_k: self.top_k,
            top_p: self.top_p.map(|p| q16("top-p", p)).transpose()?,
        };
        Ok(Search::Sampling { options, seed: self.seed.unwrap_or(1) })
    }
}

/// Runs.
pub fn run(args: &Args) -> Result<()> {
    let file = device::read(&args.model)?;
    let model = device::check(&file).with_context(|| args.model.display().to_string())?;
    let mut refused = 0;
    if args.constraints.is_none() && args.search.is_none() {
        device::with_session(model, |answers| -> Result<()> {
            for text in texts(args) {
                let text = text?;
                refused += usize::from(!print(&text, answers(&text), args.hash)?);
            }
            Ok(())
        })??;
    } else {
        let constraints = args.constraints.as_ref().map(ConstraintOptions::read).transpose()?;
        let search = args.search.as_ref().map(SearchOptions::read).transpose()?;
        let (constraints, search) =
            (constraints.unwrap_or_default(), search.unwrap_or(Search::Greedy));
        let decoder = Decoder::new(model, &constraints, search)?;
        let scores = args.search.as_ref().is_some_and(|search| search.scores);
        decoder.run(texts(args), |text, outputs| {
            refused += usize::from(!print_outputs(text, outputs, scores)?);
            Ok(())
        })?;
    }
    match refused {
        0 => Ok(()),
        1 => bail!("1 text was refused"),
        n => bail!("{n} texts were refused"),
    }
}

/// The texts to run; lines of standard input as they come.
fn texts(args: &Args) -> Box<dyn Iterator<Item = Result<String>> + '_> {
    if args.texts.is_empty() {
        Box::new(std::io::stdin().lock().lines().map(|line| line.context("reading standard input")))
    } else {
        Box::new(args.texts.iter().cloned().map(Ok))
    }
}

/// Prints an answer, or on standard error why there is none; whether there is one.
fn print(text: &str, answer: Result<Answer, String>, with_hash: bool) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match answer {
        Ok(answer) => {
            write!(out, "{text}\t{}", answer.text)?;
            if with_hash {
                write!(out, "\t{:016x}", answer.hash)?;
            }
            writeln!(out)?;
            if answer.stop == Some(StopReason::LengthLimit) {
                eprintln!("{text:?}: ended by the length limit");
            }
            Ok(true)
        }
        Err(reason) => {
            eprintln!("{text:?}: {reason}");
            Ok(false)
        }
    }
}

/// As [`print`], for the outputs of a search: what it ranks by, log-probability in nats and
/// confidence in percent behind each.
fn print_outputs(text: &str, outputs: Result<Vec<Output>>, scores: bool) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    let outputs = match outputs {
        Ok(outputs) if outputs.is_empty() => {
            eprintln!("{text:?}: nothing that the constraints allow");
            return Ok(false);
        }
        Ok(outputs) => outputs,
        Err(reason) => {
            eprintln!("{text:?}: {reason}");
            return Ok(false);
        }
    };
    for output in outputs {
        write!(out, "{text}\t{}", output.text)?;
        if scores {
            let confidence = f32::from(output.score.confidence().to_bits()) / 327.68;
            let sum = nats(output.score.sum);
            write!(out, "\t{:.4}\t{sum:.4}\t{confidence:.1}%", output.rank)?;
        }
        writeln!(out)?;
        if !output.ended {
            eprintln!("{text:?}: ended by the length limit");
        }
    }
    Ok(true)
}
