//! x86-64: AVX2 and AVX-512 VNNI, chosen when the program runs (feature `std`) or by the target.
//!
//! Both read `x` as it lies, two columns of a row in a register's lane, and multiply `i16` by `i16`:
//! `VPMADDWD` and `VPDPWSSD` add two products to an `i32`, modulo 2^32. Blocks of four rows are
//! unpacked in the register; one token goes along the rows, several share what was unpacked. With VNNI
//! one token is cut into bytes, of which `VPDPBUSD` adds four products.

mod attention_avx512;
mod avx2;
mod avx512;
mod blocks_avx512;
mod choice;
mod float;
mod matrix;
mod nibbles_avx2;
mod nibbles_avx512;
mod row_avx512;
mod rows_f32;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_float;
mod vectors;
mod vectors_avx2;
mod vectors_avx512;

use core::ops::Range;

use model_format::layout::{LinearF16, LinearInt};

use super::{Input, reference};
pub use choice::Isa;
#[cfg(feature = "std")]
pub use choice::force;
use matrix::Matrix;
pub use vectors::{
    exp2_all, moments, scores, try_attend, try_context, try_multiply_rows, try_powers,
    try_weigh_rows, wide,
};

/// Most tokens of an input.
pub const TOKENS: usize = 32;
/// Rows of a block.
pub const ROWS: usize = 16;

/// Columns that a register takes, of a tile twice.
const REPLICATED_COLS: usize = 16;
/// Columns past the last whole tile, with zeros behind them, of one token.
const TAIL: usize = 4;
/// What a cache line starts on.
const LINE: usize = 64;

/// What is made of an input.
#[derive(Clone, Copy)]
pub struct Ready<'x> {
    /// The kernels that it is for.
    isa: Isa,
    /// Sum of the one token.
    sum: i32,
    /// Whether the one token is cut into bytes.
    is_cut: bool,
    /// One token: every four columns twice, zeros up to a multiple of [`REPLICATED_COLS`] columns; or cut,
    /// as [`blocks_avx512::cut`] does.
    /// Several: the columns past the last whole tile, [`TAIL`] of each.
    x: &'x [i16],
}

/// Bytes of memory for that, with up to `tokens` tokens.
pub const fn scratch_len(tokens: usize, cols: usize) -> usize {
    let cut = cols.next_multiple_of(REPLICATED_COLS).saturating_mul(8);
    let tails = tokens.saturating_mul(TAIL * 2);
    LINE.saturating_add(if cut > tails { cut } else { tails })
}

/// See [`Ready`].
pub fn ready<'x>(x: &'x [i16], [tokens, cols]: [usize; 2], scratch: &'x mut [u8]) -> Ready<'x> {
    ready_for(choice::chosen(), x, [tokens, cols], scratch)
}

fn ready_for<'x>(
    isa: Isa,
    x: &'x [i16],
    [tokens, cols]: [usize; 2],
    scratch: &'x mut [u8],
) -> Ready<'x> {
    let skip = scratch.as_ptr().addr().wrapping_neg() % LINE;
    let aligned = scratch.get_mut(skip..).unwrap_or_default();
    let memory: &mut [i16] = bytemuck::try_cast_slice_mut(aligned).unwrap_or_default();
    if isa == Isa::Baseline {
        return Ready { isa, sum: 0, is_cut: false, x: &[] };
    }
    match tokens {
        1 => one_token(isa, x.get(..cols).unwrap_or(x), memory),
        _ => Ready { isa, sum: 0, is_cut: false, x: tails(x, [tokens, cols], memory) },
    }
}

fn one_token<'x>(isa: Isa, x: &[i16], memory: &'x mut [i16]) -> Ready<'x> {
    if isa == Isa::Avx512Vnni {
        // SAFETY: what is chosen is here.
        if let Some(sum) = unsafe { blocks_avx512::cut(x, memory) } {
            return Ready { isa, sum, is_cut: true, x: memory };
        }
    }
    vectors::wide(
        #[inline(always)]
        || replicate(isa, x, memory),
    )
}

#[inline(always)]
fn replicate<'x>(isa: Isa, x: &[i16], memory: &'x mut [i16]) -> Ready<'x> {
    let len = x.len().next_multiple_of(REPLICATED_COLS).saturating_mul(2);
    let memory = memory.get_mut(..len).unwrap_or_default();
    let (whole, rest) = x.as_chunks::<4>();
    let (tiles, _) = memory.as_chunks_mut::<8>();
    let mut last = [0; 4];
    last.iter_mut().zip(rest).for_each(|(to, &x)| *to = x);
    let columns = whole.iter().chain([&last]).chain(core::iter::repeat(&[0; 4]));
    for (tile, &[a, b, c, d]) in tiles.iter_mut().zip(columns) {
        *tile = [a, b, c, d, a, b, c, d];
    }
    let sum = x.iter().fold(0_i32, |sum, &x| sum.wrapping_add(i32::from(x)));
    Ready { isa, sum, is_cut: false, x: memory }
}

fn tails<'x>(x: &[i16], [tokens, cols]: [usize; 2], memory: &'x mut [i16]) -> &'x [i16] {
    let memory = memory.get_mut(..tokens.saturating_mul(TAIL)).unwrap_or_default();
    let (tails, _) = memory.as_chunks_mut::<TAIL>();
    for (tail, token) in tails.iter_mut().zip(x.chunks_exact(cols.max(1))) {
        let (_, rest) = token.as_chunks::<4>();
        *tail = [0; TAIL];
        tail.iter_mut().zip(rest).for_each(|(to, &x)| *to = x);
    }
    memory
}

/// The matrix, where `input` is ready for it in this set of instructions.
fn checked<'m>(linear: &'m LinearInt<'m>, input: &Input<'_>) -> Option<(Isa, Matrix<'m>)> {
    let ready_len = match input.tokens {
        1 if input.ready.is_cut => input.cols.next_multiple_of(REPLICATED_COLS).saturating_mul(4),
        1 => input.cols.next_multiple_of(REPLICATED_COLS).saturating_mul(2),
        tokens => tokens.saturating_mul(TAIL),
    };
    let is_ready = (1..=TOKENS).contains(&input.tokens) && input.ready.x.len() >= ready_len;
    match input.ready.isa {
        Isa::Baseline => None,
        isa if is_ready => Some((isa, Matrix::new(linear, input)?)),
        _ => None,
    }
}

/// The outputs of the rows from `first_row` on, a multiple of 4, for every token; those of rows past
/// the last are zeros.
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    match checked(linear, input) {
        Some((isa, matrix)) if first_row < matrix.rows() => match isa {
            // SAFETY: an input is made for instructions only where they are here.
            Isa::Avx512Vnni => unsafe { avx512::block(&matrix, first_row, input, out) },
            // SAFETY: as above.
            _ => unsafe { avx2::block(&matrix, first_row, input, out) },
        },
        _ => reference::block(linear, first_row, input, out),
    }
}

/// `each(token, row, outputs)` for these rows, several at a time; within a token ascending. `false`, and
/// nothing done, without vectors.
pub fn try_blocks(
    linear: &LinearInt<'_>,
    rows: Range<usize>,
    input: &Input<'_>,
    each: &mut impl FnMut(usize, usize, &[i32]),
) -> bool {
    let Some((isa, matrix)) = checked(linear, input) else {
        return false;
    };
    let rows = rows.start..rows.end.min(linear.rows);
    match isa {
        // SAFETY: an input is made for instructions only where they are here.
        Isa::Avx512Vnni => unsafe { avx512::blocks(&matrix, rows, input, each) },
        // SAFETY: as above.
        _ => unsafe { avx2::blocks(&matrix, rows, input, each) },
    }
    true
}

/// All rows for every token, saturated, `[tokens, rows]`; `false`, and nothing written, where `out` is
/// too short or the processor has only the portable kernels.
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    bounds: [i32; 2],
    out: &mut [i16],
) -> bool {
    try_with(linear, input, (None, bounds), out)
}

/// The same, added to `stream`, which `multiplier` brings to the scale of the sum.
pub fn try_project_add(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: i32,
    bounds: [i32; 2],
    stream: &mut [i16],
) -> bool {
    try_with(linear, input, (Some(multiplier), bounds), stream)
}

/// See [`vectors::try_project_cached`](super::vectors::try_project_cached).
pub fn try_project_cached(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    out: &mut [i8],
    room: &mut [i16],
) -> bool {
    let Some((Isa::Avx512Vnni, matrix)) = checked(linear, input) else {
        return super::vectors::try_project_cached(linear, input, out, room);
    };
    if input.tokens.checked_mul(linear.rows).is_none_or(|len| len > out.len()) {
        return false;
    }
    // SAFETY: an input is made for instructions only where they are here; `out` has room.
    unsafe { avx512::project_cached(&matrix, input, out) };
    true
}

/// What is done with an output: the multiplier of what it is added to, if any, and the bounds.
type Epilogue = (Option<i32>, [i32; 2]);

fn try_with(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    epilogue: Epilogue,
    out: &mut [i16],
) -> bool {
    let Some((isa, matrix)) = checked(linear, input) else {
        return false;
    };
    if input.tokens.checked_mul(linear.rows).is_none_or(|len| len > out.len()) {
        return false;
    }
    match isa {
        // SAFETY: an input is made for instructions only where they are here; `out` has room.
        Isa::Avx512Vnni => unsafe { avx512::project(&matrix, input, epilogue, out) },
        // SAFETY: as above.
        _ => unsafe { avx2::project(&matrix, input, epilogue, out) },
    }
    true
}

/// See [`vectors::try_add_row`](super::vectors::try_add_row).
pub fn try_add_row(
    table: &LinearInt<'_>,
    place: [usize; 2],
    multiplier: i32,
    sums: &mut [i32; row_avx512::COLS],
) -> bool {
    // SAFETY: what is chosen is here.
    choice::chosen() == Isa::Avx512Vnni
        && unsafe { row_avx512::add(table, place, multiplier, sums) }
}

pub use reference::dot4;

/// Products of HalfFloat: see `float::try_products`.
pub fn try_products(
    linear: &LinearF16<'_>,
    rows: Range<usize>,
    x: (&[f32], [usize; 2]),
    each: &mut impl FnMut(usize, usize, &[f32]),
) -> bool {
    // SAFETY: what is chosen is here.
    unsafe { float::try_products(choice::chosen(), linear, rows, x, each) }
}
