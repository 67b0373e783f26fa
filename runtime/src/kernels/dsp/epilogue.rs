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
const BYTES: i32 = before(13, 28);
const RESCALE: i32 = before(13 + 3, 28 + 10);
const ADD: i32 = before(13 + 3 + 12, 28 + 10 + 26);

/// A number for each of the two.
const fn both(one: i32, four: i32) -> i32 {
    (four << 16) | (one & 0xFFFF)
}

/// So many instructions before the first saturation.
const fn before(one: i32, four: i32) -> i32 {
    both(THUMB - one * 4, THUMB - four * 4)
}

impl Epilogue {
    /// Rescaled sums of 32 bits.
    pub const RESCALE: Self = Self { first: RESCALE, clamp: 0, multiplier: 0 };
    /// Bounds of keys and values, which are stored as bytes.
    pub const BYTES: [i32; 2] = [-127, 127];

    /// Rescaled, added to a stream where it has a multiplier, and saturated; `None` for bounds that
    /// neither an activation nor a key has. With the logarithm of the bytes of outputs of four rows.
    #[inline(always)]
    pub fn new(multiplier: Option<i32>, [low, high]: [i32; 2]) -> Option<(Self, u32)> {
        if [low, high] == Self::BYTES {
            return Some((Self { first: BYTES, clamp: 0, multiplier: 0 }, 2));
        }
        let is_signed = low >> 31;
        if high | 0x4000 != 0x7FFF || low != !high & is_signed {
            return None;
        }
        // In the order of their code: 14 bits, 15 with a sign, 15, 16 with a sign.
        let index = (high >> 14) * 2 - is_signed;
        let clamp = both(THUMB, THUMB) + index * CLAMP_LEN;
        let first = if multiplier.is_some() { ADD } else { clamp };
        Some((Self { first, clamp, multiplier: multiplier.unwrap_or(0) }, 3))
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
    /// Behind the token's outputs.
    pub end: *mut u8,
    /// Of one token the negated sum of its columns, or, for weights of 4 bits, the address of its groups'
    /// starts; of four that of their negated sums.
    pub start: usize,
    /// Of four tokens the first one's output of the third row.
    pub second: *mut u8,
}

impl Call {
    /// Outputs from `out` on, a `stride` from token to token, `len` bytes of each token; `log2_len` is the
    /// logarithm of the bytes of four rows.
    #[inline(always)]
    pub fn new(epilogue: Epilogue, out: *mut u8, [stride, len]: [usize; 2], log2_len: u32) -> Self {
        let (end, second) = (out.wrapping_add(len), out.wrapping_add(1 << log2_len >> 1));
        Self { epilogue, out, stride, end, start: 0, second }
    }
}
