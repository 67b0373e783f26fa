//! `trainer run`.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use runtime::StopReason;

use crate::device::{self, Answer};

/// Runs texts through an exported file, as the device does.
#[derive(ClapArgs)]
pub struct Args {
    /// The exported file.
    model: PathBuf,
    /// Texts; lines of standard input where there are none.
    texts: Vec<String>,
    /// Print the hash of all logits behind every answer.
    #[arg(long)]
    hash: bool,
}

/// Runs.
pub fn run(args: &Args) -> Result<()> {
    let file = device::read(&args.model)?;
    let model = device::check(&file).with_context(|| args.model.display().to_string())?;
    let refused = device::with_session(model, |answers| -> Result<usize> {
        let mut refused = 0;
        if args.texts.is_empty() {
            for line in std::io::stdin().lock().lines() {
                let line = line.context("reading standard input")?;
                refused += usize::from(!print(&line, answers(&line), args.hash)?);
            }
        }
        for text in &args.texts {
            refused += usize::from(!print(text, answers(text), args.hash)?);
        }
        Ok(refused)
    })??;
    match refused {
        0 => Ok(()),
        1 => bail!("1 text was refused"),
        n => bail!("{n} texts were refused"),
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
            if answer.stop != Some(StopReason::EndToken) {
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
