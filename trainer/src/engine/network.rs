//! The network's map: which tensor of the flat parameter buffer belongs to which layer.

use anyhow::{Result, ensure};
use model_format::config::{ModelConfig, Positions, StackConfig};

use crate::params::{Init, ParamLayout};

/// `y = x W^T + b`: weight `[n_out, n_in]`, bias `[n_out]`.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    pub weight: usize,
    pub bias: Option<usize>,
    pub n_in: usize,
    pub n_out: usize,
}

/// LayerNorm's `gamma` and `beta`, each `[d_model]`.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    pub gamma: usize,
    pub beta: usize,
}

/// Multi-head attention. Keys and values are one product: their tensors lie side by side.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    pub query: Linear,
    pub key_value: Linear,
    pub output: Linear,
    pub n_heads: usize,
}

/// Two linear layers with a ReLU between.
#[derive(Debug, Clone, Copy)]
pub struct FeedForward {
    pub linear1: Linear,
    pub linear2: Linear,
}

/// One layer; the encoder's has no cross-attention.
#[derive(Debug, Clone)]
pub struct Layer {
    pub self_attention: (Attention, Norm),
    pub cross_attention: Option<(Attention, Norm)>,
    pub feed_forward: (FeedForward, Norm),
}

/// Token embedding, and positions where they are learned.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    pub tokens: usize,
    pub positions: Option<usize>,
}

/// The encoder or the decoder.
#[derive(Debug, Clone)]
pub struct Stack {
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub norm: Option<Norm>,
}

/// The whole network.
#[derive(Debug, Clone)]
pub struct Network {
    pub config: ModelConfig,
    pub layout: ParamLayout,
    pub encoder: Stack,
    pub decoder: Stack,
    pub output: Linear,
    /// `[max_len, d_model]`, empty where positions are learned.
    pub sinusoids: Vec<f32>,
}

impl Network {
    /// Lays out every tensor of an architecture.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        check(config)?;
        let mut builder =
            Builder { layout: ParamLayout::default(), d_model: config.d_model.into() };
        let encoder = builder.stack(config, Side::Source);
        let decoder = builder.stack(config, Side::Target);
        let vocab = usize::from(config.target_vocab);
        let d_model = usize::from(config.d_model);
        let weight = if config.output.is_tied() {
            decoder.embedding.tokens
        } else {
            builder.matrix("output.weight".into(), vocab, d_model)
        };
        let bias = config.output.has_bias().then(|| builder.zeros("output.bias".into(), vocab));
        Ok(Self {
            config: *config,
            encoder,
            decoder,
            output: Linear { weight, bias, n_in: d_model, n_out: vocab },
            layout: builder.layout,
            sinusoids: sinusoids(config),
        })
    }
}

/// Refuses sizes that mean nothing.
fn check(config: &ModelConfig) -> Result<()> {
    for (name, stack) in [("encoder", &config.encoder), ("decoder", &config.decoder)] {
        ensure!(stack.n_layers > 0 && stack.d_ff > 0, "the {name} needs a layer and a d_ff");
        ensure!(
            stack.n_heads > 0 && config.d_model % stack.n_heads == 0,
            "d_model {} is not a multiple of the {name}'s {} heads",
            config.d_model,
            stack.n_heads
        );
    }
    ensure!(config.d_model > 0 && config.d_model % 2 == 0, "d_model must be even and positive");
    ensure!(config.source_vocab > 4 && config.target_vocab > 4, "a vocabulary needs a symbol");
    ensure!(config.max_source_len > 1 && config.max_target_len > 1, "lengths must exceed 1");
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Source,
    Target,
}

struct Builder {
    layout: ParamLayout,
    d_model: usize,
}

impl Builder {
    /// A matrix with Xavier's uniform bound (Glorot & Bengio 2010).
    fn matrix(&mut self, name: String, n_out: usize, n_in: usize) -> usize {
        let bound = (6.0 / (n_in + n_out) as f32).sqrt();
        self.layout.push(name, &[n_out, n_in], Init::Uniform(bound))
    }

    fn zeros(&mut self, name: String, n: usize) -> usize {
        self.layout.push(name, &[n], Init::Zero)
    }

    fn linear(&mut self, name: &str, n_out: usize, n_in: usize) -> Linear {
        let weight = self.matrix(format!("{name}.weight"), n_out, n_in);
        let bias = Some(self.zeros(format!("{name}.bias"), n_out));
        Linear { weight, bias, n_in, n_out }
    }

    fn norm(&mut self, name: &str) -> Norm {
        let d = self.d_model;
        let gamma = self.layout.push(format!("{name}.weight"), &[d], Init::One);
        Norm { gamma, beta: self.zeros(format!("{name}.bias"), d) }
    }

    fn attention(&mut self, name: &str, n_heads: usize) -> Attention {
        let d = self.d_model;
        let mut weights = [0; 3];
        let mut biases = [0; 3];
        for (weight, part) in weights.iter_mut().zip(["query", "key", "value"]) {
            *weight = self.matrix(format!("{name}.{part}.weight"), d, d);
        }
        for (bias, part) in biases.iter_mut().zip(["query", "key", "value"]) {
            *bias = self.zeros(format!("{name}.{part}.bias"), d);
        }
        Attention {
            query: Linear { weight: weights[0], bias: Some(biases[0]), n_in: d, n_out: d },
            key_value: Linear { weight: weights[1], bias: Some(biases[1]), n_in: d, n_out: 2 * d },
            output: self.linear(&format!("{name}.output"), d, d),
            n_heads,
        }
    }

    fn layer(&mut self, name: &str, stack: &StackConfig, side: Side) -> Layer {
        let (d, d_ff, heads) = (self.d_model, stack.d_ff.into(), stack.n_heads.into());
        let self_attention = self.attention(&format!("{name}.self_attention"), heads);
        let self_attention = (self_attention, self.norm(&format!("{name}.norm1")));
        let cross_attention = (side == Side::Target).then(|| {
            let attention = self.attention(&format!("{name}.cross_attention"), heads);
            (attention, self.norm(&format!("{name}.norm2")))
        });
        let feed_forward = FeedForward {
            linear1: self.linear(&format!("{name}.feed_forward.linear1"), d_ff, d),
            linear2: self.linear(&format!("{name}.feed_forward.linear2"), d, d_ff),
        };
        let last = if side == Side::Target { "norm3" } else { "norm2" };
        let feed_forward = (feed_forward, self.norm(&format!("{name}.{last}")));
        Layer { self_attention, cross_attention, feed_forward }
    }

    fn stack(&mut self, config: &ModelConfig, side: Side) -> Stack {
        let (name, prefix, sizes, vocab, max_len) = match side {
            Side::Source => {
                ("encoder", "source", config.encoder, config.source_vocab, config.max_source_len)
            }
            Side::Target => {
                ("decoder", "target", config.decoder, config.target_vocab, config.max_target_len)
            }
        };
        let d = self.d_model;
        // Variance 1/d_model, so that embedding * sqrt(d_model) has unit variance and a tied output
        // starts with logits of unit variance.
        let init = Init::Uniform((3.0 / d as f32).sqrt());
        let rows = usize::from(vocab);
        let tokens = self.layout.push(format!("{prefix}_embedding.weight"), &[rows, d], init);
        let positions = (config.positions == Positions::Learned).then(|| {
            self.layout.push(format!("{prefix}_positions.weight"), &[max_len.into(), d], init)
        });
        let layers = (0..sizes.n_layers)
            .map(|i| self.layer(&format!("{name}.layers.{i}"), &sizes, side))
            .collect();
        let norm = config.final_norm.then(|| self.norm(&format!("{name}.norm")));
        Stack { embedding: Embedding { tokens, positions }, layers, norm }
    }
}

/// Sinusoidal positions `[max_len, d_model]` (Vaswani et al. 2017, section 3.5), computed in `f64`.
pub fn sinusoids(config: &ModelConfig) -> Vec<f32> {
    let d = usize::from(config.d_model);
    let halves = match config.positions {
        Positions::Learned => return Vec::new(),
        Positions::SinusoidalHalves => true,
        Positions::SinusoidalInterleaved => false,
    };
    let max_len = usize::from(config.max_source_len.max(config.max_target_len));
    let mut table = vec![0.0; max_len * d];
    for (position, row) in table.chunks_exact_mut(d).enumerate() {
        for i in 0..d / 2 {
            let angle = position as f64 * (10_000f64).powf(-2.0 * i as f64 / d as f64);
            let (sin_at, cos_at) = if halves { (i, d / 2 + i) } else { (2 * i, 2 * i + 1) };
            row[sin_at] = angle.sin() as f32;
            row[cos_at] = angle.cos() as f32;
        }
    }
    table
}
