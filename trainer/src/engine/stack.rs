//! The encoder and the decoder: embedding, sublayers with their residual sums, final norm.

use model_format::config::NormPlace;

use super::dropout::{Dropout, Masks, Place};
use super::kernels;
use super::layers::{AttentionActs, FeedForwardActs, NormActs, Scratch, Visibility, reset};
use super::network::{Layer, Network, Norm, Stack};
use crate::data::batch::Packed;
use crate::rng::Mask;

/// What one sublayer keeps.
#[derive(Default)]
pub struct SublayerActs<B> {
    /// Of its LayerNorm.
    pub norm: NormActs,
    /// Of what stands beside the residual stream.
    pub branch: B,
    /// `[tokens, d_model]`: `x + dropout(branch)`.
    pub sum: Vec<f32>,
}

impl<B> SublayerActs<B> {
    /// The residual stream after the sublayer.
    pub fn output(&self, place: NormPlace) -> &[f32] {
        match place {
            NormPlace::Pre => &self.sum,
            NormPlace::Post => &self.norm.out,
        }
    }
}

/// What one layer keeps.
#[derive(Default)]
pub struct LayerActs {
    /// Within the sentence.
    pub self_attention: SublayerActs<AttentionActs>,
    /// Unused where there is no cross-attention.
    pub cross_attention: SublayerActs<AttentionActs>,
    /// Position by position.
    pub feed_forward: SublayerActs<FeedForwardActs>,
}

/// What a stack keeps.
#[derive(Default)]
pub struct StackActs {
    /// `[tokens, d_model]`
    pub embedded: Vec<f32>,
    /// Of each layer.
    pub layers: Vec<LayerActs>,
    /// Of the final LayerNorm.
    pub norm: NormActs,
}

impl StackActs {
    /// The input of layer `i`.
    pub fn layer_input(&self, i: usize, place: NormPlace) -> &[f32] {
        match i.checked_sub(1) {
            None => &self.embedded,
            Some(before) => self.layers[before].feed_forward.output(place),
        }
    }

    /// The stack's result.
    pub fn output(&self, stack: &Stack, place: NormPlace) -> &[f32] {
        match stack.norm {
            Some(_) => &self.norm.out,
            None => self.layer_input(stack.layers.len(), place),
        }
    }
}

/// One run over the network with fixed parameters.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The map of `params`.
    pub network: &'a Network,
    /// The flat buffer.
    pub params: &'a [f32],
    /// Of this step; nothing in evaluation.
    pub dropout: Option<&'a Dropout>,
}

impl Pass<'_> {
    /// The masks of a place; none in evaluation.
    pub fn masks(&self, stack: &Stack, place: Place) -> Masks {
        self.dropout.map(|dropout| dropout.masks(stack, place)).unwrap_or_default()
    }

    /// `x[t] = E[id] * sqrt(d_model) + positions`; without the factor where the config says so.
    pub fn embed(
        &self,
        stack: &Stack,
        tokens: &[u32],
        position: impl Fn(usize) -> usize,
        out: &mut Vec<f32>,
    ) {
        let d = usize::from(self.network.config.d_model);
        let scale = self.network.embedding_scale();
        let embedding = &self.params[stack.embedding.tokens..];
        let positions = match stack.embedding.positions {
            Some(at) => &self.params[at..],
            None => &self.network.sinusoids,
        };
        reset(out, tokens.len() * d);
        for ((t, &id), row) in tokens.iter().enumerate().zip(out.chunks_exact_mut(d)) {
            let e = &embedding[id as usize * d..][..d];
            let p = &positions[position(t) * d..][..d];
            for ((x, &e), &p) in row.iter_mut().zip(e).zip(p) {
                *x = e * scale + p;
            }
        }
    }

    /// Adds the embedding's (and learned positions') gradient.
    fn embed_backward(&self, stack: &Stack, tokens: &Packed, d_x: &[f32], grads: &mut [f32]) {
        let d = usize::from(self.network.config.d_model);
        let scale = self.network.embedding_scale();
        for &(first, len) in &tokens.spans {
            for position in 0..len {
                let row = &d_x[(first + position) * d..][..d];
                let id = tokens.ids[first + position] as usize;
                let at = stack.embedding.tokens + id * d;
                for (g, &v) in grads[at..at + d].iter_mut().zip(row) {
                    *g += v * scale;
                }
                if let Some(at) = stack.embedding.positions {
                    kernels::add_assign(&mut grads[at + position * d..][..d], row);
                }
            }
        }
    }

    /// One sublayer: `f` leaves its result in `scratch.branch`.
    pub fn sublayer<B>(
        &self,
        norm: &Norm,
        mask: Option<Mask>,
        x: &[f32],
        acts: &mut SublayerActs<B>,
        scratch: &mut Scratch,
        f: impl FnOnce(&[f32], &mut B, &mut Scratch),
    ) {
        let config = &self.network.config;
        let (d, eps) = (usize::from(config.d_model), config.layer_norm_eps);
        let SublayerActs { norm: norm_acts, branch, sum } = acts;
        reset(sum, x.len());
        match config.norm {
            NormPlace::Pre => {
                norm.forward(self.params, x, d, eps, norm_acts);
                f(&norm_acts.out, branch, scratch);
                kernels::residual(sum, x, &scratch.branch, mask);
            }
            NormPlace::Post => {
                f(x, branch, scratch);
                kernels::residual(sum, x, &scratch.branch, mask);
                norm.forward(self.params, sum, d, eps, norm_acts);
            }
        }
    }

    /// Gradient through one sublayer: `d` goes from that of its output to that of its input `x`.
    /// `f` turns `scratch.branch` into `scratch.d_input`.
    #[allow(clippy::too_many_arguments)] // mirrors `sublayer`, with two gradients
    fn sublayer_backward<B>(
        &self,
        norm: &Norm,
        mask: Option<Mask>,
        x: &[f32],
        acts: &SublayerActs<B>,
        d: &mut Vec<f32>,
        grads: &mut [f32],
        scratch: &mut Scratch,
        f: impl FnOnce(&[f32], &B, &mut [f32], &mut Scratch),
    ) {
        if self.network.config.norm == NormPlace::Post {
            reset(&mut scratch.d_input, d.len());
            norm.backward(self.params, grads, &acts.norm, d, (&mut scratch.d_input, false));
            std::mem::swap(d, &mut scratch.d_input);
        }
        reset(&mut scratch.branch, d.len());
        kernels::dropout(&mut scratch.branch, d, mask);
        match self.network.config.norm {
            NormPlace::Pre => {
                f(&acts.norm.out, &acts.branch, grads, scratch);
                norm.backward(self.params, grads, &acts.norm, &scratch.d_input, (d, true));
            }
            NormPlace::Post => {
                f(x, &acts.branch, grads, scratch);
                kernels::add_assign(d, &scratch.d_input);
            }
        }
    }

    /// A whole stack. `memory` is the encoder's result, for a decoder beside one.
    ///
    /// # Panics
    /// When a sentence is longer than the table of positions.
    pub fn forward(
        &self,
        stack: &Stack,
        tokens: &Packed,
        memory: Option<(&[f32], &Packed)>,
        acts: &mut StackActs,
        scratch: &mut Scratch,
    ) {
        let limit = self.network.max_len(stack);
        tokens.check_lengths(limit).unwrap_or_else(|error| panic!("{error}"));
        let positions = tokens.positions();
        self.embed(stack, &tokens.ids, |t| positions[t] as usize, &mut scratch.branch);
        reset(&mut acts.embedded, scratch.branch.len());
        let mask = self.masks(stack, Place::Embedding).residual;
        kernels::dropout(&mut acts.embedded, &scratch.branch, mask);
        acts.layers.resize_with(stack.layers.len(), LayerActs::default);
        let place = self.network.config.norm;
        for (i, layer) in stack.layers.iter().enumerate() {
            let (before, now) = acts.layers.split_at_mut(i);
            let x = match before.last() {
                None => &acts.embedded,
                Some(before) => before.feed_forward.output(place),
            };
            self.layer(stack, (i, layer), x, tokens, memory, &mut now[0], scratch);
        }
        if let Some(norm) = stack.norm {
            let config = &self.network.config;
            let x = acts.layers[stack.layers.len() - 1].feed_forward.output(place);
            norm.forward(
                self.params,
                x,
                config.d_model.into(),
                config.layer_norm_eps,
                &mut acts.norm,
            );
        }
    }

    #[allow(clippy::too_many_arguments)] // a layer, its two inputs and its buffers
    fn layer(
        &self,
        stack: &Stack,
        (i, layer): (usize, &Layer),
        x: &[f32],
        tokens: &Packed,
        memory: Option<(&[f32], &Packed)>,
        acts: &mut LayerActs,
        scratch: &mut Scratch,
    ) {
        let place = self.network.config.norm;
        let (attention, norm) = &layer.self_attention;
        let masks = self.masks(stack, Place::SelfAttention(i));
        let who = visibility(tokens, tokens, stack.causal, masks);
        self.sublayer(norm, masks.residual, x, &mut acts.self_attention, scratch, |x, a, s| {
            attention.forward(self.params, x, x, who, a, s);
        });
        let mut x = acts.self_attention.output(place);
        if let (Some((attention, norm)), Some((memory, source))) = (&layer.cross_attention, memory)
        {
            let masks = self.masks(stack, Place::CrossAttention(i));
            let who = visibility(tokens, source, false, masks);
            self.sublayer(
                norm,
                masks.residual,
                x,
                &mut acts.cross_attention,
                scratch,
                |x, a, s| {
                    attention.forward(self.params, x, memory, who, a, s);
                },
            );
            x = acts.cross_attention.output(place);
        }
        let (feed_forward, norm) = &layer.feed_forward;
        let masks = self.masks(stack, Place::FeedForward(i));
        self.sublayer(norm, masks.residual, x, &mut acts.feed_forward, scratch, |x, a, s| {
            feed_forward.forward(self.params, x, masks.inner, a, s);
        });
    }

    /// Gradient through a whole stack, from that of its output in `d` down to the embedding; that of
    /// the memory is added to `memory`'s last part.
    #[allow(clippy::too_many_arguments)] // mirrors `forward`, with two gradients
    pub fn backward(
        &self,
        stack: &Stack,
        tokens: &Packed,
        mut memory: Option<(&[f32], &Packed, &mut [f32])>,
        acts: &StackActs,
        d: &mut Vec<f32>,
        grads: &mut [f32],
        scratch: &mut Scratch,
    ) {
        if let Some(norm) = stack.norm {
            reset(&mut scratch.d_input, d.len());
            norm.backward(self.params, grads, &acts.norm, d, (&mut scratch.d_input, false));
            std::mem::swap(d, &mut scratch.d_input);
        }
        for (i, layer) in stack.layers.iter().enumerate().rev() {
            let x = acts.layer_input(i, self.network.config.norm);
            let memory = memory.as_mut().map(|(memory, source, d)| (*memory, *source, &mut **d));
            let layer_acts = &acts.layers[i];
            self.layer_backward(
                stack,
                (i, layer),
                x,
                tokens,
                memory,
                layer_acts,
                d,
                grads,
                scratch,
            );
        }
        if let Some(mask) = self.masks(stack, Place::Embedding).residual {
            reset(&mut scratch.branch, d.len());
            kernels::dropout(&mut scratch.branch, d, Some(mask));
            std::mem::swap(d, &mut scratch.branch);
        }
        self.embed_backward(stack, tokens, d, grads);
    }

    #[allow(clippy::too_many_arguments)] // mirrors `layer`, with two gradients
    fn layer_backward(
        &self,
        stack: &Stack,
        (i, layer): (usize, &Layer),
        x: &[f32],
        tokens: &Packed,
        memory: Option<(&[f32], &Packed, &mut [f32])>,
        acts: &LayerActs,
        d: &mut Vec<f32>,
        grads: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let place = self.network.config.norm;
        let after_self = acts.self_attention.output(place);
        let before_ff = match layer.cross_attention {
            Some(_) => acts.cross_attention.output(place),
            None => after_self,
        };
        let (feed_forward, norm) = &layer.feed_forward;
        let masks = self.masks(stack, Place::FeedForward(i));
        self.sublayer_backward(
            norm,
            masks.residual,
            before_ff,
            &acts.feed_forward,
            d,
            grads,
            scratch,
            |x, a, g, s| feed_forward.backward(self.params, g, x, masks.inner, a, s),
        );
        if let (Some((attention, norm)), Some((memory, source, d_memory))) =
            (&layer.cross_attention, memory)
        {
            let masks = self.masks(stack, Place::CrossAttention(i));
            let who = visibility(tokens, source, false, masks);
            self.sublayer_backward(
                norm,
                masks.residual,
                after_self,
                &acts.cross_attention,
                d,
                grads,
                scratch,
                |x, a, g, s| {
                    attention.backward(self.params, g, x, Some((memory, d_memory)), who, a, s);
                },
            );
        }
        let (attention, norm) = &layer.self_attention;
        let masks = self.masks(stack, Place::SelfAttention(i));
        let who = visibility(tokens, tokens, stack.causal, masks);
        self.sublayer_backward(
            norm,
            masks.residual,
            x,
            &acts.self_attention,
            d,
            grads,
            scratch,
            |x, a, g, s| attention.backward(self.params, g, x, None, who, a, s),
        );
    }
}

fn visibility<'a>(
    queries: &'a Packed,
    keys: &'a Packed,
    causal: bool,
    masks: Masks,
) -> Visibility<'a> {
    Visibility { query_spans: &queries.spans, key_spans: &keys.spans, causal, mask: masks.inner }
}
