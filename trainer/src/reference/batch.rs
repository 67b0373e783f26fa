//! Padded batches: what the papers' masks are made of.

use candle_core::{Device, Result, Tensor};

use crate::data::batch::{Packed, Pairs};

/// Pairs of sentences padded to the longest: b sentences, s source positions, t target positions.
pub struct Batch {
    /// Source ids `[b, s]`.
    pub source: Tensor,
    /// Ids that the decoder reads `[b, t]`; without a decoder, as `labels`.
    pub target: Tensor,
    /// Ids that it must predict `[b, t]`; pad where there is none.
    pub labels: Tensor,
    /// Source padding mask `[b, 1, 1, s]`: 1 where a position may be attended to, 0 at padding.
    pub source_visible: Tensor,
    /// Combined mask `[b, 1, t, t]`: 1 where query i may attend to key j, which takes j <= i (causal)
    /// and no padding at j.
    pub target_visible: Tensor,
    /// `[b, t]`: 1 where a label counts, 0 at padding.
    pub counts: Tensor,
    /// `[b, s]`: as `source_visible`.
    pub source_counts: Tensor,
    /// t.
    pub target_len: usize,
}

impl Batch {
    /// Pads the sentences of all parts, one part below the other, with the id `pad`.
    pub fn new(parts: &[&Pairs], pad: u32, device: &Device) -> Result<Self> {
        let source: Vec<&[u32]> =
            parts.iter().flat_map(|p| sentences(&p.source, &p.source.ids)).collect();
        let target: Vec<&[u32]> =
            parts.iter().flat_map(|p| sentences(&p.target, &p.target.ids)).collect();
        let labels: Vec<&[u32]> =
            parts.iter().flat_map(|p| sentences(&p.target, &p.labels)).collect();
        let (source_len, target_len) = (longest(&source), longest(&target));
        let b = source.len();
        let source_visible = padding_mask(&source, source_len, device)?;
        let target_padding = padding_mask(&target, target_len, device)?;
        Ok(Self {
            source: padded(&source, source_len, pad, device)?,
            target: padded(&target, target_len, pad, device)?,
            labels: padded(&labels, target_len, pad, device)?,
            source_visible: source_visible.reshape((b, 1, 1, source_len))?,
            source_counts: source_visible,
            target_visible: combined_mask(&target_padding, device)?,
            counts: target_padding,
            target_len,
        })
    }
}

/// The sentences of `packed`, taken from `ids`, which has its shape.
fn sentences<'a>(packed: &'a Packed, ids: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
    packed.spans.iter().map(|&(first, len)| &ids[first..first + len])
}

/// At least 1, because a reduction over nothing is an error in candle.
fn longest(sentences: &[&[u32]]) -> usize {
    sentences.iter().map(|ids| ids.len()).max().unwrap_or(0).max(1)
}

/// Ids `[b, len]`.
fn padded(sentences: &[&[u32]], len: usize, pad: u32, device: &Device) -> Result<Tensor> {
    let fill = |ids: &&[u32]| {
        ids.iter().copied().chain(std::iter::repeat(pad)).take(len).collect::<Vec<_>>()
    };
    let ids: Vec<u32> = sentences.iter().flat_map(fill).collect();
    Tensor::from_vec(ids, (sentences.len(), len), device)
}

/// `[b, len]`: 1 at ids, 0 at padding.
fn padding_mask(sentences: &[&[u32]], len: usize, device: &Device) -> Result<Tensor> {
    let visible = sentences.iter().flat_map(|ids| (0..len).map(|i| u8::from(i < ids.len())));
    Tensor::from_vec(visible.collect(), (sentences.len(), len), device)
}

/// `[t, t]`: 1 where key j is not after query i.
fn causal_mask(t: usize, device: &Device) -> Result<Tensor> {
    let visible = (0..t).flat_map(|i| (0..t).map(move |j| u8::from(j <= i)));
    Tensor::from_vec(visible.collect(), (t, t), device)
}

/// `[b, 1, t, t]` from the padding mask `[b, t]`.
fn combined_mask(padding: &Tensor, device: &Device) -> Result<Tensor> {
    let (b, t) = padding.dims2()?;
    let causal = causal_mask(t, device)?.reshape((1, 1, t, t))?;
    padding.reshape((b, 1, 1, t))?.broadcast_mul(&causal)
}
