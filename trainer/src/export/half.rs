//! The HalfFloat file: `f16` weights.

use anyhow::{Context, Result, ensure};
use half::f16;
use model_format::FileBuilder;
use model_format::directory::{Kind, Slot};
use model_format::layout::{Layout, LinearF16};

use super::quantizer::rows;
use super::trained::Trained;

/// Writes all tensors.
pub fn write(trained: &Trained<'_>, file: &mut FileBuilder) -> Result<()> {
    file.tensors(|slot, kind| {
        tensor(trained, slot, kind).with_context(|| format!("tensor `{slot}`"))
    })
}

fn tensor(trained: &Trained<'_>, slot: Slot, kind: Kind) -> Result<Vec<u8>> {
    match kind {
        Kind::LinearF16 => {
            let (weights, bias) = trained.linear(slot, rows(&trained.config, slot))?;
            Ok(LinearF16::pack(Layout::RowMajor, &halves(weights)?, &halves(&bias)?))
        }
        Kind::NormF16 => {
            let (gamma, beta) = trained.norm(slot)?;
            let constants = halves(gamma)?.into_iter().chain(halves(beta)?);
            Ok(constants.flat_map(|w| w.to_bits().to_le_bytes()).collect())
        }
        Kind::Frequencies => {
            let pairs = trained.frequencies();
            Ok(pairs.iter().flatten().flat_map(|q| q.to_le_bytes()).collect())
        }
        _ => Ok(Vec::new()),
    }
}

fn halves(values: &[f32]) -> Result<Vec<f16>> {
    let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
    let bad = values.iter().zip(&halves).find(|(_, h)| !h.is_finite());
    ensure!(bad.is_none(), "{} is no finite f16", bad.map_or(0.0, |(v, _)| *v));
    Ok(halves)
}
