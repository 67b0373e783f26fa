//! What becomes of the sums of a block.

/// Where the code for it begins, in bytes from the first saturation to less than 16 bits with a sign;
/// and its operand.
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
/// A branch stays in Thumb state.
const THUMB: i32 = 1;
/// Where [`paired`](super::paired) keeps the other ways on.
const RESCALE: i32 = THUMB - 12;
const ADD: i32 = RESCALE - 48;
/// And [`four_tokens`](super::four_tokens), which saturates all outputs to 16 bits first.
const FOUR_SATURATE: i32 = THUMB - 13 * 4;
const FOUR_ADD: i32 = FOUR_SATURATE - 25 * 4;
const FOUR_RESCALE: i32 = FOUR_ADD - 10 * 4;

impl Epilogue {
    /// Rescaled sums of 32 bits.
    pub const RESCALE: Self = Self { first: RESCALE, clamp: 0, multiplier: 0 };

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
        let first = if multiplier.is_some() { ADD } else { clamp };
        Some(Self { first, clamp, multiplier: multiplier.unwrap_or(0) })
    }

    /// Logarithm of the bytes of outputs of four rows.
    #[inline(always)]
    pub fn log2_len(&self) -> u32 {
        if self.first == RESCALE { 4 } else { 3 }
    }

    /// The same for four tokens.
    pub fn for_four_tokens(&self) -> Self {
        let first = match self.first {
            RESCALE => FOUR_RESCALE,
            ADD => FOUR_ADD,
            _ => FOUR_SATURATE,
        };
        Self { first, ..*self }
    }

    /// Of those for four tokens, bytes of the outputs of two rows.
    pub fn four_token_bytes(&self) -> usize {
        if self.first == FOUR_RESCALE { 8 } else { 4 }
    }
}
