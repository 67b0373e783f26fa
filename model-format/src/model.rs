//! The checked view of a file.

use crate::check;
use crate::config::{MAX_FIXED_LEN, ModelConfig, Precision, TextConfig};
use crate::directory::{Entry, Kind, Slot};
use crate::envelope::{CRC_LEN, Parts, crc32};
use crate::error::{ModelError, Side, VocabularyFault};
use crate::formats::{ActivationSlot, FORMAT_LEN, Formats};
use crate::header::{BLOCK_LEN, BLOCK_OFFSET, Header, HeaderError};
use crate::layout::{LinearF16, LinearInt, Packing, cast, split};
use crate::vocabulary::Vocabulary;

/// The alignment of a file in memory, and of the weights and of each tensor in the file.
pub const ALIGN: usize = 16;

/// How much of a file is checked before it is used.
///
/// Sizes, offsets, the configuration, formats, vocabularies and constants are always checked: after
/// any of these, nothing the runtime does can panic or leave its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checks {
    /// Everything: also the CRC-32, and that no row of weights can overflow its accumulator.
    #[default]
    Full,
    /// Everything but the CRC-32.
    SkipCrc,
    /// Neither the CRC-32 nor the weights, for a fast boot from memory that is trusted. A damaged
    /// weight then gives wrong answers.
    Structure,
}

/// A model file, checked once and read in place.
#[derive(Debug, Clone, Copy)]
pub struct Model<'a> {
    file_len: usize,
    header: Header,
    formats: Formats<'a>,
    directory: &'a [u8],
    weights: &'a [u8],
    source: Vocabulary<'a>,
    target: Vocabulary<'a>,
}

impl<'a> Model<'a> {
    /// Checks all of `file`.
    ///
    /// # Errors
    /// [`ModelError`] says what is wrong and where.
    pub fn from_bytes(file: &'a [u8]) -> Result<Self, ModelError> {
        Self::from_bytes_with(file, Checks::Full)
    }

    /// Checks as much of `file` as `checks` asks for.
    ///
    /// # Errors
    /// [`ModelError`] says what is wrong and where.
    pub fn from_bytes_with(file: &'a [u8], checks: Checks) -> Result<Self, ModelError> {
        let opened = Self::open(file, checks);
        if let Ok(model) = &opened {
            check::tensors(model, checks != Checks::Structure)?;
        }
        opened
    }

    /// All but the check of the tensors. On its own stack, which is gone when that runs.
    #[inline(never)]
    fn open(file: &'a [u8], checks: Checks) -> Result<Self, ModelError> {
        let header = Header::read(file).map_err(ModelError::Header)?;
        let config = &header.config;
        if header.precision == Precision::FixedPoint {
            let len = config.max_source_len.max(config.max_target_len);
            if len > MAX_FIXED_LEN {
                return Err(ModelError::TooLong { len });
            }
        }
        let offset = file.as_ptr().addr() % ALIGN;
        if offset != 0 {
            return Err(ModelError::Misaligned { offset });
        }
        let parts = envelope(file, checks)?;
        let formats = Formats::new(parts.formats, config);
        let (source, target) = vocabularies(parts.vocabulary, config)?;
        let n_formats = match header.precision {
            Precision::FixedPoint => ActivationSlot::count(config),
            Precision::HalfFloat => 0,
        };
        list_len(parts.formats, n_formats, FORMAT_LEN)?;
        list_len(parts.directory, Slot::count(config), crate::directory::ENTRY_LEN)?;
        Ok(Self {
            file_len: file.len(),
            header,
            formats,
            directory: parts.directory,
            weights: parts.weights,
            source,
            target,
        })
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> usize {
        self.file_len
    }

    /// The configuration block.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The architecture.
    pub fn config(&self) -> &ModelConfig {
        &self.header.config
    }

    /// Text to ids and back.
    pub fn text(&self) -> &TextConfig {
        &self.header.text
    }

    /// Formats of the activations; only integer models have them.
    pub fn formats(&self) -> &Formats<'a> {
        &self.formats
    }

    /// Source symbols.
    pub fn source_vocabulary(&self) -> &Vocabulary<'a> {
        &self.source
    }

    /// Target symbols.
    pub fn target_vocabulary(&self) -> &Vocabulary<'a> {
        &self.target
    }

    /// How a tensor is stored.
    pub fn kind(&self, slot: Slot) -> Kind {
        let config = self.config();
        match slot.expected(self.header.precision, config).kind {
            Kind::LinearI8 if self.entry(slot).is_i4() && slot.may_be_i4(config) => Kind::LinearI4,
            kind => kind,
        }
    }

    /// An integer linear tensor; empty where the model has none there.
    #[inline(never)]
    pub fn linear_int(&self, slot: Slot) -> LinearInt<'a> {
        let entry = self.entry(slot);
        let (rows, cols) = (usize::from(entry.rows), usize::from(entry.cols));
        let packing = match entry.is_i4() {
            true => Packing::Nibbles,
            false => Packing::of(self.header.layout),
        };
        LinearInt::read(packing, rows, cols, self.blob(entry))
    }

    /// An `f16` linear tensor; empty where the model has none there.
    pub fn linear_f16(&self, slot: Slot) -> LinearF16<'a> {
        let entry = self.entry(slot);
        let (rows, cols) = (usize::from(entry.rows), usize::from(entry.cols));
        LinearF16::read(self.header.layout, rows, cols, self.blob(entry))
    }

    /// An integer LayerNorm; empty where the model has none there.
    pub fn norm_i32(&self, slot: Slot) -> NormI32<'a> {
        let entry = self.entry(slot);
        let (eps, constants) = split(self.blob(entry), 8);
        let constants = cast(constants).split_at_checked(entry.cols.into());
        let (gamma, beta) = constants.unwrap_or_default();
        let eps = eps.first_chunk().copied().unwrap_or_default();
        NormI32 { eps: i64::from_le_bytes(eps), gamma, beta }
    }

    /// An `f16` LayerNorm; empty where the model has none there.
    pub fn norm_f16(&self, slot: Slot) -> NormF16<'a> {
        let entry = self.entry(slot);
        let (gamma, beta) = split(self.blob(entry), 2 * usize::from(entry.cols));
        NormF16 { gamma: cast(gamma), beta: cast(beta) }
    }

    /// Pairs of constants: `[score, context]` multipliers of every head, or `[cos, sin]` of every
    /// frequency; empty where the model has none there.
    pub fn pairs(&self, slot: Slot) -> &'a [[i32; 2]] {
        cast(self.blob(self.entry(slot)))
    }

    /// Multipliers; empty where the model has none there.
    pub fn multipliers(&self, slot: Slot) -> &'a [i32] {
        cast(self.blob(self.entry(slot)))
    }

    /// A tensor as it lies in the file.
    pub fn bytes(&self, slot: Slot) -> &'a [u8] {
        self.blob(self.entry(slot))
    }

    /// Length of a tensor in the file, in bytes.
    pub fn byte_len(&self, slot: Slot) -> usize {
        self.bytes(slot).len()
    }

    pub(crate) fn entry(&self, slot: Slot) -> Entry {
        Entry::read(self.directory, slot.index(self.config()))
    }

    /// Length of the directory.
    pub(crate) fn entries(&self) -> usize {
        self.directory.len() / crate::directory::ENTRY_LEN
    }

    pub(crate) fn weights_len(&self) -> usize {
        self.weights.len()
    }

    fn blob(&self, entry: Entry) -> &'a [u8] {
        let start = entry.offset as usize;
        self.weights.get(start..start.saturating_add(entry.len as usize)).unwrap_or_default()
    }
}

/// LayerNorm in integers, read in place. `gamma` and `beta` are `[d_model]`.
///
/// With `n` in Q20, `out = rescale(n, gamma) + beta`, in the output's Q format.
#[derive(Debug, Clone, Copy)]
pub struct NormI32<'a> {
    /// `max(1, round(eps * d_model^2 * 2^(2 * frac_bits)))` for the input's `frac_bits`.
    pub eps: i64,
    /// Multipliers of [`rescale`](crate::numeric::rescale).
    pub gamma: &'a [i32],
    /// In units of the output.
    pub beta: &'a [i32],
}

/// LayerNorm in `f16` bit patterns, read in place, `[d_model]` each.
#[derive(Debug, Clone, Copy)]
pub struct NormF16<'a> {
    /// Scale.
    pub gamma: &'a [u16],
    /// Shift.
    pub beta: &'a [u16],
}

fn envelope(file: &[u8], checks: Checks) -> Result<Parts<'_>, ModelError> {
    let truncated = ModelError::Truncated { len: file.len() };
    let message = file.get(BLOCK_OFFSET + BLOCK_LEN..).unwrap_or_default();
    let (parts, rest) = postcard::take_from_bytes::<Parts<'_>>(message).map_err(|_| truncated)?;
    if !rest.is_empty() {
        return Err(ModelError::TrailingBytes { count: rest.len() });
    }
    if checks == Checks::Full {
        let covered = file.get(..file.len().saturating_sub(CRC_LEN)).unwrap_or_default();
        let (stored, computed) = (u32::from_le_bytes(parts.crc), crc32(covered));
        if stored != computed {
            return Err(ModelError::Checksum { stored, computed });
        }
    }
    let offset = file.len().saturating_sub(CRC_LEN).saturating_sub(parts.weights.len());
    if !offset.is_multiple_of(ALIGN) {
        return Err(ModelError::MisplacedWeights { offset });
    }
    Ok(parts)
}

fn list_len(list: &[u8], count: usize, entry_len: usize) -> Result<(), ModelError> {
    let expected = count.saturating_mul(entry_len);
    if list.len() == expected {
        Ok(())
    } else {
        Err(ModelError::ListLength { expected, found: list.len() })
    }
}

fn vocabularies<'a>(
    blob: &'a [u8],
    config: &ModelConfig,
) -> Result<(Vocabulary<'a>, Vocabulary<'a>), ModelError> {
    let (source, rest) = vocabulary(blob, config.source_vocab, Side::Source)?;
    if config.shared_embedding {
        return match rest.is_empty() {
            true => Ok((source, source)),
            false => Err(ModelError::Vocabulary(Side::Source, VocabularyFault::TrailingBytes)),
        };
    }
    let (target, rest) = vocabulary(rest, config.target_vocab, Side::Target)?;
    if rest.is_empty() {
        Ok((source, target))
    } else {
        Err(ModelError::Vocabulary(Side::Target, VocabularyFault::TrailingBytes))
    }
}

#[inline(never)]
fn vocabulary(blob: &[u8], len: u16, side: Side) -> Result<(Vocabulary<'_>, &[u8]), ModelError> {
    Vocabulary::split(blob, len).map_err(|fault| ModelError::Vocabulary(side, fault))
}

impl From<HeaderError> for ModelError {
    fn from(error: HeaderError) -> Self {
        Self::Header(error)
    }
}
