//! The position-wise feed-forward sublayer (Vaswani et al. 2017, eq. 2).

use model_format::Model;
use model_format::config::Activation;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::precision::Precision;

/// Two linear layers with a non-linearity in between.
pub struct FeedForward<'m, P: Precision> {
    linear1: P::Linear<'m>,
    linear2: P::Linear<'m>,
    activation: Activation,
    hidden_range: P::Range,
    residual: P::Residual,
}

impl<'m, P: Precision> FeedForward<'m, P> {
    /// The sublayer with these weights, which writes `hidden` and adds to the stream to give `sum`.
    pub fn new(
        model: &Model<'m>,
        linear: [Slot; 2],
        hidden: ActivationSlot,
        sum: ActivationSlot,
    ) -> Self {
        let [linear1, linear2] = linear.map(|slot| P::linear(model, slot));
        Self {
            linear1,
            linear2,
            activation: model.config().activation,
            hidden_range: P::range(model, hidden),
            residual: P::residual(model, sum),
        }
    }

    /// `stream += W_2 activation(W_1 x + b_1) + b_2`; `x` and `stream` are `[d_model]`, `hidden`
    /// (scratch) is `[d_ff]`.
    pub fn forward(
        &self,
        x: &[P::Activation],
        hidden: &mut [P::Activation],
        stream: &mut [P::Activation],
    ) {
        P::project_activated(&self.linear1, x, self.activation, self.hidden_range, hidden);
        P::project_add(&self.linear2, hidden, self.residual, stream);
    }
}
