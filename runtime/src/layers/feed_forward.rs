//! The position-wise feed-forward sublayer (Vaswani et al. 2017, eq. 2).

use model_format::Model;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::precision::Precision;
use crate::profile::{self, Operator};

/// Where its tensors lie, and what it writes.
pub struct FeedForwardSlots {
    /// Both linear layers.
    pub linear: [Slot; 2],
    /// What is hidden.
    pub hidden: ActivationSlot,
    /// The residual stream after.
    pub sum: ActivationSlot,
}

/// `hidden = activation(W_1 x + b_1)`; `x` is `[tokens, d_model]`, `hidden` `[tokens, d_ff]`, `inputs`
/// what products need.
pub fn hidden<P: Precision>(
    model: &Model<'_>,
    slots: &FeedForwardSlots,
    (x, shape): (&[P::Activation], [usize; 2]),
    hidden: &mut [P::Activation],
    inputs: &mut [u8],
) {
    let [linear, _] = slots.linear;
    let (linear, range) = (P::linear(model, linear), P::range(model, slots.hidden));
    profile::run(Operator::FeedForward1, || {
        let input = P::input(x, shape, inputs);
        P::project_activated(&linear, &input, model.config().activation, range, hidden);
    });
}

/// `stream += W_2 hidden + b_2`, `[tokens, d_model]`; `hidden` is `[tokens, d_ff]`.
pub fn add<P: Precision>(
    model: &Model<'_>,
    slots: &FeedForwardSlots,
    (hidden, shape): (&[P::Activation], [usize; 2]),
    stream: &mut [P::Activation],
    inputs: &mut [u8],
) {
    let [_, linear] = slots.linear;
    let (linear, residual) = (P::linear(model, linear), P::residual(model, slots.sum));
    profile::run(Operator::FeedForward2, || {
        let input = P::input(hidden, shape, inputs);
        P::project_add(&linear, &input, residual, stream);
    });
}
