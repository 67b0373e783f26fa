//! The fixed-width start of a file: magic, version and the configuration block.
//!
//! Every field lies at a fixed offset, so that a `const fn` can read it from the bytes of a file
//! that the compiler includes.

use crate::config::{
    Activation, ConfigField, Family, ModelConfig, NormPlace, Output, Positions, Precision,
    Segmentation, SourceFrame, SpecialIds, StackConfig, TextConfig, UnknownPolicy,
};
use crate::layout::Layout;

/// The first bytes of every file.
pub const MAGIC: [u8; 4] = *b"KFMF";
/// The format version that this crate writes, and the newest it reads.
pub const VERSION: u16 = 1;
/// Length of the configuration block in bytes.
pub const BLOCK_LEN: usize = 64;
/// Offset of the configuration block in the file.
pub const BLOCK_OFFSET: usize = 6;

/// The configuration block, decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Header {
    /// How numbers are stored.
    pub precision: Precision,
    /// How matrices are laid out.
    pub layout: Layout,
    /// The architecture.
    pub config: ModelConfig,
    /// Text to ids and back.
    pub text: TextConfig,
}

/// Why the first bytes are not the start of a readable file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HeaderError {
    /// Shorter than magic, version and configuration block.
    TooShort {
        /// Bytes given.
        len: usize,
    },
    /// The magic is missing.
    NotAModel,
    /// A version this crate does not read.
    UnsupportedVersion {
        /// Version of the file.
        found: u16,
    },
    /// A field with a value outside its range.
    Config(ConfigField),
    /// A file that a build with more features reads.
    Unread {
        /// The feature that this one lacks.
        feature: &'static str,
    },
}

impl Header {
    /// Reads the start of `file`, checking every field of the configuration block.
    ///
    /// # Errors
    /// [`HeaderError`] says which bytes are wrong.
    pub const fn read(file: &[u8]) -> Result<Self, HeaderError> {
        let Some(file) = file.first_chunk::<{ BLOCK_OFFSET + BLOCK_LEN }>() else {
            return Err(HeaderError::TooShort { len: file.len() });
        };
        let mut i = 0;
        while i < MAGIC.len() {
            if byte(file, i) != MAGIC[i] {
                return Err(HeaderError::NotAModel);
            }
            i += 1;
        }
        let version = word(file, 4);
        if version != VERSION {
            return Err(HeaderError::UnsupportedVersion { found: version });
        }
        match Self::decode(file) {
            Ok(header) => match header.config.fault() {
                None => Ok(header),
                Some(field) => Err(HeaderError::Config(field)),
            },
            Err(error) => Err(error),
        }
    }

    const fn decode(file: &Start) -> Result<Self, HeaderError> {
        let mut i = 0;
        while i < CODES.len() {
            let (count, field) = CODES[i];
            if byte(file, BLOCK_OFFSET + i) >= count {
                return Err(HeaderError::Config(field));
            }
            i += 1;
        }
        let precision = match byte(file, at::PRECISION) {
            0 => Precision::FixedPoint,
            _ if cfg!(feature = "half-float") => Precision::HalfFloat,
            _ => return Err(HeaderError::Unread { feature: "half-float" }),
        };
        let layout = match Layout::from_code(byte(file, at::LAYOUT)) {
            Some(layout) if layout.suits(precision) => layout,
            _ => return Err(HeaderError::Config(ConfigField::Layout)),
        };
        if !layout.is_read(precision) {
            return Err(HeaderError::Unread { feature: "layouts" });
        }
        let mut i = 0;
        while i < at::RESERVED.len() {
            if byte(file, at::RESERVED[i]) != 0 {
                return Err(HeaderError::Config(ConfigField::Reserved));
            }
            i += 1;
        }
        Ok(Self { precision, layout, config: decode_model(file), text: decode_text(file) })
    }

    /// Writes the configuration block.
    pub fn encode(&self) -> [u8; BLOCK_LEN] {
        let mut block = [0; BLOCK_LEN];
        let mut put = |offset: usize, bytes: &[u8]| {
            for (to, from) in block.iter_mut().skip(offset - BLOCK_OFFSET).zip(bytes) {
                *to = *from;
            }
        };
        let c = &self.config;
        put(at::PRECISION, &[self.precision as u8]);
        put(at::LAYOUT, &[self.layout.code()]);
        put(at::FAMILY, &[c.family as u8]);
        put(at::NORM, &[c.norm as u8]);
        put(at::FINAL_NORM, &[c.final_norm.into()]);
        put(at::POSITIONS, &[c.positions as u8]);
        put(at::OUTPUT, &[c.output as u8]);
        put(at::ACTIVATION, &[c.activation as u8]);
        put(at::SHARED_EMBEDDING, &[c.shared_embedding.into()]);
        put(at::PLAIN_EMBEDDING, &[(!c.scale_embedding).into()]);
        put(at::SOURCE_FRAME, &[c.source_frame as u8]);
        put(at::SOURCE_SEGMENTATION, &[self.text.source as u8]);
        put(at::TARGET_SEGMENTATION, &[self.text.target as u8]);
        put(at::FOLD_CASE, &[self.text.fold_case.into()]);
        put(at::UNKNOWN_POLICY, &[self.text.unknown as u8]);
        let words = [
            c.d_model,
            c.encoder.n_layers,
            c.encoder.n_heads,
            c.encoder.d_ff,
            c.decoder.n_layers,
            c.decoder.n_heads,
            c.decoder.d_ff,
            c.source_vocab,
            c.target_vocab,
            c.max_source_len,
            c.max_target_len,
            c.special.pad,
            c.special.start,
            c.special.end,
            c.special.unknown,
        ];
        for (i, word) in words.into_iter().enumerate() {
            put(at::WORDS + 2 * i, &word.to_le_bytes());
        }
        put(at::EPS, &c.layer_norm_eps.to_le_bytes());
        block
    }
}

/// Offsets in the file.
mod at {
    use super::BLOCK_OFFSET as B;
    pub const PRECISION: usize = B;
    pub const LAYOUT: usize = B + 1;
    pub const FAMILY: usize = B + 2;
    pub const NORM: usize = B + 3;
    pub const FINAL_NORM: usize = B + 4;
    pub const POSITIONS: usize = B + 5;
    pub const OUTPUT: usize = B + 6;
    pub const ACTIVATION: usize = B + 7;
    pub const SOURCE_SEGMENTATION: usize = B + 8;
    pub const TARGET_SEGMENTATION: usize = B + 9;
    pub const FOLD_CASE: usize = B + 10;
    pub const UNKNOWN_POLICY: usize = B + 11;
    pub const SHARED_EMBEDDING: usize = B + 12;
    pub const PLAIN_EMBEDDING: usize = B + 13;
    pub const SOURCE_FRAME: usize = B + 14;
    pub const WORDS: usize = B + 16;
    pub const EPS: usize = B + 48;
    /// Bytes that a version 1 file leaves at zero.
    pub const RESERVED: [usize; 15] = [
        B + 15,
        B + 46,
        B + 47,
        B + 52,
        B + 53,
        B + 54,
        B + 55,
        B + 56,
        B + 57,
        B + 58,
        B + 59,
        B + 60,
        B + 61,
        B + 62,
        B + 63,
    ];
}

/// The start of a file.
type Start = [u8; BLOCK_OFFSET + BLOCK_LEN];

/// How many values the bytes of the block have, in order.
const CODES: [(u8, ConfigField); 15] = [
    (2, ConfigField::Precision),
    (Layout::ALL.len() as u8, ConfigField::Layout),
    (4, ConfigField::Family),
    (2, ConfigField::Norm),
    (2, ConfigField::FinalNorm),
    (3, ConfigField::Positions),
    (4, ConfigField::Output),
    (4, ConfigField::Activation),
    (2, ConfigField::SourceSegmentation),
    (2, ConfigField::TargetSegmentation),
    (2, ConfigField::FoldCase),
    (2, ConfigField::UnknownPolicy),
    (2, ConfigField::SharedEmbedding),
    (2, ConfigField::ScaleEmbedding),
    (3, ConfigField::SourceFrame),
];

/// `file` has the values of [`CODES`].
const fn decode_model(file: &Start) -> ModelConfig {
    ModelConfig {
        family: match byte(file, at::FAMILY) {
            0 => Family::EncoderDecoder,
            1 => Family::DecoderOnly,
            2 => Family::Tagger,
            _ => Family::Classifier,
        },
        d_model: nth_word(file, 0),
        encoder: decode_stack(file, 1),
        decoder: decode_stack(file, 4),
        source_vocab: nth_word(file, 7),
        target_vocab: nth_word(file, 8),
        max_source_len: nth_word(file, 9),
        max_target_len: nth_word(file, 10),
        norm: match byte(file, at::NORM) {
            0 => NormPlace::Pre,
            _ => NormPlace::Post,
        },
        final_norm: byte(file, at::FINAL_NORM) != 0,
        positions: match byte(file, at::POSITIONS) {
            0 => Positions::SinusoidalInterleaved,
            1 => Positions::SinusoidalHalves,
            _ => Positions::Learned,
        },
        output: match byte(file, at::OUTPUT) {
            0 => Output::Tied,
            1 => Output::TiedBias,
            2 => Output::Untied,
            _ => Output::UntiedBias,
        },
        shared_embedding: byte(file, at::SHARED_EMBEDDING) != 0,
        scale_embedding: byte(file, at::PLAIN_EMBEDDING) == 0,
        source_frame: match byte(file, at::SOURCE_FRAME) {
            0 => SourceFrame::End,
            1 => SourceFrame::StartEnd,
            _ => SourceFrame::Bare,
        },
        activation: match byte(file, at::ACTIVATION) {
            0 => Activation::Relu,
            1 => Activation::Gelu,
            2 => Activation::GeluTanh,
            _ => Activation::Silu,
        },
        layer_norm_eps: f32::from_bits(
            word(file, at::EPS) as u32 | (word(file, at::EPS + 2) as u32) << 16,
        ),
        special: SpecialIds {
            pad: nth_word(file, 11),
            start: nth_word(file, 12),
            end: nth_word(file, 13),
            unknown: nth_word(file, 14),
        },
    }
}

#[inline(always)]
const fn decode_stack(file: &Start, first: usize) -> StackConfig {
    StackConfig {
        n_layers: nth_word(file, first),
        n_heads: nth_word(file, first + 1),
        d_ff: nth_word(file, first + 2),
    }
}

/// As [`decode_model`].
const fn decode_text(file: &Start) -> TextConfig {
    TextConfig {
        source: segmentation(byte(file, at::SOURCE_SEGMENTATION)),
        target: segmentation(byte(file, at::TARGET_SEGMENTATION)),
        fold_case: byte(file, at::FOLD_CASE) != 0,
        unknown: match byte(file, at::UNKNOWN_POLICY) {
            0 => UnknownPolicy::Refuse,
            _ => UnknownPolicy::Replace,
        },
    }
}

const fn segmentation(code: u8) -> Segmentation {
    match code {
        0 => Segmentation::Characters,
        _ => Segmentation::Symbols,
    }
}

/// The byte at `offset`; 0 past the end, where there is none of interest.
#[inline(always)]
const fn byte(file: &Start, offset: usize) -> u8 {
    if offset < file.len() { file[offset] } else { 0 }
}

#[inline(always)]
const fn word(file: &Start, offset: usize) -> u16 {
    u16::from_le_bytes([byte(file, offset), byte(file, offset + 1)])
}

#[inline(always)]
const fn nth_word(file: &Start, n: usize) -> u16 {
    word(file, at::WORDS + 2 * n)
}
