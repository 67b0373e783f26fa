//! Row-major products in vectors of eight columns: what NEON and WebAssembly's `simd128` share.

use model_format::layout::{LinearInt, Packing};

use super::{Input, reference};

/// Most tokens of an input: they share the widened weights.
pub const TOKENS: usize = 4;
/// Rows of a block.
pub const ROWS: usize = 4;
/// Columns of a vector.
const COLS: usize = 8;

/// The instructions that a product is made of.
pub trait Vector {
    /// Eight operands of 16 bits.
    type Operands: Copy;
    /// Four partial sums modulo 2^32.
    type Sums: Copy;

    /// Four zeros.
    fn zero() -> Self::Sums;
    /// Widened weights.
    fn weights(w: &[i8; COLS]) -> Self::Operands;
    /// Activations.
    fn activations(x: &[i16; COLS]) -> Self::Operands;
    /// Adds the eight products to the partial sums, in any order.
    fn multiply_add(sums: Self::Sums, w: Self::Operands, x: Self::Operands) -> Self::Sums;
    /// Lane r is the total of `rows[r]`.
    fn totals(rows: [Self::Sums; ROWS]) -> Self::Sums;
    /// `rescale(bias + sums, multipliers)`.
    fn rescale(sums: Self::Sums, constants: [[i32; ROWS]; 2]) -> [i32; ROWS];
    /// The four lanes.
    fn store(sums: Self::Sums) -> [i32; ROWS];
}

/// See [`block`](super::block).
#[inline(always)]
pub fn block<V: Vector>(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    if linear.packing != Packing::RowMajor {
        return reference::block(linear, first_row, input, out);
    }
    // Rows past the last are copies of it, so that the tail runs through the same loop.
    let last = linear.rows.saturating_sub(1);
    let row = |i: usize| {
        let from_row = linear.from_row(first_row.saturating_add(i).min(last));
        from_row.get(..linear.cols).unwrap_or_default()
    };
    let rows = [row(0), row(1), row(2), row(3)];
    let constants = constants(linear, first_row);
    if let ([out, ..], 1) = (&mut *out, input.tokens) {
        let [sums] = products::<V, 1>(rows, [input.token(0)]);
        *out = V::rescale(sums, constants);
        return;
    }
    // Tokens past the last are copies of it.
    let token = |i: usize| input.token(i.min(input.tokens.saturating_sub(1)));
    let sums = products::<V, TOKENS>(rows, [token(0), token(1), token(2), token(3)]);
    for (out, sums) in out.iter_mut().zip(sums) {
        *out = V::rescale(sums, constants);
    }
}

/// Biases and multipliers of the four rows from `row` on; zeros past the last.
fn constants(linear: &LinearInt<'_>, row: usize) -> [[i32; ROWS]; 2] {
    [linear.bias, linear.multipliers].map(|list| {
        let mut four = [0; ROWS];
        for (to, from) in four.iter_mut().zip(list.get(row..).unwrap_or_default()) {
            *to = *from;
        }
        four
    })
}

/// See [`dot4`](super::dot4).
#[inline(always)]
pub fn dot4<V: Vector>(rows: [&[i8]; ROWS], x: &[i16]) -> [i32; ROWS] {
    let [sums] = products::<V, 1>(rows, [x]);
    V::store(sums)
}

/// Products of every row with every token, over the columns that all of them have.
#[inline(always)]
fn products<V: Vector, const TOKENS: usize>(
    rows: [&[i8]; ROWS],
    tokens: [&[i16]; TOKENS],
) -> [V::Sums; TOKENS] {
    let lens = rows.iter().map(|row| row.len()).chain(tokens.iter().map(|x| x.len()));
    let cols = lens.min().unwrap_or(0);
    let whole = cols / COLS;
    let mut sums = [[V::zero(); ROWS]; TOKENS];
    let row_chunks = rows.map(|row| row.as_chunks::<COLS>().0);
    let token_chunks = tokens.map(|x| x.as_chunks::<COLS>().0);
    for chunk in 0..whole {
        let w = row_chunks.map(|row| V::weights(row.get(chunk).unwrap_or(&[0; COLS])));
        for (sums, x) in sums.iter_mut().zip(token_chunks) {
            let x = V::activations(x.get(chunk).unwrap_or(&[0; COLS]));
            add_products::<V>(sums, w, x);
        }
    }
    let tail = whole.wrapping_mul(COLS)..cols;
    if !tail.is_empty() {
        let w = rows.map(|row| V::weights(&padded(row.get(tail.clone()))));
        for (sums, x) in sums.iter_mut().zip(tokens) {
            let x = V::activations(&padded(x.get(tail.clone())));
            add_products::<V>(sums, w, x);
        }
    }
    sums.map(V::totals)
}

#[inline(always)]
fn add_products<V: Vector>(sums: &mut [V::Sums; ROWS], w: [V::Operands; ROWS], x: V::Operands) {
    for (sums, w) in sums.iter_mut().zip(w) {
        *sums = V::multiply_add(*sums, w, x);
    }
}

/// A tail with zeros behind it.
#[inline(always)]
fn padded<T: Copy + Default>(tail: Option<&[T]>) -> [T; COLS] {
    let mut whole = [T::default(); COLS];
    for (to, from) in whole.iter_mut().zip(tail.unwrap_or_default()) {
        *to = *from;
    }
    whole
}
