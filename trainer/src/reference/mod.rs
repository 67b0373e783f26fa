//! The f32 reference: the network as the papers write it, in candle.
//!
//! ```text
//! network      parameters by name -> logits
//!   layers       linear, LayerNorm, attention, feed-forward
//!   dropout      the engine's masks in padded shape
//!   batch        padded ids, what is visible to whom
//! ```
//!
//! It works on padded batches, one operation a line, and leaves gradients to candle. The engine, the
//! exported files and PyTorch checkpoints are compared with it; on a GPU it is what trains.
//!
//! Only operations with a backward pass are used. candle's fused ones (`softmax_last_dim`,
//! `ops::layer_norm`, `candle_nn::LayerNorm`) have none and drop gradients without a word.

mod batch;
mod dropout;
mod layers;
mod network;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};

use crate::data::batch::Pairs;
use crate::engine::{LossOptions, LossSum, Network};
use crate::workers::Slice;
pub use batch::Batch;
use dropout::PaddedDropout;
use network::ReferenceNetwork;

/// The network on a device, with its parameters as variables.
pub struct Reference {
    /// Where each parameter lies in a flat buffer.
    map: Arc<Network>,
    /// In the order of `map.layout`.
    variables: Vec<Var>,
    network: ReferenceNetwork,
    device: Device,
    dtype: DType,
}

impl Reference {
    /// The network of `map` on `device`, computing in `dtype` (`F32`, or `F64` to judge rounding).
    /// All parameters are zero until [`Reference::set`].
    pub fn new(map: &Arc<Network>, device: &Device, dtype: DType) -> Result<Self> {
        let zero =
            |spec: &crate::params::ParamSpec| Var::zeros(spec.shape.as_slice(), dtype, device);
        let specs = map.layout.specs.iter();
        let variables = specs.map(zero).collect::<candle_core::Result<Vec<Var>>>()?;
        let network = ReferenceNetwork::new(map, &variables, device, dtype)?;
        Ok(Self { map: Arc::clone(map), variables, network, device: device.clone(), dtype })
    }

    /// Whether it computes on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.device.is_cuda()
    }

    /// Copies the flat buffer `[parameters]` into the variables.
    pub fn set(&self, params: &[f32]) -> Result<()> {
        // One transfer to the device, then copies within it.
        let flat = Tensor::from_slice(params, params.len(), &self.device)?.to_dtype(self.dtype)?;
        for (spec, variable) in self.map.layout.specs.iter().zip(&self.variables) {
            let part = flat.narrow(0, spec.offset, spec.len())?;
            variable.set(&part.reshape(spec.shape.as_slice())?)?;
        }
        Ok(())
    }

    /// Refuses sentences that are longer than the tables of positions.
    fn check_lengths(&self, pairs: &Pairs) -> Result<()> {
        let sides = [(&self.map.encoder, &pairs.source), (&self.map.decoder, &pairs.target)];
        for (stack, sentences) in sides {
            if let Some(stack) = stack {
                sentences.check_lengths(self.map.max_len(stack))?;
            }
        }
        Ok(())
    }

    /// Teacher-forced logits of every target token, packed: `[target tokens, target_vocab]`.
    pub fn logits(&self, pairs: &Pairs) -> Result<Vec<f64>> {
        self.check_lengths(pairs)?;
        let batch = Batch::new(&[pairs], self.map.config.special.pad.into(), &self.device)?;
        let logits = self.network.forward(&batch, None)?.to_dtype(DType::F64)?;
        let vocab = usize::from(self.map.config.target_vocab);
        let padded: Vec<f64> = logits.flatten_all()?.to_vec1()?;
        let sentences = padded.chunks_exact(vocab * batch.target_len);
        let spans = pairs.target.spans.iter();
        Ok(sentences.zip(spans).flat_map(|(row, &(_, len))| row[..len * vocab].to_vec()).collect())
    }

    /// Loss and flat gradient `[parameters]` of a batch, whose slices stand below each other in one
    /// padded batch.
    pub fn gradient(&self, slices: &[Slice], options: LossOptions) -> Result<(Vec<f32>, LossSum)> {
        let pairs: Vec<&Pairs> = slices.iter().map(|slice| &slice.pairs).collect();
        pairs.iter().try_for_each(|pairs| self.check_lengths(pairs))?;
        let batch = Batch::new(&pairs, self.map.config.special.pad.into(), &self.device)?;
        let dropout = PaddedDropout::new(&self.map, slices, &self.device, self.dtype);
        let logits = self.network.forward(&batch, Some(&dropout))?;
        let (smoothed, nll) = self.network.loss(&logits, &batch, options.smoothing.into())?;
        let gradients = (&smoothed * f64::from(options.scale))?.backward()?;
        let specs = self.map.layout.specs.iter();
        let parts = specs.zip(&self.variables).map(|(spec, variable)| {
            let gradient = gradients.get(variable);
            let gradient = gradient.with_context(|| format!("`{}` has no gradient", spec.name))?;
            Ok(gradient.flatten_all()?)
        });
        let flat = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?;
        let flat: Vec<f32> = flat.to_dtype(DType::F32)?.to_vec1()?;
        ensure!(flat.len() == self.map.layout.len(), "a gradient has the wrong shape");
        let number = |x: Tensor| x.to_dtype(DType::F64)?.to_scalar::<f64>();
        let tokens = pairs.iter().map(|pairs| pairs.labels.len()).sum();
        Ok((flat, LossSum { smoothed: number(smoothed)?, nll: number(nll)?, tokens }))
    }
}
