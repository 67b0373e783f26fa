//! HalfFloat's kernels against sums in order.

use std::vec::Vec;

use model_format::AlignedBytes;
use model_format::layout::{Layout, LinearF16};

use super::{Isa, TOKENS, float, rows_f32};
use crate::precision::Rows;

/// Bit patterns of finite `f16`, subnormal ones and zeros of both signs among them.
fn half(i: usize) -> half::f16 {
    let bits = ((i * 40_503 + i / 7) % 0x10000) as u16;
    half::f16::from_bits(if bits & 0x7C00 == 0x7C00 { bits & 0x83FF } else { bits })
}

fn linear_f16(layout: Layout, rows: usize, cols: usize, blob: &[u8]) -> LinearF16<'_> {
    let weights = if layout == Layout::RowMajor { 2 * rows * cols } else { blob.len() };
    let (data, bias) = blob.split_at(weights);
    let [data, bias] = [data, bias].map(bytemuck::cast_slice);
    LinearF16 { layout, rows, cols, data, bias }
}

#[test]
fn products_of_floats_equal_sums_in_column_order() {
    let shapes =
        (1..=70).chain([128]).flat_map(|rows| [1, 2, 7, 8, 9, 64, 65, 130].map(|c| (rows, c)));
    for (index, (rows, cols)) in shapes.enumerate() {
        let weights: Vec<_> = (0..rows * cols).map(half).collect();
        let bias: Vec<_> = (0..rows).map(|i| half(i + 999)).collect();
        let tokens = 1 + if index % 3 == 0 { 0 } else { index % TOKENS };
        let x: Vec<f32> =
            (0..tokens * cols).map(|i| ((i * 7919) % 2001) as f32 * 1e-3 - 1.0).collect();
        let mut expected = std::vec![0.0_f32; tokens * rows];
        for (i, out) in expected.iter_mut().enumerate() {
            let (token, row) = (i / rows, i % rows);
            let x = &x[token * cols..][..cols];
            let w = &weights[row * cols..][..cols];
            let sum = w.iter().zip(x).fold(0.0, |sum, (w, x)| sum + w.to_f32() * x);
            *out = sum + bias[row].to_f32();
        }
        for layout in [Layout::RowMajor, Layout::SixteenRows] {
            let blob = AlignedBytes::from(&LinearF16::pack(layout, &weights, &bias)[..]);
            let linear = linear_f16(layout, rows, cols, &blob);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
                let mut out = std::vec![f32::NAN; tokens * rows];
                let mut each = |token: usize, first: usize, sums: &[f32]| {
                    out[token * rows + first..][..sums.len()].copy_from_slice(sums);
                };
                // SAFETY: only what is here.
                let is_done = unsafe {
                    float::try_products(isa, &linear, 0..rows, (&x, [tokens, cols]), &mut each)
                };
                assert_eq!(is_done, isa != Isa::Baseline);
                if is_done {
                    assert_eq!(
                        bits(&out),
                        bits(&expected),
                        "{isa:?} {layout:?} {rows} x {cols}, {tokens} tokens"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_of_floats_that_start_inside_a_block_are_left_to_others() {
    let blob = LinearF16::pack(Layout::SixteenRows, &[half(5); 32], &[half(6); 32]);
    let blob = AlignedBytes::from(&blob[..]);
    let linear = linear_f16(Layout::SixteenRows, 32, 1, &blob);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        let mut seen = Vec::new();
        let mut run = |rows| {
            let mut each = |_: usize, first: usize, sums: &[f32]| seen.push((first, sums.len()));
            // SAFETY: only what is here.
            unsafe { float::try_products(isa, &linear, rows, (&[1.0], [1, 1]), &mut each) }
        };
        assert!(!run(4..32) && !run(0..33));
        assert_eq!(run(16..20), isa != Isa::Baseline);
        assert!(seen.iter().eq([(16, 4)].iter().filter(|_| isa != Isa::Baseline)));
    }
}

fn bits(list: &[f32]) -> Vec<u32> {
    list.iter().map(|x| x.to_bits()).collect()
}

/// Of all sizes, zeros of both signs among them.
fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|i| half(i).to_f32() * 1e-3).collect()
}

#[test]
fn rows_of_floats_are_summed_in_order() {
    const STRIDE: usize = 140;
    if !Isa::Avx512Vnni.is_here() {
        return;
    }
    let shapes = (1..40).flat_map(|len| [1, 15, 16, 17, 32, 33, 64, 131].map(|cols| (len, cols)));
    for (len, cols) in shapes {
        let data = floats((len - 1) * STRIDE + cols);
        let rows = Rows { data: &data[..], stride: STRIDE, rows: len, cols };
        let (x, weights) = (floats(cols + 7), floats(len + 3));
        let (x, weights) = (&x[7..], &weights[3..]);
        let (mut out, mut sums) = (std::vec![9.0; len + 1], std::vec![9.0; cols + 1]);
        // SAFETY: it is here.
        unsafe {
            rows_f32::multiply(rows, x, &mut out[..len]);
            rows_f32::weigh(rows, weights, &mut sums[..cols]);
        }
        let dot = |row| data[row * STRIDE..].iter().zip(x).fold(0.0, |sum, (w, x)| sum + w * x);
        let mut truth: Vec<f32> = (0..len).map(dot).collect();
        truth.push(9.0);
        assert_eq!(bits(&out), bits(&truth), "{len} x {cols}");
        let column = |col| {
            let rows = weights.iter().enumerate();
            rows.fold(0.0, |sum, (row, w)| sum + data[row * STRIDE + col] * w)
        };
        let mut truth: Vec<f32> = (0..cols).map(column).collect();
        truth.push(9.0);
        assert_eq!(bits(&sums), bits(&truth), "{len} x {cols}");
    }
}

#[test]
fn powers_of_floats_are_those_of_libm() {
    if !Isa::Avx512Vnni.is_here() {
        return;
    }
    let agree = |scores: &[f32], max: f32| {
        let mut out = std::vec![9.0; scores.len()];
        // SAFETY: it is here.
        unsafe { rows_f32::powers(scores, &mut out) };
        let truth: Vec<f32> = scores.iter().map(|score| libm::expf(score - max)).collect();
        assert_eq!(bits(&out), bits(&truth), "{scores:?}");
    };
    // From -0 to beyond the last power that is not 0: the largest score is 0.
    let all: Vec<f32> = (0x8000_0000..0xC300_0000_u32).step_by(331).map(f32::from_bits).collect();
    for chunk in all.chunks(15) {
        let mut scores = [0.0; 16];
        scores[1..=chunk.len()].copy_from_slice(chunk);
        agree(&scores, 0.0);
    }
    for odd in [f32::NAN, f32::NEG_INFINITY, -87.0, -88.0, -104.0, f32::MIN, -0.0] {
        for len in 1..40 {
            let mut scores = floats(len);
            scores[len / 2] = odd;
            let max =
                scores.iter().fold(f32::NEG_INFINITY, |max, &s| if s > max { s } else { max });
            agree(&scores, max);
        }
    }
}
