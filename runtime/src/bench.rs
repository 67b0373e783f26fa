//! Operators one by one, for a program that counts their instructions.

use crate::fixed::softmax;
use crate::kernels::{self, vectors};
pub use crate::layers::rotate;
pub use crate::precision::{AttentionScratch, HeadCache, Position, Rows};

/// Probabilities of `scores`, in Q15 before their division; the multiplier that divides the context.
pub fn softmax(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> i32 {
    let sum = kernels::exp2_all(scores, multiplier, probabilities);
    softmax::context_multiplier(1 << 20, sum)
}

/// The products of attention's keys with the query.
pub fn scores(keys: Rows<'_, i8>, query: &[i16], out: &mut [i32]) {
    kernels::scores(keys, query, out);
}

/// The sum of attention's values weighted by the probabilities.
pub fn context(values: Rows<'_, i8>, probabilities: &[i16], multiplier: i32, out: &mut [i16]) {
    const BOUNDS: [i32; 2] = [i16::MIN as i32, i16::MAX as i32];
    if !kernels::try_context(values, probabilities, multiplier, BOUNDS, out) {
        let saturate = |value: i32| value.clamp(BOUNDS[0], BOUNDS[1]) as i16;
        vectors::context(values, probabilities, multiplier, saturate, out);
    }
}
