//! Cortex-M4, M7 and M33: two multiplications of 16 bits in one instruction. Made for paired rows.

mod epilogue;
mod paired;
mod ready;
mod row_major;

use model_format::layout::{BLOCK_ROWS, LinearInt};

use super::{Input, reference};
use epilogue::Epilogue;
use paired::Paired;
pub use ready::{Ready, ready, scratch_len};
pub use row_major::dot4;

/// Most tokens of an input.
pub const TOKENS: usize = 1;
/// Rows of a block.
pub const ROWS: usize = BLOCK_ROWS;

/// The outputs of the rows from `first_row` on, a multiple of 4, for every token; those of rows past
/// the last are unspecified.
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let Some(paired) = Paired::new(linear, first_row, &input.ready) else {
        return reference::block(linear, first_row, input, out);
    };
    for (token, out) in out.iter_mut().enumerate().take(input.tokens) {
        paired.multiply(token, &Epilogue::RESCALE, bytemuck::cast_mut::<_, [u32; ROWS]>(out));
    }
}

/// `out[token, row]`, saturated to `bounds`; `false`, and nothing done, where it cannot.
#[inline(always)]
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    bounds: [i32; 2],
    out: &mut [i16],
) -> bool {
    project(linear, input, None, bounds, out)
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
    project(linear, input, Some(multiplier), bounds, stream)
}

#[inline(never)]
fn project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: Option<i32>,
    bounds: [i32; 2],
    out: &mut [i16],
) -> bool {
    let (tokens, rows) = (input.tokens, linear.rows);
    let (Some(epilogue), Some(paired)) =
        (Epilogue::new(multiplier, bounds), Paired::new(linear, 0, &input.ready))
    else {
        return false;
    };
    // Outputs are stored by words.
    let is_aligned =
        out.as_ptr().addr().is_multiple_of(4) && (tokens == 1 || rows.is_multiple_of(2));
    let Some(mut rest) = out.get_mut(..tokens.wrapping_mul(rows)).filter(|_| is_aligned) else {
        return false;
    };
    for token in 0..tokens {
        let (out, others) = rest.split_at_mut_checked(rows).unwrap_or_default();
        let (blocks, _) = out.as_chunks_mut::<BLOCK_ROWS>();
        paired.multiply(token, &epilogue, bytemuck::try_cast_slice_mut(blocks).unwrap_or_default());
        if !rows.is_multiple_of(BLOCK_ROWS) {
            last_rows(linear, input, token, &epilogue, out);
        }
        rest = others;
    }
    true
}

/// The rows of the last block: outputs of those past the last go nowhere.
#[cold]
#[inline(never)]
fn last_rows(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    token: usize,
    epilogue: &Epilogue,
    out: &mut [i16],
) {
    let (blocks, last) = out.as_chunks_mut::<BLOCK_ROWS>();
    let Some(paired) = Paired::new(linear, blocks.len().wrapping_mul(BLOCK_ROWS), &input.ready)
    else {
        return;
    };
    let mut block = [0_i16; BLOCK_ROWS];
    block.iter_mut().zip(&*last).for_each(|(to, from)| *to = *from);
    paired.multiply(token, epilogue, bytemuck::cast_mut::<_, [u32; 2]>(&mut block));
    last.iter_mut().zip(block).for_each(|(to, from)| *to = from);
}
