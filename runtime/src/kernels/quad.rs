//! What the cores without a multiplication of two halves have in common: `QuadRows` weights, a word of
//! them times one activation.
//!
//! With `w` a word of four rows, the sums of `w x`, `(w >> 8) x`, `(w >> 16) x` and `(w >> 24) x`
//! modulo 2^32 need no masks: row i is `sum_i - 256 sum_(i+1)`, less 128 times the sum of `x` for the
//! bias of the bytes. That last part is where the sums start, so it costs nothing.

use model_format::layout::{BLOCK_ROWS, LinearInt, ONLY_LAYOUT, Packing, TILE_COLS};
use model_format::numeric::rescale;

use super::isa::{self, dot4};
pub use super::reference::TOKENS;
use super::{Input, reference};
use crate::precision::Rows;

/// Rows of a block of [`block`]: a call does not weigh much then.
pub const ROWS: usize = 16;

/// Biases and multipliers behind the weights of a block.
const CONSTANTS: usize = 2 * BLOCK_ROWS;

/// Where the sums of four rows start, then `x` widened, with zeros up to a whole tile; empty without
/// columns.
pub type Ready<'x> = &'x [i32];

/// Bytes of a [`Ready`] for every token.
pub const fn scratch_len(tokens: usize, cols: usize) -> usize {
    padded(cols).saturating_add(BLOCK_ROWS).saturating_mul(4).saturating_mul(tokens)
}

/// Columns up to a whole tile.
const fn padded(cols: usize) -> usize {
    cols.saturating_add(TILE_COLS - 1) & !(TILE_COLS - 1)
}

/// Widens the first token; empty where `scratch` is too short or not on a multiple of 4.
pub fn ready<'x>(x: &[i16], [_, cols]: [usize; 2], scratch: &'x mut [u8]) -> Ready<'x> {
    let scratch = bytemuck::try_cast_slice_mut::<u8, i32>(scratch).unwrap_or_default();
    let ready = scratch.get_mut(..padded(cols).saturating_add(BLOCK_ROWS)).unwrap_or_default();
    let Some((starts, wide)) = ready.split_first_chunk_mut::<BLOCK_ROWS>() else { return &[] };
    let Some((x, last)) = x.split_at_checked(cols & !(TILE_COLS - 1)) else { return &[] };
    let Some((wide, last_tile)) = wide.split_at_mut_checked(x.len()) else { return &[] };
    let mut sum =
        if last_tile.is_empty() { 0 } else { widen_last(last, cols - x.len(), last_tile) };
    if !x.is_empty() {
        let ends = x.as_ptr_range();
        // SAFETY: `x` is one or more whole tiles, and `wide` as many.
        sum = sum.wrapping_add(unsafe { isa::widen(ends.start, ends.end, wide.as_mut_ptr()) });
    }
    // start_i - 256 start_(i+1) = -128 sum
    let bias = (sum << 7).wrapping_neg();
    let [_, c, b, a] = [bias, bias << 8, bias << 16, bias << 24];
    let [c, b] = [bias.wrapping_add(c), bias.wrapping_add(c).wrapping_add(b)];
    *starts = [a.wrapping_add(b), b, c, bias];
    if cols == 0 { &[] } else { ready }
}

/// The last tile, which is not whole; the sum.
#[cold]
#[inline(never)]
fn widen_last(x: &[i16], cols: usize, wide: &mut [i32]) -> i32 {
    wide.fill(0);
    wide.iter_mut().zip(x).take(cols).for_each(|(wide, &x)| *wide = x.into());
    wide.iter().sum()
}

/// What becomes of the sums of a block: a function of the ISA with registers of its own.
pub type Finish = unsafe extern "C" fn();

/// What the ISA's `multiply` is told besides its operands, in the order in which it reads it.
#[repr(C)]
pub struct Task {
    /// `store`, `saturate` or `add`.
    finish: Finish,
    /// The ready input, and its end.
    ready: [*const i32; 2],
    /// Bytes of a block.
    block_len: usize,
    /// Least and greatest output.
    bounds: [i32; 2],
    /// Of the stream that outputs are added to.
    multiplier: i32,
}

/// Blocks of four rows, and what they are multiplied with.
struct Blocks<'a> {
    /// Whole blocks, each of as many columns as `ready` has behind its starts, 1 or more.
    words: &'a [i32],
    /// Words of a block.
    len: usize,
    ready: Ready<'a>,
}

impl<'a> Blocks<'a> {
    /// Those from that of `first_row` on; `None` where the packing or the memory is another.
    #[inline(always)]
    fn new(linear: &LinearInt<'a>, first_row: usize, input: &Input<'a>) -> Option<Self> {
        let ready = input.ready;
        let cols = ready.len().checked_sub(BLOCK_ROWS)?;
        if linear.packing != Packing::QuadRows || padded(linear.cols) != cols {
            return None;
        }
        // Of halves, because a check for an overflow would cost a long multiplication.
        let len = u16::try_from(cols.saturating_add(CONSTANTS)).ok()?;
        let index = |row: usize| u16::try_from(row.div_ceil(BLOCK_ROWS)).ok();
        let at = |index: u16| usize::from(index).wrapping_mul(len.into());
        let words = bytemuck::try_cast_slice(linear.data).ok()?;
        let words = words.get(at(index(first_row)?)..at(index(linear.rows)?))?;
        Some(Self { words, len: len.into(), ready })
    }

    /// Fills `out` with outputs, or does nothing where it has more blocks than there are.
    #[inline(always)]
    fn multiply<T>(
        &self,
        out: &mut [[T; BLOCK_ROWS]],
        finish: Finish,
        bounds: [i32; 2],
        multiplier: i32,
    ) {
        let is_there = out.len().wrapping_mul(self.len) <= self.words.len();
        if out.is_empty() || out.len() > usize::from(u16::MAX) || !is_there {
            return;
        }
        let ready = self.ready.as_ptr_range();
        let block_len = self.len.wrapping_mul(size_of::<i32>());
        let task = Task { finish, ready: [ready.start, ready.end], block_len, bounds, multiplier };
        // SAFETY: there are as many blocks as `out` has fours, 1 or more; neither number nor `len` is
        // over 2^16, so the product above is exact; `ready` has the columns of a block behind its starts.
        unsafe { isa::multiply(self.words.as_ptr(), out.len(), out.as_mut_ptr().cast(), &task) }
    }

    fn store(&self, out: &mut [[i32; BLOCK_ROWS]]) {
        self.multiply(out, isa::store, [0; 2], 0);
    }

    /// Saturated to `bounds`; added to what is there where that has a multiplier.
    #[inline(always)]
    fn project(&self, out: &mut [[i16; BLOCK_ROWS]], bounds: [i32; 2], multiplier: Option<i32>) {
        let finish: Finish = if multiplier.is_some() { isa::add } else { isa::saturate };
        self.multiply(out, finish, bounds, multiplier.unwrap_or(0));
    }
}

/// The outputs of the rows from `first_row` on, a multiple of 4; those of rows past the last are
/// unspecified.
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let (fours, _) = out.as_flattened_mut().as_chunks_mut::<BLOCK_ROWS>();
    let left = linear.rows.saturating_sub(first_row).div_ceil(BLOCK_ROWS);
    let count = left.min(fours.len());
    if let Some(blocks) = Blocks::new(linear, first_row, input) {
        blocks.store(fours.get_mut(..count).unwrap_or_default());
    } else if ONLY_LAYOUT.is_none() && linear.packing == Packing::RowMajor {
        for (out, first_row) in fours.iter_mut().zip((first_row..).step_by(BLOCK_ROWS)).take(count)
        {
            row_major(linear, first_row, input.token(0), out);
        }
    } else {
        reference::block(linear, first_row, input, out);
    }
}

/// The same for four rows, row after row in memory. Those past the last are copies of it.
fn row_major(linear: &LinearInt<'_>, first_row: usize, x: &[i16], out: &mut [i32; BLOCK_ROWS]) {
    let row = |i: usize| {
        let row = first_row.saturating_add(i).min(linear.rows.saturating_sub(1));
        let start = row.saturating_mul(linear.cols);
        linear.data.get(start..start.saturating_add(linear.cols)).unwrap_or_default()
    };
    *out = dot4([row(0), row(1), row(2), row(3)], x);
    let [biases, multipliers] = linear.block_constants(first_row);
    for (out, (bias, multiplier)) in out.iter_mut().zip(biases.into_iter().zip(multipliers)) {
        *out = rescale(bias.wrapping_add(*out), multiplier);
    }
}

/// See [`vectors::context`](super::vectors::context). Four columns at a time; `false` where there are
/// others.
#[inline(never)]
pub fn try_context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    multiplier: i32,
    [low, high]: [i32; 2],
    context: &mut [i16],
) -> bool {
    let (rows, cols) = (probabilities.len(), context.len());
    let reach = rows.saturating_sub(1).saturating_mul(values.stride).saturating_add(cols);
    let (blocks, []) = context.as_chunks_mut::<4>() else { return false };
    if rows == 0 || reach > values.data.len() {
        return false;
    }
    let ends = probabilities.as_ptr_range();
    for (first, block) in (0..).step_by(4).zip(blocks) {
        let mut sums = [0; 4];
        let values_from = values.data.as_ptr().wrapping_add(first);
        // SAFETY: `reach` bytes are readable, up to the end of the last row's `cols` columns, of which
        // `first` and the next three are some; there are `rows` probabilities, not 0.
        unsafe { isa::columns(values_from, values.stride, &[ends.start, ends.end], &mut sums) };
        *block = sums.map(|sum| rescale(sum, multiplier).max(low).min(high) as i16);
    }
    true
}

/// The whole product, saturated to `bounds`; `false`, and nothing done, where it cannot.
#[inline(always)]
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    bounds: [i32; 2],
    out: &mut [i16],
) -> bool {
    project(linear, input, (bounds, None), out)
}

/// The same, added to `stream` times `multiplier`.
#[inline(always)]
pub fn try_project_add(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: i32,
    bounds: [i32; 2],
    stream: &mut [i16],
) -> bool {
    project(linear, input, (bounds, Some(multiplier)), stream)
}

#[inline(never)]
fn project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    (bounds, multiplier): ([i32; 2], Option<i32>),
    out: &mut [i16],
) -> bool {
    let (Some(blocks), Some(out)) = (Blocks::new(linear, 0, input), out.get_mut(..linear.rows))
    else {
        return false;
    };
    let (fours, rest) = out.as_chunks_mut::<BLOCK_ROWS>();
    blocks.project(fours, bounds, multiplier);
    if !rest.is_empty() {
        let first_row = linear.rows - rest.len();
        last_rows(linear, (first_row, input), (bounds, multiplier), rest);
    }
    true
}

/// The rows of a block that is not whole: outputs of those past the last go nowhere.
#[cold]
#[inline(never)]
fn last_rows(
    linear: &LinearInt<'_>,
    (first_row, input): (usize, &Input<'_>),
    (bounds, multiplier): ([i32; 2], Option<i32>),
    out: &mut [i16],
) {
    let mut four = [[0_i16; BLOCK_ROWS]];
    four.as_flattened_mut().iter_mut().zip(&*out).for_each(|(to, from)| *to = *from);
    if let Some(blocks) = Blocks::new(linear, first_row, input) {
        blocks.project(&mut four, bounds, multiplier);
    }
    out.iter_mut().zip(four.as_flattened()).for_each(|(to, from)| *to = *from);
}
