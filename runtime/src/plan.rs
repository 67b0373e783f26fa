//! Which buffers lie where in the arena: a pure function of configuration, precision and limits.
//!
//! ```text
//! encoder    [ scratch: query, keys, values, ... ][ stream = memory, source_len x d_model ]
//! cross      [ cross keys and values             ][ memory                                ]
//! decoder    [ cross keys and values ][ self-attention caches, search, scratch             ]
//! ```
//!
//! Encoder scratch shares bytes with the cross-attention cache, and the decoder's cache and scratch
//! with `memory`, which is dead once cross keys and values are stored. A model without a decoder ends
//! with the first line, one without an encoder has the decoder's cache and scratch alone.

use model_format::config::{ModelConfig, NormPlace, Positions, Precision};
use model_format::header::{Header, HeaderError};

use crate::arena::ARENA_ALIGN;
use crate::budget::largest_unit;
use crate::kernels;
use crate::search::{Beam, Candidate, Hypothesis, Link};
use crate::tokenizer::TokenId;

/// The longest sequences a session takes; each at most what the file allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Limits {
    /// Most source ids, those of the frame included; 0 without an encoder.
    pub source_len: u16,
    /// Most ids after the start id, those of a prompt or prefix and the end id included; 0 without a
    /// decoder.
    pub target_len: u16,
    /// Beams of a search, each with a self-attention cache of its own; from 1 on there is a buffer for
    /// the logits, which constraints and sampling need. 0 for greedy search alone, and without a
    /// decoder.
    pub beams: u16,
}

/// Where everything lies, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The sequences that fit.
    pub limits: Limits,
    /// Cross keys and values of all decoder layers, at the start of the arena.
    pub cross: usize,
    /// Offset of the encoder's stream, which becomes `memory`.
    pub memory_offset: usize,
    /// Length of the stream.
    pub memory: usize,
    /// Encoder scratch, at the start of the arena.
    pub encoder_scratch: usize,
    /// Self-attention cache of one beam; there are as many as beams, at least one, after `cross`.
    pub self_cache: usize,
    /// Logits, history and bookkeeping of a search, after the caches.
    pub search: usize,
    /// Decoder scratch, after the search.
    pub decoder_scratch: usize,
    /// All of it.
    pub total: usize,
}

/// Bytes of one element of each type of buffer.
struct Sizes {
    activation: usize,
    cached: usize,
    score: usize,
    probability: usize,
    /// Most tokens of a product.
    tokens: usize,
}

const fn sizes(precision: Precision) -> Sizes {
    match precision {
        Precision::FixedPoint => {
            Sizes { activation: 2, cached: 1, score: 4, probability: 2, tokens: kernels::TOKENS }
        }
        Precision::HalfFloat => Sizes {
            activation: 4,
            cached: 4,
            score: 4,
            probability: 4,
            tokens: kernels::float::TOKENS,
        },
    }
}

/// What the kernels of this build make of an input of `tokens` tokens of `cols` columns.
const fn input_len(precision: Precision, tokens: usize, cols: usize) -> usize {
    match precision {
        Precision::FixedPoint => padded(kernels::scratch_len(tokens, cols)),
        Precision::HalfFloat => 0,
    }
}

/// Tokens of one product, at most `tokens`, where `capacity` positions are to go through it: groups of
/// about one size, in fours, for scratch has room for the largest.
pub(crate) const fn group_len(tokens: usize, capacity: usize) -> usize {
    if tokens <= 4 || capacity <= tokens {
        return min(tokens, capacity);
    }
    let groups = capacity.div_ceil(tokens);
    match capacity.saturating_add(groups.saturating_sub(1)).checked_div(groups) {
        Some(len) => min(padded(len), tokens),
        None => tokens,
    }
}

/// Rounds up to where the next buffer begins.
pub(crate) const fn padded(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

/// Not inlined: saturation takes more code than a call.
#[inline(never)]
const fn buffer(len: usize, size: usize) -> usize {
    padded(len.saturating_mul(size))
}

pub(crate) const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

/// Elements of a rotation: sine and cosine for every pair of columns.
pub(crate) const fn rotation_len(config: &ModelConfig) -> usize {
    match config.positions {
        Positions::Learned => 0,
        _ => config.d_model as usize / 2,
    }
}

const ROTATION_SIZE: usize = 8;

impl Plan {
    /// Lays out the arena for `limits`, or for what the file allows where that is less.
    ///
    /// Lengths saturate: a plan that no memory can hold has a `total` of `usize::MAX`.
    pub const fn new(header: &Header, limits: Limits) -> Self {
        let config = &header.config;
        let limits = Limits {
            source_len: at_most(limits.source_len, config.max_source_len),
            target_len: at_most(limits.target_len, config.max_target_len),
            beams: if config.has_decoder() { limits.beams } else { 0 },
        };
        let size = sizes(header.precision);
        let d_model = config.d_model as usize;
        let source = limits.source_len as usize;
        let n_layers = config.decoder.n_layers as usize;
        let cross = match config.has_cross_attention() {
            true => buffer(source * d_model, size.cached).saturating_mul(2 * n_layers),
            false => 0,
        };
        let memory = buffer(source * d_model, size.activation);
        let encoder_scratch = encoder_scratch(header, &size, source);
        let remember = match config.has_cross_attention() {
            true => {
                let tokens = group_len(size.tokens, source);
                cross.saturating_add(input_len(header.precision, tokens, d_model))
            }
            false => 0,
        };
        let memory_offset = max(encoder_scratch, remember);
        let self_cache =
            buffer(limits.target_len as usize * d_model, size.cached).saturating_mul(2 * n_layers);
        let decoder_scratch = decoder_scratch(header, &size, limits);
        let search = search_buffers(config, limits);
        let decoder = cross
            .saturating_add(self_cache.saturating_mul(max(limits.beams as usize, 1)))
            .saturating_add(search)
            .saturating_add(decoder_scratch);
        let total = max(memory_offset.saturating_add(memory), decoder);
        Self {
            limits,
            cross,
            memory_offset,
            memory,
            encoder_scratch,
            self_cache,
            search,
            decoder_scratch,
            total,
        }
    }

    /// Self-attention caches of all beams.
    pub(crate) const fn caches(&self) -> usize {
        self.self_cache.saturating_mul(max(self.limits.beams as usize, 1))
    }

    /// The least budget of [`Generation::poll`](crate::Generation::poll), in multiply-accumulates: the
    /// most expensive unit of work that is not divided.
    pub const fn smallest_budget(&self, header: &Header) -> u32 {
        largest_unit(&header.config, self.limits)
    }

    /// Lays out the arena for the longest sequences the file allows.
    pub const fn of(header: &Header) -> Self {
        Self::new(header, Limits::of(&header.config))
    }
}

impl Limits {
    /// The longest sequences that the file allows, searched greedily.
    pub const fn of(config: &ModelConfig) -> Self {
        Self { source_len: config.max_source_len, target_len: config.max_target_len, beams: 0 }
    }

    /// Longest source and target.
    pub(crate) const fn lengths(&self) -> [usize; 2] {
        [self.source_len as usize, self.target_len as usize]
    }

    /// The same sequences with another number of beams.
    pub const fn with_beams(self, beams: u16) -> Self {
        Self { beams, ..self }
    }
}

/// Bytes of a logit.
const LOGIT_SIZE: usize = 4;

/// Logits of one step, ids of one output, and the lists of a beam search.
const fn search_buffers(config: &ModelConfig, limits: Limits) -> usize {
    let (beams, target) = (limits.beams as usize, limits.target_len as usize);
    if beams == 0 {
        return 0;
    }
    buffer(config.target_vocab as usize, LOGIT_SIZE)
        .saturating_add(buffer(target, size_of::<TokenId>()))
        .saturating_add(buffer(beams, size_of::<Beam>()))
        .saturating_add(buffer(2 * beams, size_of::<Candidate>()))
        .saturating_add(buffer(beams, size_of::<Hypothesis>()))
        .saturating_add(buffer(target.saturating_mul(beams), size_of::<Link>()))
}

/// The largest of the encoder's three phases: embedding, attention, feed-forward. A classifier's mean
/// needs no more than any of them, nor does the output projection.
const fn encoder_scratch(header: &Header, size: &Sizes, source: usize) -> usize {
    let config = &header.config;
    if !config.has_encoder() {
        return 0;
    }
    let (d_model, d_ff) = (config.d_model as usize, config.encoder.d_ff as usize);
    let tokens = group_len(size.tokens, source);
    let embed = buffer(rotation_len(config), ROTATION_SIZE);
    let attention = buffer(source * d_model, size.activation)
        .saturating_add(buffer(source * d_model, size.cached).saturating_mul(2))
        .saturating_add(max(attention_scratch(size, source), normed_input(header, size, tokens)));
    let feed_forward = feed_forward_scratch(header, size, tokens, d_ff);
    max(embed, max(attention, feed_forward))
}

/// Scores and probabilities over `len` positions.
const fn attention_scratch(size: &Sizes, len: usize) -> usize {
    buffer(len, size.score) + buffer(len, size.probability)
}

/// What a sublayer reads of `tokens` tokens where that is a norm of its own, and what products need of
/// it; no less than they need of a context.
const fn normed_input(header: &Header, size: &Sizes, tokens: usize) -> usize {
    let d_model = header.config.d_model as usize;
    let normed = match header.config.norm {
        NormPlace::Pre => buffer(tokens.saturating_mul(d_model), size.activation),
        NormPlace::Post => 0,
    };
    normed.saturating_add(input_len(header.precision, tokens, d_model))
}

/// What is hidden, and the larger of what it is made of and what its product needs.
const fn feed_forward_scratch(header: &Header, size: &Sizes, tokens: usize, d_ff: usize) -> usize {
    let hidden = buffer(tokens.saturating_mul(d_ff), size.activation);
    let product = input_len(header.precision, tokens, d_ff);
    hidden.saturating_add(max(normed_input(header, size, tokens), product))
}

/// Rotation and stream, and the larger of attention (with a query) and feed-forward.
const fn decoder_scratch(header: &Header, size: &Sizes, limits: Limits) -> usize {
    let config = &header.config;
    if !config.has_decoder() {
        return 0;
    }
    let d_model = config.d_model as usize;
    let longest = max(limits.source_len as usize, limits.target_len as usize);
    let scratch = max(attention_scratch(size, longest), normed_input(header, size, 1));
    let attention = buffer(d_model, size.activation) + scratch;
    let feed_forward = feed_forward_scratch(header, size, 1, config.decoder.d_ff as usize);
    buffer(rotation_len(config), ROTATION_SIZE)
        + buffer(d_model, size.activation)
        + max(attention, feed_forward)
}

const fn at_most(a: u16, b: u16) -> u16 {
    if a < b { a } else { b }
}

/// The exact length of the arena of `file` for the longest sequences it allows, for a `static`:
///
/// ```compile_fail
/// # use runtime::StaticArena;
/// static MODEL: &[u8] = b"not a model: this does not compile";
/// static ARENA: StaticArena<{ runtime::arena_len(MODEL) }> = StaticArena::new();
/// ```
///
/// # Panics
/// When the start of `file` is not that of a model, which fails the build in a `const`. At run time
/// [`arena_len_with`] answers with an error instead.
pub const fn arena_len(file: &[u8]) -> usize {
    match Header::read(file) {
        Ok(header) => Plan::of(&header).total,
        Err(_) => panic!(
            "not a Kiloformer model of this version, or one that needs a feature which is not on"
        ),
    }
}

/// The exact length of the arena of `file` for `limits`.
///
/// A slice that does not start on a multiple of 16 needs up to 15 bytes more.
///
/// # Errors
/// When the start of `file` is not that of a model.
pub const fn arena_len_with(file: &[u8], limits: Limits) -> Result<usize, HeaderError> {
    match Header::read(file) {
        Ok(header) => Ok(Plan::new(&header, limits).total),
        Err(error) => Err(error),
    }
}

/// `arena` from its first multiple of 16 on, cut to `total`; the bytes needed otherwise.
pub(crate) fn fit(arena: &mut [u8], total: usize) -> Result<&mut [u8], usize> {
    let skip = arena.as_ptr().addr().wrapping_neg() % ARENA_ALIGN;
    let needed = skip.saturating_add(total);
    arena.get_mut(skip..needed).ok_or(needed)
}
