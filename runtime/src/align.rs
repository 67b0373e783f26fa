//! Which source positions a token attends to.

use crate::precision::{AttentionScratch, Precision};

/// The weights of one head of cross-attention at one step.
///
/// A step reads one id, from the start id on, and its weights are shown before the id that follows is
/// known: layer by layer, head by head. The ids of a prefix are read, and shown, as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossAttention<'w> {
    /// Decoder layer.
    pub layer: u16,
    /// Head.
    pub head: u16,
    /// Softmax over the source positions, those of the frame included: `[source_len]` in Q15, 32768
    /// being 1. Rounded: the sum is 1 but for half a unit each.
    pub weights: &'w [u16],
}

/// What is shown of cross-attention.
pub(crate) trait Align<P: Precision> {
    /// Whether anything is.
    const SEES: bool;

    fn head(&mut self, layer: u16, head: usize, scratch: AttentionScratch<'_, P>);
}

/// Nothing, at no cost.
pub(crate) struct Unaligned;

impl<P: Precision> Align<P> for Unaligned {
    const SEES: bool = false;

    fn head(&mut self, _: u16, _: usize, _: AttentionScratch<'_, P>) {}
}

/// All weights, to this function.
pub(crate) struct Aligned<F>(pub F);

impl<P: Precision, F: FnMut(CrossAttention<'_>)> Align<P> for Aligned<F> {
    const SEES: bool = true;

    fn head(&mut self, layer: u16, head: usize, scratch: AttentionScratch<'_, P>) {
        (self.0)(CrossAttention { layer, head: head as u16, weights: P::weights(scratch) });
    }
}
