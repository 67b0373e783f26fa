//! Every linear tensor in integers: which has how many bits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::Result;
use model_format::config::{ModelConfig, Precision};
use model_format::directory::Slot;

use super::Weights;
use super::calibration::Calibration;
use super::formats::name;
use super::linear::{QuantizedLinear, Rounding, Width, quantize_rows};
use super::trained::Trained;

/// Rounds the tensors of a model.
pub struct Quantizer<'a> {
    /// The model.
    pub trained: &'a Trained<'a>,
    calibration: &'a Calibration,
    weights: Weights,
    /// The best steps of the tensors that were searched for, by place in the directory.
    steps: RefCell<HashMap<usize, Rc<[f64]>>>,
}

impl<'a> Quantizer<'a> {
    /// Stores weights as `weights` says.
    pub fn new(trained: &'a Trained<'a>, calibration: &'a Calibration, weights: Weights) -> Self {
        Self { trained, calibration, weights, steps: RefCell::default() }
    }

    /// Whether the weights of a tensor have 4 bits: those of every matrix that multiplies. Keys and
    /// values in 8 bits make no difference to the error rates of a G2P model and a fifth to its bytes.
    pub fn is_four_bit(&self, slot: Slot) -> bool {
        self.weights == Weights::FourBit && slot.may_be_i4(&self.trained.config)
    }

    /// A tensor; `input` is the real value of one unit of what it multiplies, and the largest magnitude
    /// that takes, in units; `scales` are [`Rounding::scales`].
    pub fn rows(
        &self,
        slot: Slot,
        input: (f64, i64),
        scales: Option<&[f64]>,
    ) -> Result<QuantizedLinear> {
        let (weights, bias) = self.trained.linear(slot, rows(&self.trained.config, slot))?;
        Ok(self.quantize(slot, (weights, &bias), input, scales))
    }

    /// A tensor, with biases of zero.
    pub fn rows_without_bias(&self, slot: Slot) -> Result<QuantizedLinear> {
        let (weights, bias) = self.trained.linear(slot, rows(&self.trained.config, slot))?;
        Ok(self.quantize(slot, (weights, &vec![0.0; bias.len()]), (1.0, 1), None))
    }

    fn quantize(
        &self,
        slot: Slot,
        (weights, bias): (&[f32], &[f32]),
        input: (f64, i64),
        scales: Option<&[f64]>,
    ) -> QuantizedLinear {
        let cols = weights.len() / bias.len().max(1);
        let importance;
        let width = match self.is_four_bit(slot) {
            true => {
                importance = self.importance(slot, cols);
                Width::Four(&importance)
            }
            false => Width::Eight,
        };
        let steps = self.best_steps(slot, || width.best_steps(weights, cols).into());
        quantize_rows(weights, bias, input, Rounding { width, steps: &steps, scales })
    }

    /// A search takes long, and every tensor is asked for more than once.
    fn best_steps(&self, slot: Slot, search: impl FnOnce() -> Rc<[f64]>) -> Rc<[f64]> {
        let index = slot.index(&self.trained.config);
        self.steps.borrow_mut().entry(index).or_insert_with(search).clone()
    }

    /// How much an error in a column of a tensor counts: the mean square of what it multiplies.
    fn importance(&self, slot: Slot, cols: usize) -> Vec<f32> {
        let config = &self.trained.config;
        let squares = slot
            .input(config)
            .map_or(&[][..], |input| self.calibration.mean_squares(&name(config, input)));
        if squares.len() != cols {
            return vec![1.0; cols];
        }
        // What calibration did not see may still come.
        let mean = squares.iter().sum::<f32>() / cols.max(1) as f32;
        squares.iter().map(|square| square + UNSEEN * mean).collect()
    }
}

/// The share of the mean over all columns that every column has.
const UNSEEN: f32 = 0.01;

/// Rows of a tensor of the file.
pub fn rows(config: &ModelConfig, slot: Slot) -> usize {
    slot.expected(Precision::FixedPoint, config).rows.into()
}
