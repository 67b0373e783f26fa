//! From a trained model to a file that the runtime reads.
//!
//! ```text
//! fixed        integers: i8 weights, i16 activations (the numeric contract)
//!   calibration  ranges of all activations on real sentences
//!   formats      Q formats from the ranges
//!   linear       rows of a matrix to i8, biases and multipliers
//! half         f16 weights
//! trained      the model as the exporters see it
//! ```

mod calibration;
mod fixed;
mod formats;
mod half;
mod linear;
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

/// The file of `model`. An integer file needs its ranges on `calibration`, pairs of which some are
/// taken at equal distances.
pub fn export(
    model: &TrainedModel,
    precision: Precision,
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
            fixed::write(&trained, &ranges, &mut file)?;
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
