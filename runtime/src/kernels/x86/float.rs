//! HalfFloat: sixteen rows in a register (two with AVX2), column after column; a product and a sum are
//! rounded one after the other, as everywhere.

use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

use model_format::layout::{Layout, LinearF16, ROWS16_BLOCK as ROWS};

use super::TOKENS;
use super::choice::Isa;

/// Blocks of sixteen rows that one token is multiplied with side by side: a sum waits for the one before.
const BLOCKS: usize = 4;
/// Columns of row-major weights that are turned into columns of sixteen rows at a time.
const PANEL_COLS: usize = 64;
/// Sixteen rows of these columns.
type Panel = [[u16; ROWS]; PANEL_COLS];

/// Sixteen numbers.
///
/// # Safety
/// The processor must have the instructions, in every method; pointers must have sixteen numbers.
trait Lanes: Copy {
    /// Most tokens whose sums fit into the registers.
    const TOKENS: usize;
    unsafe fn zero() -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn widen(from: *const u16) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// `self + weights * x`, rounded twice.
    unsafe fn add_product(self, weights: Self, x: f32) -> Self;
}

impl Lanes for __m512 {
    const TOKENS: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn widen(from: *const u16) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn add_product(self, weights: Self, x: f32) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_add_ps(self, _mm512_mul_ps(weights, _mm512_set1_ps(x))) }
    }
}

impl Lanes for [__m256; 2] {
    const TOKENS: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        unsafe { [_mm256_setzero_ps(); 2] }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        let [low, high] = self;
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_ps(to, low);
            _mm256_storeu_ps(to.add(8), high);
        }
    }

    #[inline(always)]
    unsafe fn widen(from: *const u16) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let eight = |from: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
            [eight(from), eight(from.add(8))]
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self, other);
        // SAFETY: the caller's.
        unsafe { [_mm256_add_ps(a, c), _mm256_add_ps(b, d)] }
    }

    #[inline(always)]
    unsafe fn add_product(self, weights: Self, x: f32) -> Self {
        let ([a, b], [c, d]) = (self, weights);
        // SAFETY: the caller's.
        unsafe {
            let x = _mm256_set1_ps(x);
            [_mm256_add_ps(a, _mm256_mul_ps(c, x)), _mm256_add_ps(b, _mm256_mul_ps(d, x))]
        }
    }
}

/// `each(token, row, W x + bias)` for these rows, several at a time; within a token ascending. `false`,
/// and nothing done, without vectors, where rows do not start on a block, or where a part is shorter
/// than its sizes say.
///
/// # Safety
/// The processor must have the instructions of `isa`.
pub unsafe fn try_products(
    isa: Isa,
    linear: &LinearF16<'_>,
    rows: Range<usize>,
    (x, [tokens, cols]): (&[f32], [usize; 2]),
    each: &mut impl FnMut(usize, usize, &[f32]),
) -> bool {
    let blocks = linear.rows.div_ceil(ROWS);
    let (units, biases) = match linear.layout {
        Layout::SixteenRows => (blocks, 0),
        _ => (linear.rows, linear.rows),
    };
    let is_whole =
        units.checked_mul(linear.block_len()).is_some_and(|len| len <= linear.data.len())
            && biases <= linear.bias.len()
            && cols == linear.cols
            && (1..=TOKENS).contains(&tokens)
            && tokens.checked_mul(cols).is_some_and(|len| len <= x.len())
            && rows.start.is_multiple_of(ROWS)
            && rows.end <= linear.rows;
    if !is_whole {
        return false;
    }
    let product = Product { linear, rows, x: x.as_ptr(), tokens };
    match isa {
        Isa::Baseline => return false,
        // SAFETY: the caller's: the instructions are here; lengths were checked above.
        Isa::Avx512Vnni => unsafe { product.wide(each) },
        // SAFETY: as above.
        Isa::Avx2 => unsafe { product.two(each) },
    }
    true
}

/// A matrix and tokens `[tokens, cols]`, their lengths checked.
struct Product<'m> {
    linear: &'m LinearF16<'m>,
    rows: Range<usize>,
    x: *const f32,
    tokens: usize,
}

impl Product<'_> {
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn wide(&self, each: &mut impl FnMut(usize, usize, &[f32])) {
        // SAFETY: the caller's.
        unsafe { self.run::<__m512>(each) }
    }

    #[target_feature(enable = "avx2,f16c")]
    unsafe fn two(&self, each: &mut impl FnMut(usize, usize, &[f32])) {
        // SAFETY: the caller's.
        unsafe { self.run::<[__m256; 2]>(each) }
    }

    #[inline(always)]
    unsafe fn run<V: Lanes>(&self, each: &mut impl FnMut(usize, usize, &[f32])) {
        let mut first = self.rows.start;
        while first < self.rows.end {
            let left = (self.rows.end - first).div_ceil(ROWS);
            // SAFETY: the caller's; there are as many blocks.
            first += ROWS
                * unsafe {
                    match left {
                        _ if self.tokens > 1 => self.several::<V>(first, each),
                        BLOCKS.. => self.one::<V, BLOCKS>(first, each),
                        2.. => self.one::<V, 2>(first, each),
                        _ => self.one::<V, 1>(first, each),
                    }
                };
        }
    }

    /// `N` blocks with one token; how many they are.
    #[inline(always)]
    unsafe fn one<V: Lanes, const N: usize>(
        &self,
        first: usize,
        each: &mut impl FnMut(usize, usize, &[f32]),
    ) -> usize {
        // SAFETY: the caller's.
        unsafe {
            let mut sums = [V::zero(); N];
            let mut memory = [const { MaybeUninit::<Panel>::uninit() }; N];
            for begin in (0..self.linear.cols).step_by(self.panel_cols()) {
                let columns = self.columns(begin);
                let panels = self.panels(first, columns.clone(), &mut memory);
                for (at, col) in columns.enumerate() {
                    let x = self.x.add(col).read();
                    for (sum, panel) in sums.iter_mut().zip(panels) {
                        *sum = sum.add_product(V::widen(panel.add(at * ROWS)), x);
                    }
                }
            }
            let mut out = [[0.0; ROWS]; N];
            for (block, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
                sum.add(self.bias::<V>(first + block * ROWS)).store(out.as_mut_ptr());
            }
            self.give(0, first, out.as_flattened(), each);
        }
        N
    }

    /// One block with several tokens.
    #[inline(always)]
    unsafe fn several<V: Lanes>(
        &self,
        first: usize,
        each: &mut impl FnMut(usize, usize, &[f32]),
    ) -> usize {
        let mut sums = MaybeUninit::<[V; TOKENS]>::uninit();
        let sums = sums.as_mut_ptr().cast::<V>();
        // SAFETY: the caller's; no more tokens than `sums` has room for.
        unsafe {
            for token in 0..self.tokens {
                sums.add(token).write(V::zero());
            }
            let mut memory = [MaybeUninit::<Panel>::uninit()];
            for begin in (0..self.linear.cols).step_by(self.panel_cols()) {
                let columns = self.columns(begin);
                let [panel] = self.panels(first, columns.clone(), &mut memory);
                let mut token = 0;
                while token < self.tokens {
                    let x = self.x.add(token * self.linear.cols + columns.start);
                    let (place, sums) = ((panel, columns.len(), x), sums.add(token));
                    token += match self.tokens - token {
                        16.. if V::TOKENS >= 16 => self.add_products::<V, 16>(place, sums),
                        8.. if V::TOKENS >= 8 => self.add_products::<V, 8>(place, sums),
                        4.. => self.add_products::<V, 4>(place, sums),
                        2.. => self.add_products::<V, 2>(place, sums),
                        _ => self.add_products::<V, 1>(place, sums),
                    };
                }
            }
            let bias = self.bias::<V>(first);
            for token in 0..self.tokens {
                let mut out = [0.0; ROWS];
                sums.add(token).read().add(bias).store(out.as_mut_ptr());
                self.give(token, first, &out, each);
            }
        }
        1
    }

    /// Adds the products of the columns of a panel with `N` tokens to their sums; how many they are.
    #[inline(always)]
    unsafe fn add_products<V: Lanes, const N: usize>(
        &self,
        (panel, cols, x): (*const u16, usize, *const f32),
        to: *mut V,
    ) -> usize {
        // SAFETY: the caller's.
        unsafe {
            let mut sums: [V; N] = core::array::from_fn(|token| to.add(token).read());
            for col in 0..cols {
                let weights = V::widen(panel.add(col * ROWS));
                let x = x.add(col);
                for (token, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(weights, x.add(token * self.linear.cols).read());
                }
            }
            for (token, sum) in sums.into_iter().enumerate() {
                to.add(token).write(sum);
            }
        }
        N
    }

    /// How many columns of a block are at hand as columns of sixteen rows.
    fn panel_cols(&self) -> usize {
        if self.linear.layout == Layout::SixteenRows { self.linear.cols } else { PANEL_COLS }
    }

    fn columns(&self, begin: usize) -> Range<usize> {
        begin..self.linear.cols.min(begin + self.panel_cols())
    }

    /// Columns of the sixteen rows of `N` blocks from that of `first` on: as they lie in the file, or
    /// turned into `memory`.
    #[inline(always)]
    unsafe fn panels<const N: usize>(
        &self,
        first: usize,
        columns: Range<usize>,
        memory: &mut [MaybeUninit<Panel>; N],
    ) -> [*const u16; N] {
        let linear = self.linear;
        if linear.layout == Layout::SixteenRows {
            let start = linear.data.as_ptr().wrapping_add(first / ROWS * linear.block_len());
            return core::array::from_fn(|block| start.wrapping_add(block * linear.block_len()));
        }
        for (block, panel) in memory.iter_mut().enumerate() {
            let to = panel.as_mut_ptr().cast::<__m256i>();
            // SAFETY: the caller's; a panel has room for as many columns.
            unsafe { gather(linear, first + block * ROWS, columns.clone(), to) };
        }
        memory.each_ref().map(|panel| panel.as_ptr().cast())
    }

    /// Biases of the rows from `first` on; unspecified past the last.
    #[inline(always)]
    unsafe fn bias<V: Lanes>(&self, first: usize) -> V {
        let linear = self.linear;
        // SAFETY: the caller's; a block's biases follow its weights.
        unsafe {
            if linear.layout == Layout::SixteenRows {
                let end = (first / ROWS + 1) * linear.block_len();
                return V::widen(linear.data.as_ptr().add(end - ROWS));
            }
            let mut bias = [0; ROWS];
            let count = ROWS.min(linear.rows - first);
            linear.bias.as_ptr().add(first).copy_to_nonoverlapping(bias.as_mut_ptr(), count);
            V::widen(bias.as_ptr())
        }
    }

    /// Shows `each` what there is of `out`.
    #[inline(always)]
    fn give(
        &self,
        token: usize,
        first: usize,
        out: &[f32],
        each: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        let count = out.len().min(self.rows.end - first);
        each(token, first, out.get(..count).unwrap_or_default());
    }
}

/// Turns these columns of sixteen row-major rows from `first` on into columns; rows past the last are
/// copies of it.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn gather(linear: &LinearF16<'_>, first: usize, columns: Range<usize>, to: *mut __m256i) {
    let last = linear.rows - 1;
    let load = |row: usize, col: usize| {
        let start = (first + row).min(last) * linear.cols + col;
        // SAFETY: the caller's; nothing past the last column is read.
        unsafe {
            let from = linear.data.as_ptr().add(start);
            let left = columns.end - col;
            if left >= 8 {
                return _mm_loadu_si128(from.cast());
            }
            let mut numbers = [0_u16; 8];
            from.copy_to_nonoverlapping(numbers.as_mut_ptr(), left);
            _mm_loadu_si128(numbers.as_ptr().cast())
        }
    };
    for col in columns.clone().step_by(8) {
        let rows = core::array::from_fn(|row| _mm256_set_m128i(load(row + 8, col), load(row, col)));
        for (at, column) in transposed(rows).into_iter().enumerate() {
            // SAFETY: the caller's: there is room for a multiple of eight columns.
            unsafe { _mm256_storeu_si256(to.add(col - columns.start + at), column) };
        }
    }
}

/// Half by half, the eight halfwords of eight registers as a matrix, transposed.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed([a, b, c, d, e, f, g, h]: [__m256i; 8]) -> [__m256i; 8] {
    let words = |a, b| (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
    let doubles = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let quads = |a, b| [_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)];
    let ((ab, ab_high), (cd, cd_high)) = (words(a, b), words(c, d));
    let ((ef, ef_high), (gh, gh_high)) = (words(e, f), words(g, h));
    let ((abcd0, abcd2), (abcd4, abcd6)) = (doubles(ab, cd), doubles(ab_high, cd_high));
    let ((efgh0, efgh2), (efgh4, efgh6)) = (doubles(ef, gh), doubles(ef_high, gh_high));
    let [[c0, c1], [c2, c3]] = [quads(abcd0, efgh0), quads(abcd2, efgh2)];
    let [[c4, c5], [c6, c7]] = [quads(abcd4, efgh4), quads(abcd6, efgh6)];
    [c0, c1, c2, c3, c4, c5, c6, c7]
}
