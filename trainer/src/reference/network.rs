//! Embedding, stacks and output: from padded ids to logits.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var};
use model_format::config::{Family, ModelConfig, NormPlace, Positions, StackConfig};

use super::batch::Batch;
use super::dropout::{PaddedDropout, Side};
use super::layers::{Attention, FeedForward, LayerNorm, Linear, cross_entropy, sinusoids};
use crate::engine::Network;
use crate::engine::dropout::Place;

/// Dropout of a step; nothing in evaluation.
type Dropout<'a> = Option<&'a PaddedDropout<'a>>;

/// The encoder or the decoder.
struct Stack {
    side: Side,
    /// `[vocab, d_model]`
    embedding: Tensor,
    /// `[max_len, d_model]`, learned or sinusoidal.
    positions: Tensor,
    layers: Vec<Layer>,
    norm: Option<LayerNorm>,
}

/// One layer; only a decoder beside an encoder has cross-attention.
struct Layer {
    self_attention: (Attention, LayerNorm),
    cross_attention: Option<(Attention, LayerNorm)>,
    feed_forward: (FeedForward, LayerNorm),
}

/// What the decoder sees of the source.
struct Memory<'a> {
    /// The encoder's result `[b, s, d_model]`.
    values: &'a Tensor,
    /// `[b, 1, 1, s]`
    visible: &'a Tensor,
}

/// The whole network.
pub struct ReferenceNetwork {
    config: ModelConfig,
    encoder: Option<Stack>,
    decoder: Option<Stack>,
    /// `[target_vocab, d_model]`: the target embedding itself where the output is tied.
    output: Linear,
}

impl ReferenceNetwork {
    /// Logits `[b, t, target_vocab]`.
    pub fn forward(&self, batch: &Batch, dropout: Dropout) -> Result<Tensor> {
        let encode = |encoder: &Stack| {
            self.stack(encoder, &batch.source, &batch.source_visible, None, dropout)
        };
        let memory = self.encoder.as_ref().map(encode).transpose()?;
        let decode = |decoder: &Stack| {
            let visible = &batch.source_visible;
            let memory = memory.as_ref().map(|values| Memory { values, visible });
            let (ids, visible) = (&batch.target, &batch.target_visible);
            self.stack(decoder, ids, visible, memory.as_ref(), dropout)
        };
        let decoded = self.decoder.as_ref().map(decode).transpose()?;
        let hidden = match (decoded, &memory) {
            (Some(hidden), _) => hidden,
            (None, Some(memory)) => self.read(memory, batch)?,
            (None, None) => candle_core::bail!("every family has a stack"),
        };
        let hidden = match dropout {
            Some(dropout) if !self.config.output.is_tied() => {
                dropout.rows(&hidden, Side::Target, Place::Output, |masks| masks.residual)?
            }
            _ => hidden,
        };
        self.output.forward(&hidden)
    }

    /// What the output reads of an encoder `[b, s, d_model]`: a tagger's positions without the frame,
    /// or the mean of a classifier's, which is zero where there is none.
    fn read(&self, memory: &Tensor, batch: &Batch) -> Result<Tensor> {
        if self.config.family == Family::Tagger {
            let first = usize::from(self.config.source_frame.has_start());
            return memory.narrow(1, first, batch.target_len);
        }
        let counts = batch.source_counts.to_dtype(memory.dtype())?.unsqueeze(2)?;
        let n = counts.sum_keepdim(1)?;
        let sum = memory.broadcast_mul(&counts)?.sum_keepdim(1)?;
        sum.broadcast_div(&n.maximum(&n.ones_like()?)?)
    }

    /// Sums over all labels of the smoothed loss and of the negative log likelihood of `logits`.
    pub fn loss(&self, logits: &Tensor, batch: &Batch, smoothing: f64) -> Result<(Tensor, Tensor)> {
        let rows = logits.flatten_to(1)?;
        let pad = self.config.has_decoder().then_some(self.config.special.pad.into());
        cross_entropy(
            &rows,
            &batch.labels.flatten_all()?,
            &batch.counts.flatten_all()?,
            pad,
            smoothing,
        )
    }

    /// One stack over ids `[b, len]`; query i sees what `visible` (`[b, 1, 1 or len, len]`) allows.
    fn stack(
        &self,
        stack: &Stack,
        ids: &Tensor,
        visible: &Tensor,
        memory: Option<&Memory>,
        dropout: Dropout,
    ) -> Result<Tensor> {
        let embedded = self.embed(stack, ids)?;
        let mut x = drop_rows(embedded, dropout, stack.side, Place::Embedding)?;
        for (i, layer) in stack.layers.iter().enumerate() {
            x = self.layer(stack.side, (i, layer), &x, visible, memory, dropout)?;
        }
        match &stack.norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }

    /// `E[id] * sqrt(d_model) + position` (Vaswani et al. 2017, sections 3.4 and 3.5), without the
    /// factor where the config says so: ids `[b, len]` to `[b, len, d_model]`.
    fn embed(&self, stack: &Stack, ids: &Tensor) -> Result<Tensor> {
        let (b, len) = ids.dims2()?;
        let d_model = usize::from(self.config.d_model);
        let tokens = stack.embedding.index_select(&ids.flatten_all()?, 0)?;
        let scale = if self.config.scale_embedding { (d_model as f64).sqrt() } else { 1.0 };
        let scaled = (tokens * scale)?.reshape((b, len, d_model))?;
        scaled.broadcast_add(&stack.positions.narrow(0, 0, len)?)
    }

    fn layer(
        &self,
        side: Side,
        (i, layer): (usize, &Layer),
        x: &Tensor,
        visible: &Tensor,
        memory: Option<&Memory>,
        dropout: Dropout,
    ) -> Result<Tensor> {
        let (attention, norm) = &layer.self_attention;
        let place = Place::SelfAttention(i);
        let mut x = self.sublayer(x, norm, (dropout, side, place), |x| {
            attention.forward(x, x, visible, |p| drop_probs(p, dropout, (side, side), place))
        })?;
        if let (Some((attention, norm)), Some(memory)) = (&layer.cross_attention, memory) {
            let place = Place::CrossAttention(i);
            x = self.sublayer(&x, norm, (dropout, side, place), |x| {
                attention.forward(x, memory.values, memory.visible, |p| {
                    drop_probs(p, dropout, (side, Side::Source), place)
                })
            })?;
        }
        let (feed_forward, norm) = &layer.feed_forward;
        let place = Place::FeedForward(i);
        self.sublayer(&x, norm, (dropout, side, place), |x| {
            feed_forward.forward(x, |hidden| match dropout {
                Some(dropout) => dropout.rows(&hidden, side, place, |masks| masks.inner),
                None => Ok(hidden),
            })
        })
    }

    /// Pre-LN `x + dropout(f(norm(x)))` (Xiong et al. 2020), or post-LN `norm(x + dropout(f(x)))`
    /// (Vaswani et al. 2017, section 3.1).
    fn sublayer(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        (dropout, side, place): (Dropout, Side, Place),
        f: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        match self.config.norm {
            NormPlace::Pre => x + drop_rows(f(&norm.forward(x)?)?, dropout, side, place)?,
            NormPlace::Post => norm.forward(&(x + drop_rows(f(x)?, dropout, side, place)?)?),
        }
    }
}

/// `x` `[b, len, d_model]` after residual dropout.
fn drop_rows(x: Tensor, dropout: Dropout, side: Side, place: Place) -> Result<Tensor> {
    match dropout {
        Some(dropout) => dropout.rows(&x, side, place, |masks| masks.residual),
        None => Ok(x),
    }
}

/// Probabilities `[b, n_heads, q, k]` after dropout; `sides` are those of queries and keys.
fn drop_probs(p: Tensor, dropout: Dropout, sides: (Side, Side), place: Place) -> Result<Tensor> {
    match dropout {
        Some(dropout) => dropout.probs(&p, sides, place),
        None => Ok(p),
    }
}

impl ReferenceNetwork {
    /// Puts `variables`, in the order of the layout, where their names say.
    pub fn new(
        network: &Network,
        variables: &[Var],
        device: &Device,
        dtype: DType,
    ) -> Result<Self> {
        let names = network.layout.specs.iter().map(|spec| spec.name.as_str());
        let variables = names.zip(variables.iter().map(Var::as_tensor)).collect();
        let config = network.config;
        let builder = Builder { config, variables, device, dtype };
        let output =
            if config.output.is_tied() { "target_embedding.weight" } else { "output.weight" };
        let bias = config.output.has_bias().then(|| builder.get("output.bias")).transpose()?;
        Ok(Self {
            encoder: config.has_encoder().then(|| builder.stack(Side::Source)).transpose()?,
            decoder: config.has_decoder().then(|| builder.stack(Side::Target)).transpose()?,
            output: Linear { weight: builder.get(output)?, bias },
            config,
        })
    }
}

/// Finds tensors by name.
struct Builder<'a> {
    config: ModelConfig,
    variables: HashMap<&'a str, &'a Tensor>,
    device: &'a Device,
    dtype: DType,
}

impl Builder<'_> {
    fn get(&self, name: &str) -> Result<Tensor> {
        match self.variables.get(name) {
            Some(&tensor) => Ok(tensor.clone()),
            None => candle_core::bail!("the layout has no tensor `{name}`"),
        }
    }

    fn linear(&self, name: &str) -> Result<Linear> {
        let bias = Some(self.get(&format!("{name}.bias"))?);
        Ok(Linear { weight: self.get(&format!("{name}.weight"))?, bias })
    }

    fn norm(&self, name: &str) -> Result<LayerNorm> {
        Ok(LayerNorm {
            gamma: self.get(&format!("{name}.weight"))?,
            beta: self.get(&format!("{name}.bias"))?,
            eps: self.config.layer_norm_eps.into(),
        })
    }

    fn attention(&self, name: &str, n_heads: u16) -> Result<Attention> {
        Ok(Attention {
            query: self.linear(&format!("{name}.query"))?,
            key: self.linear(&format!("{name}.key"))?,
            value: self.linear(&format!("{name}.value"))?,
            output: self.linear(&format!("{name}.output"))?,
            n_heads: n_heads.into(),
        })
    }

    fn layer(&self, name: &str, sizes: &StackConfig, side: Side) -> Result<Layer> {
        let attention = |kind: &str, norm: &str| {
            let attention = self.attention(&format!("{name}.{kind}"), sizes.n_heads)?;
            Ok::<_, candle_core::Error>((attention, self.norm(&format!("{name}.{norm}"))?))
        };
        let (cross_attention, last) = match side {
            Side::Source => (None, "norm2"),
            Side::Target if self.config.has_cross_attention() => {
                (Some(attention("cross_attention", "norm2")?), "norm3")
            }
            Side::Target => (None, "norm3"),
        };
        let feed_forward = FeedForward {
            linear1: self.linear(&format!("{name}.feed_forward.linear1"))?,
            linear2: self.linear(&format!("{name}.feed_forward.linear2"))?,
            activation: self.config.activation,
        };
        Ok(Layer {
            self_attention: attention("self_attention", "norm1")?,
            cross_attention,
            feed_forward: (feed_forward, self.norm(&format!("{name}.{last}"))?),
        })
    }

    fn stack(&self, side: Side) -> Result<Stack> {
        let config = &self.config;
        let (name, prefix, sizes, max_len) = match side {
            Side::Source => ("encoder", "source", config.encoder, config.max_source_len),
            Side::Target => ("decoder", "target", config.decoder, config.max_target_len),
        };
        let layers = (0..sizes.n_layers)
            .map(|i| self.layer(&format!("{name}.layers.{i}"), &sizes, side))
            .collect::<Result<_>>()?;
        let norm = config.final_norm.then(|| self.norm(&format!("{name}.norm"))).transpose()?;
        let sinusoids = |halves| {
            let table = sinusoids(max_len.into(), config.d_model.into(), halves, &Device::Cpu)?;
            table.to_dtype(self.dtype)?.to_device(self.device)
        };
        let positions = match config.positions {
            Positions::Learned => self.get(&format!("{prefix}_positions.weight"))?,
            Positions::SinusoidalInterleaved => sinusoids(false)?,
            Positions::SinusoidalHalves => sinusoids(true)?,
        };
        let table = if config.shared_embedding { "target" } else { prefix };
        let embedding = self.get(&format!("{table}_embedding.weight"))?;
        Ok(Stack { side, embedding, positions, layers, norm })
    }
}
