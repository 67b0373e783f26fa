//! The Q formats of all activation tensors, in the order in which a forward pass makes them.

use crate::config::{ModelConfig, NormPlace};
use crate::numeric::QFormat;

/// Bytes of one format in the file: fractional bits, then width.
pub const FORMAT_LEN: usize = 2;

/// Activations of an encoder layer, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the tensors")]
#[repr(u8)]
pub enum EncoderActivation {
    Norm1,
    Query,
    Context,
    Sum1,
    Norm2,
    Hidden,
    Sum2,
}

/// Activations of a decoder layer, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the tensors")]
#[repr(u8)]
pub enum DecoderActivation {
    Norm1,
    Query,
    Context,
    Sum1,
    Norm2,
    CrossQuery,
    CrossContext,
    Sum2,
    Norm3,
    Hidden,
    Sum3,
}

/// One activation tensor of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationSlot {
    /// Source embedding plus position.
    EncoderEmbed,
    /// In an encoder layer.
    Encoder(u16, EncoderActivation),
    /// What the encoder hands over, `memory`.
    Memory,
    /// Target embedding plus position.
    DecoderEmbed,
    /// In a decoder layer.
    Decoder(u16, DecoderActivation),
    /// What the output projection reads.
    DecoderFinal,
    /// The logits.
    Logits,
}

const PER_ENCODER_LAYER: usize = 7;
const PER_DECODER_LAYER: usize = 11;

const ENCODER_NAMES: [(EncoderActivation, &str); PER_ENCODER_LAYER] = {
    use EncoderActivation::*;
    [
        (Norm1, "norm1"),
        (Query, "self_attention.query"),
        (Context, "self_attention.context"),
        (Sum1, "sum1"),
        (Norm2, "norm2"),
        (Hidden, "feed_forward.hidden"),
        (Sum2, "sum2"),
    ]
};

const DECODER_NAMES: [(DecoderActivation, &str); PER_DECODER_LAYER] = {
    use DecoderActivation::*;
    [
        (Norm1, "norm1"),
        (Query, "self_attention.query"),
        (Context, "self_attention.context"),
        (Sum1, "sum1"),
        (Norm2, "norm2"),
        (CrossQuery, "cross_attention.query"),
        (CrossContext, "cross_attention.context"),
        (Sum2, "sum2"),
        (Norm3, "norm3"),
        (Hidden, "feed_forward.hidden"),
        (Sum3, "sum3"),
    ]
};

impl ActivationSlot {
    /// Number of activation tensors of a model.
    pub const fn count(config: &ModelConfig) -> usize {
        Self::Logits.index(config) + 1
    }

    /// Place in the list.
    pub const fn index(self, config: &ModelConfig) -> usize {
        self.place(config.n_layers())
    }

    const fn place(self, [encoder, decoder]: [u16; 2]) -> usize {
        let memory = 1 + PER_ENCODER_LAYER * encoder as usize;
        let last = memory + 2 + PER_DECODER_LAYER * decoder as usize;
        match self {
            Self::EncoderEmbed => 0,
            Self::Encoder(layer, a) => 1 + PER_ENCODER_LAYER * layer as usize + a as usize,
            Self::Memory => memory,
            Self::DecoderEmbed => memory + 1,
            Self::Decoder(layer, a) => memory + 2 + PER_DECODER_LAYER * layer as usize + a as usize,
            Self::DecoderFinal => last,
            Self::Logits => last + 1,
        }
    }

    /// All activation tensors in order.
    pub fn all(config: &ModelConfig) -> impl Iterator<Item = Self> + use<> {
        Self::listed(Self::count(config), config)
    }

    /// Those of a list of this length, which is that of `config`.
    pub(crate) fn listed(count: usize, config: &ModelConfig) -> impl Iterator<Item = Self> + use<> {
        let layers = config.n_layers();
        (0..count).filter_map(move |index| Self::nth(index, layers))
    }

    /// The tensor at `index` of the list.
    fn nth(index: usize, layers: [u16; 2]) -> Option<Self> {
        let memory = Self::Memory.place(layers);
        let last = Self::DecoderFinal.place(layers);
        let before = |first: usize| index.saturating_sub(first);
        Some(match index {
            0 => Self::EncoderEmbed,
            _ if index < memory => {
                let (layer, at) = (before(1) / PER_ENCODER_LAYER, before(1) % PER_ENCODER_LAYER);
                Self::Encoder(layer as u16, ENCODER_NAMES.get(at)?.0)
            }
            _ if index == memory => Self::Memory,
            _ if index == memory + 1 => Self::DecoderEmbed,
            _ if index < last => {
                let index = before(memory + 2);
                let (layer, at) = (index / PER_DECODER_LAYER, index % PER_DECODER_LAYER);
                Self::Decoder(layer as u16, DECODER_NAMES.get(at)?.0)
            }
            _ if index == last => Self::DecoderFinal,
            _ => Self::Logits,
        })
    }

    /// The residual stream that enters encoder layer `layer`.
    pub const fn encoder_stream(config: &ModelConfig, layer: u16) -> Self {
        match (layer.checked_sub(1), config.norm) {
            (None, _) => Self::EncoderEmbed,
            (Some(before), NormPlace::Pre) => Self::Encoder(before, EncoderActivation::Sum2),
            (Some(before), NormPlace::Post) => Self::Encoder(before, EncoderActivation::Norm2),
        }
    }

    /// The residual stream that enters decoder layer `layer`.
    pub const fn decoder_stream(config: &ModelConfig, layer: u16) -> Self {
        match (layer.checked_sub(1), config.norm) {
            (None, _) => Self::DecoderEmbed,
            (Some(before), NormPlace::Pre) => Self::Decoder(before, DecoderActivation::Sum3),
            (Some(before), NormPlace::Post) => Self::Decoder(before, DecoderActivation::Norm3),
        }
    }

    /// The residual stream that enters the feed-forward sublayer of decoder layer `layer`.
    pub const fn decoder_middle(config: &ModelConfig, layer: u16) -> Self {
        use DecoderActivation as D;
        Self::Decoder(
            layer,
            match (config.has_cross_attention(), config.norm) {
                (true, NormPlace::Pre) => D::Sum2,
                (true, NormPlace::Post) => D::Norm2,
                (false, NormPlace::Pre) => D::Sum1,
                (false, NormPlace::Post) => D::Norm1,
            },
        )
    }

    /// The stream that a residual connection adds to give this sum, or that this tensor is without a
    /// final LayerNorm; `None` where it is neither.
    pub const fn stream(self, config: &ModelConfig) -> Option<Self> {
        use {DecoderActivation as D, EncoderActivation as E};
        let pre = matches!(config.norm, NormPlace::Pre);
        Some(match self {
            Self::Encoder(l, E::Sum1) => Self::encoder_stream(config, l),
            Self::Encoder(l, E::Sum2) => Self::Encoder(l, if pre { E::Sum1 } else { E::Norm1 }),
            Self::Decoder(l, D::Sum1) => Self::decoder_stream(config, l),
            Self::Decoder(l, D::Sum2) => Self::Decoder(l, if pre { D::Sum1 } else { D::Norm1 }),
            Self::Decoder(l, D::Sum3) => Self::decoder_middle(config, l),
            Self::Memory if !config.final_norm => {
                Self::encoder_stream(config, config.encoder.n_layers)
            }
            Self::DecoderFinal if !config.final_norm => {
                Self::decoder_stream(config, config.decoder.n_layers)
            }
            _ => return None,
        })
    }

    /// What the output projection reads: of a tagger `memory`, of a classifier its mean.
    pub const fn output_input(config: &ModelConfig) -> Self {
        if config.has_decoder() { Self::DecoderFinal } else { Self::Memory }
    }

    /// Whether the family of `config` makes this tensor; the format of another is
    /// [`QFormat::UNUSED`].
    pub const fn is_used(self, config: &ModelConfig) -> bool {
        match self {
            Self::EncoderEmbed | Self::Memory => config.has_encoder(),
            Self::DecoderEmbed | Self::DecoderFinal => config.has_decoder(),
            Self::Decoder(_, a) => match a {
                DecoderActivation::CrossQuery
                | DecoderActivation::CrossContext
                | DecoderActivation::Norm2
                | DecoderActivation::Sum2 => config.has_cross_attention(),
                _ => true,
            },
            Self::Encoder(..) | Self::Logits => true,
        }
    }
}

impl core::fmt::Display for ActivationSlot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::EncoderEmbed => f.write_str("encoder.embed"),
            Self::Encoder(layer, a) => {
                let name = ENCODER_NAMES[*a as usize].1;
                write!(f, "encoder.layers.{layer}.{name}")
            }
            Self::Memory => f.write_str("encoder.norm"),
            Self::DecoderEmbed => f.write_str("decoder.embed"),
            Self::Decoder(layer, a) => {
                let name = DECODER_NAMES[*a as usize].1;
                write!(f, "decoder.layers.{layer}.{name}")
            }
            Self::DecoderFinal => f.write_str("decoder.norm"),
            Self::Logits => f.write_str("logits"),
        }
    }
}

/// The formats of a file, read in place.
#[derive(Debug, Clone, Copy)]
pub struct Formats<'a> {
    bytes: &'a [u8],
    /// Of encoder and decoder.
    n_layers: [u16; 2],
}

impl<'a> Formats<'a> {
    pub(crate) fn new(bytes: &'a [u8], config: &ModelConfig) -> Self {
        Self { bytes, n_layers: config.n_layers() }
    }

    /// The format of one activation tensor.
    pub fn get(&self, slot: ActivationSlot) -> QFormat {
        self.nth(slot.place(self.n_layers))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / FORMAT_LEN
    }

    /// The format at `index`; zero bits past the end.
    pub(crate) fn nth(&self, index: usize) -> QFormat {
        match self.bytes.get(index.saturating_mul(FORMAT_LEN)..) {
            Some([frac_bits, bits, ..]) => {
                QFormat { frac_bits: i8::from_le_bytes([*frac_bits]), bits: *bits }
            }
            _ => QFormat { frac_bits: 0, bits: 0 },
        }
    }
}
