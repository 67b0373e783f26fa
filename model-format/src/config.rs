//! What a model is: sizes and choices, as the papers name them.

use serde::{Deserialize, Serialize};

/// How the numbers of a model are stored and computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// `i8` weights, `i16` activations, integer arithmetic only.
    FixedPoint,
    /// `f16` weights, `f32` arithmetic.
    HalfFloat,
}

/// Where LayerNorm stands in a sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormPlace {
    /// `x + f(norm(x))` (Xiong et al. 2020).
    Pre,
    /// `norm(x + f(x))` (Vaswani et al. 2017, section 3.1).
    Post,
}

/// How positions enter the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// Sine at even and cosine at odd columns (Vaswani et al. 2017, section 3.5).
    SinusoidalInterleaved,
    /// Sines in the first half of the columns, cosines in the second, as Marian has it.
    SinusoidalHalves,
    /// One learned row per position.
    Learned,
}

/// Where the output projection takes its weights from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// The target embedding (Press & Wolf 2017), without bias.
    Tied,
    /// The target embedding, with a bias of its own.
    TiedBias,
    /// A matrix of its own, without bias.
    Untied,
    /// A matrix of its own, with bias.
    UntiedBias,
}

impl Output {
    /// Whether the target embedding is the output matrix.
    pub const fn is_tied(self) -> bool {
        matches!(self, Self::Tied | Self::TiedBias)
    }

    /// Whether the output projection adds a bias.
    pub const fn has_bias(self) -> bool {
        matches!(self, Self::TiedBias | Self::UntiedBias)
    }
}

/// The non-linearity of the feed-forward sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `max(0, x)`.
    Relu,
}

/// The sizes of one stack of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackConfig {
    /// Number of layers.
    pub n_layers: u16,
    /// Number of attention heads; divides `d_model`.
    pub n_heads: u16,
    /// Inner size of the feed-forward sublayer.
    pub d_ff: u16,
}

/// The ids with a meaning of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Fills a batch; never attended, never produced.
    pub pad: u16,
    /// The first id the decoder reads; never produced.
    pub start: u16,
    /// Ends a sequence.
    pub end: u16,
    /// Stands for a source symbol outside the vocabulary.
    pub unknown: u16,
}

impl Default for SpecialIds {
    fn default() -> Self {
        Self { pad: 0, start: 1, end: 2, unknown: 3 }
    }
}

/// The architecture of an encoder-decoder model: everything but numbers and words.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub d_model: u16,
    /// The encoder.
    pub encoder: StackConfig,
    /// The decoder.
    pub decoder: StackConfig,
    /// Rows of the source embedding.
    pub source_vocab: u16,
    /// Rows of the target embedding and of the output.
    pub target_vocab: u16,
    /// Most source ids the encoder takes, end id included.
    pub max_source_len: u16,
    /// Most ids the decoder produces, end id included.
    pub max_target_len: u16,
    /// Where LayerNorm stands.
    pub norm: NormPlace,
    /// Whether each stack ends with a LayerNorm of its own.
    pub final_norm: bool,
    /// How positions enter.
    pub positions: Positions,
    /// Where the output takes its weights from.
    pub output: Output,
    /// The feed-forward non-linearity.
    pub activation: Activation,
    /// LayerNorm's epsilon.
    pub layer_norm_eps: f32,
    /// The ids with a meaning of their own.
    pub special: SpecialIds,
}

impl ModelConfig {
    /// Size of one encoder head.
    pub const fn encoder_d_k(&self) -> usize {
        self.d_model as usize / self.encoder.n_heads as usize
    }

    /// Size of one decoder head.
    pub const fn decoder_d_k(&self) -> usize {
        self.d_model as usize / self.decoder.n_heads as usize
    }
}
