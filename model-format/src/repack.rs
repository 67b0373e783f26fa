//! The same model with its matrices in another layout.

use half::f16;

use crate::config::Precision;
use crate::directory::{Kind, Slot};
use crate::error::ModelError;
use crate::header::{Header, HeaderError};
use crate::layout::{Layout, LinearF16, LinearInt};
use crate::model::Model;
use crate::vocabulary::Vocabulary;
use crate::write::{AlignedBytes, FileBuilder};

/// The file of `model` with its matrices in `layout`; its answers are the same. Matrices of 4 bits
/// stay as they are.
///
/// # Errors
/// [`ModelError::Header`] names the layout where it does not suit the model's precision.
pub fn repack(model: &Model<'_>, layout: Layout) -> Result<AlignedBytes, ModelError> {
    if !layout.suits(model.header().precision) {
        let field = crate::config::ConfigField::Layout;
        return Err(ModelError::Header(HeaderError::Config(field)));
    }
    let header = Header { layout, ..*model.header() };
    let [source, target] = [model.source_vocabulary(), model.target_vocabulary()].map(texts);
    let mut file = FileBuilder::new(header, source, target);
    if header.precision == Precision::FixedPoint {
        file.formats(|slot| model.formats().get(slot));
    }
    file.four_bit(|slot| model.kind(slot) == Kind::LinearI4);
    file.tensors(|slot, kind| Ok::<_, ModelError>(blob(model, layout, slot, kind)))?;
    file.finish()
}

fn texts(vocabulary: &Vocabulary<'_>) -> Vec<String> {
    let ids = 0..vocabulary.len();
    ids.map(|id| vocabulary.text(id).to_owned()).collect()
}

fn blob(model: &Model<'_>, layout: Layout, slot: Slot, kind: Kind) -> Vec<u8> {
    match kind {
        Kind::LinearI8 => {
            let linear = model.linear_int(slot);
            let weights: Vec<i8> = (0..linear.rows).flat_map(|row| linear.row(row)).collect();
            let (bias, multipliers): (Vec<i32>, Vec<i32>) =
                (0..linear.rows).map(|row| linear.constants(row)).unzip();
            LinearInt::pack(layout, &weights, &bias, &multipliers)
        }
        Kind::LinearF16 => {
            let linear = model.linear_f16(slot);
            let weights = (0..linear.rows).flat_map(|row| linear.row(row)).map(f16::from_bits);
            let bias = (0..linear.rows).map(|row| f16::from_bits(linear.row_bias(row)));
            LinearF16::pack(layout, &weights.collect::<Vec<_>>(), &bias.collect::<Vec<_>>())
        }
        _ => model.bytes(slot).to_vec(),
    }
}
