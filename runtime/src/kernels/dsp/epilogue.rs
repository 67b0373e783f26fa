//! What becomes of the sums of a block.

/// Where the code for it begins, in bytes from the first saturation of [`paired`](super::paired); and
/// its operand.
#[repr(C)]
pub struct Epilogue {
    /// After the rescale.
    pub first: i32,
    /// After a sum with a stream.
    pub clamp: i32,
    /// The stream's.
    pub multiplier: i32,
    /// Outputs are of 32 bits.
    pub is_wide: bool,
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
    pub const RESCALE: Self =
        Self { first: THUMB - RESCALE_LEN, clamp: 0, multiplier: 0, is_wide: true };

    /// Rescaled, added to a stream where it has a multiplier, and saturated; `None` for bounds that no
    /// activation has.
    #[inline(always)]
    pub fn new(multiplier: Option<i32>, [low, high]: [i32; 2]) -> Option<Self> {
        let is_wide = match high {
            0x3FFF => 0,
            0x7FFF => 2,
            _ => return None,
        };
        let is_signed = match low {
            0 => 0,
            _ if low == !high => 1,
            _ => return None,
        };
        let clamp = THUMB + (is_wide + is_signed) * CLAMP_LEN;
        let first = if multiplier.is_some() { THUMB - RESCALE_LEN - ADD_LEN } else { clamp };
        Some(Self { first, clamp, multiplier: multiplier.unwrap_or(0), is_wide: false })
    }
}
