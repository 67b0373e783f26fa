//! `trainer export`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, ValueEnum};
use model_format::config::{Precision, UnknownPolicy};

use super::layout::{LayoutArgs, in_layout};
use crate::checkpoint::{self, write_atomically};
use crate::data::{corpus, split};
use crate::export::{Weights, export_with};
use crate::import::way_back::state_dict;
use crate::model::TrainedModel;

/// Writes a checkpoint as a file for the runtime.
#[derive(ClapArgs)]
pub struct Args {
    /// A run's folder, or a checkpoint file.
    checkpoint: PathBuf,
    /// The file to write.
    #[arg(short, long, value_name = "KFM", required_unless_present = "safetensors")]
    output: Option<PathBuf>,
    /// Write the weights in f32 for PyTorch: `model.load_state_dict(load_file(...))`, with the names
    /// of docs/import.md.
    #[arg(long, value_name = "SAFETENSORS")]
    safetensors: Option<PathBuf>,
    /// How numbers are stored and computed.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fixed)]
    precision: PrecisionArg,
    /// Bits of an integer file's weights. 4 halve the file, for a little accuracy.
    #[arg(long, value_enum, value_name = "BITS", default_value_t = WeightsArg::Eight)]
    weights: WeightsArg,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Texts, in the form of what the run learned from, on which an integer model's ranges are measured;
    /// the run's own by default.
    #[arg(long, value_name = "TSV")]
    calibration: Option<PathBuf>,
    /// What the file does with source symbols that it does not know.
    #[arg(long, value_enum, default_value_t = UnknownArg::Refuse)]
    unknown: UnknownArg,
}

/// What a file does with source symbols that it does not know.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum UnknownArg {
    /// Refuses the text.
    Refuse,
    /// Reads the unknown id in their place.
    Replace,
}

impl From<UnknownArg> for UnknownPolicy {
    fn from(unknown: UnknownArg) -> Self {
        match unknown {
            UnknownArg::Refuse => Self::Refuse,
            UnknownArg::Replace => Self::Replace,
        }
    }
}

/// How numbers are stored and computed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PrecisionArg {
    /// i8 weights, i16 activations, integers only.
    Fixed,
    /// f16 weights, f32 arithmetic.
    Half,
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Self {
        match precision {
            PrecisionArg::Fixed => Self::FixedPoint,
            PrecisionArg::Half => Self::HalfFloat,
        }
    }
}

/// Bits of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WeightsArg {
    /// One scale a row.
    #[value(name = "8")]
    Eight,
    /// A scale a row, and a factor from 1 to 15 for every 16 columns.
    #[value(name = "4")]
    Four,
}

impl WeightsArg {
    /// What an exporter is to do.
    ///
    /// # Errors
    /// A half-float file has no such choice.
    pub fn chosen(self, precision: Precision) -> Result<Weights> {
        match (self, precision) {
            (Self::Eight, _) => Ok(Weights::EightBit),
            (Self::Four, Precision::FixedPoint) => Ok(Weights::FourBit),
            (Self::Four, Precision::HalfFloat) => {
                bail!("--weights 4 is for integer files; a half-float file has 16 bits")
            }
        }
    }
}

/// Says that texts which were given are of no use.
pub fn warn_unused(calibration: Option<&Path>) {
    if let Some(path) = calibration {
        eprintln!("{}: not read, since --precision half has no ranges to measure", path.display());
    }
}

/// Exports.
pub fn run(args: &Args) -> Result<()> {
    let checkpoint = checkpoint::load(&args.checkpoint)?;
    if let Some(path) = &args.safetensors {
        let bytes = state_dict(&TrainedModel::from_checkpoint(checkpoint.clone())?)?;
        write_atomically(path, &bytes)?;
        println!("{}: {} bytes", path.display(), bytes.len());
    }
    let Some(output) = &args.output else { return Ok(()) };
    let precision = args.precision.into();
    let (layout, weights) = (args.layout.chosen(precision)?, args.weights.chosen(precision)?);
    let pairs = match (&args.calibration, precision) {
        (calibration, Precision::HalfFloat) => {
            warn_unused(calibration.as_deref());
            Vec::new()
        }
        (Some(path), Precision::FixedPoint) => {
            corpus::read(path, checkpoint.header.config.model.family)?
        }
        (None, Precision::FixedPoint) => {
            split::load(&checkpoint.header.config.data, checkpoint.header.config.model.family)
                .context("reading the run's training pairs; --calibration names others")?
                .train
        }
    };
    let mut model = TrainedModel::from_checkpoint(checkpoint)?;
    model.unknown = args.unknown.into();
    let file = in_layout(export_with(&model, precision, weights, &pairs)?, layout)?;
    write_atomically(output, &file)?;
    println!("{}: {} bytes", output.display(), file.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_4_bits_are_for_integer_files() {
        let chosen = |weights: WeightsArg, precision| weights.chosen(precision).ok();
        assert_eq!(chosen(WeightsArg::Four, Precision::FixedPoint), Some(Weights::FourBit));
        assert_eq!(chosen(WeightsArg::Eight, Precision::HalfFloat), Some(Weights::EightBit));
        assert_eq!(chosen(WeightsArg::Four, Precision::HalfFloat), None);
    }
}
