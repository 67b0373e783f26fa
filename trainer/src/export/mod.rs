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

pub use calibration::{Calibration, calibrate};
pub use trained::Trained;

/// Sentences that calibration looks at.
pub const CALIBRATION_PAIRS: usize = 1000;

/// The file of `trained`; integer models need a calibration.
pub fn export(trained: &Trained, precision: Precision, calibration: &Calibration) -> Result<AlignedBytes> {
    let header = Header {
        precision,
        layout: Layout::RowMajor,
        config: trained.config,
        text: trained.text,
    };
    let mut file =
        FileBuilder::new(header, trained.source_texts.clone(), trained.target_texts.clone());
    match precision {
        Precision::FixedPoint => fixed::write(trained, calibration, &mut file)?,
        Precision::HalfFloat => half::write(trained, &mut file)?,
    }
    file.finish().context("the exported model does not pass its own check")
}
