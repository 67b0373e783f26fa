//! Batches: packed sentences without padding, of similar length, in a seeded order.

use anyhow::{Result, ensure};
use model_format::config::{Family, ModelConfig};

use crate::engine::attention::Span;
use crate::rng;

/// Sentences one after another.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packed {
    /// All ids.
    pub ids: Vec<u32>,
    /// (first, length) of each sentence in `ids`.
    pub spans: Vec<Span>,
}

impl Packed {
    /// Appends a sentence.
    pub fn push(&mut self, ids: impl IntoIterator<Item = u32>) {
        let first = self.ids.len();
        self.ids.extend(ids);
        self.spans.push((first, self.ids.len() - first));
    }

    /// Whether every sentence has a place in a table of `limit` positions.
    ///
    /// # Errors
    /// When one has not, with its length and the limit.
    pub fn check_lengths(&self, limit: u16) -> Result<()> {
        let longest = self.spans.iter().map(|&(_, len)| len).max().unwrap_or(0);
        ensure!(
            longest <= usize::from(limit),
            "a sentence has {longest} ids with its frame, the limit is {limit}"
        );
        Ok(())
    }

    /// The place of every id in its sentence, from 0.
    pub fn positions(&self) -> Vec<u32> {
        self.spans.iter().flat_map(|&(_, len)| 0..len as u32).collect()
    }
}

/// One example as ids: the symbols only, without start and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Source symbols; none for a language model.
    pub source: Vec<u32>,
    /// Target symbols; a label for every source symbol of a tagger, one label of a classifier.
    pub target: Vec<u32>,
}

/// Packed examples for teacher forcing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pairs {
    /// Symbols in their frame; empty sentences for a language model.
    pub source: Packed,
    /// What the decoder reads: start, then symbols. Without a decoder, the labels; its spans always
    /// are those of `labels` and of the rows of logits.
    pub target: Packed,
    /// What is to be predicted: symbols, then end; without a decoder, the labels.
    pub labels: Vec<u32>,
}

/// The ids that an encoder reads: `symbols` in their frame.
pub fn framed<'a>(config: &ModelConfig, symbols: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
    let (frame, special) = (config.source_frame, config.special);
    let start = frame.has_start().then_some(u32::from(special.start));
    let end = frame.has_end().then_some(u32::from(special.end));
    start.into_iter().chain(symbols.iter().copied()).chain(end)
}

impl Pairs {
    /// Packs examples.
    pub fn pack<'a>(examples: impl IntoIterator<Item = &'a Example>, config: &ModelConfig) -> Self {
        let (start, end) = (u32::from(config.special.start), u32::from(config.special.end));
        let mut pairs = Self::default();
        for Example { source, target } in examples {
            match config.family {
                Family::DecoderOnly => pairs.source.push([]),
                _ => pairs.source.push(framed(config, source)),
            }
            let symbols = target.iter().copied();
            if config.has_decoder() {
                pairs.target.push([start].into_iter().chain(symbols.clone()));
                pairs.labels.extend(symbols.chain([end]));
            } else {
                pairs.target.push(symbols.clone());
                pairs.labels.extend(symbols);
            }
        }
        pairs
    }
}

/// Batches in this many are sorted by length together: similar lengths, yet a new mix every epoch.
const CHUNK_BATCHES: usize = 64;

/// The batches of one epoch as indices into `examples`: shuffled, sorted by length within chunks, cut,
/// and the batches shuffled again. A function of seed and epoch.
pub fn epoch_batches(
    examples: &[Example],
    batch_size: usize,
    seed: u64,
    epoch: u64,
) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..examples.len() as u32).collect();
    rng::shuffle(&mut order, rng::key(&[seed, epoch, 0]));
    let mut batches = Vec::new();
    for chunk in order.chunks_mut(batch_size.saturating_mul(CHUNK_BATCHES)) {
        chunk.sort_by_key(|&i| {
            let example = &examples[i as usize];
            (example.source.len() + example.target.len(), example.source.len(), i)
        });
        batches.extend(chunk.chunks(batch_size).map(<[u32]>::to_vec));
    }
    rng::shuffle(&mut batches, rng::key(&[seed, epoch, 1]));
    batches
}

/// The part of a batch that slice `slice` of `slices` works on: every `slices`-th example, so that all
/// slices cost the same.
pub fn slice_of(batch: &[u32], slice: usize, slices: usize) -> impl Iterator<Item = u32> {
    batch.iter().copied().skip(slice).step_by(slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(n: usize) -> Vec<Example> {
        (0..n)
            .map(|i| Example { source: vec![4; 1 + i * 7 % 13], target: vec![5; 1 + i % 5] })
            .collect()
    }

    #[test]
    fn an_epoch_visits_every_example_once_in_a_seeded_order() {
        let examples = examples(1000);
        let batches = epoch_batches(&examples, 32, 7, 3);
        let mut seen: Vec<u32> = batches.concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
        assert_eq!(batches, epoch_batches(&examples, 32, 7, 3));
        assert_ne!(batches, epoch_batches(&examples, 32, 7, 4));
        assert_ne!(batches, epoch_batches(&examples, 32, 8, 3));
    }

    #[test]
    fn slices_cover_a_batch() {
        let batch: Vec<u32> = (0..11).collect();
        let mut all: Vec<u32> = (0..3).flat_map(|s| slice_of(&batch, s, 3)).collect();
        all.sort_unstable();
        assert_eq!(all, batch);
    }
}
