//! The layers of Vaswani et al. 2017 over padded batches `[b, len, width]`.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use candle_core::{D, DType, Result, Tensor};
use model_format::config::Activation;

/// `y = x W^T + b`.
pub struct Linear {
    /// `[n_out, n_in]`
    pub weight: Tensor,
    /// `[n_out]`
    pub bias: Option<Tensor>,
}

impl Linear {
    /// `[b, len, n_in]` to `[b, len, n_out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (b, len, n_in) = x.dims3()?;
        let rows = x.reshape((b * len, n_in))?;
        let y = rows.matmul(&self.weight.t()?)?.reshape((b, len, ()))?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// LayerNorm (Ba et al. 2016) over the last dimension.
pub struct LayerNorm {
    /// `[d_model]`
    pub gamma: Tensor,
    /// `[d_model]`
    pub beta: Tensor,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// `gamma * (x - mean) / sqrt(variance + eps) + beta`; the variance is that of the row itself.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let normalised = centered.broadcast_div(&(variance + self.eps)?.sqrt()?)?;
        normalised.broadcast_mul(&self.gamma)?.broadcast_add(&self.beta)
    }
}

/// Softmax over the last dimension of `scores` among what is visible; `visible` broadcasts to their
/// shape.
///
/// What is hidden gets exactly 0 and no gradient; a row that sees nothing gets zeros.
pub fn masked_softmax(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    let visible = visible.broadcast_as(scores.shape())?.contiguous()?;
    let zeros = scores.zeros_like()?;
    // A score far below all others, but finite, so that a row of them has a maximum to subtract.
    let hidden = zeros.affine(0.0, lowest(scores.dtype()))?;
    let scores = visible.where_cond(scores, &hidden)?;
    // The maximum cancels out; without its gradient, it does so exactly.
    let max = scores.max_keepdim(D::Minus1)?.detach();
    let exp = visible.where_cond(&scores.broadcast_sub(&max)?.exp()?, &zeros)?;
    let sum = exp.sum_keepdim(D::Minus1)?;
    // A row that sees nothing is divided by 1; any other sum is at least 1, from the maximum itself.
    exp.broadcast_div(&(&sum + sum.eq(0.0)?.to_dtype(sum.dtype())?)?)
}

/// A number far below every score, finite in `dtype`: what f32 holds with ease is infinite in f16.
fn lowest(dtype: DType) -> f64 {
    if dtype == DType::F16 { -65_504.0 } else { -1e30 }
}

/// Multi-head attention (Vaswani et al. 2017, section 3.2.2).
pub struct Attention {
    /// `[d_model, d_model]`, as the three below.
    pub query: Linear,
    /// What a query is compared with.
    pub key: Linear,
    /// What is mixed.
    pub value: Linear,
    /// From all heads, side by side, to the residual stream.
    pub output: Linear,
    /// Parts of a row, each with an attention of its own.
    pub n_heads: usize,
}

impl Attention {
    /// `softmax(Q K^T / sqrt(d_k)) V` by heads: `x` `[b, q, d_model]` asks, `memory` `[b, k, d_model]`
    /// answers, where `visible` (`[b, 1, 1 or q, k]`) allows; `dropout` acts on the probabilities.
    pub fn forward(
        &self,
        x: &Tensor,
        memory: &Tensor,
        visible: &Tensor,
        dropout: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let query = self.split(&self.query.forward(x)?)?;
        let key = self.split(&self.key.forward(memory)?)?;
        let value = self.split(&self.value.forward(memory)?)?;
        let d_k = query.dim(D::Minus1)? as f64;
        let scores = (query.matmul(&key.transpose(2, 3)?)? / d_k.sqrt())?;
        let probs = dropout(masked_softmax(&scores, visible)?)?;
        let context = probs.matmul(&value)?.transpose(1, 2)?.contiguous()?;
        self.output.forward(&context.reshape(x.shape())?)
    }

    /// `[b, len, d_model]` to `[b, n_heads, len, d_k]`.
    fn split(&self, x: &Tensor) -> Result<Tensor> {
        let (b, len, d_model) = x.dims3()?;
        let heads = x.reshape((b, len, self.n_heads, d_model / self.n_heads))?;
        heads.transpose(1, 2)?.contiguous()
    }
}

/// `x W1 + b1` through the activation, of any shape.
///
/// The formulas are written out: the derivatives of candle's own `gelu` have constants of six digits.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Relu => x.relu(),
        Activation::Gelu => (x * 0.5)? * ((x * FRAC_1_SQRT_2)?.erf()? + 1.0)?,
        Activation::GeluTanh => {
            let cubic = (x + (x * x.sqr()?)? * 0.044715)?;
            (x * 0.5)? * ((cubic * (2.0 / PI).sqrt())?.tanh()? + 1.0)?
        }
        Activation::Silu => x / (x.neg()?.exp()? + 1.0)?,
    }
}

/// `f(x W1 + b1) W2 + b2` (Vaswani et al. 2017, section 3.3).
pub struct FeedForward {
    /// `[d_ff, d_model]`
    pub linear1: Linear,
    /// `[d_model, d_ff]`
    pub linear2: Linear,
    /// f; the paper's is ReLU.
    pub activation: Activation,
}

impl FeedForward {
    /// `dropout` acts on the hidden numbers `[b, len, d_ff]`.
    pub fn forward(
        &self,
        x: &Tensor,
        dropout: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let hidden = dropout(activate(&self.linear1.forward(x)?, self.activation)?)?;
        self.linear2.forward(&hidden)
    }
}

/// Cross-entropy with label smoothing (Szegedy et al. 2016, section 7) of rows `[n, vocab]`.
///
/// The target distribution is `1 - smoothing` at the label, plus `smoothing` spread over all ids but
/// `pad`, where there is one. Rows whose `counts` (`[n]`) is 0 contribute nothing. Returns the sums over rows of the
/// smoothed loss and of the plain negative log likelihood, in nats.
pub fn cross_entropy(
    logits: &Tensor,
    labels: &Tensor,
    counts: &Tensor,
    pad: Option<usize>,
    smoothing: f64,
) -> Result<(Tensor, Tensor)> {
    let vocab = logits.dim(1)?;
    let log_probs = candle_nn::ops::log_softmax(logits, 1)?;
    let likelihood = log_probs.gather(&labels.unsqueeze(1)?, 1)?.squeeze(1)?;
    let others = match pad {
        Some(pad) => (log_probs.sum(1)? - log_probs.narrow(1, pad, 1)?.squeeze(1)?)?,
        None => log_probs.sum(1)?,
    };
    let share = smoothing / (vocab - usize::from(pad.is_some())) as f64;
    let smoothed = ((&likelihood * (1.0 - smoothing))? + (others * share)?)?;
    let counts = counts.to_dtype(logits.dtype())?;
    let sum = |x: Tensor| (x * &counts)?.sum_all()?.neg();
    Ok((sum(smoothed)?, sum(likelihood)?))
}

/// Sinusoidal positions `[max_len, d_model]` (Vaswani et al. 2017, section 3.5):
/// `sin` and `cos` of `position / 10000^(2 i / d_model)`, side by side or in two halves.
pub fn sinusoids(
    max_len: usize,
    d_model: usize,
    halves: bool,
    device: &candle_core::Device,
) -> Result<Tensor> {
    let column = |n: usize| Tensor::arange(0u32, n as u32, device)?.to_dtype(DType::F64);
    let exponent = (column(d_model / 2)? * (-2.0 / d_model as f64 * 10_000f64.ln()))?;
    let angles = column(max_len)?.unsqueeze(1)?.broadcast_mul(&exponent.exp()?)?;
    match halves {
        true => Tensor::cat(&[angles.sin()?, angles.cos()?], 1),
        false => Tensor::stack(&[angles.sin()?, angles.cos()?], 2)?.reshape((max_len, d_model)),
    }
}
