//! Cortex-M4, M7 and M33: two multiplications of 16 bits in one instruction. Made for paired rows and
//! weights of 4 bits.

mod code;
mod epilogue;
mod four_tokens;
mod nibbles;
mod paired;
mod product;
mod ready;
mod row_major;

use model_format::layout::{LinearInt, Packing};

use super::{Input, reference};
use epilogue::Epilogue;
use product::Product;
pub use ready::{Ready, ready, scratch_len};
pub use row_major::dot4;

/// Most tokens of an input.
pub const TOKENS: usize = 4;
/// Rows of a block.
pub const ROWS: usize = 16;

/// The outputs of the rows from `first_row` on, a multiple of 4, for every token; those of rows past
/// the last are unspecified.
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    if let Some(product) = Product::new(linear, first_row, input) {
        product.rescaled(out);
    } else if linear.packing == Packing::RowMajor {
        row_major::block(linear, first_row, input, out);
    } else {
        reference::block(linear, first_row, input, out);
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
    let Some(epilogue) = Epilogue::new(multiplier, bounds) else {
        return false;
    };
    Product::new(linear, 0, input).is_some_and(|product| product.saturated(epilogue, out))
}
