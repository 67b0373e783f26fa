//! What paired rows need of an input: whole tiles of columns on a multiple of 4 bytes, and sums.

use core::arch::naked_asm;
use core::cell::Cell;

use model_format::layout::TILE_COLS;

use super::{TOKENS, nibbles};

/// Words of a tile.
const TILE_WORDS: usize = TILE_COLS / 2;

/// -1 twice.
const MINUS_ONE: u32 = u32::MAX;

/// Whole tiles of columns of every token, and their sums.
#[derive(Clone, Copy)]
pub struct Ready<'x> {
    /// `[tokens, count]`; of [`TOKENS`] tokens the words of two columns lie together, `[columns / 2,
    /// tokens]`.
    pub(super) tiles: *const [u32; TILE_WORDS],
    /// Tiles of a token; 0 where there is not what there should be, or not on a multiple of 4 bytes.
    pub(super) count: usize,
    /// The sum of the first token's columns, negated; of [`TOKENS`] the address of theirs.
    pub(super) start: usize,
    /// What is left of the scratch, for weights of 4 bits.
    pub(super) spare: &'x [Cell<u8>],
}

/// Room for the tiles and their sums, and for what weights of 4 bits need; less than that, with which
/// nothing is ready, where it is more than there is memory.
pub const fn scratch_len(tokens: usize, cols: usize) -> usize {
    let is_whole = tokens == TOKENS;
    // Copies of tokens that do not fill their last tile, and tokens that lie together.
    let copies = !cols.is_multiple_of(TILE_COLS) as usize + is_whole as usize;
    let tiles = cols.div_ceil(TILE_COLS).wrapping_mul(TILE_WORDS * 4);
    let sums = if is_whole { size_of::<[i32; TOKENS]>() } else { 0 };
    let len = tokens.wrapping_mul(copies).wrapping_mul(tiles);
    len.wrapping_add(nibbles::scratch_len(cols)).wrapping_add(sums)
}

/// See [`Ready`].
#[inline(always)]
pub fn ready<'x>(
    mut x: &'x [i16],
    [tokens, cols]: [usize; 2],
    mut scratch: &'x mut [u8],
) -> Ready<'x> {
    if !cols.is_multiple_of(TILE_COLS) {
        (x, scratch) = pad(x, [tokens, cols], scratch);
    }
    let count = cols.div_ceil(TILE_COLS);
    if tokens >= TOKENS {
        return interleaved(x, [tokens, count], scratch);
    }
    let spare = Cell::from_mut(scratch).as_slice_of_cells();
    let (tiles, _) = x.as_chunks::<TILE_COLS>();
    let tiles: &[[u32; TILE_WORDS]] = bytemuck::try_cast_slice(tiles).unwrap_or_default();
    let len = tokens.wrapping_mul(count);
    let (tiles, is_there) = (tiles.as_ptr(), len.wrapping_sub(1) < tiles.len());
    if !is_there {
        return Ready { tiles, count: 0, start: 0, spare };
    }
    // SAFETY: there are `count` tiles, at least one.
    let start = unsafe { minus_sum(tiles, count) };
    Ready { tiles, count, start: start as usize, spare }
}

/// The sum of the columns of a token of so many tiles, negated.
///
/// # Safety
/// That of [`sum`], with one token.
#[inline(always)]
pub unsafe fn minus_sum(tiles: *const [u32; TILE_WORDS], count: usize) -> i32 {
    let mut result = 0;
    // SAFETY: the caller's; there is one sum.
    unsafe { sum(tiles, count, 1, &mut result, MINUS_ONE) };
    result
}

/// [`TOKENS`] tokens; nothing is made of more.
#[inline(never)]
fn interleaved<'x>(x: &'x [i16], [tokens, count]: [usize; 2], scratch: &'x mut [u8]) -> Ready<'x> {
    let (words, _) = scratch.as_chunks_mut::<4>();
    let words: &mut [u32] = bytemuck::try_cast_slice_mut(words).unwrap_or_default();
    let (sums, rest) = words.split_at_mut_checked(TOKENS).unwrap_or_default();
    let len = count.wrapping_mul(TILE_WORDS * TOKENS);
    let (to, spare) = rest.split_at_mut_checked(len).unwrap_or_default();
    let spare = Cell::from_mut(bytemuck::cast_slice_mut(spare)).as_slice_of_cells();
    let (tiles, sums) = (to.as_mut_ptr().cast(), sums.as_mut_ptr().cast::<i32>());
    if tokens != TOKENS || to.is_empty() || count > x.len() / TILE_COLS / TOKENS {
        return Ready { tiles, count: 0, start: 0, spare };
    }
    // SAFETY: `x` is four tokens of so many tiles, at least one; there is as much room behind four sums.
    unsafe { interleave(x.as_ptr(), count, tiles, sums) };
    Ready { tiles, count, start: sums.expose_provenance(), spare }
}

/// Copies tokens, with zeros up to whole tiles; gives what is left of the scratch.
#[cold]
#[inline(never)]
fn pad<'x>(
    mut x: &[i16],
    [tokens, cols]: [usize; 2],
    scratch: &'x mut [u8],
) -> (&'x [i16], &'x mut [u8]) {
    let tiles = tokens.wrapping_mul(cols.div_ceil(TILE_COLS));
    let (to, rest) =
        scratch.split_at_mut_checked(tiles.wrapping_mul(TILE_COLS * 2)).unwrap_or_default();
    let to: &mut [i16] = bytemuck::try_cast_slice_mut(to).unwrap_or_default();
    let (tiles, _) = to.as_chunks_mut::<TILE_COLS>();
    let mut left = cols;
    for tile in tiles {
        for to in tile {
            *to = 0;
            if left != 0
                && let [first, others @ ..] = x
            {
                (*to, x, left) = (*first, others, left - 1);
            }
        }
        left = if left == 0 { cols } else { left };
    }
    (to, rest)
}

/// Puts the words of four tokens together and subtracts their columns, two tiles of each a turn.
///
/// # Safety
/// `x` must be four tokens of `tiles` tiles, at least one; `to` must have room for them,
/// and `sums` for four.
#[unsafe(naked)]
unsafe extern "C" fn interleave(
    x: *const i16,
    tiles: usize,
    to: *mut [u32; TILE_WORDS],
    sums: *mut i32,
) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r3-r11, lr}}",
        "mov lr, #-1",
        "lsl r3, r1, #3",
        "add r12, r3, r1, lsl #4",
        "mov r8, #0",
        "mov r9, #0",
        "mov r10, #0",
        "mov r11, #0",
        "tst r1, #1",
        "bne 3f",
        "2:",
        ".rept 2",
        "ldr r5, [r0, r3]",
        "ldr r6, [r0, r3, lsl #1]",
        "ldr r7, [r0, r12]",
        "ldr r4, [r0], #4",
        "smlad r8, r4, lr, r8",
        "smlad r9, r5, lr, r9",
        "smlad r10, r6, lr, r10",
        "smlad r11, r7, lr, r11",
        "stm r2!, {{r4, r5, r6, r7}}",
        ".endr",
        "3:",
        ".rept 2",
        "ldr r5, [r0, r3]",
        "ldr r6, [r0, r3, lsl #1]",
        "ldr r7, [r0, r12]",
        "ldr r4, [r0], #4",
        "smlad r8, r4, lr, r8",
        "smlad r9, r5, lr, r9",
        "smlad r10, r6, lr, r10",
        "smlad r11, r7, lr, r11",
        "stm r2!, {{r4, r5, r6, r7}}",
        ".endr",
        "subs r1, r1, #2",
        "bhi 2b",
        "pop {{r3}}",
        "stm r3, {{r8, r9, r10, r11}}",
        "pop {{r4-r11, pc}}",
    )
}

/// The sums of the columns of tokens of `tiles` tiles times the halves of `factors`, four tiles a turn.
///
/// # Safety
/// `x` must be `tokens` times `tiles` tiles, `sums` must have room for `tokens`, and neither may be 0.
#[unsafe(naked)]
pub unsafe extern "C" fn sum(
    x: *const [u32; TILE_WORDS],
    tiles: usize,
    tokens: usize,
    sums: *mut i32,
    factors: u32,
) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r1, r4-r11, lr}}",
        "ldr r12, [sp, #40]",
        "2:",
        "mov lr, #0",
        "ands r4, r1, #3",
        "beq 5f",
        "3:",
        "ldm r0!, {{r5, r6}}",
        "smlad lr, r5, r12, lr",
        "smlad lr, r6, r12, lr",
        "subs r4, r4, #1",
        "bne 3b",
        "lsrs r1, r1, #2",
        "beq 6f",
        "lsl r1, r1, #2",
        "5:",
        "ldm r0!, {{r4, r5, r6, r7, r8, r9, r10, r11}}",
        "smlad lr, r4, r12, lr",
        "smlad lr, r5, r12, lr",
        "smlad lr, r6, r12, lr",
        "smlad lr, r7, r12, lr",
        "smlad lr, r8, r12, lr",
        "smlad lr, r9, r12, lr",
        "smlad lr, r10, r12, lr",
        "smlad lr, r11, r12, lr",
        "subs r1, r1, #4",
        "bne 5b",
        "6:",
        "str lr, [r3], #4",
        "ldr r1, [sp]",
        "subs r2, r2, #1",
        "bne 2b",
        "add sp, #4",
        "pop {{r4-r11, pc}}",
    )
}
