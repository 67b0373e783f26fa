//! The one rescale of the numeric contract, shared by trainer and device.

/// `round(acc * m / 2^32)`, half up, rounded once.
///
/// On cores with the DSP extension this is one `SMMULR`; where a product has only 32 bits it is made of
/// halves.
#[inline(always)]
pub const fn rescale(acc: i32, m: i32) -> i32 {
    if cfg!(kiloformer_short_products) {
        rescale_by_halves(acc, m)
    } else {
        rescale_at_once(acc, m)
    }
}

#[inline(always)]
const fn rescale_at_once(acc: i32, m: i32) -> i32 {
    ((acc as i64 * m as i64 + (1 << 31)) >> 32) as i32
}

/// With `acc = 2^16 a + b` and `m = 2^16 c + d`: no product of two halves plus a carry leaves 32 bits.
#[inline(always)]
const fn rescale_by_halves(acc: i32, m: i32) -> i32 {
    let [a, b, c, d] = [acc >> 16, acc & 0xFFFF, m >> 16, m & 0xFFFF];
    let low = (b as u32).wrapping_mul(d as u32) >> 16;
    let middle = a.wrapping_mul(d).wrapping_add(low as i32);
    let other = b.wrapping_mul(c).wrapping_add(middle & 0xFFFF);
    let rounded = ((other >> 15) + 1) >> 1;
    a.wrapping_mul(c).wrapping_add(middle >> 16).wrapping_add(rounded)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_make_the_same_product() {
        let edge = |bit: u32| [-1, 0, 1].map(|near| (1_i64 << bit) + near);
        let edges = (0..32).flat_map(edge).flat_map(|n| [n, -n]).map(|n| n as i32);
        for (acc, m) in edges.clone().flat_map(|acc| edges.clone().map(move |m| (acc, m))) {
            assert_eq!(rescale_by_halves(acc, m), rescale_at_once(acc, m), "{acc} {m}");
        }
        // Xorshift (Marsaglia 2003).
        let mut state = 0x1234_5678_9ABC_DEF0_u64;
        for _ in 0..2_000_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (acc, m) = (state as i32, (state >> 32) as i32);
            assert_eq!(rescale_by_halves(acc, m), rescale_at_once(acc, m), "{acc} {m}");
        }
    }
}
