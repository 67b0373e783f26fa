//! What a model is: sizes and choices, as the papers name them.

use serde::{Deserialize, Serialize};

/// How the numbers of a model are stored and computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
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
    /// Size of one encoder head; 0 where there are no heads.
    pub const fn encoder_d_k(&self) -> usize {
        head_size(self.d_model, self.encoder.n_heads)
    }

    /// Size of one decoder head; 0 where there are no heads.
    pub const fn decoder_d_k(&self) -> usize {
        head_size(self.d_model, self.decoder.n_heads)
    }

    /// The first field whose value no runtime can serve, if there is one.
    ///
    /// Checked: no size is zero, heads divide `d_model`, sinusoidal positions have an even
    /// `d_model`, `d_model` is at most [`MAX_D_MODEL`], special ids are distinct and inside the
    /// vocabularies, epsilon is positive and finite.
    pub const fn fault(&self) -> Option<ConfigField> {
        let d = self.d_model;
        if d == 0
            || d > MAX_D_MODEL
            || (!matches!(self.positions, Positions::Learned) && !d.is_multiple_of(2))
        {
            return Some(ConfigField::DModel);
        }
        if let Some(field) = stack_fault(d, &self.encoder, ConfigField::ENCODER) {
            return Some(field);
        }
        if let Some(field) = stack_fault(d, &self.decoder, ConfigField::DECODER) {
            return Some(field);
        }
        if self.max_source_len == 0 {
            return Some(ConfigField::MaxSourceLen);
        }
        if self.max_target_len == 0 {
            return Some(ConfigField::MaxTargetLen);
        }
        if !(self.layer_norm_eps > 0.0 && self.layer_norm_eps < 1.0) {
            return Some(ConfigField::LayerNormEps);
        }
        self.special_fault()
    }

    const fn special_fault(&self) -> Option<ConfigField> {
        let SpecialIds { pad, start, end, unknown } = self.special;
        let distinct = pad != start
            && pad != end
            && pad != unknown
            && start != end
            && start != unknown
            && end != unknown;
        // The encoder reads pad, end and unknown; the decoder reads start and produces end.
        if pad >= self.source_vocab || end >= self.source_vocab || unknown >= self.source_vocab {
            Some(ConfigField::SourceVocab)
        } else if pad >= self.target_vocab || start >= self.target_vocab || end >= self.target_vocab
        {
            Some(ConfigField::TargetVocab)
        } else if !distinct {
            Some(ConfigField::SpecialIds)
        } else {
            None
        }
    }
}

/// The widest model whose LayerNorm sums stay exact.
pub const MAX_D_MODEL: u16 = 16384;

/// The longest sequence in [`Precision::FixedPoint`]: the sum of `u * v` over more positions could
/// leave `i32`.
pub const MAX_FIXED_LEN: u16 = 512;

const fn head_size(d_model: u16, n_heads: u16) -> usize {
    match (d_model as usize).checked_div(n_heads as usize) {
        Some(d_k) => d_k,
        None => 0,
    }
}

const fn stack_fault(d: u16, stack: &StackConfig, fields: [ConfigField; 3]) -> Option<ConfigField> {
    if stack.n_layers == 0 {
        Some(fields[0])
    } else if head_size(d, stack.n_heads) * stack.n_heads as usize != d as usize {
        Some(fields[1])
    } else if stack.d_ff == 0 {
        Some(fields[2])
    } else {
        None
    }
}

/// A field of the configuration block, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[allow(missing_docs, reason = "the names are those of the fields")]
pub enum ConfigField {
    Precision,
    Layout,
    Family,
    Norm,
    FinalNorm,
    Positions,
    Output,
    Activation,
    SourceSegmentation,
    TargetSegmentation,
    FoldCase,
    UnknownPolicy,
    Reserved,
    DModel,
    EncoderLayers,
    EncoderHeads,
    EncoderDff,
    DecoderLayers,
    DecoderHeads,
    DecoderDff,
    SourceVocab,
    TargetVocab,
    MaxSourceLen,
    MaxTargetLen,
    LayerNormEps,
    SpecialIds,
}

impl ConfigField {
    const ENCODER: [Self; 3] = [Self::EncoderLayers, Self::EncoderHeads, Self::EncoderDff];
    const DECODER: [Self; 3] = [Self::DecoderLayers, Self::DecoderHeads, Self::DecoderDff];
}

/// What counts as one symbol of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Segmentation {
    /// Every `char`.
    Characters,
    /// Runs of anything but white space; joined by one space.
    Symbols,
}

/// What happens to a source symbol outside the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownPolicy {
    /// The text is refused.
    Refuse,
    /// The symbol becomes [`SpecialIds::unknown`].
    Replace,
}

/// How text becomes ids and ids become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextConfig {
    /// Symbols of the source.
    pub source: Segmentation,
    /// Symbols of the target.
    pub target: Segmentation,
    /// Whether source text is lower-cased (`char::to_lowercase`, symbol by symbol).
    pub fold_case: bool,
    /// What happens to unknown source symbols.
    pub unknown: UnknownPolicy,
}
