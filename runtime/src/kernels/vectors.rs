//! The products of attention and the sums of LayerNorm, portable; and what is asked of few processors.

use core::ops::Range;

use model_format::layout::LinearInt;
use model_format::numeric::rescale;

use super::{DOTS, Input, ROWS, dot, dot4, try_dots, try_project};
pub use crate::fixed::softmax::exp2_all;
use crate::precision::{HeadCache, Rows};

/// `scores[t] = keys[t] query` over all columns of the keys, exact.
#[inline(never)]
pub fn scores(mut keys: Rows<'_, i8>, query: &[i16], mut scores: &mut [i32]) {
    let query = query.get(..keys.cols).unwrap_or(query);
    let mut sums = [0; DOTS];
    while !scores.is_empty() {
        let count = next_sums(&keys, query, scores.len(), &mut sums);
        let (now, rest) = scores.split_at_mut_checked(count).unwrap_or_default();
        for (score, &sum) in now.iter_mut().zip(&sums) {
            *score = sum;
        }
        keys.data = keys.data.get(keys.stride.saturating_mul(count)..).unwrap_or_default();
        scores = rest;
    }
}

/// The products of the next of `left` rows: four, or those that are left, or as many as the kernels take
/// in one go; how many they are.
fn next_sums(keys: &Rows<'_, i8>, query: &[i16], left: usize, sums: &mut [i32; DOTS]) -> usize {
    if let Some(count) = try_dots(keys.data, keys.stride, left, query, sums) {
        return count;
    }
    let Some(four) = sums.first_chunk_mut::<4>().filter(|_| left >= 4) else {
        for (t, sum) in sums.iter_mut().enumerate().take(left) {
            *sum = dot(keys.row(t), query);
        }
        return left;
    };
    *four = dot4([keys.row(0), keys.row(1), keys.row(2), keys.row(3)], query);
    4
}

/// Not in one go.
#[inline(always)]
pub fn try_add_row(_: &LinearInt<'_>, _: [usize; 2], _: i32, _: &mut [i32; 16]) -> bool {
    false
}

/// Not in one go.
#[inline(always)]
pub fn try_attend(
    _: HeadCache<'_, i8>,
    _: (&[[i32; 2]], usize),
    _: [i32; 2],
    _: &mut [i16],
) -> bool {
    false
}

/// The same for all.
#[inline(always)]
pub fn rows(_: &LinearInt<'_>, _: &Input<'_>) -> usize {
    ROWS
}

/// Not in one go.
#[inline(always)]
pub fn try_context(_: Rows<'_, i8>, _: &[i16], _: i32, _: [i32; 2], _: &mut [i16]) -> bool {
    false
}

/// `context[j] = saturate(rescale(sum(values[t][j] p[t]), multiplier))` for the columns of the values;
/// sums are exact.
#[inline(never)]
pub fn context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    multiplier: i32,
    saturate: impl Fn(i32) -> i16,
    context: &mut [i16],
) {
    let (blocks, _) = context.as_chunks_mut::<4>();
    let whole = blocks.len().saturating_mul(4);
    for (first, block) in (0..).step_by(4).zip(blocks) {
        let mut sums = [0_i32; 4];
        for (t, &p) in probabilities.iter().enumerate() {
            let row = values.row(t);
            let values = row.get(first..).and_then(|row| row.first_chunk::<4>());
            for (sum, &v) in sums.iter_mut().zip(values.unwrap_or(&[0; 4])) {
                *sum = sum.wrapping_add(i32::from(v) * i32::from(p));
            }
        }
        *block = sums.map(|sum| saturate(rescale(sum, multiplier)));
    }
    for (j, context) in (whole..).zip(context.get_mut(whole..).unwrap_or_default()) {
        *context = saturate(rescale(column(&values, probabilities, j), multiplier));
    }
}

/// `sum(values[t][j] p[t])`.
pub fn column(values: &Rows<'_, i8>, probabilities: &[i16], j: usize) -> i32 {
    let column = values.data.get(j..).unwrap_or_default().iter().step_by(values.stride.max(1));
    let products = column.zip(probabilities);
    products.fold(0, |sum, (&v, &p)| sum.wrapping_add(i32::from(v) * i32::from(p)))
}

/// Sum and sum of squares of at most 16384 elements.
#[inline(always)]
pub fn moments(x: &[i16]) -> (i32, i64) {
    let (mut sum, mut squares) = (0_i32, 0_i64);
    for &x in x {
        sum = sum.wrapping_add(i32::from(x));
        squares += i64::from(i32::from(x) * i32::from(x));
    }
    (sum, squares)
}

/// `out[token, row]` of keys and values, saturated to 127; `room` is for as many activations, of which
/// they are narrowed. `false`, and nothing done, where it cannot.
#[inline(always)]
pub fn try_project_cached(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    out: &mut [i8],
    room: &mut [i16],
) -> bool {
    const WIDE: [i32; 2] = [i16::MIN as i32, i16::MAX as i32];
    if !try_project(linear, input, WIDE, room) {
        return false;
    }
    let outputs = room.iter().take(linear.rows.saturating_mul(input.tokens));
    for (out, &value) in out.iter_mut().zip(outputs) {
        // One instruction, and one for the end.
        *out = (i32::from(value).clamp(-128, 127) as i8).max(-127);
    }
    true
}

/// Not in one go.
#[inline(always)]
pub fn try_blocks(
    _: &LinearInt<'_>,
    _: Range<usize>,
    _: &Input<'_>,
    _: &mut impl FnMut(usize, usize, &[i32]),
) -> bool {
    false
}

/// Runs `f`: there is nothing to choose from.
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    f()
}
