//! What becomes of the sums of a block.

/// Where the code for it begins, in bytes from the first saturation of [`paired`](super::paired); and
/// its operand.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Epilogue {
    /// After the rescale.
    first: i32,
    /// After a sum with a stream.
    clamp: i32,
    /// The stream's.
    multiplier: i32,
}

/// Bytes of four saturations and a branch.
const CLAMP_LEN: i32 = 20;
/// Bytes of the code before the saturations: the two other ways on.
const RESCALE_LEN: i32 = 12;
const ADD_LEN: i32 = 48;
/// A branch stays in Thumb state.
const THUMB: i32 = 1;

impl Epilogue {
    /// Rescaled sums of 32 bits.
    pub const RESCALE: Self = Self { first: THUMB - RESCALE_LEN, clamp: 0, multiplier: 0 };

    /// Rescaled, added to a stream where it has a multiplier, and saturated; `None` for bounds that no
    /// activation has.
    #[inline(always)]
    pub fn new(multiplier: Option<i32>, [low, high]: [i32; 2]) -> Option<Self> {
        let is_signed = low >> 31;
        if high | 0x4000 != 0x7FFF || low != !high & is_signed {
            return None;
        }
        // In the order of their code: 14 bits, 15 with a sign, 15, 16 with a sign.
        let index = (high >> 14) * 2 - is_signed;
        let clamp = THUMB + index * CLAMP_LEN;
        let first = if multiplier.is_some() { THUMB - RESCALE_LEN - ADD_LEN } else { clamp };
        Some(Self { first, clamp, multiplier: multiplier.unwrap_or(0) })
    }
}
