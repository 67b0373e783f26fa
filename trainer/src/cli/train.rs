//! `trainer train`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Args as ClapArgs;

use super::options::RunOptions;
use crate::session::{Session, free_folder};

/// Trains on pairs of texts.
#[derive(ClapArgs, Default)]
pub struct Args {
    /// Folder of the run [default: the first free of runs/train, runs/train-2, ...].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with the run in this folder, as it was configured.
    #[arg(long, value_name = "DIR", exclusive = true)]
    resume: Option<PathBuf>,
    #[command(flatten)]
    options: RunOptions,
}

/// `trainer train`.
pub fn run(args: &Args) -> Result<()> {
    let mut session = match &args.resume {
        Some(folder) => Session::resume(folder)?,
        None => {
            let folder = args.out.clone().unwrap_or_else(|| free_folder("runs/train"));
            Session::begin(folder, args.options.config()?)?
        }
    };
    session.train(stop_flag()?.as_ref())?;
    Ok(())
}

/// A flag that Ctrl-C sets; the loop looks at it after every step.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("catching Ctrl-C")?;
    Ok(stop)
}
