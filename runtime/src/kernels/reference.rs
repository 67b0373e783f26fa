//! The portable kernels, which define the truth.

/// `sum(row[c] * x[c])` over the shorter of both, modulo 2^32.
///
/// The check of a file proves that no sum leaves `i32`.
#[inline]
pub fn dot(row: &[i8], x: &[i16]) -> i32 {
    row.iter().zip(x).fold(0, |acc, (&w, &x)| acc.wrapping_add(i32::from(w) * i32::from(x)))
}

/// Four [`dot`]s with the same `x`.
#[cfg_attr(kiloformer_dsp, allow(dead_code, reason = "tests compare with it"))]
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    rows.map(|row| dot(row, x))
}

/// `sum(row[c] * x[c])` for four rows in `f32`, each summed one column after the other.
///
/// `to_f32` widens a stored weight exactly. The order of the sum is part of the contract: it is what
/// makes the bits equal on every target.
#[inline]
pub fn dot4_f32<W: Copy>(rows: [&[W]; 4], x: &[f32], to_f32: impl Fn(W) -> f32) -> [f32; 4] {
    let [a, b, c, d] = rows;
    let mut acc = [0.0_f32; 4];
    for ((((&x, &a), &b), &c), &d) in x.iter().zip(a).zip(b).zip(c).zip(d) {
        let [sum_a, sum_b, sum_c, sum_d] = &mut acc;
        *sum_a += to_f32(a) * x;
        *sum_b += to_f32(b) * x;
        *sum_c += to_f32(c) * x;
        *sum_d += to_f32(d) * x;
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn identity_rows_select_columns() {
        let x: Vec<i16> = (0..9).map(|i| i * 1000 - 4000).collect();
        for c in 0..x.len() {
            let mut row = [0_i8; 9];
            row[c] = 1;
            assert_eq!(dot(&row, &x), i32::from(x[c]));
            assert_eq!(dot4([&row; 4], &x), [i32::from(x[c]); 4]);
        }
    }

    #[test]
    fn extremes_of_both_operands_are_exact() {
        let (w, x) = ([127_i8; 516], [i16::MIN; 516]);
        assert_eq!(i64::from(dot(&w, &x)), -(127 * 32768 * 516));
        let w = [-127_i8; 516];
        assert_eq!(i64::from(dot(&w, &x)), 127 * 32768 * 516);
    }

    #[test]
    fn float_rows_sum_in_column_order() {
        // 1e8 + 1 - 1e8 is 0 from the left and 1 in any other order.
        let row = [1.0_f32, 1.0, 1.0];
        let x = [1e8_f32, 1.0, -1e8];
        assert_eq!(dot4_f32([&row; 4], &x, |w| w), [0.0; 4]);
    }
}
