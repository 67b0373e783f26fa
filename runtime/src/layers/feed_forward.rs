//! The position-wise feed-forward sublayer (Vaswani et al. 2017, eq. 2).

use model_format::Model;
use model_format::config::{Activation, StackConfig};
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::precision::Precision;
use crate::profile::{self, Operator};

/// Two linear layers with a non-linearity in between.
pub struct FeedForward<'m, P: Precision> {
    linear1: P::Linear<'m>,
    linear2: P::Linear<'m>,
    activation: Activation,
    hidden_range: P::Range,
    residual: P::Residual,
    /// `d_model`, `d_ff`.
    shape: [usize; 2],
}

impl<'m, P: Precision> FeedForward<'m, P> {
    /// The sublayer of `stack` with these weights, which writes `hidden` and adds to the stream to
    /// give `sum`.
    pub fn new(
        model: &Model<'m>,
        stack: &StackConfig,
        linear: [Slot; 2],
        [hidden, sum]: [ActivationSlot; 2],
    ) -> Self {
        let [linear1, linear2] = linear.map(|slot| P::linear(model, slot));
        Self {
            linear1,
            linear2,
            activation: model.config().activation,
            hidden_range: P::range(model, hidden),
            residual: P::residual(model, sum),
            shape: [model.config().d_model.into(), stack.d_ff.into()],
        }
    }

    /// `hidden = activation(W_1 x + b_1)`; `x` is `[tokens, d_model]`, `hidden` `[tokens, d_ff]`,
    /// `inputs` what products need.
    pub fn hidden(
        &self,
        (x, tokens): (&[P::Activation], usize),
        hidden: &mut [P::Activation],
        inputs: &mut [u8],
    ) {
        let [d_model, _] = self.shape;
        profile::run(Operator::FeedForward1, || {
            let input = P::input(x, [tokens, d_model], inputs);
            P::project_activated(&self.linear1, &input, self.activation, self.hidden_range, hidden);
        });
    }

    /// `stream += W_2 hidden + b_2`, `[tokens, d_model]`.
    pub fn add(
        &self,
        (hidden, tokens): (&[P::Activation], usize),
        stream: &mut [P::Activation],
        inputs: &mut [u8],
    ) {
        let [_, d_ff] = self.shape;
        profile::run(Operator::FeedForward2, || {
            let input = P::input(hidden, [tokens, d_ff], inputs);
            P::project_add(&self.linear2, &input, self.residual, stream);
        });
    }
}
