//! The parameters: one flat buffer of `f32`, with a name, a shape and a place for each tensor.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, bail, ensure};

use crate::rng;

/// How a tensor starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All 0.
    Zero,
    /// All 1.
    One,
    /// Uniform in +-bound.
    Uniform(f32),
}

/// One tensor of the flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// As checkpoints have it.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Its first number in the flat buffer.
    pub offset: usize,
    /// How it starts.
    pub init: Init,
}

impl ParamSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the tensor lies in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }

    /// Whether weight decay applies: to matrices, not to biases and norms.
    pub fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// All tensors, in the order in which they lie in the flat buffer.
#[derive(Debug, Clone, Default)]
pub struct ParamLayout {
    /// One after another, without gaps.
    pub specs: Vec<ParamSpec>,
}

impl ParamLayout {
    /// Length of the flat buffer.
    pub fn len(&self) -> usize {
        self.specs.last().map_or(0, |spec| spec.range().end)
    }

    /// Whether there is no parameter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a tensor and returns its offset.
    pub fn push(&mut self, name: String, shape: &[usize], init: Init) -> usize {
        let offset = self.len();
        self.specs.push(ParamSpec { name, shape: shape.to_vec(), offset, init });
        offset
    }

    /// Starting values: a function of the seed and of each tensor's name.
    pub fn init(&self, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        for spec in &self.specs {
            let key = rng::key(&[seed, rng::fnv1a(spec.name.as_bytes())]);
            for (i, v) in values[spec.range()].iter_mut().enumerate() {
                *v = match spec.init {
                    Init::Zero => 0.0,
                    Init::One => 1.0,
                    Init::Uniform(bound) => bound * (2.0 * rng::uniform(key, i as u64) - 1.0),
                };
            }
        }
        values
    }

    /// Gathers a flat buffer from named tensors; each must be there with its length.
    pub fn gather(&self, tensors: &BTreeMap<String, Vec<f32>>) -> Result<Vec<f32>> {
        let mut flat = vec![0.0; self.len()];
        for spec in &self.specs {
            let Some(tensor) = tensors.get(&spec.name) else {
                bail!("tensor `{}` is missing", spec.name);
            };
            ensure!(
                tensor.len() == spec.len(),
                "tensor `{}` has {} numbers, not {} {:?}",
                spec.name,
                tensor.len(),
                spec.len(),
                spec.shape
            );
            flat[spec.range()].copy_from_slice(tensor);
        }
        Ok(flat)
    }
}
