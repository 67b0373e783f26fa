//! `dot4` and `try_dots`, on rows without a gap, so that every row has an alignment of its own.

use model_format::layout::Packing;

use super::super::{dot4, reference, try_dots};
use super::{Difference, EXTREMES, MAX_COLS, Random};

/// Bytes that rows, and elements that `x`, are moved away from their alignment.
const ROW_OFFSETS: usize = 4;
const X_OFFSETS: usize = 2;
const RANDOM_ROUNDS: usize = 8;

struct Operands {
    rows: [i8; 4 * MAX_COLS + ROW_OFFSETS],
    x: [i16; MAX_COLS + X_OFFSETS],
}

pub fn run() -> Result<u64, Difference> {
    let mut operands =
        Operands { rows: [0; 4 * MAX_COLS + ROW_OFFSETS], x: [0; MAX_COLS + X_OFFSETS] };
    let mut random = Random(0x1234_5678);
    let mut comparisons = 0;
    for cols in 0..=MAX_COLS {
        for offsets in (0..ROW_OFFSETS).flat_map(|row| (0..X_OFFSETS).map(move |x| [row, x])) {
            let mut check = |operands: &Operands| {
                comparisons += 1;
                let packing = Packing::RowMajor;
                match operands.agree(cols, offsets) {
                    true => Ok(()),
                    false => Err(Difference { kernel: "dot4", packing, rows: 4, cols, tokens: 1 }),
                }
            };
            for (w, x) in EXTREMES {
                operands.rows.fill(w);
                operands.x.fill(x);
                check(&operands)?;
            }
            for column in 0..cols {
                operands.select(cols, column, offsets, &mut random);
                check(&operands)?;
            }
            for _ in 0..RANDOM_ROUNDS {
                operands.rows.iter_mut().for_each(|w| *w = random.weight());
                operands.x.iter_mut().for_each(|x| *x = random.bits() as i16);
                check(&operands)?;
            }
        }
    }
    Ok(comparisons)
}

impl Operands {
    /// Rows of zeros with a one: row `r` selects column `column + r`.
    fn select(&mut self, cols: usize, column: usize, offsets: [usize; 2], random: &mut Random) {
        self.rows.fill(0);
        for row in 0..4 {
            self.rows[offsets[0] + row * cols + (column + row) % cols] = 1;
        }
        self.x.iter_mut().for_each(|x| *x = random.bits() as i16);
    }

    fn agree(&self, cols: usize, [row_offset, x_offset]: [usize; 2]) -> bool {
        let row = |row: usize| &self.rows[row_offset + row * cols..][..cols];
        let rows = [row(0), row(1), row(2), row(3)];
        let x = &self.x[x_offset..][..cols];
        let sums = reference::dot4(rows, x);
        dot4(rows, x) == sums && self.every_count_agrees(row_offset, x, sums)
    }

    /// One to four rows in one go, nothing written behind their sums; no more than there are.
    fn every_count_agrees(&self, offset: usize, x: &[i16], sums: [i32; 4]) -> bool {
        let data = &self.rows[offset..][..4 * x.len()];
        (1..=4).all(|rows| {
            let mut out = [i32::MIN; 5];
            match try_dots(data, x.len(), rows, x, &mut out) {
                Some(count) => {
                    let (written, behind) = out.split_at(count);
                    (1..=rows).contains(&count)
                        && written == &sums[..count]
                        && behind.iter().all(|&sum| sum == i32::MIN)
                        && try_dots(data, x.len(), 5, x, &mut out).is_none()
                }
                None => true,
            }
        })
    }
}
