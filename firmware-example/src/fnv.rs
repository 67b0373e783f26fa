//! The hash of the logits by which two machines are compared: FNV-1a, 64 bits.

/// A running hash.
pub struct Fnv(u64);

impl Fnv {
    /// The hash of nothing.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash of all bytes so far.
    pub const fn finish(&self) -> u64 {
        self.0
    }
}
