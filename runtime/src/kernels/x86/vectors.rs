//! The products of attention, softmax's powers and the sums of LayerNorm.

use super::attention_avx512::{self, Attention};
use super::choice::{self, Isa};
use super::{rows_f32, vectors_avx2, vectors_avx512};
use crate::kernels::vectors;
use crate::precision::{HeadCache, Rows};

/// The rows that lie in `data` as a whole; none where one does not.
fn whole<T>(rows: Rows<'_, T>, count: usize, cols: usize) -> Option<Rows<'_, T>> {
    let reach = count.checked_sub(1)?.checked_mul(rows.stride)?.checked_add(cols)?;
    let is_whole = reach <= rows.data.len() && cols > 0;
    is_whole.then_some(Rows { rows: count, cols, ..rows })
}

/// See [`vectors::scores`].
pub fn scores(keys: Rows<'_, i8>, query: &[i16], scores: &mut [i32]) {
    match (choice::chosen(), whole(keys, scores.len(), keys.cols.min(query.len()))) {
        // SAFETY: what is chosen is here; every key and the query have `cols` numbers.
        (Isa::Avx512Vnni, Some(keys)) => unsafe { vectors_avx512::scores(keys, query, scores) },
        // SAFETY: as above.
        (Isa::Avx2, Some(keys)) => unsafe { vectors_avx2::scores(keys, query, scores) },
        _ => vectors::scores(keys, query, scores),
    }
}

/// See [`vectors::context`].
pub fn try_context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    multiplier: i32,
    bounds: [i32; 2],
    context: &mut [i16],
) -> bool {
    let Some(values) = whole(values, probabilities.len(), context.len()) else {
        return false;
    };
    let end = (multiplier, bounds);
    match choice::chosen() {
        Isa::Baseline => return false,
        // SAFETY: what is chosen is here; every row has as many columns as `context`.
        Isa::Avx512Vnni => unsafe { vectors_avx512::context(values, probabilities, end, context) },
        // SAFETY: as above.
        Isa::Avx2 => unsafe { vectors_avx2::context(values, probabilities, end, context) },
    }
    true
}

/// See [`vectors::try_attend`].
pub fn try_attend(
    cache: HeadCache<'_, i8>,
    heads: (&[[i32; 2]], usize),
    bounds: [i32; 2],
    x: &mut [i16],
) -> bool {
    if choice::chosen() != Isa::Avx512Vnni {
        return false;
    }
    let len = cache.keys.rows.min(cache.values.rows);
    let parts = [cache.keys, cache.values].map(|rows| whole(rows, len, x.len()));
    let [Some(keys), Some(values)] = parts else {
        return false;
    };
    let (heads, d_k) = heads;
    let starts = [keys, values].map(|rows| rows.data.as_ptr());
    let attention = Attention { starts, stride: keys.stride, len, heads, d_k, bounds };
    // SAFETY: what is chosen is here; there are so many whole keys and values with as many columns as `x`.
    keys.stride == values.stride && unsafe { attention_avx512::attend(&attention, x) }
}

/// `out[row] = rows[row] x`, each summed column after column; `false`, and nothing done, where that has no
/// kernel.
pub fn try_multiply_rows(rows: Rows<'_, f32>, x: &[f32], out: &mut [f32]) -> bool {
    let fits = rows.rows == out.len() && rows.cols == x.len();
    match (choice::chosen(), whole(rows, out.len(), x.len())) {
        (Isa::Avx512Vnni, Some(rows)) if fits => {
            // SAFETY: what is chosen is here; there are so many whole rows.
            unsafe { rows_f32::multiply(rows, x, out) };
            true
        }
        _ => false,
    }
}

/// `out = e^(scores - max)`; `false`, and nothing done, where that has no kernel.
pub fn try_powers(scores: &[f32], out: &mut [f32]) -> bool {
    if cfg!(feature = "approx-math") || choice::chosen() != Isa::Avx512Vnni {
        return false;
    }
    // SAFETY: what is chosen is here, and both have the same length.
    scores.len() == out.len()
        && unsafe {
            rows_f32::powers(scores, out);
            true
        }
}

/// `out = sum(weights[row] rows[row])`, row after row; `false`, and nothing done, where that has no kernel.
pub fn try_weigh_rows(rows: Rows<'_, f32>, weights: &[f32], out: &mut [f32]) -> bool {
    let fits = rows.cols == out.len();
    match (choice::chosen(), whole(rows, weights.len(), out.len())) {
        (Isa::Avx512Vnni, Some(rows)) if fits => {
            // SAFETY: as above.
            unsafe { rows_f32::weigh(rows, weights, out) };
            true
        }
        _ => false,
    }
}

/// See [`vectors::exp2_all`].
pub fn exp2_all(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> u32 {
    let len = scores.len().min(probabilities.len());
    match (choice::chosen(), probabilities.get_mut(..len)) {
        (Isa::Avx512Vnni, Some(probabilities)) if len == scores.len() => {
            // SAFETY: what is chosen is here; both have the same length.
            unsafe { vectors_avx512::exp2_all(scores, multiplier, probabilities) }
        }
        (Isa::Avx2, Some(probabilities)) if len == scores.len() => {
            // SAFETY: as above.
            unsafe { vectors_avx2::exp2_all(scores, multiplier, probabilities) }
        }
        _ => vectors::exp2_all(scores, multiplier, probabilities),
    }
}

/// See [`vectors::moments`].
pub fn moments(x: &[i16]) -> (i32, i64) {
    wide(
        #[inline(always)]
        || vectors::moments(x),
    )
}

/// Runs `f`, whose loops are compiled for the instructions that are here.
#[inline(always)]
pub fn wide<R>(f: impl FnOnce() -> R) -> R {
    match choice::chosen() {
        Isa::Baseline => f(),
        // SAFETY: what is chosen is here.
        Isa::Avx2 => unsafe { vectors_avx2::run(f) },
        // SAFETY: as above.
        Isa::Avx512Vnni => unsafe { vectors_avx512::run(f) },
    }
}
