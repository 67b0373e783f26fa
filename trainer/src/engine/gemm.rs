//! Matrix products: a checked door to the `gemm` crate.
#![allow(unsafe_code)]

use gemm::Parallelism;

/// A matrix in a slice, with a stride for each direction.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix: `data` is `[rows, cols]`.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert!(data.len() >= rows * cols, "matrix {rows}x{cols} in {} numbers", data.len());
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transposed view.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = a b`, or `out += a b` where `accumulate`; `out` is row-major `[a.rows, b.cols]`.
pub fn product(out: &mut [f32], accumulate: bool, a: Mat, b: Mat) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "inner sizes");
    assert!(out.len() >= m * n, "output {m}x{n} in {} numbers", out.len());
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: `Mat::new` checked that every element of `a` and `b` lies in its slice (`t` only swaps
    // the directions), the assertion above that `out` holds m x n; `out` is a unique borrow.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_orientation() {
        let a: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..12).map(|i| 1.0 - i as f32).collect();
        let reference = |x: &dyn Fn(usize, usize) -> f32, y: &dyn Fn(usize, usize) -> f32| {
            let mut out = vec![0.5; 8];
            for i in 0..2 {
                for j in 0..4 {
                    out[i * 4 + j] += (0..3).map(|p| x(i, p) * y(p, j)).sum::<f32>();
                }
            }
            out
        };
        let mut out = vec![0.5; 8];
        product(&mut out, true, Mat::new(&a, 2, 3), Mat::new(&b, 3, 4));
        assert_eq!(out, reference(&|i, p| a[i * 3 + p], &|p, j| b[p * 4 + j]));
        let mut out = vec![0.5; 8];
        product(&mut out, true, Mat::new(&a, 3, 2).t(), Mat::new(&b, 4, 3).t());
        assert_eq!(out, reference(&|i, p| a[p * 2 + i], &|p, j| b[j * 3 + p]));
    }
}
