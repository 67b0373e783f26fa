//! What becomes of the sums of a block.

/// Where the code for it begins, in bytes from the first saturation to less than 16 bits with a sign:
/// of [`code`](super::code) in the low half of a number, of [`four_tokens`](super::four_tokens) in the
/// high half; and its operand.
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

/// A branch stays in Thumb state.
const THUMB: i32 = 1;
/// Bytes of the saturations of one way, and of a branch.
const CLAMP_LEN: i32 = both(5, 9) * 4;
/// The other ways on lie before them.
const FIRST_OF_BYTES: i32 = before(13, 28);
const FIRST_OF_SUMS: i32 = before(13 + 3, 28 + 11);
const ADD: i32 = before(13 + 3 + 12, 28 + 11 + 26);

/// A number for each of the two.
const fn both(one: i32, four: i32) -> i32 {
    (four << 16) | (one & 0xFFFF)
}

/// So many instructions before the first saturation.
const fn before(one: i32, four: i32) -> i32 {
    both(THUMB - one * 4, THUMB - four * 4)
}

/// Bounds of rescaled sums of 32 bits, which nothing saturates.
pub const SUMS: [i32; 2] = [i32::MIN, i32::MAX];
/// Bytes of those of two rows.
pub const SUMS_HALF: usize = 8;
/// Bounds of keys and values, which are stored as bytes.
pub const BYTES: [i32; 2] = [-127, 127];

impl Epilogue {
    /// Rescaled, added to a stream times its multiplier unless that is 0, and saturated; and the bytes
    /// of outputs of two rows. `None` for bounds that nothing has.
    #[inline(always)]
    pub fn new(multiplier: i32, [low, high]: [i32; 2]) -> Option<(Self, usize)> {
        let is_signed = low >> 31;
        if low == !high & is_signed && high | 0x4000 == 0x7FFF {
            // In the order of their code: 14 bits, 15 with a sign, 15, 16 with a sign.
            let index = (high >> 14) * 2 - is_signed;
            let clamp = both(THUMB, THUMB) + index * CLAMP_LEN;
            let first = if multiplier != 0 { ADD } else { clamp };
            return Some((Self { first, clamp, multiplier }, 4));
        }
        let (first, half) = match [low, high] {
            BYTES => (FIRST_OF_BYTES, 2),
            SUMS => (FIRST_OF_SUMS, SUMS_HALF),
            _ => return None,
        };
        Some((Self { first, clamp: 0, multiplier: 0 }, half))
    }
}

/// What the code is told besides its operands.
#[repr(C)]
pub struct Call {
    pub epilogue: Epilogue,
    /// The first token's output of the first row.
    pub out: *mut u8,
    /// Bytes from token to token.
    pub stride: usize,
    /// Bytes of a token's outputs.
    pub len: usize,
    /// Of outputs of two rows.
    pub half: usize,
    /// Of one token the negated sum of its columns, or, for weights of 4 bits, the address of its groups'
    /// starts; of four that of their negated sums.
    pub start: usize,
}
