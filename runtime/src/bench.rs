//! Operators one by one, for a program that counts their instructions.

use crate::fixed::{linear, softmax};
pub use crate::layers::rotate;
pub use crate::precision::{AttentionScratch, HeadCache, Position, Rows};

/// Probabilities of `scores`, in Q15 before their division; the multiplier that divides the context.
pub fn softmax(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> i32 {
    let sum = softmax::exp2_all(scores, multiplier, probabilities);
    softmax::context_multiplier(1 << 20, sum)
}

/// The products of attention: `out[row] = rows[row] x`.
pub fn products(rows: Rows<'_, i8>, x: &[i16], out: &mut [i32]) {
    linear::multiply_rows(rows, x, out, |sum| sum);
}
