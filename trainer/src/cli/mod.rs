//! The command line.

mod eval;
mod options;
mod quick;
mod train;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Trains, exports and evaluates small encoder-decoder Transformers.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Train on pairs of texts, or go on with a run.
    Train(Box<train::Args>),
    /// Score a checkpoint on pairs of texts.
    Eval(eval::Args),
}

/// Runs the command line.
pub fn main() -> Result<()> {
    match Cli::parse().command {
        Some(Command::Train(args)) => train::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
        None => quick::run(),
    }
}
