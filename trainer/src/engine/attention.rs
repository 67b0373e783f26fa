//! Multi-head attention over packed sentences: no padding exists, so masking is exact.
//!
//! Each (sentence, head) works on small tiles copied to contiguous memory with rows padded to whole
//! vectors; the padding is zero and its results are never read.

use multiversion::multiversion;

use super::kernels::exp;
use crate::rng::Mask;

/// Numbers to a vector of the tiles.
const LANES: usize = 8;

/// The length of a row of `n` probabilities with its padding.
pub const fn pad(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Rows of a packed buffer that belong together: (first row, number of rows).
pub type Span = (usize, usize);

/// Columns of a packed buffer: its data, its row stride and the first column.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// `[rows, stride]`
    pub data: &'a [f32],
    /// Numbers to a row.
    pub stride: usize,
    /// The first column that belongs to it.
    pub first: usize,
}

impl Columns<'_> {
    fn row(&self, row: usize, head: usize, d_k: usize) -> &[f32] {
        &self.data[row * self.stride + self.first + head * d_k..][..d_k]
    }
}

/// The shape of one attention: who sees whom.
pub struct Shape<'a> {
    /// Rows of each sentence's queries.
    pub query_spans: &'a [Span],
    /// Rows of each sentence's keys and values.
    pub key_spans: &'a [Span],
    /// Parts of a row, each with an attention of its own.
    pub n_heads: usize,
    /// Columns of a head.
    pub d_k: usize,
    /// Query i sees keys 0..=i only.
    pub causal: bool,
    /// Dropout on the probabilities.
    pub mask: Option<Mask>,
}

impl Shape<'_> {
    /// Numbers that all probabilities take: per sentence `[n_heads, query_len, pad(key_len)]`.
    pub fn probs_len(&self) -> usize {
        let pairs = self.query_spans.iter().zip(self.key_spans);
        pairs.map(|(q, k)| self.n_heads * q.1 * pad(k.1)).sum()
    }
}

/// Tiles of one head, reused for all.
#[derive(Default)]
pub struct Tiles {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    d: Vec<f32>,
    e: Vec<f32>,
}

/// Copies the head's rows to `[len, pad(d_k)]`.
#[inline(always)]
fn load(tile: &mut Vec<f32>, x: Columns, span: Span, head: usize, d_k: usize) {
    let width = pad(d_k);
    tile.clear();
    tile.resize(span.1 * width, 0.0);
    for (i, out) in tile.chunks_exact_mut(width).enumerate() {
        out[..d_k].copy_from_slice(x.row(span.0 + i, head, d_k));
    }
}

/// Copies the head's rows, transposed, to `[d_k, pad(len)]`.
#[inline(always)]
fn load_transposed(tile: &mut Vec<f32>, x: Columns, span: Span, head: usize, d_k: usize) {
    let width = pad(span.1);
    tile.clear();
    tile.resize(d_k * width, 0.0);
    for j in 0..span.1 {
        for (c, &v) in x.row(span.0 + j, head, d_k).iter().enumerate() {
            tile[c * width + j] = v;
        }
    }
}

/// `out[i, ..] = sum over p of a[i * row + p * col] * b[p, ..]`, where `b` is `[k, width]` and `out`
/// `[m, width]`, the width being a multiple of `LANES`.
#[inline(always)]
fn tile_product(
    out: &mut [f32],
    a: &[f32],
    (row, col): (usize, usize),
    b: &[f32],
    (m, k, width): (usize, usize, usize),
) {
    for i in 0..m {
        for first in (0..width).step_by(LANES) {
            let mut sum = [0f32; LANES];
            for p in 0..k {
                let factor = a[i * row + p * col];
                let b = &b[p * width + first..][..LANES];
                for (s, &b) in sum.iter_mut().zip(b) {
                    *s += factor * b;
                }
            }
            out[i * width + first..][..LANES].copy_from_slice(&sum);
        }
    }
}

/// Softmax of one row of scores over its first `visible` numbers; the rest becomes zero.
#[inline(always)]
fn softmax_row(row: &mut [f32], visible: usize, scale: f32) {
    let max = row[..visible].iter().fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    let mut sums = [0f32; LANES];
    for (first, chunk) in row.chunks_exact_mut(LANES).enumerate() {
        for (l, v) in chunk.iter_mut().enumerate() {
            let p = exp((*v - max) * scale);
            *v = if first * LANES + l < visible { p } else { 0.0 };
            sums[l] += *v;
        }
    }
    let sum: f32 = sums.iter().sum();
    let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
    row.iter_mut().for_each(|v| *v *= inverse);
}

/// `context = softmax(q k^T / sqrt(d_k)) v` for every sentence and head; `probs` is kept for the way
/// back. A query that sees nothing gets zeros.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn attend(
    q: Columns,
    k: Columns,
    v: Columns,
    shape: &Shape,
    tiles: &mut Tiles,
    probs: &mut [f32],
    context: &mut [f32],
) {
    let Shape { n_heads, d_k, .. } = *shape;
    let scale = 1.0 / (d_k as f32).sqrt();
    let (width, d_model) = (pad(d_k), n_heads * d_k);
    let Tiles { a: queries, b: keys, c: values, d: out, e: dropped } = tiles;
    let mut at = 0;
    for (&q_span, &k_span) in shape.query_spans.iter().zip(shape.key_spans) {
        let (q_len, k_len, k_width) = (q_span.1, k_span.1, pad(k_span.1));
        for head in 0..n_heads {
            load(queries, q, q_span, head, d_k);
            load_transposed(keys, k, k_span, head, d_k);
            load(values, v, k_span, head, d_k);
            let p = &mut probs[at..at + q_len * k_width];
            tile_product(p, queries, (width, 1), keys, (q_len, d_k, k_width));
            for (i, row) in p.chunks_exact_mut(k_width.max(1)).enumerate() {
                let visible = if shape.causal { k_len.min(i + 1) } else { k_len };
                softmax_row(row, visible, scale);
            }
            let p = drop_probs(p, shape.mask, at, dropped);
            out.clear();
            out.resize(q_len * width, 0.0);
            tile_product(out, p, (k_width, 1), values, (q_len, k_len, width));
            store(context, out, q_span, (head, d_k), (d_model, 0));
            at += q_len * k_width;
        }
    }
}

/// The probabilities after dropout.
#[inline(always)]
fn drop_probs<'a>(
    p: &'a [f32],
    mask: Option<Mask>,
    at: usize,
    dropped: &'a mut Vec<f32>,
) -> &'a [f32] {
    let Some(mask) = mask else { return p };
    dropped.clear();
    dropped.extend(p.iter().enumerate().map(|(i, &p)| p * mask.factor(at + i)));
    dropped
}

/// Writes a tile `[len, pad(d_k)]` to the head's columns of a buffer.
#[inline(always)]
fn store(
    out: &mut [f32],
    tile: &[f32],
    span: Span,
    (head, d_k): (usize, usize),
    (stride, first): (usize, usize),
) {
    for (i, row) in tile.chunks_exact(pad(d_k)).take(span.1).enumerate() {
        out[(span.0 + i) * stride + first + head * d_k..][..d_k].copy_from_slice(&row[..d_k]);
    }
}

/// Where the gradients of one attention go: `query` is `[rows, d_model]`, `key_value`
/// `[rows, 2 d_model]`. Every row within a span is overwritten.
pub struct AttentionGradients<'a> {
    /// Of the queries.
    pub query: &'a mut [f32],
    /// Of keys, then values.
    pub key_value: &'a mut [f32],
}

/// Gradient through `attend`, from that of the context `[rows, d_model]`.
#[allow(clippy::too_many_arguments)] // three inputs, their probabilities, one gradient in, one out
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn attend_backward(
    d_context: &[f32],
    q: Columns,
    k: Columns,
    v: Columns,
    probs: &[f32],
    shape: &Shape,
    tiles: &mut Tiles,
    gradients: &mut AttentionGradients,
) {
    let Shape { n_heads, d_k, .. } = *shape;
    let scale = 1.0 / (d_k as f32).sqrt();
    let (width, d_model) = (pad(d_k), n_heads * d_k);
    let d_context = Columns { data: d_context, stride: d_model, first: 0 };
    let Tiles { a: x, b: y, c: d_scores, d: out, e: dropped } = tiles;
    let mut at = 0;
    for (&q_span, &k_span) in shape.query_spans.iter().zip(shape.key_spans) {
        let (q_len, k_len, k_width) = (q_span.1, k_span.1, pad(k_span.1));
        for head in 0..n_heads {
            let p = &probs[at..at + q_len * k_width];
            // d_values = probs^T d_context
            load(x, d_context, q_span, head, d_k);
            out.clear();
            out.resize(k_len.max(q_len) * width, 0.0);
            let kept = drop_probs(p, shape.mask, at, dropped);
            tile_product(out, kept, (1, k_width), x, (k_len, q_len, width));
            store(gradients.key_value, out, k_span, (head, d_k), (2 * d_model, d_model));
            // d_probs = d_context values^T, then through dropout and softmax
            load_transposed(y, v, k_span, head, d_k);
            d_scores.clear();
            d_scores.resize(q_len * k_width, 0.0);
            tile_product(d_scores, x, (width, 1), y, (q_len, d_k, k_width));
            if let Some(mask) = shape.mask {
                for (i, d) in d_scores.iter_mut().enumerate() {
                    *d *= mask.factor(at + i);
                }
            }
            let row_len = k_width.max(1);
            let rows = d_scores.chunks_exact_mut(row_len).zip(p.chunks_exact(row_len));
            for (d, p) in rows {
                softmax_row_backward(d, p, scale);
            }
            // d_query = d_scores keys
            load(y, k, k_span, head, d_k);
            tile_product(out, d_scores, (k_width, 1), y, (q_len, k_len, width));
            store(gradients.query, out, q_span, (head, d_k), (d_model, 0));
            // d_keys = d_scores^T queries
            load(x, q, q_span, head, d_k);
            tile_product(out, d_scores, (1, k_width), x, (k_len, q_len, width));
            store(gradients.key_value, out, k_span, (head, d_k), (2 * d_model, 0));
            at += q_len * k_width;
        }
    }
}

/// Gradient through one row of softmax of scaled scores, in place.
#[inline(always)]
fn softmax_row_backward(d: &mut [f32], p: &[f32], scale: f32) {
    let mut sums = [0f32; LANES];
    for (d, p) in d.chunks_exact(LANES).zip(p.chunks_exact(LANES)) {
        for l in 0..LANES {
            sums[l] += d[l] * p[l];
        }
    }
    let dot: f32 = sums.iter().sum();
    for (d, &p) in d.iter_mut().zip(p) {
        *d = p * (*d - dot) * scale;
    }
}
