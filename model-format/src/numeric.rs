//! The one rescale of the numeric contract, shared by trainer and device.

/// `round(acc * m / 2^32)`, half up, rounded once.
///
/// On cores with the DSP extension this is one `SMMULR`.
#[inline(always)]
pub const fn rescale(acc: i32, m: i32) -> i32 {
    ((acc as i64 * m as i64 + (1 << 31)) >> 32) as i32
}

/// What an activation tensor saturates to.
///
/// A tensor of `bits` (15 or 16) takes values in `[-2^(bits-1), 2^(bits-1) - 1]`; its real value
/// is `q * 2^-frac_bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QFormat {
    /// Fractional bits.
    pub frac_bits: i8,
    /// Width the tensor saturates to: 15 or 16; 32 for the logits.
    pub bits: u8,
}

impl QFormat {
    /// The format of a tensor that a model's family does not have.
    pub const UNUSED: Self = Self { frac_bits: 0, bits: 16 };

    /// The largest magnitude that the tensor takes.
    pub const fn max_abs(self) -> i64 {
        1 << (self.bits.saturating_sub(1) & 31)
    }
}
