//! The command line.

mod choices;
mod eval;
mod explain;
mod export;
mod import;
mod inspect;
mod layout;
mod options;
mod quick;
mod run;
mod summary;
mod train;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Trains, imports, exports and evaluates small Transformers.
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
    /// Score a checkpoint or an exported file on pairs of texts.
    Eval(eval::Args),
    /// Write a checkpoint as a file for the runtime.
    Export(export::Args),
    /// Turn a PyTorch checkpoint into a file for the runtime.
    Import(Box<import::Args>),
    /// Write an exported file with its matrices in another layout.
    Repack(layout::Args),
    /// Run texts through an exported file, as the device does.
    Run(run::Args),
    /// Draw what the output attends to in the source.
    Explain(explain::Args),
    /// Show what an exported file holds and needs.
    Inspect(inspect::Args),
}

/// Runs the command line.
pub fn main() -> Result<()> {
    match Cli::parse().command {
        Some(Command::Train(args)) => train::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
        Some(Command::Export(args)) => export::run(&args),
        Some(Command::Import(args)) => import::run(&args),
        Some(Command::Repack(args)) => layout::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        None => quick::run(),
    }
}
