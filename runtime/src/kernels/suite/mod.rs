//! The shared test of the kernels of a build: they equal, in every bit, sums in 64 bits over the
//! matrix before it was packed.
//!
//! It needs neither a heap nor `std`, so that it runs on the processor that the kernels are made for.

mod attention;
mod dots;
mod matrix;
mod products;

use model_format::layout::Packing;

/// Columns of the widest matrix: twice the unroll of every kernel, and every tail. Cores of
/// microcontrollers take fewer at once than those of hosts.
pub const MAX_COLS: usize = if cfg!(target_os = "none") { 40 } else { 136 };

/// The edges of both operands.
const EXTREMES: [(i8, i16); 4] =
    [(127, i16::MAX), (127, i16::MIN), (-127, i16::MAX), (-127, i16::MIN)];

/// Where a kernel is wrong.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The kernel.
    pub kernel: &'static str,
    /// How the matrix is packed.
    pub packing: Packing,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// Tokens of the input.
    pub tokens: usize,
}

/// Compares all kernels on every shape up to twice the unroll, every alignment that the types allow, the
/// extremes, the identity and random numbers; gives the number of comparisons.
///
/// # Errors
/// The first difference.
#[inline(never)]
pub fn run() -> Result<u64, Difference> {
    Ok(dots::run()? + attention::run()? + products::run()?)
}

/// Xorshift (Marsaglia 2003).
struct Random(u32);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        // The lowest bits of consecutive states resemble each other.
        self.0.rotate_right(11)
    }

    fn weight(&mut self) -> i8 {
        (self.bits() as i8).max(-127)
    }
}

// Where kernels are chosen at run time, a test runs this for each choice.
#[cfg(all(test, not(all(kiloformer_x86, feature = "std"))))]
mod tests {
    #[test]
    fn kernels_equal_sums_in_64_bits() {
        assert!(super::run().unwrap() > 100_000);
    }
}
