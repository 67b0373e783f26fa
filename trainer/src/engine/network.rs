//! The network's map: which tensor of the flat parameter buffer belongs to which layer.

use anyhow::Result;
use model_format::config::{Activation, ModelConfig, Positions, StackConfig};

use super::sanity;
use crate::params::{Init, ParamLayout};

/// `y = x W^T + b`: weight `[n_out, n_in]`, bias `[n_out]`.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// Place of the weight in the flat buffer.
    pub weight: usize,
    /// Place of the bias, where there is one.
    pub bias: Option<usize>,
    /// Columns.
    pub n_in: usize,
    /// Rows.
    pub n_out: usize,
}

/// LayerNorm's `gamma` and `beta`, each `[d_model]`.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// Place of gamma in the flat buffer.
    pub gamma: usize,
    /// Place of beta; it follows gamma.
    pub beta: usize,
}

/// Multi-head attention. Keys and values are one product: their tensors lie side by side.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// `[d_model, d_model]`
    pub query: Linear,
    /// `[2 d_model, d_model]`: keys, then values.
    pub key_value: Linear,
    /// `[d_model, d_model]`
    pub output: Linear,
    /// Parts of a row, each with an attention of its own.
    pub n_heads: usize,
}

/// Two linear layers with an activation between.
#[derive(Debug, Clone, Copy)]
pub struct FeedForward {
    /// `[d_ff, d_model]`
    pub linear1: Linear,
    /// `[d_model, d_ff]`
    pub linear2: Linear,
    /// Between them.
    pub activation: Activation,
}

/// One layer; only a decoder beside an encoder has cross-attention.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Within the stack's own sentence.
    pub self_attention: (Attention, Norm),
    /// From the decoder to the encoder's result.
    pub cross_attention: Option<(Attention, Norm)>,
    /// Position by position.
    pub feed_forward: (FeedForward, Norm),
}

/// Token embedding, and positions where they are learned.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    /// Place of `[vocab, d_model]` in the flat buffer.
    pub tokens: usize,
    /// Place of `[max_len, d_model]`.
    pub positions: Option<usize>,
}

/// The encoder or the decoder.
#[derive(Debug, Clone)]
pub struct Stack {
    /// Its bottom.
    pub embedding: Embedding,
    /// In their order.
    pub layers: Vec<Layer>,
    /// The final LayerNorm, where the config has one.
    pub norm: Option<Norm>,
    /// Whether a position sees only itself and what stands before it.
    pub causal: bool,
    /// Tells its dropout from the other stack's.
    pub dropout_key: u64,
}

/// The whole network.
#[derive(Debug, Clone)]
pub struct Network {
    /// Its architecture.
    pub config: ModelConfig,
    /// All tensors by name.
    pub layout: ParamLayout,
    /// Reads the source; a language model has none.
    pub encoder: Option<Stack>,
    /// Writes the target; a model of labels has none.
    pub decoder: Option<Stack>,
    /// `[target_vocab, d_model]`; the target embedding itself where the output is tied.
    pub output: Linear,
    /// `[max_len, d_model]`, empty where positions are learned.
    pub sinusoids: Vec<f32>,
}

impl Network {
    /// Lays out every tensor of an architecture.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        sanity::check(config)?;
        let mut builder = Builder::new(config);
        let encoder = config.has_encoder().then(|| builder.stack(config, Side::Source));
        let decoder = config.has_decoder().then(|| builder.stack(config, Side::Target));
        let vocab = usize::from(config.target_vocab);
        let d_model = usize::from(config.d_model);
        let weight = match &decoder {
            Some(decoder) if config.output.is_tied() => decoder.embedding.tokens,
            _ => builder.matrix("output.weight".into(), vocab, d_model),
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

    /// Positions that a stack has.
    pub fn max_len(&self, stack: &Stack) -> u16 {
        if stack.causal { self.config.max_target_len } else { self.config.max_source_len }
    }

    /// What embeddings are multiplied by (Vaswani et al. 2017, section 3.4).
    pub fn embedding_scale(&self) -> f32 {
        if self.config.scale_embedding { f32::from(self.config.d_model).sqrt() } else { 1.0 }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Source,
    Target,
}

struct Builder {
    layout: ParamLayout,
    d_model: usize,
    activation: Activation,
    has_cross_attention: bool,
    /// Place of the embedding that both stacks have, once one of them has made it.
    shared: Option<usize>,
}

impl Builder {
    fn new(config: &ModelConfig) -> Self {
        Self {
            layout: ParamLayout::default(),
            d_model: config.d_model.into(),
            activation: config.activation,
            has_cross_attention: config.has_cross_attention(),
            shared: None,
        }
    }

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
        let cross_attention = (side == Side::Target && self.has_cross_attention).then(|| {
            let attention = self.attention(&format!("{name}.cross_attention"), heads);
            (attention, self.norm(&format!("{name}.norm2")))
        });
        let feed_forward = FeedForward {
            linear1: self.linear(&format!("{name}.feed_forward.linear1"), d_ff, d),
            linear2: self.linear(&format!("{name}.feed_forward.linear2"), d, d_ff),
            activation: self.activation,
        };
        // A decoder's is the third even where it has no second, as in the file.
        let last = if side == Side::Target { "norm3" } else { "norm2" };
        let feed_forward = (feed_forward, self.norm(&format!("{name}.{last}")));
        Layer { self_attention, cross_attention, feed_forward }
    }

    fn stack(&mut self, config: &ModelConfig, side: Side) -> Stack {
        let (name, prefix, sizes, max_len) = match side {
            Side::Source => ("encoder", "source", config.encoder, config.max_source_len),
            Side::Target => ("decoder", "target", config.decoder, config.max_target_len),
        };
        let dropout_key = self.layout.len() as u64;
        let tokens = self.tokens(config, side);
        let positions = (config.positions == Positions::Learned).then(|| {
            let (init, shape) = (self.embedding_init(), [max_len.into(), self.d_model]);
            self.layout.push(format!("{prefix}_positions.weight"), &shape, init)
        });
        let layers = (0..sizes.n_layers)
            .map(|i| self.layer(&format!("{name}.layers.{i}"), &sizes, side))
            .collect();
        let norm = config.final_norm.then(|| self.norm(&format!("{name}.norm")));
        let embedding = Embedding { tokens, positions };
        Stack { embedding, layers, norm, causal: side == Side::Target, dropout_key }
    }

    /// Place of the stack's token embedding; a shared one has the target's name.
    fn tokens(&mut self, config: &ModelConfig, side: Side) -> usize {
        let (name, vocab) = match side {
            Side::Source if !config.shared_embedding => ("source", config.source_vocab),
            _ => ("target", config.target_vocab),
        };
        if let (true, Some(at)) = (config.shared_embedding, self.shared) {
            return at;
        }
        let (init, shape) = (self.embedding_init(), [vocab.into(), self.d_model]);
        let at = self.layout.push(format!("{name}_embedding.weight"), &shape, init);
        self.shared = Some(at);
        at
    }

    /// Variance 1/d_model, so that embedding * sqrt(d_model) has unit variance and a tied output
    /// starts with logits of unit variance.
    fn embedding_init(&self) -> Init {
        Init::Uniform((3.0 / self.d_model as f32).sqrt())
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
