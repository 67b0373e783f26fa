//! Layers forward and back. Every buffer is packed: `[tokens, width]`, all sentences one after
//! another, no padding. What the way back needs is kept in `*Acts`.

use super::activations::{self, Smooth};
use super::attention::{self, AttentionGradients, Columns, Shape, Span, Tiles};
use super::gemm::{Mat, product};
use super::kernels;
use super::network::{Attention, FeedForward, Linear, Norm};
use crate::rng::Mask;

/// Sets a buffer's length; what it holds is about to be overwritten.
pub fn reset(buffer: &mut Vec<f32>, len: usize) {
    buffer.resize(len, 0.0);
}

impl Linear {
    fn weight<'a>(&self, params: &'a [f32]) -> &'a [f32] {
        &params[self.weight..][..self.n_in * self.n_out]
    }

    /// `out [rows, n_out] = x [rows, n_in] W^T + b`.
    pub fn forward(&self, params: &[f32], x: &[f32], out: &mut Vec<f32>) {
        let rows = x.len() / self.n_in;
        reset(out, rows * self.n_out);
        if let Some(bias) = self.bias {
            kernels::fill_rows(out, &params[bias..][..self.n_out]);
        }
        let weight = Mat::new(self.weight(params), self.n_out, self.n_in);
        product(out, self.bias.is_some(), Mat::new(x, rows, self.n_in), weight.t());
    }

    /// Adds the weight's and the bias's gradient; `dx (+)= dy W` where asked for.
    pub fn backward(
        &self,
        params: &[f32],
        grads: &mut [f32],
        x: &[f32],
        dy: &[f32],
        dx: Option<(&mut [f32], bool)>,
    ) {
        let rows = x.len() / self.n_in;
        let dy_mat = Mat::new(dy, rows, self.n_out);
        if let Some(bias) = self.bias {
            kernels::add_column_sums(&mut grads[bias..][..self.n_out], dy);
        }
        let d_weight = &mut grads[self.weight..][..self.n_in * self.n_out];
        product(d_weight, true, dy_mat.t(), Mat::new(x, rows, self.n_in));
        if let Some((dx, accumulate)) = dx {
            product(dx, accumulate, dy_mat, Mat::new(self.weight(params), self.n_out, self.n_in));
        }
    }
}

/// What LayerNorm keeps.
#[derive(Default)]
pub struct NormActs {
    /// `[tokens, d_model]`, before gamma and beta.
    pub hat: Vec<f32>,
    /// `[tokens]`
    pub rstd: Vec<f32>,
    /// `[tokens, d_model]`
    pub out: Vec<f32>,
}

impl Norm {
    /// Normalises rows of `d`.
    pub fn forward(&self, params: &[f32], x: &[f32], d: usize, eps: f32, acts: &mut NormActs) {
        reset(&mut acts.hat, x.len());
        reset(&mut acts.rstd, x.len() / d);
        reset(&mut acts.out, x.len());
        let affine = (&params[self.gamma..][..d], &params[self.beta..][..d]);
        kernels::layer_norm(x, affine, eps, &mut acts.hat, &mut acts.rstd, &mut acts.out);
    }

    /// `dx (+)= gradient`; gamma's and beta's gradients are added.
    pub fn backward(
        &self,
        params: &[f32],
        grads: &mut [f32],
        acts: &NormActs,
        dy: &[f32],
        dx: (&mut [f32], bool),
    ) {
        let d = self.beta - self.gamma;
        // gamma and beta lie side by side.
        let (d_gamma, d_beta) = grads[self.gamma..self.beta + d].split_at_mut(d);
        let gamma = &params[self.gamma..][..d];
        kernels::layer_norm_backward(dy, &acts.hat, &acts.rstd, gamma, (d_gamma, d_beta), dx);
    }
}

/// What attention keeps.
#[derive(Default)]
pub struct AttentionActs {
    /// `[target tokens, d_model]`
    pub query: Vec<f32>,
    /// `[source tokens, 2 d_model]`: keys, then values.
    pub key_value: Vec<f32>,
    /// See [`Shape::probs_len`].
    pub probs: Vec<f32>,
    /// `[target tokens, d_model]`
    pub context: Vec<f32>,
}

/// Who attends to whom in one attention.
#[derive(Clone, Copy)]
pub struct Visibility<'a> {
    /// Rows of each sentence's queries.
    pub query_spans: &'a [Span],
    /// Rows of each sentence's keys and values.
    pub key_spans: &'a [Span],
    /// Query i sees keys 0..=i only.
    pub causal: bool,
    /// Dropout on the probabilities.
    pub mask: Option<Mask>,
}

/// Buffers that hold nothing between layers.
#[derive(Default)]
pub struct Scratch {
    /// Of one attention head.
    pub tiles: Tiles,
    /// A sublayer's output before the residual sum, or its gradient.
    pub branch: Vec<f32>,
    /// Gradient of a sublayer's input.
    pub d_input: Vec<f32>,
    /// Gradients within a sublayer.
    pub d_a: Vec<f32>,
    /// Likewise.
    pub d_b: Vec<f32>,
    /// Likewise.
    pub d_c: Vec<f32>,
}

impl Attention {
    fn shape<'a>(&self, who: Visibility<'a>) -> Shape<'a> {
        Shape {
            query_spans: who.query_spans,
            key_spans: who.key_spans,
            n_heads: self.n_heads,
            d_k: self.query.n_out / self.n_heads,
            causal: who.causal,
            mask: who.mask,
        }
    }

    fn columns<'a>(acts: &'a AttentionActs, d: usize) -> [Columns<'a>; 3] {
        [
            Columns { data: &acts.query, stride: d, first: 0 },
            Columns { data: &acts.key_value, stride: 2 * d, first: 0 },
            Columns { data: &acts.key_value, stride: 2 * d, first: d },
        ]
    }

    /// Scores, context and output from `acts.query` and `acts.key_value`; leaves the output in `out`.
    pub fn attend(
        &self,
        params: &[f32],
        who: Visibility,
        acts: &mut AttentionActs,
        tiles: &mut Tiles,
        out: &mut Vec<f32>,
    ) {
        let shape = self.shape(who);
        let (mut probs, mut context) =
            (std::mem::take(&mut acts.probs), std::mem::take(&mut acts.context));
        reset(&mut probs, shape.probs_len());
        reset(&mut context, acts.query.len());
        let [q, k, v] = Self::columns(acts, self.query.n_out);
        attention::attend(q, k, v, &shape, tiles, &mut probs, &mut context);
        self.output.forward(params, &context, out);
        (acts.probs, acts.context) = (probs, context);
    }

    /// `x` asks, `memory` answers (the same buffer in self-attention).
    pub fn forward(
        &self,
        params: &[f32],
        x: &[f32],
        memory: &[f32],
        who: Visibility,
        acts: &mut AttentionActs,
        scratch: &mut Scratch,
    ) {
        self.query.forward(params, x, &mut acts.query);
        self.key_value.forward(params, memory, &mut acts.key_value);
        self.attend(params, who, acts, &mut scratch.tiles, &mut scratch.branch);
    }

    /// From `scratch.branch` (gradient of the output) to `scratch.d_input` (of `x`); the gradient of
    /// `memory` is added to `d_memory`, or to `scratch.d_input` in self-attention.
    #[allow(clippy::too_many_arguments)] // the layer's two inputs, and where their gradients go
    pub fn backward(
        &self,
        params: &[f32],
        grads: &mut [f32],
        x: &[f32],
        memory: Option<(&[f32], &mut [f32])>,
        who: Visibility,
        acts: &AttentionActs,
        scratch: &mut Scratch,
    ) {
        let Scratch { tiles, branch, d_input, d_a: d_context, d_b: d_query, d_c: d_kv } = scratch;
        reset(d_context, acts.context.len());
        self.output.backward(params, grads, &acts.context, branch, Some((d_context, false)));
        reset(d_query, acts.query.len());
        reset(d_kv, acts.key_value.len());
        let [q, k, v] = Self::columns(acts, self.query.n_out);
        let mut gradients = AttentionGradients { query: d_query, key_value: d_kv };
        let shape = self.shape(who);
        attention::attend_backward(d_context, q, k, v, &acts.probs, &shape, tiles, &mut gradients);
        reset(d_input, x.len());
        self.query.backward(params, grads, x, d_query, Some((d_input, false)));
        let (memory, d_memory) = memory.unwrap_or((x, d_input.as_mut_slice()));
        self.key_value.backward(params, grads, memory, d_kv, Some((d_memory, true)));
    }
}

/// What the feed-forward keeps.
#[derive(Default)]
pub struct FeedForwardActs {
    /// `[tokens, d_ff]`, after the activation (and dropout).
    pub hidden: Vec<f32>,
    /// `[tokens, d_ff]`, before a smooth activation; ReLU's derivative can be told from its result.
    pub before: Vec<f32>,
}

impl FeedForward {
    /// Leaves the output in `scratch.branch`.
    pub fn forward(
        &self,
        params: &[f32],
        x: &[f32],
        mask: Option<Mask>,
        acts: &mut FeedForwardActs,
        scratch: &mut Scratch,
    ) {
        match Smooth::of(self.activation) {
            None => {
                self.linear1.forward(params, x, &mut acts.hidden);
                kernels::relu(&mut acts.hidden, mask);
            }
            Some(smooth) => {
                self.linear1.forward(params, x, &mut acts.before);
                reset(&mut acts.hidden, acts.before.len());
                activations::forward(&mut acts.hidden, &acts.before, smooth, mask);
            }
        }
        self.linear2.forward(params, &acts.hidden, &mut scratch.branch);
    }

    /// From `scratch.branch` to `scratch.d_input`.
    pub fn backward(
        &self,
        params: &[f32],
        grads: &mut [f32],
        x: &[f32],
        mask: Option<Mask>,
        acts: &FeedForwardActs,
        scratch: &mut Scratch,
    ) {
        let Scratch { branch, d_input, d_a: d_hidden, .. } = scratch;
        reset(d_hidden, acts.hidden.len());
        self.linear2.backward(params, grads, &acts.hidden, branch, Some((d_hidden, false)));
        match Smooth::of(self.activation) {
            None => {
                let scale = mask.map_or(1.0, |mask| mask.scale);
                kernels::relu_backward(d_hidden, &acts.hidden, scale);
            }
            Some(smooth) => activations::backward(d_hidden, &acts.before, smooth, mask),
        }
        reset(d_input, x.len());
        self.linear1.backward(params, grads, x, d_hidden, Some((d_input, false)));
    }
}
