//! Matrix times vectors in blocks of rows, with the epilogue of the caller.

use core::ops::Range;

use model_format::layout::LinearInt;

use crate::kernels::{self, Block, Input, ROWS, TOKENS};

/// Tells feature `mac-counts` of a product with so many rows.
#[inline(always)]
pub fn count_macs(_rows: usize, _input: &Input<'_>) {
    #[cfg(feature = "mac-counts")]
    crate::macs::count(_rows.saturating_mul(_input.tokens), _input.cols);
}

/// `each(token, row, outputs)` for the blocks of these rows, ascending; `rows` start on a multiple of 4.
#[inline(always)]
pub fn for_each_block(
    linear: &LinearInt<'_>,
    rows: Range<usize>,
    input: &Input<'_>,
    mut each: impl FnMut(usize, usize, &[i32]),
) {
    count_macs(rows.len(), input);
    if kernels::try_blocks(linear, rows.clone(), input, &mut each) {
        return;
    }
    let mut block: Block = [[0; ROWS]; TOKENS];
    let step = kernels::rows(linear, input);
    let end = rows.end.min(linear.rows);
    let mut first = rows.start;
    while first < end {
        kernels::block(linear, first, input, &mut block);
        let count = end.saturating_sub(first).min(step);
        let mut left = block.as_flattened();
        for token in 0..input.tokens {
            each(token, first, left.get(..count).unwrap_or_default());
            left = left.get(step..).unwrap_or_default();
        }
        first = first.saturating_add(step);
    }
}
