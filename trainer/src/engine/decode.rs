//! The best output of many sentences at once: greedy decoding with a KV cache, or labels.

use model_format::config::Family;

use super::Workspace;
use super::attention::Span;
use super::layers::{AttentionActs, Visibility, reset};
use super::network::Network;
use super::stack::{LayerActs, Pass};
use crate::data::batch::{Packed, Pairs, framed};

/// Sentences decoded together: enough for the matrix products, few enough for the cache.
const SENTENCES: usize = 128;

/// One output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// Without start, prompt and end; of a model without a decoder, the labels.
    pub ids: Vec<u32>,
    /// Whether the end id came before the length limit; always where there is no decoder.
    pub ended: bool,
}

impl Network {
    /// The best output of every source (symbols only; its frame is added here): the greedy one, or the
    /// labels. The source of a language model is the prompt that it goes on with.
    ///
    /// # Panics
    /// When a source is longer than the table of positions.
    pub fn greedy(&self, params: &[f32], sources: &[&[u32]]) -> Vec<Decoded> {
        let mut workspace = Workspace::default();
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|&i| sources[i].len());
        let mut decoded = vec![Decoded { ids: Vec::new(), ended: false }; sources.len()];
        for chunk in order.chunks(SENTENCES) {
            let sources: Vec<&[u32]> = chunk.iter().map(|&i| sources[i]).collect();
            let outputs = match self.config.family {
                Family::EncoderDecoder => {
                    let prompts = vec![[].as_slice(); chunk.len()];
                    let source = self.packed_sources(&sources);
                    self.greedy_chunk(params, &source, &prompts, &mut workspace)
                }
                Family::DecoderOnly => {
                    let source = Packed { ids: Vec::new(), spans: vec![(0, 0); chunk.len()] };
                    self.greedy_chunk(params, &source, &sources, &mut workspace)
                }
                Family::Tagger | Family::Classifier => {
                    self.label_chunk(params, &sources, &mut workspace)
                }
            };
            for (&i, d) in chunk.iter().zip(outputs) {
                decoded[i] = d;
            }
        }
        decoded
    }

    fn packed_sources(&self, sources: &[&[u32]]) -> Packed {
        let mut packed = Packed::default();
        sources.iter().for_each(|source| packed.push(framed(&self.config, source)));
        packed
    }

    /// The label with the highest logit for every symbol, or for every sentence.
    fn label_chunk(
        &self,
        params: &[f32],
        sources: &[&[u32]],
        workspace: &mut Workspace,
    ) -> Vec<Decoded> {
        let pairs = Pairs { source: self.packed_sources(sources), ..Pairs::default() };
        self.forward(params, &pairs, None, workspace);
        let mut best = self.best_ids(&workspace.logits).into_iter();
        let labels = |source: &&[u32]| match self.config.family {
            Family::Tagger => source.len(),
            _ => 1,
        };
        let lengths = sources.iter().map(labels);
        lengths.map(|n| Decoded { ids: best.by_ref().take(n).collect(), ended: true }).collect()
    }

    /// `source` is empty without an encoder; each output begins with what follows its prompt.
    fn greedy_chunk(
        &self,
        params: &[f32],
        source: &Packed,
        prompts: &[&[u32]],
        workspace: &mut Workspace,
    ) -> Vec<Decoded> {
        let pass = Pass { network: self, params, dropout: None };
        let max_len = usize::from(self.config.max_target_len);
        let n = source.spans.len();
        let mut layers = self.open_caches(&pass, source, max_len, workspace);
        let mut decoded = vec![Decoded { ids: Vec::new(), ended: false }; n];
        let mut active: Vec<usize> = (0..n).collect();
        let mut last = vec![u32::from(self.config.special.start); n];
        for position in 0..max_len {
            let caches: Vec<Span> = active.iter().map(|&s| (s * max_len, position + 1)).collect();
            let sources: Vec<Span> = active.iter().map(|&s| source.spans[s]).collect();
            let step = Step { pass, position, caches: &caches, sources: &sources };
            step.run(&last, &mut layers, workspace);
            let best = self.best_ids(&workspace.logits);
            let mut still = Vec::with_capacity(active.len());
            last.clear();
            for (&s, id) in active.iter().zip(best) {
                let prompted = prompts[s].get(position).copied();
                if prompted.is_none() && id == u32::from(self.config.special.end) {
                    decoded[s].ended = true;
                    continue;
                }
                decoded[s].ids.extend(prompted.is_none().then_some(id));
                still.push(s);
                last.push(prompted.unwrap_or(id));
            }
            active = still;
            if active.is_empty() {
                break;
            }
        }
        decoded
    }

    /// Encodes, then computes every layer's cross keys and values and empty self caches.
    fn open_caches(
        &self,
        pass: &Pass,
        source: &Packed,
        max_len: usize,
        workspace: &mut Workspace,
    ) -> Vec<LayerActs> {
        let Workspace { encoder, scratch, .. } = workspace;
        if let Some(stack) = &self.encoder {
            pass.forward(stack, source, None, encoder, scratch);
        }
        let memory = self.encoder.as_ref().map(|e| encoder.output(e, self.config.norm));
        let cache_len = source.spans.len() * max_len * 2 * usize::from(self.config.d_model);
        let layers = self.decoder.iter().flat_map(|decoder| &decoder.layers);
        layers
            .map(|layer| {
                let mut acts = LayerActs::default();
                acts.self_attention.branch.key_value.resize(cache_len, 0.0);
                if let (Some((attention, _)), Some(memory)) = (&layer.cross_attention, memory) {
                    let out = &mut acts.cross_attention.branch.key_value;
                    attention.key_value.forward(pass.params, memory, out);
                }
                acts
            })
            .collect()
    }

    /// The id with the highest logit in each row, the lowest id of equals; never a decoder's pad or
    /// start.
    fn best_ids(&self, logits: &[f32]) -> Vec<u32> {
        let special = self.config.special;
        let has_decoder = self.config.has_decoder();
        let rows = logits.chunks_exact(self.config.target_vocab.into());
        rows.map(|row| {
            let mut best: Option<(u32, f32)> = None;
            for (id, &logit) in (0u32..).zip(row) {
                let banned =
                    has_decoder && (id == u32::from(special.pad) || id == u32::from(special.start));
                if !banned && best.is_none_or(|(_, most)| logit > most) {
                    best = Some((id, logit));
                }
            }
            best.map_or(u32::from(special.end), |(id, _)| id)
        })
        .collect()
    }
}

/// One decoder step of all active sentences.
struct Step<'a> {
    pass: Pass<'a>,
    position: usize,
    /// Rows of each sentence's self-attention cache, this step's included.
    caches: &'a [Span],
    /// Rows of each sentence's memory.
    sources: &'a [Span],
}

impl Step<'_> {
    /// Leaves `[sentences, target_vocab]` in `workspace.logits`.
    fn run(&self, last: &[u32], layers: &mut [LayerActs], workspace: &mut Workspace) {
        let Pass { network, params, .. } = self.pass;
        let place = network.config.norm;
        let Workspace { decoder, logits, scratch, .. } = workspace;
        let Some(stack) = &network.decoder else { return };
        let queries: Vec<Span> = (0..last.len()).map(|i| (i, 1)).collect();
        self.pass.embed(stack, last, |_| self.position, &mut decoder.embedded);
        let mut x = decoder.embedded.as_slice();
        for (layer, acts) in stack.layers.iter().zip(layers) {
            let LayerActs { self_attention, cross_attention, feed_forward } = acts;
            let who = |spans| Visibility {
                query_spans: &queries,
                key_spans: spans,
                causal: false,
                mask: None,
            };
            let (attention, norm) = &layer.self_attention;
            self.pass.sublayer(norm, None, x, self_attention, scratch, |x, a, s| {
                attention.query.forward(params, x, &mut a.query);
                attention.key_value.forward(params, x, &mut s.d_a);
                self.append(a, &s.d_a);
                attention.attend(params, who(self.caches), a, &mut s.tiles, &mut s.branch);
            });
            x = self_attention.output(place);
            if let Some((attention, norm)) = &layer.cross_attention {
                self.pass.sublayer(norm, None, x, cross_attention, scratch, |x, a, s| {
                    attention.query.forward(params, x, &mut a.query);
                    attention.attend(params, who(self.sources), a, &mut s.tiles, &mut s.branch);
                });
                x = cross_attention.output(place);
            }
            let (ff, norm) = &layer.feed_forward;
            self.pass.sublayer(norm, None, x, feed_forward, scratch, |x, a, s| {
                ff.forward(params, x, None, a, s);
            });
            x = feed_forward.output(place);
        }
        if let Some(norm) = stack.norm {
            let (d, eps) = (network.config.d_model.into(), network.config.layer_norm_eps);
            norm.forward(params, x, d, eps, &mut decoder.norm);
            x = &decoder.norm.out;
        }
        reset(logits, 0);
        network.output.forward(params, x, logits);
    }

    /// Writes this step's keys and values to the end of each sentence's cache.
    fn append(&self, acts: &mut AttentionActs, new: &[f32]) {
        let width = new.len() / self.caches.len();
        for (row, &(first, len)) in new.chunks_exact(width).zip(self.caches) {
            let at = (first + len - 1) * width;
            acts.key_value[at..at + width].copy_from_slice(row);
        }
    }
}
