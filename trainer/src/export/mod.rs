//! From a trained model to a file that the runtime reads.
//!
//! ```text
//! fixed        integers: weights of 8 or 4 bits, i16 activations (the numeric contract)
//!   calibration  ranges of all activations on real sentences
//!   formats      Q formats from the ranges
//!   quantizer    every linear tensor: how many bits it has
//!   linear       rows of a matrix to integers, biases and multipliers
//!   nibbles      rows to 4 bits
//! half         f16 weights
//! trained      the model as the exporters see it
//! ```

mod calibration;
mod fixed;
mod formats;
mod half;
mod linear;
mod nibbles;
mod quantizer;
mod trained;

use anyhow::{Context, Result};
use model_format::config::Precision;
use model_format::header::Header;
use model_format::layout::Layout;
use model_format::{AlignedBytes, FileBuilder};

pub use trained::is_cached;

use crate::data::batch::Example;
use crate::data::corpus::Pair;
use crate::model::TrainedModel;
use trained::Trained;

/// Sentences that calibration looks at.
pub const CALIBRATION_PAIRS: usize = 1000;

/// How an integer file stores the weights of its matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// 8 bits.
    #[default]
    EightBit,
    /// 4 bits where accuracy allows it, with factors for groups of 16 columns.
    FourBit,
}

/// The file of `model`, an integer file with weights of 8 bits. It needs its ranges on `calibration`,
/// pairs of which some are taken at equal distances.
pub fn export(
    model: &TrainedModel,
    precision: Precision,
    calibration: &[Pair],
) -> Result<AlignedBytes> {
    export_with(model, precision, Weights::EightBit, calibration)
}

/// [`export`] with weights of so many bits; a half-float file always has 16.
pub fn export_with(
    model: &TrainedModel,
    precision: Precision,
    weights: Weights,
    calibration: &[Pair],
) -> Result<AlignedBytes> {
    let trained = Trained::new(model);
    trained.read().check_lengths()?;
    let header = Header {
        precision,
        layout: Layout::RowMajor,
        config: trained.config,
        text: trained.text(),
    };
    let (source, target) = (trained::texts(&model.source), trained::texts(&model.target));
    let mut file = FileBuilder::new(header, source, target);
    match precision {
        Precision::FixedPoint => {
            let ranges = calibration::calibrate(&trained, &chosen(model, calibration));
            fixed::write(&trained, &ranges, weights, &mut file)?;
        }
        Precision::HalfFloat => half::write(&trained, &mut file)?,
    }
    file.finish().context("the exported model does not pass its own check")
}

/// At most [`CALIBRATION_PAIRS`] pairs at equal distances, as ids.
fn chosen(model: &TrainedModel, pairs: &[Pair]) -> Vec<Example> {
    let distance = pairs.len().div_ceil(CALIBRATION_PAIRS).max(1);
    let example = |pair: &Pair| Example {
        source: model.source.encode(&pair.source),
        target: model.target.encode(&pair.target),
    };
    pairs.iter().step_by(distance).map(example).collect()
}
