//! The writer of files.

use crate::config::Precision;
use crate::directory::{ENTRY_LEN, Entry, Kind, Slot};
use crate::envelope::{CRC_LEN, Envelope, Parts, crc32};
use crate::error::ModelError;
use crate::formats::ActivationSlot;
use crate::header::{BLOCK_LEN, Header, MAGIC, VERSION};
use crate::model::{ALIGN, Model};
use crate::numeric::QFormat;
use crate::vocabulary::Vocabulary;

/// Everything that goes into a file, already in integers.
pub struct FileBuilder {
    header: Header,
    formats: Vec<QFormat>,
    source: Vec<String>,
    target: Vec<String>,
    four_bit: Vec<Slot>,
    directory: Vec<u8>,
    weights: Vec<u8>,
}

impl FileBuilder {
    /// Starts a file. `source` and `target` are the texts of all ids, empty for special ids; with a
    /// shared embedding they are the same.
    pub fn new(header: Header, source: Vec<String>, target: Vec<String>) -> Self {
        let (formats, four_bit, directory, weights) = Default::default();
        Self { header, formats, source, target, four_bit, directory, weights }
    }

    /// Chooses the tensors of an integer model whose weights have 4 bits; none otherwise.
    pub fn four_bit(&mut self, is_four_bit: impl Fn(Slot) -> bool) {
        let config = self.header.config;
        let may_be = |slot: &Slot| slot.may_be_i4(&config) && is_four_bit(*slot);
        self.four_bit = match self.header.precision {
            Precision::FixedPoint => Slot::all(&config).filter(may_be).collect(),
            Precision::HalfFloat => Vec::new(),
        };
    }

    /// Sets the formats of an integer model, in the order of [`ActivationSlot::all`].
    pub fn formats(&mut self, mut get: impl FnMut(ActivationSlot) -> QFormat) {
        self.formats = ActivationSlot::all(&self.header.config).map(&mut get).collect();
    }

    /// Adds all tensors: `blob` gives the bytes of each one that the configuration asks for.
    ///
    /// # Errors
    /// The error of `blob`.
    pub fn tensors<E>(
        &mut self,
        mut blob: impl FnMut(Slot, Kind) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let config = self.header.config;
        for slot in Slot::all(&config) {
            let expected = slot.expected(self.header.precision, &config);
            let kind = match self.four_bit.contains(&slot) {
                true => Kind::LinearI4,
                false => expected.kind,
            };
            let bytes = match kind {
                Kind::Absent => Vec::new(),
                kind => blob(slot, kind)?,
            };
            self.weights.resize(self.weights.len().next_multiple_of(ALIGN), 0);
            let entry = Entry {
                kind: kind as u8,
                rows: expected.rows,
                cols: expected.cols,
                offset: self.weights.len() as u32,
                len: bytes.len() as u32,
            };
            self.directory.extend(entry.write());
            self.weights.extend(bytes);
        }
        debug_assert_eq!(self.directory.len(), Slot::count(&config) * ENTRY_LEN);
        Ok(())
    }

    /// The file, checked as a reader checks it.
    ///
    /// # Errors
    /// What [`Model::from_bytes`] finds wrong with it.
    pub fn finish(self) -> Result<AlignedBytes, ModelError> {
        let formats: Vec<u8> = match self.header.precision {
            Precision::FixedPoint => {
                self.formats.iter().flat_map(|q| [q.frac_bits.to_le_bytes()[0], q.bits]).collect()
            }
            Precision::HalfFloat => Vec::new(),
        };
        let mut vocabulary = Vocabulary::pack(&self.source);
        if !self.header.config.shared_embedding {
            vocabulary.extend(Vocabulary::pack(&self.target));
        }
        let block = self.header.encode();
        let mut config = [[0; BLOCK_LEN / 2]; 2];
        for (half, bytes) in config.iter_mut().zip(block.chunks_exact(BLOCK_LEN / 2)) {
            half.copy_from_slice(bytes);
        }
        // The padding's own length is one byte, so growing it moves the weights byte by byte.
        let zeros = [0; ALIGN];
        let message = |padding: usize| {
            let envelope = Envelope {
                magic: MAGIC,
                version: VERSION.to_le_bytes(),
                config,
                parts: Parts {
                    formats: &formats,
                    directory: &self.directory,
                    vocabulary: &vocabulary,
                    padding: &zeros[..padding],
                    weights: &self.weights,
                    crc: [0; CRC_LEN],
                },
            };
            postcard::to_stdvec(&envelope).expect("a Vec grows as needed")
        };
        let unpadded = message(0);
        let start = unpadded.len() - CRC_LEN - self.weights.len();
        let mut file = message(start.next_multiple_of(ALIGN) - start);
        let covered = file.len() - CRC_LEN;
        let crc = crc32(&file[..covered]);
        file[covered..].copy_from_slice(&crc.to_le_bytes());
        let file = AlignedBytes::from(&file[..]);
        Model::from_bytes(&file)?;
        Ok(file)
    }
}

/// Bytes on a multiple of [`ALIGN`], as [`Model::from_bytes`] needs them.
#[derive(Clone, Default)]
pub struct AlignedBytes {
    blocks: Vec<u128>,
    len: usize,
}

impl AlignedBytes {
    /// `len` times `byte`: memory for an arena.
    pub fn filled(byte: u8, len: usize) -> Self {
        Self { blocks: vec![u128::from_ne_bytes([byte; ALIGN]); len.div_ceil(ALIGN)], len }
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut blocks = vec![0_u128; bytes.len().div_ceil(ALIGN)];
        bytemuck::cast_slice_mut::<u128, u8>(&mut blocks)[..bytes.len()].copy_from_slice(bytes);
        Self { blocks, len: bytes.len() }
    }
}

impl core::ops::Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks)[..self.len]
    }
}

impl core::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.blocks)[..self.len]
    }
}

// `u128` has an alignment of 16 on every host since Rust 1.77.
const _: () = assert!(align_of::<u128>() == ALIGN);
