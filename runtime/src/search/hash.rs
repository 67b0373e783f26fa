//! A hash of all logits.

use crate::logit::Logit;

/// FNV-1a-64 over the little-endian logits of every step: what equivalence tests compare.
///
/// ```
/// let mut hash = runtime::LogitsHash::default();
/// hash.push(1_i32);
/// assert_eq!(hash.value(), 0xad2a_ca77_4798_5764);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitsHash(u64);

impl Default for LogitsHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl LogitsHash {
    /// Takes one logit.
    pub fn push<L: Logit>(&mut self, logit: L) {
        for byte in logit.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}
