//! Slices without panics: tokens of a matrix `[len, d_model]`, in groups that products take together; copies.
//!
//! Here and in the layers sizes are multiplied and added without a look at overflow: they are those of
//! buffers that the plan has found to fit into memory.

use core::ops::Range;

/// `positions` in pieces of at most `tokens`.
pub(crate) fn chunks(positions: Range<usize>, tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = positions.clone().step_by(tokens.max(1));
    starts.map(move |start| start..start.wrapping_add(tokens).min(positions.end))
}

/// Their number; not `len`, which could panic for all a compiler sees.
pub(crate) fn tokens_of(positions: &Range<usize>) -> usize {
    positions.end.saturating_sub(positions.start)
}

/// The rows of these positions in `[len, d_model]`.
pub(crate) fn rows_mut<'x, T>(
    x: &'x mut [T],
    positions: &Range<usize>,
    d_model: usize,
) -> &'x mut [T] {
    let range = positions.start.wrapping_mul(d_model)..positions.end.wrapping_mul(d_model);
    x.get_mut(range).unwrap_or_default()
}

/// Copies without the panic of `copy_from_slice`.
pub(crate) trait CopyFrom<T> {
    fn copy_from(&mut self, from: &[T]);
}

impl<T: Copy> CopyFrom<T> for [T] {
    fn copy_from(&mut self, from: &[T]) {
        let len = self.len().min(from.len());
        if let (Some(to), Some(from)) = (self.get_mut(..len), from.get(..len)) {
            to.copy_from_slice(from);
        }
    }
}
