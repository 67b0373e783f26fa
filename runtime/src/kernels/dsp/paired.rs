//! Paired rows, one token: 14 instructions for 16 multiply-accumulates.
//!
//! A halfword of weights is `256 b + (a + 128)`. `SMLALD` with it sums `256 B + A` in 64 bits, `SMLAD`
//! with its low byte sums A, where both begin at -128 times the sum of x; `B + floor(A / 256)` are the
//! bits from 8 on of the former.

/// Eight tiles: r2 and r3 sum `256 B + A` of rows 0 and 1, r4 sums A; r5, r6, r7 the same of rows 2 and 3.
macro_rules! turn {
    () => {
        concat!(
            ".rept 8\n",
            "ldm.w r0!, {{r8, r9, r10, r11}}\n",
            "ldrd r12, lr, [r1], #8\n",
            "smlald r2, r3, r8, r12\n",
            "uxtb16 r8, r8\n",
            "smlald r2, r3, r9, lr\n",
            "uxtb16 r9, r9\n",
            "smlald r5, r6, r10, r12\n",
            "uxtb16 r10, r10\n",
            "smlald r5, r6, r11, lr\n",
            "uxtb16 r11, r11\n",
            "smlad r4, r8, r12, r4\n",
            "smlad r4, r9, lr, r4\n",
            "smlad r7, r10, r12, r7\n",
            "smlad r7, r11, lr, r7\n",
            ".endr\n",
        )
    };
}
pub(super) use turn;
