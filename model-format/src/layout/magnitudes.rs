//! Sums of the magnitudes of weights, which bound what a row can give.

use super::int::{BLOCK_ROWS, Packing};

/// A sum of a row with a weight of -128 is at least this, any other is less.
pub(super) const OUT_OF_RANGE: u32 = 1 << 24;
/// What bit 7 of a magnitude becomes in a sum.
const MARK: u32 = OUT_OF_RANGE >> 7;
/// Tiles after which sums of 16 bits may be full: each adds two magnitudes of at most 128.
const FLUSH: usize = 255;

/// Those of four rows of `cols` columns, one behind the other; zeros past the last.
pub(super) fn of_rows(data: &[i8], cols: usize) -> [u32; BLOCK_ROWS] {
    let mut sums = [0; BLOCK_ROWS];
    for (row, sum) in sums.iter_mut().enumerate() {
        let start = row.saturating_mul(cols);
        let (mut bits, mut total) = (0, 0_u32);
        for weight in data.get(start..start.saturating_add(cols)).unwrap_or_default() {
            let magnitude = u32::from(weight.unsigned_abs());
            total = total.wrapping_add(magnitude);
            bits |= magnitude;
        }
        *sum = total.wrapping_add((bits & 0x80).wrapping_mul(MARK));
    }
    sums
}

/// Those of the rows of a block of tiles.
#[inline(never)]
pub(super) fn of_tiles(tiles: &[[u32; 4]], packing: Packing) -> [u32; BLOCK_ROWS] {
    let flip = if packing == Packing::PairedRows { 0x0080_0080 } else { 0x8080_8080 };
    let mut sums = [0_u32; BLOCK_ROWS];
    for tiles in tiles.chunks(FLUSH) {
        let (mut first, mut second) = (Lanes::default(), Lanes::default());
        for &[a, b, c, d] in tiles {
            first.add(a ^ flip);
            first.add(b ^ flip);
            second.add(c ^ flip);
            second.add(d ^ flip);
        }
        let ([a, b, c, d], [e, f, g, h]) = (first.totals(), second.totals());
        let more = match packing {
            Packing::PairedRows => [a + c, b + d, e + g, f + h],
            _ => [a + e, b + f, c + g, d + h],
        };
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = sum.wrapping_add(more);
        }
    }
    sums
}

/// What was in the four bytes of words.
#[derive(Default)]
struct Lanes {
    /// Sums of bytes 0 and 2, and of 1 and 3, in halves of a word.
    even: u32,
    odd: u32,
    bits: u32,
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, weights: u32) {
        // Two's complement; no carry leaves a byte, since 1 is added to at most 127.
        let negative = weights >> 7 & 0x0101_0101;
        let magnitudes = (weights ^ negative.wrapping_mul(255)).wrapping_add(negative);
        self.even = self.even.wrapping_add(magnitudes & 0x00FF_00FF);
        self.odd = self.odd.wrapping_add(magnitudes >> 8 & 0x00FF_00FF);
        self.bits |= magnitudes;
    }

    /// The sum of every byte.
    fn totals(&self) -> [u32; 4] {
        let marks = |byte: u32| (self.bits >> (8 * byte) & 0x80).wrapping_mul(MARK);
        let Self { even, odd, .. } = self;
        [
            (even & 0xFFFF) + marks(0),
            (odd & 0xFFFF) + marks(1),
            (even >> 16) + marks(2),
            (odd >> 16) + marks(3),
        ]
    }
}
