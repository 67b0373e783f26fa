//! `trainer export`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args as ClapArgs, ValueEnum};
use model_format::config::Precision;

use crate::checkpoint::{self, write_atomically};
use crate::data::{corpus, split};
use crate::export::export;
use crate::model::TrainedModel;

/// Writes a checkpoint as a file for the runtime.
#[derive(ClapArgs)]
pub struct Args {
    /// A run's folder, or a checkpoint file.
    checkpoint: PathBuf,
    /// The file to write.
    #[arg(short, long, value_name = "KFM")]
    output: PathBuf,
    /// How numbers are stored and computed.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fixed)]
    precision: PrecisionArg,
    /// Pairs on which an integer model's ranges are measured; the run's training pairs by default.
    #[arg(long, value_name = "TSV")]
    calibration: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PrecisionArg {
    /// i8 weights, i16 activations, integers only.
    Fixed,
    /// f16 weights, f32 arithmetic.
    Half,
}

/// Exports.
pub fn run(args: &Args) -> Result<()> {
    let checkpoint = checkpoint::load(&args.checkpoint)?;
    let precision = match args.precision {
        PrecisionArg::Fixed => Precision::FixedPoint,
        PrecisionArg::Half => Precision::HalfFloat,
    };
    let pairs = match (&args.calibration, precision) {
        (Some(path), _) => corpus::read_tsv(path)?,
        (None, Precision::FixedPoint) => {
            split::load(&checkpoint.header.config.data)
                .context("reading the run's training pairs; --calibration names others")?
                .train
        }
        (None, Precision::HalfFloat) => Vec::new(),
    };
    let model = TrainedModel::from_checkpoint(checkpoint)?;
    let file = export(&model, precision, &pairs)?;
    write_atomically(&args.output, &file)?;
    println!("{}: {} bytes", args.output.display(), file.len());
    Ok(())
}
