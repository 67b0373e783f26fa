//! The kernels of this build against their reference, on this very processor.

use runtime::kernels::{dot4, reference};

/// Products of four rows up to this many columns: several turns of every kernel, and every tail.
const MAX_COLS: usize = 40;
/// Bytes that rows, and elements that `x`, are moved away from their alignment.
const ROW_OFFSETS: usize = 4;
const X_OFFSETS: usize = 2;
const RANDOM_ROUNDS: usize = 8;
const EXTREMES: [(i8, i16); 4] =
    [(127, i16::MAX), (127, i16::MIN), (-127, i16::MAX), (-127, i16::MIN)];

/// Where a kernel is wrong.
pub struct Difference {
    /// Columns.
    pub cols: usize,
    /// Offsets of the rows and of `x`.
    pub offsets: [usize; 2],
}

struct Operands {
    /// Row after row without a gap, so that every row has an alignment of its own.
    rows: [i8; 4 * MAX_COLS + ROW_OFFSETS],
    x: [i16; MAX_COLS + X_OFFSETS],
}

/// Compares them on every number of columns, every alignment, the extremes, the identity and random
/// numbers; gives the number of comparisons.
pub fn run() -> Result<u64, Difference> {
    let mut operands =
        Operands { rows: [0; 4 * MAX_COLS + ROW_OFFSETS], x: [0; MAX_COLS + X_OFFSETS] };
    let mut random = Random(0x1234_5678);
    let mut comparisons = 0;
    for cols in 0..=MAX_COLS {
        for offsets in (0..ROW_OFFSETS).flat_map(|row| (0..X_OFFSETS).map(move |x| [row, x])) {
            let mut check = |operands: &Operands| {
                comparisons += 1;
                if operands.agree(cols, offsets) {
                    Ok(())
                } else {
                    Err(Difference { cols, offsets })
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
                operands.rows.iter_mut().for_each(|w| *w = (random.bits() as i8).max(-127));
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
            let at = offsets[0] + row * cols + (column + row) % cols;
            if let Some(w) = self.rows.get_mut(at) {
                *w = 1;
            }
        }
        self.x.iter_mut().for_each(|x| *x = random.bits() as i16);
    }

    fn agree(&self, cols: usize, [row_offset, x_offset]: [usize; 2]) -> bool {
        let row = |row: usize| {
            let start = row_offset + row * cols;
            self.rows.get(start..start + cols).unwrap_or_default()
        };
        let rows = [row(0), row(1), row(2), row(3)];
        let x = self.x.get(x_offset..x_offset + cols).unwrap_or_default();
        dot4(rows, x) == reference::dot4(rows, x)
    }
}

/// Xorshift (Marsaglia 2003).
struct Random(u32);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 >> 3
    }
}
