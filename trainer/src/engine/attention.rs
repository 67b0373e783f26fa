//! Multi-head attention over packed sentences: no padding exists, so masking is exact.
//!
//! Each (sentence, head) is a few small products. Rows of scores and probabilities are padded to whole
//! vectors; the padding of probabilities is zero.

use multiversion::multiversion;

use super::kernels::exp;
use crate::rng::Mask;

/// Numbers to a vector.
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
    transposed: Vec<f32>,
    scores: Vec<f32>,
    dropped: Vec<f32>,
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

/// A matrix in a buffer, with a stride for each direction.
#[derive(Clone, Copy)]
struct View<'a> {
    data: &'a [f32],
    row: usize,
    col: usize,
}

impl<'a> View<'a> {
    /// `[rows, width]`, row-major.
    fn tile(data: &'a [f32], width: usize) -> Self {
        Self { data, row: width, col: 1 }
    }

    fn t(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }
}

impl<'a> Columns<'a> {
    /// The head's rows of a sentence.
    fn head(&self, span: Span, head: usize, d_k: usize) -> View<'a> {
        let first = span.0 * self.stride + self.first + head * d_k;
        View { data: &self.data[first.min(self.data.len())..], row: self.stride, col: 1 }
    }
}

/// What follows in a buffer; nothing after its end, where an empty sentence may lie.
#[inline(always)]
fn from(buffer: &mut [f32], first: usize) -> &mut [f32] {
    let first = first.min(buffer.len());
    &mut buffer[first..]
}

/// `out = a b`, where `b` (whose columns lie side by side) and `out` have `width` columns, and rows of
/// `out` begin every `stride` numbers. Every element is summed in the order of `k`.
#[inline(always)]
fn small_product(
    out: &mut [f32],
    stride: usize,
    a: View,
    b: View,
    (m, k, width): (usize, usize, usize),
) {
    let mut i = 0;
    while i < m {
        let out = &mut out[i * stride..];
        let a = View { data: &a.data[(i * a.row).min(a.data.len())..], ..a };
        // Two rows share what they read of `b`.
        i += match m - i {
            1 => rows::<1>(out, stride, a, b, (k, width)),
            _ => rows::<2>(out, stride, a, b, (k, width)),
        };
    }
}

/// The first `M` rows of [`small_product`]; returns `M`.
#[inline(always)]
fn rows<const M: usize>(
    out: &mut [f32],
    stride: usize,
    a: View,
    b: View,
    (k, width): (usize, usize),
) -> usize {
    let mut first = 0;
    while first < width {
        let (out, b) = (&mut out[first..], View { data: &b.data[first.min(b.data.len())..], ..b });
        // Sizes whose sums the compiler keeps in vector registers; 20 is the default model's d_k.
        first += match width - first {
            20.. => block::<M, 20>(out, stride, a, b, k),
            16.. => block::<M, 16>(out, stride, a, b, k),
            8.. => block::<M, 8>(out, stride, a, b, k),
            4.. => block::<M, 4>(out, stride, a, b, k),
            _ => block::<M, 1>(out, stride, a, b, k),
        };
    }
    M
}

/// The first `M` rows and `N` columns of [`small_product`]; returns `N`.
#[inline(always)]
fn block<const M: usize, const N: usize>(
    out: &mut [f32],
    stride: usize,
    a: View,
    b: View,
    k: usize,
) -> usize {
    let mut sums = [[0f32; N]; M];
    for p in 0..k {
        let b = b.data[p * b.row..].first_chunk::<N>().expect("a row of b");
        for (i, sums) in sums.iter_mut().enumerate() {
            let factor = a.data[i * a.row + p * a.col];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += factor * b;
            }
        }
    }
    for (i, sums) in sums.into_iter().enumerate() {
        *out[i * stride..].first_chunk_mut::<N>().expect("a row of out") = sums;
    }
    N
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
///
/// # Panics
/// When there are keys of more or of fewer sentences than queries.
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
    let (scale, d_model) = (1.0 / (d_k as f32).sqrt(), n_heads * d_k);
    let (queries, keys) = (shape.query_spans.len(), shape.key_spans.len());
    assert_eq!(queries, keys, "sentences of queries and of keys");
    let mut at = 0;
    for (&q_span, &k_span) in shape.query_spans.iter().zip(shape.key_spans) {
        let (q_len, k_len, k_width) = (q_span.1, k_span.1, pad(k_span.1));
        for head in 0..n_heads {
            load_transposed(&mut tiles.transposed, k, k_span, head, d_k);
            let p = &mut probs[at..at + q_len * k_width];
            let (queries, keys) =
                (q.head(q_span, head, d_k), View::tile(&tiles.transposed, k_width));
            small_product(p, k_width, queries, keys, (q_len, d_k, k_width));
            for (i, row) in p.chunks_exact_mut(k_width.max(1)).enumerate() {
                let visible = if shape.causal { k_len.min(i + 1) } else { k_len };
                softmax_row(row, visible, scale);
            }
            let p = View::tile(drop_probs(p, shape.mask, at, &mut tiles.dropped), k_width);
            let out = from(context, q_span.0 * d_model + head * d_k);
            small_product(out, d_model, p, v.head(k_span, head, d_k), (q_len, k_len, d_k));
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
    dropped.extend(p.iter().zip(mask.factors(at)).map(|(&p, factor)| p * factor));
    dropped
}

/// Where the gradients of one attention go: `query` is `[rows, d_model]`, `key_value`
/// `[rows, 2 d_model]`. Every row within a span is overwritten.
pub struct AttentionGradients<'a> {
    /// Of the queries.
    pub query: &'a mut [f32],
    /// Of keys, then values.
    pub key_value: &'a mut [f32],
}

/// Gradient through [`attend`], from that of the context `[rows, d_model]`.
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
    let (scale, d_model) = (1.0 / (d_k as f32).sqrt(), n_heads * d_k);
    let d_context = Columns { data: d_context, stride: d_model, first: 0 };
    let Tiles { transposed, scores: d_scores, dropped } = tiles;
    let mut at = 0;
    for (&q_span, &k_span) in shape.query_spans.iter().zip(shape.key_spans) {
        let (q_len, k_len, k_width) = (q_span.1, k_span.1, pad(k_span.1));
        for head in 0..n_heads {
            let p = &probs[at..at + q_len * k_width];
            let d_context = d_context.head(q_span, head, d_k);
            let d_query = from(gradients.query, q_span.0 * d_model + head * d_k);
            let d_kv = from(gradients.key_value, k_span.0 * 2 * d_model + head * d_k);
            // d_values = probs^T d_context
            let kept = View::tile(drop_probs(p, shape.mask, at, dropped), k_width).t();
            small_product(from(d_kv, d_model), 2 * d_model, kept, d_context, (k_len, q_len, d_k));
            // d_probs = d_context values^T, then through dropout and softmax
            load_transposed(transposed, v, k_span, head, d_k);
            d_scores.resize(q_len * k_width, 0.0);
            let values = View::tile(transposed, k_width);
            small_product(d_scores, k_width, d_context, values, (q_len, d_k, k_width));
            through_softmax(d_scores, p, (shape.mask, at), k_width, scale);
            // d_query = d_scores keys, d_keys = d_scores^T queries
            let (d_scores, keys) = (View::tile(d_scores, k_width), k.head(k_span, head, d_k));
            small_product(d_query, d_model, d_scores, keys, (q_len, k_len, d_k));
            let queries = q.head(q_span, head, d_k);
            small_product(d_kv, 2 * d_model, d_scores.t(), queries, (k_len, q_len, d_k));
            at += q_len * k_width;
        }
    }
}

/// From the gradient of dropped probabilities to that of the scores, in place; rows of `width`.
#[inline(always)]
fn through_softmax(
    d: &mut [f32],
    p: &[f32],
    (mask, at): (Option<Mask>, usize),
    width: usize,
    scale: f32,
) {
    if let Some(mask) = mask {
        for (d, factor) in d.iter_mut().zip(mask.factors(at)) {
            *d *= factor;
        }
    }
    let rows = d.chunks_exact_mut(width.max(1)).zip(p.chunks_exact(width.max(1)));
    rows.for_each(|(d, p)| softmax_row_backward(d, p, scale));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_of_every_size_are_exact_and_write_nothing_else() {
        // Small integers: every sum is exact, whatever its order.
        let numbers = |n: usize, step: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * step) % 17) as f32 - 8.0).collect()
        };
        for (m, k) in [(0, 3), (1, 0), (1, 4), (2, 7), (5, 9)] {
            for width in 0..45 {
                let (a, b) = (numbers(m * k, 5), numbers(k * (width + 3), 7));
                let view = View::tile(&b, width + 3);
                for a in [View::tile(&a, k), View::tile(&a, m).t()] {
                    let at = |i: usize, p: usize| a.data[i * a.row + p * a.col];
                    let stride = width + 2;
                    let mut out = vec![99.0; m * stride];
                    small_product(&mut out, stride, a, view, (m, k, width));
                    for (i, row) in out.chunks_exact(stride).enumerate() {
                        for (j, &sum) in row[..width].iter().enumerate() {
                            let expected: f32 =
                                (0..k).map(|p| at(i, p) * b[p * (width + 3) + j]).sum();
                            assert_eq!(sum, expected, "{m} x {k} x {width}: {i}, {j}");
                        }
                        assert_eq!(row[width..], [99.0; 2]);
                    }
                }
            }
        }
    }
}
