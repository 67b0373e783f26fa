//! The tensors of a model: which there are, in which order, of which kind and shape.
//!
//! The configuration alone says all of this, so that the runtime finds a tensor by arithmetic; the
//! directory in the file states it again, with offsets, for other readers and for the check.

use crate::config::{ModelConfig, NormPlace, Output, Positions, Precision};
use crate::formats::{ActivationSlot, DecoderActivation, EncoderActivation};
use crate::layout::{Layout, linear_f16_len, linear_i4_len, linear_i8_len};

/// Bytes of a directory entry: kind, 0, rows, cols, 0 0, offset, length.
pub const ENTRY_LEN: usize = 16;

/// Tensors of an encoder layer, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[allow(missing_docs, reason = "the names are those of the tensors")]
#[repr(u8)]
pub enum EncoderSlot {
    Norm1,
    Query,
    Key,
    Value,
    Output,
    Heads,
    Norm2,
    Linear1,
    Linear2,
}

/// Tensors of a decoder layer, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[allow(missing_docs, reason = "the names are those of the tensors")]
#[repr(u8)]
pub enum DecoderSlot {
    Norm1,
    Query,
    Key,
    Value,
    Output,
    Heads,
    Norm2,
    CrossQuery,
    CrossKey,
    CrossValue,
    CrossOutput,
    CrossHeads,
    Norm3,
    Linear1,
    Linear2,
}

/// One tensor of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Slot {
    /// `[source_vocab, d_model]`; absent where it is shared.
    SourceEmbedding,
    /// `[target_vocab, d_model]`; the output matrix too where that is tied, the source embedding too
    /// where that is shared.
    TargetEmbedding,
    /// Multipliers of the look-up in a tied integer embedding, `[target_vocab]`.
    TargetEmbeddingScale,
    /// Learned positions, `[max_source_len, d_model]`.
    SourcePositions,
    /// Learned positions, `[max_target_len, d_model]`.
    TargetPositions,
    /// Cosine and sine of every frequency, `[d_model / 2, 2]`, Q30.
    Frequencies,
    /// The output matrix where it is not tied, `[target_vocab, d_model]`.
    Output,
    /// Final LayerNorm of the encoder.
    EncoderNorm,
    /// Final LayerNorm of the decoder.
    DecoderNorm,
    /// In an encoder layer.
    Encoder(u16, EncoderSlot),
    /// In a decoder layer.
    Decoder(u16, DecoderSlot),
}

/// How the bytes of a tensor are to be read. The codes are those of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Not part of this model; no bytes.
    Absent = 0,
    /// `i8` weights, `i32` biases, `i32` multipliers: [`LinearInt`](crate::layout::LinearInt).
    LinearI8 = 1,
    /// Weights of 4 bits, `i32` biases, `i32` multipliers: [`LinearInt`](crate::layout::LinearInt) too.
    LinearI4 = 2,
    /// `f16` weights and biases: [`LinearF16`](crate::layout::LinearF16).
    LinearF16 = 3,
    /// LayerNorm in integers: epsilon `i64`, gamma `i32[d_model]`, beta `i32[d_model]`.
    NormI32 = 4,
    /// LayerNorm in `f16`: gamma, then beta.
    NormF16 = 5,
    /// Per head: multiplier of the scores `i32`, then of the context `i32`.
    Heads = 6,
    /// `i32` pairs in Q30.
    Frequencies = 7,
    /// `i32` multipliers.
    Multipliers = 8,
}

/// What the configuration asks of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// How its bytes are read.
    pub kind: Kind,
    /// Rows; 0 where absent.
    pub rows: u16,
    /// Columns; 0 where absent.
    pub cols: u16,
}

impl Expected {
    const ABSENT: Self = Self { kind: Kind::Absent, rows: 0, cols: 0 };

    /// Length of the blob in bytes, with matrices in this layout; `None` where it overflows.
    pub const fn byte_len(&self, layout: Layout) -> Option<usize> {
        let (rows, cols) = (self.rows as usize, self.cols as usize);
        match self.kind {
            Kind::Absent => Some(0),
            Kind::LinearI8 => linear_i8_len(layout, rows, cols),
            Kind::LinearI4 => linear_i4_len(rows, cols),
            Kind::LinearF16 if cfg!(not(feature = "half-float")) => None,
            Kind::LinearF16 => linear_f16_len(layout, rows, cols),
            Kind::NormI32 => Some(8 + 8 * cols),
            Kind::NormF16 => Some(4 * cols),
            Kind::Heads | Kind::Frequencies => Some(8 * rows),
            Kind::Multipliers => Some(4 * rows),
        }
    }
}

const SHARED: [Slot; 9] = [
    Slot::SourceEmbedding,
    Slot::TargetEmbedding,
    Slot::TargetEmbeddingScale,
    Slot::SourcePositions,
    Slot::TargetPositions,
    Slot::Frequencies,
    Slot::Output,
    Slot::EncoderNorm,
    Slot::DecoderNorm,
];

const ENCODER: [(EncoderSlot, &str); 9] = {
    use EncoderSlot::*;
    [
        (Norm1, "norm1"),
        (Query, "self_attention.query"),
        (Key, "self_attention.key"),
        (Value, "self_attention.value"),
        (Output, "self_attention.output"),
        (Heads, "self_attention.heads"),
        (Norm2, "norm2"),
        (Linear1, "feed_forward.linear1"),
        (Linear2, "feed_forward.linear2"),
    ]
};

const DECODER: [(DecoderSlot, &str); 15] = {
    use DecoderSlot::*;
    [
        (Norm1, "norm1"),
        (Query, "self_attention.query"),
        (Key, "self_attention.key"),
        (Value, "self_attention.value"),
        (Output, "self_attention.output"),
        (Heads, "self_attention.heads"),
        (Norm2, "norm2"),
        (CrossQuery, "cross_attention.query"),
        (CrossKey, "cross_attention.key"),
        (CrossValue, "cross_attention.value"),
        (CrossOutput, "cross_attention.output"),
        (CrossHeads, "cross_attention.heads"),
        (Norm3, "norm3"),
        (Linear1, "feed_forward.linear1"),
        (Linear2, "feed_forward.linear2"),
    ]
};

impl DecoderSlot {
    /// Whether only a decoder with cross-attention has this tensor.
    pub const fn is_cross(self) -> bool {
        use DecoderSlot::*;
        matches!(self, Norm2 | CrossQuery | CrossKey | CrossValue | CrossOutput | CrossHeads)
    }
}

impl Slot {
    /// The table of the source embedding.
    pub const fn source_table(config: &ModelConfig) -> Self {
        if config.shared_embedding { Self::TargetEmbedding } else { Self::SourceEmbedding }
    }

    /// Number of directory entries of a model.
    pub const fn count(config: &ModelConfig) -> usize {
        SHARED.len()
            + ENCODER.len() * config.encoder.n_layers as usize
            + DECODER.len() * config.decoder.n_layers as usize
    }

    /// Place in the directory.
    pub const fn index(self, config: &ModelConfig) -> usize {
        match self {
            Self::SourceEmbedding => 0,
            Self::TargetEmbedding => 1,
            Self::TargetEmbeddingScale => 2,
            Self::SourcePositions => 3,
            Self::TargetPositions => 4,
            Self::Frequencies => 5,
            Self::Output => 6,
            Self::EncoderNorm => 7,
            Self::DecoderNorm => 8,
            Self::Encoder(layer, slot) => {
                SHARED.len() + ENCODER.len() * layer as usize + slot as usize
            }
            Self::Decoder(layer, slot) => {
                SHARED.len()
                    + ENCODER.len() * config.encoder.n_layers as usize
                    + DECODER.len() * layer as usize
                    + slot as usize
            }
        }
    }

    /// All tensors in order.
    pub fn all(config: &ModelConfig) -> impl Iterator<Item = Self> + use<> {
        Self::listed(Self::count(config), config)
    }

    /// Those of a directory of this length, which is that of `config`.
    pub(crate) fn listed(count: usize, config: &ModelConfig) -> impl Iterator<Item = Self> + use<> {
        let layers = config.encoder.n_layers;
        (0..count).filter_map(move |index| Self::nth(index, layers))
    }

    /// The tensor at `index` of the directory.
    fn nth(index: usize, encoder_layers: u16) -> Option<Self> {
        let Some(index) = index.checked_sub(SHARED.len()) else {
            return SHARED.get(index).copied();
        };
        match index.checked_sub(ENCODER.len() * usize::from(encoder_layers)) {
            None => {
                let (layer, at) = (index / ENCODER.len(), index % ENCODER.len());
                ENCODER.get(at).map(|(slot, _)| Self::Encoder(layer as u16, *slot))
            }
            Some(index) => {
                let (layer, at) = (index / DECODER.len(), index % DECODER.len());
                DECODER.get(at).map(|(slot, _)| Self::Decoder(layer as u16, *slot))
            }
        }
    }

    /// Whether the weights of an integer model may have 4 bits here ([`Kind::LinearI4`]), where
    /// [`expected`](Self::expected) says 8: in matrices that multiply an activation.
    pub const fn may_be_i4(self, config: &ModelConfig) -> bool {
        let expected = self.expected(Precision::FixedPoint, config);
        matches!(expected.kind, Kind::LinearI8) && self.input(config).is_some()
    }

    /// What `config` asks of this tensor.
    pub const fn expected(self, precision: Precision, config: &ModelConfig) -> Expected {
        let d = config.d_model;
        let is_fixed = !cfg!(feature = "half-float") || matches!(precision, Precision::FixedPoint);
        let (linear, norm) = match is_fixed {
            true => (Kind::LinearI8, Kind::NormI32),
            false => (Kind::LinearF16, Kind::NormF16),
        };
        let (encoder, decoder) = (&config.encoder, &config.decoder);
        let is_learned = matches!(config.positions, Positions::Learned);
        let (kind, rows, cols) = match self {
            Self::SourceEmbedding if config.has_encoder() && !config.shared_embedding => {
                (linear, config.source_vocab, d)
            }
            Self::TargetEmbedding if config.has_decoder() => (linear, config.target_vocab, d),
            Self::TargetEmbeddingScale if is_fixed && config.output.is_tied() => {
                (Kind::Multipliers, config.target_vocab, 1)
            }
            Self::SourcePositions if is_learned && config.has_encoder() => {
                (linear, config.max_source_len, d)
            }
            Self::TargetPositions if is_learned && config.has_decoder() => {
                (linear, config.max_target_len, d)
            }
            Self::Frequencies if !is_learned => (Kind::Frequencies, d / 2, 2),
            Self::Output if matches!(config.output, Output::Untied | Output::UntiedBias) => {
                (linear, config.target_vocab, d)
            }
            Self::EncoderNorm if config.final_norm && config.has_encoder() => (norm, 1, d),
            Self::DecoderNorm if config.final_norm && config.has_decoder() => (norm, 1, d),
            Self::Encoder(_, slot) => match slot {
                EncoderSlot::Norm1 | EncoderSlot::Norm2 => (norm, 1, d),
                EncoderSlot::Linear1 => (linear, encoder.d_ff, d),
                EncoderSlot::Linear2 => (linear, d, encoder.d_ff),
                EncoderSlot::Heads if is_fixed => (Kind::Heads, encoder.n_heads, 2),
                EncoderSlot::Heads => return Expected::ABSENT,
                _ => (linear, d, d),
            },
            Self::Decoder(_, slot) if slot.is_cross() && !config.has_cross_attention() => {
                return Expected::ABSENT;
            }
            Self::Decoder(_, slot) => match slot {
                DecoderSlot::Norm1 | DecoderSlot::Norm2 | DecoderSlot::Norm3 => (norm, 1, d),
                DecoderSlot::Linear1 => (linear, decoder.d_ff, d),
                DecoderSlot::Linear2 => (linear, d, decoder.d_ff),
                DecoderSlot::Heads | DecoderSlot::CrossHeads if is_fixed => {
                    (Kind::Heads, decoder.n_heads, 2)
                }
                DecoderSlot::Heads | DecoderSlot::CrossHeads => return Expected::ABSENT,
                _ => (linear, d, d),
            },
            _ => return Expected::ABSENT,
        };
        Expected { kind, rows, cols }
    }

    /// What the LayerNorm at this slot reads and what it writes; `None` where there is no LayerNorm.
    pub const fn norm_activations(self, config: &ModelConfig) -> Option<[ActivationSlot; 2]> {
        use {ActivationSlot as A, DecoderActivation as D, EncoderActivation as E};
        let [sum, output] = match self {
            Self::EncoderNorm => {
                return Some([A::encoder_stream(config, config.encoder.n_layers), A::Memory]);
            }
            Self::DecoderNorm => {
                return Some([A::decoder_stream(config, config.decoder.n_layers), A::DecoderFinal]);
            }
            Self::Encoder(l, EncoderSlot::Norm1) => {
                [A::Encoder(l, E::Sum1), A::Encoder(l, E::Norm1)]
            }
            Self::Encoder(l, EncoderSlot::Norm2) => {
                [A::Encoder(l, E::Sum2), A::Encoder(l, E::Norm2)]
            }
            Self::Decoder(l, DecoderSlot::Norm1) => {
                [A::Decoder(l, D::Sum1), A::Decoder(l, D::Norm1)]
            }
            Self::Decoder(l, DecoderSlot::Norm2) => {
                [A::Decoder(l, D::Sum2), A::Decoder(l, D::Norm2)]
            }
            Self::Decoder(l, DecoderSlot::Norm3) => {
                [A::Decoder(l, D::Sum3), A::Decoder(l, D::Norm3)]
            }
            _ => return None,
        };
        match (sum.stream(config), config.norm) {
            (Some(stream), NormPlace::Pre) => Some([stream, output]),
            _ => Some([sum, output]),
        }
    }

    /// The activation that a linear tensor multiplies (for heads: the query); `None` where there
    /// is none.
    pub const fn input(self, config: &ModelConfig) -> Option<ActivationSlot> {
        use {DecoderActivation as D, EncoderActivation as E};
        let pre = matches!(config.norm, NormPlace::Pre);
        Some(match self {
            Self::TargetEmbedding if config.output.is_tied() => ActivationSlot::DecoderFinal,
            Self::Output => ActivationSlot::output_input(config),
            Self::Encoder(l, slot) => match slot {
                EncoderSlot::Query | EncoderSlot::Key | EncoderSlot::Value => {
                    if pre {
                        ActivationSlot::Encoder(l, E::Norm1)
                    } else {
                        ActivationSlot::encoder_stream(config, l)
                    }
                }
                EncoderSlot::Heads => ActivationSlot::Encoder(l, E::Query),
                EncoderSlot::Output => ActivationSlot::Encoder(l, E::Context),
                EncoderSlot::Linear1 => {
                    ActivationSlot::Encoder(l, if pre { E::Norm2 } else { E::Norm1 })
                }
                EncoderSlot::Linear2 => ActivationSlot::Encoder(l, E::Hidden),
                EncoderSlot::Norm1 | EncoderSlot::Norm2 => return None,
            },
            Self::Decoder(l, slot) => match slot {
                DecoderSlot::Query | DecoderSlot::Key | DecoderSlot::Value => {
                    if pre {
                        ActivationSlot::Decoder(l, D::Norm1)
                    } else {
                        ActivationSlot::decoder_stream(config, l)
                    }
                }
                DecoderSlot::Heads => ActivationSlot::Decoder(l, D::Query),
                DecoderSlot::Output => ActivationSlot::Decoder(l, D::Context),
                DecoderSlot::CrossQuery => {
                    ActivationSlot::Decoder(l, if pre { D::Norm2 } else { D::Norm1 })
                }
                DecoderSlot::CrossKey | DecoderSlot::CrossValue => ActivationSlot::Memory,
                DecoderSlot::CrossHeads => ActivationSlot::Decoder(l, D::CrossQuery),
                DecoderSlot::CrossOutput => ActivationSlot::Decoder(l, D::CrossContext),
                DecoderSlot::Linear1 if pre => ActivationSlot::Decoder(l, D::Norm3),
                DecoderSlot::Linear1 => ActivationSlot::decoder_middle(config, l),
                DecoderSlot::Linear2 => ActivationSlot::Decoder(l, D::Hidden),
                DecoderSlot::Norm1 | DecoderSlot::Norm2 | DecoderSlot::Norm3 => return None,
            },
            _ => return None,
        })
    }
}

impl core::fmt::Display for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::SourceEmbedding => f.write_str("source_embedding"),
            Self::TargetEmbedding => f.write_str("target_embedding"),
            Self::TargetEmbeddingScale => f.write_str("target_embedding.scale"),
            Self::SourcePositions => f.write_str("source_positions"),
            Self::TargetPositions => f.write_str("target_positions"),
            Self::Frequencies => f.write_str("frequencies"),
            Self::Output => f.write_str("output"),
            Self::EncoderNorm => f.write_str("encoder.norm"),
            Self::DecoderNorm => f.write_str("decoder.norm"),
            Self::Encoder(layer, slot) => {
                let name = ENCODER[*slot as usize].1;
                write!(f, "encoder.layers.{layer}.{name}")
            }
            Self::Decoder(layer, slot) => {
                let name = DECODER[*slot as usize].1;
                write!(f, "decoder.layers.{layer}.{name}")
            }
        }
    }
}

/// A directory entry as it lies in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: u8,
    pub rows: u16,
    pub cols: u16,
    /// Offset in the weights.
    pub offset: u32,
    pub len: u32,
}

impl Entry {
    /// Entry `index`; all zero past the end.
    pub fn read(directory: &[u8], index: usize) -> Self {
        let start = index.saturating_mul(ENTRY_LEN);
        let empty = Self { kind: 0, rows: 0, cols: 0, offset: 0, len: 0 };
        let Some(&[kind, _, r0, r1, c0, c1, _, _, o0, o1, o2, o3, l0, l1, l2, l3]) =
            directory.get(start..).and_then(|rest| rest.first_chunk::<ENTRY_LEN>())
        else {
            return empty;
        };
        Self {
            kind,
            rows: u16::from_le_bytes([r0, r1]),
            cols: u16::from_le_bytes([c0, c1]),
            offset: u32::from_le_bytes([o0, o1, o2, o3]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
        }
    }

    /// Whether its weights have 4 bits.
    pub const fn is_i4(&self) -> bool {
        cfg!(feature = "int4") && self.kind == Kind::LinearI4 as u8
    }

    #[cfg(feature = "std")]
    pub fn write(&self) -> [u8; ENTRY_LEN] {
        let ([r0, r1], [c0, c1]) = (self.rows.to_le_bytes(), self.cols.to_le_bytes());
        let [o0, o1, o2, o3] = self.offset.to_le_bytes();
        let [l0, l1, l2, l3] = self.len.to_le_bytes();
        [self.kind, 0, r0, r1, c0, c1, 0, 0, o0, o1, o2, o3, l0, l1, l2, l3]
    }
}
