//! `trainer train`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Args as ClapArgs;

use super::options::RunOptions;
use super::summary;
use crate::backend::Device;
use crate::session::{Session, free_folder};

/// Trains on pairs of texts.
#[derive(ClapArgs, Default)]
pub struct Args {
    /// Folder of the run [default: the first free of runs/train, runs/train-2, ...].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with the run in this folder, as it was configured.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["out", "config", "DataOptions", "ModelOptions", "TrainOptions"]
    )]
    resume: Option<PathBuf>,
    /// Show the model's size and tensors, and stop there.
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
    /// What to train on; the result is the same but for rounding.
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    #[command(flatten)]
    options: RunOptions,
}

/// `trainer train`.
pub fn run(args: &Args) -> Result<()> {
    if args.dry_run {
        print!("{}", summary::dry_run(args.options.config()?)?);
        return Ok(());
    }
    let mut session = match &args.resume {
        Some(folder) => Session::resume(folder)?,
        None => {
            let config = args.options.config()?;
            // A device that is not there is told before a folder is made.
            args.device.check()?;
            let folder = args.out.clone().unwrap_or_else(|| free_folder("runs/train"));
            Session::begin(folder, config)?
        }
    };
    session.device = args.device;
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
