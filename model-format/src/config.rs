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
    /// `x * Phi(x)`, `Phi` being the normal distribution (Hendrycks & Gimpel 2016).
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (the same paper's approximation).
    GeluTanh,
    /// `x / (1 + e^-x)` (Elfwing et al. 2017).
    Silu,
}

/// Which stacks a model has, and what its output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Text to text: a decoder that attends to an encoder (Vaswani et al. 2017).
    #[default]
    EncoderDecoder,
    /// A language model: a decoder without cross-attention, which goes on with a prompt.
    DecoderOnly,
    /// An encoder that gives every source symbol a label.
    Tagger,
    /// An encoder that gives the text one label: the output reads the mean over all positions.
    Classifier,
}

/// What stands around the symbols of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceFrame {
    /// The end id after them.
    #[default]
    End,
    /// The start id before them and the end id after them.
    StartEnd,
    /// Nothing.
    Bare,
}

impl SourceFrame {
    /// Whether the start id stands before the symbols.
    pub const fn has_start(self) -> bool {
        matches!(self, Self::StartEnd)
    }

    /// Whether the end id stands after the symbols.
    pub const fn has_end(self) -> bool {
        matches!(self, Self::End | Self::StartEnd)
    }

    /// Ids around the symbols.
    pub const fn len(self) -> u16 {
        self.has_start() as u16 + self.has_end() as u16
    }

    /// Whether nothing stands around the symbols.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
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

impl StackConfig {
    /// The stack that a family does not have.
    pub const NONE: Self = Self { n_layers: 0, n_heads: 0, d_ff: 0 };
}

/// The ids with a meaning of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Fills a batch; never attended, never produced.
    pub pad: u16,
    /// The first id the decoder reads; never produced. May be `pad`, as in Marian.
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

/// The architecture of a model: everything but numbers and words.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Which stacks there are.
    #[serde(default)]
    pub family: Family,
    /// Width of the residual stream.
    pub d_model: u16,
    /// The encoder; [`StackConfig::NONE`] where the family has none.
    pub encoder: StackConfig,
    /// The decoder; [`StackConfig::NONE`] where the family has none.
    pub decoder: StackConfig,
    /// Rows of the source embedding; 0 without an encoder.
    pub source_vocab: u16,
    /// Rows of the target embedding and of the output; the number of labels without a decoder.
    pub target_vocab: u16,
    /// Most source ids the encoder takes, those of the frame included; 0 without an encoder.
    pub max_source_len: u16,
    /// Most ids that follow the start id, those of a prompt and the end id included; 0 without a
    /// decoder.
    pub max_target_len: u16,
    /// Where LayerNorm stands.
    pub norm: NormPlace,
    /// Whether each stack ends with a LayerNorm of its own.
    pub final_norm: bool,
    /// How positions enter.
    pub positions: Positions,
    /// Where the output takes its weights from.
    pub output: Output,
    /// Whether source and target have one embedding and one vocabulary.
    #[serde(default)]
    pub shared_embedding: bool,
    /// Whether embeddings are multiplied by `sqrt(d_model)` (Vaswani et al. 2017, section 3.4).
    #[serde(default = "yes")]
    pub scale_embedding: bool,
    /// What stands around the symbols of a source.
    #[serde(default)]
    pub source_frame: SourceFrame,
    /// The feed-forward non-linearity.
    pub activation: Activation,
    /// LayerNorm's epsilon.
    pub layer_norm_eps: f32,
    /// The ids with a meaning of their own.
    pub special: SpecialIds,
}

const fn yes() -> bool {
    true
}

impl ModelConfig {
    /// Whether there is an encoder.
    pub const fn has_encoder(&self) -> bool {
        !matches!(self.family, Family::DecoderOnly)
    }

    /// Whether there is a decoder.
    pub const fn has_decoder(&self) -> bool {
        matches!(self.family, Family::EncoderDecoder | Family::DecoderOnly)
    }

    /// Whether the decoder attends to an encoder.
    pub const fn has_cross_attention(&self) -> bool {
        matches!(self.family, Family::EncoderDecoder)
    }

    /// Layers of the encoder and of the decoder.
    pub(crate) const fn n_layers(&self) -> [u16; 2] {
        [self.encoder.n_layers, self.decoder.n_layers]
    }

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
    /// Checked: the stacks, vocabularies and lengths that the family has are not zero and the others
    /// are; heads divide `d_model`; sinusoidal positions have an even `d_model`; `d_model` is at most
    /// [`MAX_D_MODEL`]; an output is tied, and an embedding shared, only where there is one to tie it
    /// to; special ids are distinct (but for start, which may be pad) and inside the vocabularies;
    /// epsilon is positive and finite.
    pub const fn fault(&self) -> Option<ConfigField> {
        let d = self.d_model;
        if d == 0
            || d > MAX_D_MODEL
            || (!matches!(self.positions, Positions::Learned) && !d.is_multiple_of(2))
        {
            return Some(ConfigField::DModel);
        }
        if let Some(field) = stack_fault(d, &self.encoder, self.has_encoder(), ConfigField::ENCODER)
        {
            return Some(field);
        }
        if let Some(field) = stack_fault(d, &self.decoder, self.has_decoder(), ConfigField::DECODER)
        {
            return Some(field);
        }
        if (self.max_source_len != 0) != self.has_encoder() {
            return Some(ConfigField::MaxSourceLen);
        }
        if (self.max_target_len != 0) != self.has_decoder() {
            return Some(ConfigField::MaxTargetLen);
        }
        if self.output.is_tied() && !self.has_decoder() {
            return Some(ConfigField::Output);
        }
        if self.shared_embedding
            && !(self.has_cross_attention() && self.source_vocab == self.target_vocab)
        {
            return Some(ConfigField::SharedEmbedding);
        }
        if !(self.layer_norm_eps > 0.0 && self.layer_norm_eps < 1.0) {
            return Some(ConfigField::LayerNormEps);
        }
        self.special_fault()
    }

    const fn special_fault(&self) -> Option<ConfigField> {
        let SpecialIds { pad, start, end, unknown } = self.special;
        let distinct =
            pad != end && pad != unknown && start != end && start != unknown && end != unknown;
        // The encoder reads pad, end and unknown, and start where the frame has it; the decoder reads
        // start and produces end; labels are all alike.
        let source = max(
            max(pad, unknown),
            if self.source_frame.has_start() { max(start, end) } else { end },
        );
        let target = max(max(pad, start), end);
        if self.has_encoder() && source >= self.source_vocab
            || !self.has_encoder() && self.source_vocab != 0
        {
            Some(ConfigField::SourceVocab)
        } else if self.target_vocab == 0
            || self.has_decoder() && target >= self.target_vocab
            || !self.has_encoder() && unknown >= self.target_vocab
        {
            Some(ConfigField::TargetVocab)
        } else if !distinct {
            Some(ConfigField::SpecialIds)
        } else {
            None
        }
    }
}

const fn max(a: u16, b: u16) -> u16 {
    if a > b { a } else { b }
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

const fn stack_fault(
    d: u16,
    stack: &StackConfig,
    is_there: bool,
    fields: [ConfigField; 3],
) -> Option<ConfigField> {
    let StackConfig { n_layers, n_heads, d_ff } = *stack;
    if (n_layers != 0) != is_there {
        Some(fields[0])
    } else if is_there && head_size(d, n_heads) * n_heads as usize != d as usize
        || !is_there && n_heads != 0
    {
        Some(fields[1])
    } else if (d_ff != 0) != is_there {
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
    SharedEmbedding,
    ScaleEmbedding,
    SourceFrame,
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
