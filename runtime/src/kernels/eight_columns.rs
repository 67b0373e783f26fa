//! Row-major products in vectors of eight columns: what NEON and WebAssembly's `simd128` share.
//!
//! Written out row by row and token by token, so that sums stay in registers at every level of
//! optimisation.

use model_format::layout::{LinearInt, Packing};

use super::{Input, reference};

/// Most tokens of an input: they share the widened weights.
pub const TOKENS: usize = 4;
/// Rows of a block.
pub const ROWS: usize = 16;
/// Rows in memory at once.
pub const DOTS: usize = 16;
/// Rows that share the activations.
const GROUP: usize = 4;
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
    /// The eight weights at `w`, widened; moves `w` behind them.
    ///
    /// # Safety
    /// There must be eight.
    unsafe fn weights(w: &mut *const i8) -> Self::Operands;
    /// The eight activations at `x`; moves `x` behind them.
    ///
    /// # Safety
    /// There must be eight.
    unsafe fn activations(x: &mut *const i16) -> Self::Operands;
    /// `x` where the mask is all ones, 0 where it is 0.
    fn masked(x: Self::Operands, mask: Self::Operands) -> Self::Operands;
    /// Adds the eight products to the partial sums, in any order.
    fn multiply_add(sums: Self::Sums, w: Self::Operands, x: Self::Operands) -> Self::Sums;
    /// Lane r is the total of `rows[r]`.
    fn totals(rows: [Self::Sums; GROUP]) -> Self::Sums;
    /// `rescale(bias + sums, multipliers)`.
    fn rescale(sums: Self::Sums, bias: &[i32; GROUP], multipliers: &[i32; GROUP]) -> [i32; GROUP];
    /// The four lanes.
    fn store(sums: Self::Sums) -> [i32; GROUP];
}

/// See [`block`](super::block).
#[inline(always)]
pub fn block<V: Vector>(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let cols = linear.cols;
    let has_all = linear.rows.checked_mul(cols).is_some_and(|len| len <= linear.data.len())
        && input.cols == cols
        && input.tokens.checked_mul(cols).is_some_and(|len| len <= input.x.len());
    if linear.packing != Packing::RowMajor || !has_all || cols == 0 || input.tokens == 0 {
        return reference::block(linear, first_row, input, out);
    }
    let [a, b, c, d] = out;
    let outputs = a.as_chunks_mut().0.iter_mut().zip(b.as_chunks_mut().0);
    let outputs = outputs.zip(c.as_chunks_mut().0.iter_mut().zip(d.as_chunks_mut().0));
    let rows = (first_row..linear.rows).step_by(GROUP);
    for (row, ((a, b), (c, d))) in rows.zip(outputs) {
        let rows = Pointers::to(linear.data, [row, linear.rows, cols]);
        let bias = four(linear.bias, row);
        let multipliers = four(linear.multipliers, row);
        // SAFETY: all `linear.rows` rows have been seen to be there, `row` being one of them, and all
        // tokens, of which there are some; `cols` is not 0.
        unsafe {
            if input.tokens == 1 {
                let sums = one_token::<V>(rows, input.x.as_ptr(), cols);
                *a = V::rescale(sums, &bias, &multipliers);
                continue;
            }
            let tokens = Pointers::to(input.x, [0, input.tokens, cols]);
            let [sums_a, sums_b, sums_c, sums_d] = four_tokens::<V>(rows, tokens, cols);
            *a = V::rescale(sums_a, &bias, &multipliers);
            *b = V::rescale(sums_b, &bias, &multipliers);
            *c = V::rescale(sums_c, &bias, &multipliers);
            *d = V::rescale(sums_d, &bias, &multipliers);
        }
    }
}

/// Four elements from `at` on; zeros past the last.
#[inline(always)]
fn four(list: &[i32], at: usize) -> [i32; GROUP] {
    let list = list.get(at..).unwrap_or_default();
    match list.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut padded = [0; GROUP];
            for (to, from) in padded.iter_mut().zip(list) {
                *to = *from;
            }
            padded
        }
    }
}

/// See [`try_dots`](super::try_dots).
#[inline(always)]
pub fn try_dots<V: Vector>(
    data: &[i8],
    stride: usize,
    rows: usize,
    x: &[i16],
    sums: &mut [i32],
) -> Option<usize> {
    let rows = rows.min(sums.len());
    let before_last = rows.checked_sub(1)?.checked_mul(stride)?;
    if x.is_empty() || before_last.checked_add(x.len())? > data.len() {
        return None;
    }
    for (row, sums) in (0..rows).step_by(GROUP).zip(sums.chunks_mut(GROUP)) {
        let group = Pointers::to(data, [row, rows, stride]);
        // SAFETY: the last row has been seen to end within `data`; `x` is not empty.
        let group = unsafe { V::store(one_token::<V>(group, x.as_ptr(), x.len())) };
        for (to, from) in sums.iter_mut().zip(group).take(rows.saturating_sub(row)) {
            *to = from;
        }
    }
    Some(rows)
}

/// See [`dot4`](super::dot4).
#[inline(always)]
pub fn dot4<V: Vector>(rows: [&[i8]; GROUP], x: &[i16]) -> [i32; GROUP] {
    let [a, b, c, d] = rows;
    let cols = x.len().min(a.len()).min(b.len()).min(c.len()).min(d.len());
    if cols == 0 {
        return [0; GROUP];
    }
    let rows = Pointers([a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()]);
    // SAFETY: every row and `x` have `cols` elements, at least one.
    unsafe { V::store(one_token::<V>(rows, x.as_ptr(), cols)) }
}

/// Where four rows, or four tokens, begin.
#[derive(Clone, Copy)]
struct Pointers<T>([*const T; GROUP]);

impl<T: Copy + Default> Pointers<T> {
    /// Those of `data` from `first` on, of `rows` rows; copies of the last where there are no more, so
    /// that the tail runs through the same loop.
    #[inline(always)]
    fn to(data: &[T], [first, rows, stride]: [usize; 3]) -> Self {
        let last = rows.saturating_sub(1);
        let at = |row: usize| data.as_ptr().wrapping_add(row.min(last).wrapping_mul(stride));
        let [second, third, fourth] =
            [first.wrapping_add(1), first.wrapping_add(2), first.wrapping_add(3)];
        Self([at(first), at(second), at(third), at(fourth)])
    }

    #[inline(always)]
    fn back(self, len: usize) -> Self {
        let Self([a, b, c, d]) = self;
        Self([a.wrapping_sub(len), b.wrapping_sub(len), c.wrapping_sub(len), d.wrapping_sub(len)])
    }
}

/// `len` elements with zeros behind them.
///
/// # Safety
/// They must be there.
#[inline(always)]
unsafe fn padded<T: Copy + Default>(from: *const T, len: usize) -> [T; COLS] {
    let mut whole = [T::default(); COLS];
    for (i, to) in whole.iter_mut().enumerate().take(len) {
        // SAFETY: `i` is less than `len`.
        *to = unsafe { *from.wrapping_add(i) };
    }
    whole
}

/// Four vectors of weights, and on to the next.
///
/// # Safety
/// There must be eight weights in every row.
#[inline(always)]
unsafe fn weights<V: Vector>(Pointers([a, b, c, d]): &mut Pointers<i8>) -> [V::Operands; GROUP] {
    // SAFETY: the caller's.
    unsafe { [V::weights(a), V::weights(b), V::weights(c), V::weights(d)] }
}

#[inline(always)]
fn multiply_add<V: Vector>(
    [a, b, c, d]: [V::Sums; GROUP],
    [wa, wb, wc, wd]: [V::Operands; GROUP],
    x: V::Operands,
) -> [V::Sums; GROUP] {
    [
        V::multiply_add(a, wa, x),
        V::multiply_add(b, wb, x),
        V::multiply_add(c, wc, x),
        V::multiply_add(d, wd, x),
    ]
}

/// The part of the last `cols % 8` columns in a vector of the last eight: the rest is masked out.
#[inline(always)]
fn last_lanes<V: Vector>(x: V::Operands, count: usize) -> V::Operands {
    const MASKS: [i16; 2 * COLS] = [0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1];
    let mut mask = MASKS.as_ptr().wrapping_add(count.min(COLS));
    // SAFETY: eight or more follow, `count` being limited to the first eight.
    V::masked(x, unsafe { V::activations(&mut mask) })
}

/// Products of four rows with one token.
///
/// # Safety
/// Every row and `x` must have `cols` elements, at least one.
#[inline(always)]
unsafe fn one_token<V: Vector>(mut rows: Pointers<i8>, mut x: *const i16, cols: usize) -> V::Sums {
    let mut sums = [V::zero(); GROUP];
    let tail = cols % COLS;
    // SAFETY: as many whole vectors as there are in `cols`, then the last eight columns, or copies of
    // all where there are fewer.
    unsafe {
        for _ in 0..cols / COLS {
            sums = multiply_add::<V>(sums, weights::<V>(&mut rows), V::activations(&mut x));
        }
        if tail != 0 && cols > COLS {
            let back = COLS.wrapping_sub(tail);
            let w = weights::<V>(&mut rows.back(back));
            let x = last_lanes::<V>(V::activations(&mut x.wrapping_sub(back)), tail);
            sums = multiply_add::<V>(sums, w, x);
        } else if tail != 0 {
            let w = padded_weights::<V>(rows, cols);
            sums = multiply_add::<V>(sums, w, padded_activations::<V>(x, cols));
        }
    }
    V::totals(sums)
}

/// Products of four rows with four tokens.
///
/// # Safety
/// Every row and token must have `cols` elements, at least one.
#[inline(always)]
unsafe fn four_tokens<V: Vector>(
    mut rows: Pointers<i8>,
    tokens: Pointers<i16>,
    cols: usize,
) -> [V::Sums; TOKENS] {
    let zeros = [V::zero(); GROUP];
    let (mut a, mut b, mut c, mut d) = (zeros, zeros, zeros, zeros);
    let Pointers([mut xa, mut xb, mut xc, mut xd]) = tokens;
    let tail = cols % COLS;
    // SAFETY: as in `one_token`.
    unsafe {
        for _ in 0..cols / COLS {
            let w = weights::<V>(&mut rows);
            a = multiply_add::<V>(a, w, V::activations(&mut xa));
            b = multiply_add::<V>(b, w, V::activations(&mut xb));
            c = multiply_add::<V>(c, w, V::activations(&mut xc));
            d = multiply_add::<V>(d, w, V::activations(&mut xd));
        }
        if tail != 0 {
            let back = COLS.wrapping_sub(tail);
            let is_long = cols > COLS;
            let w = match is_long {
                true => weights::<V>(&mut rows.back(back)),
                false => padded_weights::<V>(rows, cols),
            };
            let last = |x: *const i16| match is_long {
                true => last_lanes::<V>(V::activations(&mut x.wrapping_sub(back)), tail),
                false => padded_activations::<V>(x, cols),
            };
            a = multiply_add::<V>(a, w, last(xa));
            b = multiply_add::<V>(b, w, last(xb));
            c = multiply_add::<V>(c, w, last(xc));
            d = multiply_add::<V>(d, w, last(xd));
        }
    }
    [V::totals(a), V::totals(b), V::totals(c), V::totals(d)]
}

/// Fewer than eight weights of every row, with zeros behind them.
///
/// # Safety
/// They must be there.
#[inline(always)]
unsafe fn padded_weights<V: Vector>(
    Pointers([a, b, c, d]): Pointers<i8>,
    len: usize,
) -> [V::Operands; GROUP] {
    // SAFETY: the caller's; then those of the copies.
    unsafe {
        let [a, b, c, d] = [padded(a, len), padded(b, len), padded(c, len), padded(d, len)];
        weights::<V>(&mut Pointers([a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()]))
    }
}

/// Fewer than eight activations, with zeros behind them.
///
/// # Safety
/// They must be there.
#[inline(always)]
unsafe fn padded_activations<V: Vector>(x: *const i16, len: usize) -> V::Operands {
    // SAFETY: the caller's; then those of the copy.
    unsafe { V::activations(&mut padded(x, len).as_ptr()) }
}
