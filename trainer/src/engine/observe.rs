//! Looks at every activation of one sentence: for calibration, and for comparing implementations.
//!
//! Names, with `[rows, columns]` where rows are positions:
//! - `encoder.embed`, `decoder.embed`: the scaled embedding + positions, `[len, d_model]`
//! - `<layer>.norm1` ... `.norm3`: results of LayerNorm, `[len, d_model]`
//! - `<layer>.self_attention.query|key|value|context`, likewise `cross_attention`: `[len, d_model]`, heads
//!   side by side; cross keys and values have the source's rows
//! - `<layer>.self_attention.output` ..., `<layer>.feed_forward.output`: a sublayer's result before the
//!   residual sum, `[len, d_model]`
//! - `<layer>.feed_forward.linear1`: before the activation where that is smooth, `[len, d_ff]`
//! - `<layer>.feed_forward.hidden`: after it, `[len, d_ff]`
//! - `<layer>.sum1` ... `.sum3`: the residual stream after each sublayer (post-LN: before its norm); a
//!   decoder without cross-attention has no `norm2` and no `sum2`
//! - `encoder.norm`, `decoder.norm`: final LayerNorm, where there is one
//! - `logits`: `[labels, target_vocab]`
//!
//! where `<layer>` is `encoder.layers.0` and so on.

use super::Workspace;
use super::activations::Smooth;
use super::layers::AttentionActs;
use super::network::{Attention, Network, Stack};
use super::stack::{StackActs, SublayerActs};
use crate::data::batch::Pairs;

/// Called with a name, the values and their shape.
pub type Observer<'a> = &'a mut dyn FnMut(&str, &[f32], &[usize]);

impl Network {
    /// One sentence. `src` are the source ids in their frame (none for a language model), `tgt_in` the
    /// start id and the symbols that the decoder reads (none without a decoder). Returns the logits, a
    /// row of `target_vocab` for every id of `tgt_in`, for every symbol of a tagger's source, or one.
    pub fn forward_observed(
        &self,
        params: &[f32],
        src: &[u32],
        tgt_in: &[u32],
        observer: Observer,
    ) -> Vec<f32> {
        let mut pairs = Pairs::default();
        pairs.source.push(src.iter().copied());
        pairs.target.push(tgt_in.iter().copied());
        let mut workspace = Workspace::default();
        self.forward(params, &pairs, None, &mut workspace);
        let mut tap = Tap { network: self, params, observer };
        if let Some(stack) = &self.encoder {
            tap.stack("encoder", stack, &workspace.encoder);
        }
        if let Some(stack) = &self.decoder {
            tap.stack("decoder", stack, &workspace.decoder);
        }
        tap.see("logits", &workspace.logits, self.config.target_vocab.into());
        workspace.logits
    }
}

struct Tap<'a> {
    network: &'a Network,
    params: &'a [f32],
    observer: Observer<'a>,
}

impl Tap<'_> {
    fn see(&mut self, name: &str, values: &[f32], columns: usize) {
        (self.observer)(name, values, &[values.len() / columns, columns]);
    }

    fn stack(&mut self, name: &str, stack: &Stack, acts: &StackActs) {
        let d = usize::from(self.network.config.d_model);
        self.see(&format!("{name}.embed"), &acts.embedded, d);
        for (i, (layer, acts)) in stack.layers.iter().zip(&acts.layers).enumerate() {
            let name = format!("{name}.layers.{i}");
            let (attention, _) = &layer.self_attention;
            self.attention(&name, ("self_attention", 1), attention, &acts.self_attention);
            let number = if stack.causal { 3 } else { 2 };
            if let Some((attention, _)) = &layer.cross_attention {
                self.attention(&name, ("cross_attention", 2), attention, &acts.cross_attention);
            }
            let ff = &acts.feed_forward;
            let (map, _) = &layer.feed_forward;
            self.see(&format!("{name}.norm{number}"), &ff.norm.out, d);
            if Smooth::of(map.activation).is_some() {
                let before = &ff.branch.before;
                self.see(&format!("{name}.feed_forward.linear1"), before, map.linear1.n_out);
            }
            let hidden = &ff.branch.hidden;
            self.see(&format!("{name}.feed_forward.hidden"), hidden, map.linear1.n_out);
            let mut output = Vec::new();
            map.linear2.forward(self.params, hidden, &mut output);
            self.see(&format!("{name}.feed_forward.output"), &output, d);
            self.see(&format!("{name}.sum{number}"), &ff.sum, d);
        }
        if stack.norm.is_some() {
            self.see(&format!("{name}.norm"), &acts.norm.out, d);
        }
    }

    fn attention(
        &mut self,
        layer: &str,
        (kind, number): (&str, usize),
        map: &Attention,
        acts: &SublayerActs<AttentionActs>,
    ) {
        let d = usize::from(self.network.config.d_model);
        let AttentionActs { query, key_value, context, .. } = &acts.branch;
        self.see(&format!("{layer}.norm{number}"), &acts.norm.out, d);
        self.see(&format!("{layer}.{kind}.query"), query, d);
        for (part, first) in [("key", 0), ("value", d)] {
            let rows = key_value.chunks_exact(2 * d);
            let values: Vec<f32> = rows.flat_map(|row| row[first..first + d].to_vec()).collect();
            self.see(&format!("{layer}.{kind}.{part}"), &values, d);
        }
        self.see(&format!("{layer}.{kind}.context"), context, d);
        let mut output = Vec::new();
        map.output.forward(self.params, context, &mut output);
        self.see(&format!("{layer}.{kind}.output"), &output, d);
        self.see(&format!("{layer}.sum{number}"), &acts.sum, d);
    }
}
