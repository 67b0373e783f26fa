//! What computes losses and gradients: the engine on the processor, or candle on a GPU.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::DType;

use crate::engine::{LossOptions, LossSum, Network};
use crate::reference::Reference;
use crate::workers::{Slice, Workers};

/// What to train on. The result is the same but for rounding, so no file of a run records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Device {
    /// The GPU where this build has CUDA and a device answers, else the processor.
    #[default]
    Auto,
    /// The processor, by the engine.
    Cpu,
    /// The first NVIDIA GPU, by candle.
    Cuda,
    /// The processor, by candle: slow, and no choice on the command line; what a GPU computes is tested
    /// with it.
    #[value(skip)]
    CandleCpu,
}

/// Computes losses and gradients of batches.
pub enum Backend {
    /// Hand-written, one thread a slice.
    Engine(Workers),
    /// candle, all slices in one padded batch.
    Candle(Reference),
}

impl Device {
    /// Says whether it can be had.
    pub fn check(self) -> Result<()> {
        if self == Self::Cuda {
            gpu()?;
        }
        Ok(())
    }

    /// The backend for a network, whose batches come in `slices` parts.
    pub fn open(self, network: &Arc<Network>, slices: usize) -> Result<Backend> {
        match self {
            Self::Cpu => Ok(Backend::Engine(Workers::start(network, slices))),
            Self::Cuda => Backend::candle(network, &gpu()?),
            Self::CandleCpu => Backend::candle(network, &candle_core::Device::Cpu),
            Self::Auto => match gpu() {
                Ok(device) => Backend::candle(network, &device),
                Err(_) => Self::Cpu.open(network, slices),
            },
        }
    }
}

/// The first GPU.
fn gpu() -> Result<candle_core::Device> {
    ensure!(
        candle_core::utils::cuda_is_available(),
        "this build has no CUDA: build with `--features cuda`, or choose `--device cpu`"
    );
    candle_core::Device::new_cuda(0).context("no CUDA device answers; choose `--device cpu`")
}

impl Backend {
    fn candle(network: &Arc<Network>, device: &candle_core::Device) -> Result<Self> {
        Ok(Self::Candle(Reference::new(network, device, DType::F32)?))
    }

    /// Where it computes, for the reader.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Engine(_) => "cpu",
            Self::Candle(reference) if reference.is_on_gpu() => "cuda",
            Self::Candle(_) => "candle on the cpu",
        }
    }

    /// The loss of a batch and its gradient `[parameters]`, summed over its slices; the buffer of the
    /// gradient must come back by [`Backend::recycle`].
    pub fn gradient(
        &mut self,
        params: &Arc<Vec<f32>>,
        slices: Vec<Slice>,
        options: LossOptions,
    ) -> Result<(Vec<f32>, LossSum)> {
        match self {
            Self::Engine(workers) => workers.gradient(params, slices, options),
            Self::Candle(reference) => {
                reference.set(params)?;
                reference.gradient(&slices, options)
            }
        }
    }

    /// Gives the buffer of [`Backend::gradient`] back for the next step.
    pub fn recycle(&mut self, grads: Vec<f32>) {
        if let Self::Engine(workers) = self {
            workers.recycle(grads);
        }
    }
}
