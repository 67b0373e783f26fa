//! The postcard message that a file is.

use serde::{Deserialize, Serialize};

#[cfg(feature = "std")]
use crate::header::BLOCK_LEN;

/// One postcard message. Lists are byte blobs, because postcard cannot borrow a list of structs.
#[cfg(feature = "std")]
#[derive(Serialize)]
pub(crate) struct Envelope<'a> {
    pub magic: [u8; 4],
    pub version: [u8; 2],
    /// serde knows arrays up to 32; two of them are 64 bytes without a length in between.
    pub config: [[u8; BLOCK_LEN / 2]; 2],
    pub parts: Parts<'a>,
}

/// What follows the start of fixed width, which [`Header`](crate::header::Header) reads in place; in
/// postcard the fields of a struct follow one another, so these are a message of their own.
#[derive(Serialize, Deserialize)]
pub(crate) struct Parts<'a> {
    pub formats: &'a [u8],
    pub directory: &'a [u8],
    pub vocabulary: &'a [u8],
    /// Zeros that bring `weights` to a multiple of [`ALIGN`](crate::ALIGN) of the file.
    pub padding: &'a [u8],
    pub weights: &'a [u8],
    /// CRC-32 (ISO-HDLC, little-endian) of everything before it.
    pub crc: [u8; CRC_LEN],
}

pub(crate) const CRC_LEN: usize = 4;

/// The checksum of a file without its last [`CRC_LEN`] bytes.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    CRC.checksum(bytes)
}
