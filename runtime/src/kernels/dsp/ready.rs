//! What paired rows need of an input: whole tiles of columns on a multiple of 4 bytes, and sums.

use core::arch::naked_asm;
use core::cell::Cell;
use core::ptr::null;

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
    /// Of one token the sum of its columns, negated; of more the address of theirs.
    pub(super) start: usize,
    /// What is left of the scratch, for weights of 4 bits.
    pub(super) spare: &'x [Cell<u8>],
}

const NOTHING: Ready<'_> = Ready { tiles: null(), count: 0, start: 0, spare: &[] };

/// Room for the tiles and their sums, and for what weights of 4 bits need.
pub const fn scratch_len(tokens: usize, cols: usize) -> usize {
    let sums = if tokens > 1 { size_of::<[i32; TOKENS]>() } else { 0 };
    tiles_len(tokens, cols).saturating_add(nibbles::scratch_len(cols)).saturating_add(sums)
}

/// Room for copies of tokens that do not fill their last tile, and for tokens that lie together.
const fn tiles_len(tokens: usize, cols: usize) -> usize {
    let copies = !cols.is_multiple_of(TILE_COLS) as usize + (tokens == TOKENS) as usize;
    tokens.saturating_mul(cols.next_multiple_of(TILE_COLS)).saturating_mul(2 * copies)
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
    if tokens != 1 {
        return several(x, [tokens, count], scratch);
    }
    let spare = Cell::from_mut(scratch).as_slice_of_cells();
    let (tiles, _) = x.as_chunks::<TILE_COLS>();
    let tiles: &[[u32; TILE_WORDS]] = bytemuck::try_cast_slice(tiles).unwrap_or_default();
    let (tiles, is_there) = (tiles.as_ptr(), count.wrapping_sub(1) < tiles.len());
    if !is_there {
        return Ready { tiles, count: 0, start: 0, spare };
    }
    let mut start = 0;
    // SAFETY: there are `count` tiles, at least one, and one sum.
    unsafe { sum(tiles, count, 1, &mut start, MINUS_ONE) };
    Ready { tiles, count, start: start as usize, spare }
}

/// Any number of tokens but one.
#[inline(never)]
fn several<'x>(x: &'x [i16], [tokens, count]: [usize; 2], scratch: &'x mut [u8]) -> Ready<'x> {
    let (words, _) = scratch.as_chunks_mut::<4>();
    let words: &mut [u32] = bytemuck::try_cast_slice_mut(words).unwrap_or_default();
    let room = words.split_first_chunk_mut::<TOKENS>();
    let Some((sums, rest)) = room.filter(|_| count != 0 && tokens <= TOKENS) else {
        return NOTHING;
    };
    let (start, sums) = (sums.as_ptr().expose_provenance(), sums.as_mut_ptr().cast());
    if count > x.len() / TILE_COLS / TOKENS || tokens != TOKENS {
        return fewer(x, [tokens, count], rest, sums);
    }
    let Some((to, spare)) = rest.split_at_mut_checked(count * TILE_WORDS * TOKENS) else {
        return NOTHING;
    };
    let (tiles, spare) = (to.as_mut_ptr().cast(), cells(spare));
    // SAFETY: `x` is four tokens of so many tiles, at least one; there is as much room, and four sums.
    unsafe { interleave(x.as_ptr(), count, tiles, sums) };
    Ready { tiles, count, start, spare }
}

/// Two or three tokens.
#[cold]
#[inline(never)]
fn fewer<'x>(
    x: &'x [i16],
    [tokens, count]: [usize; 2],
    spare: &'x mut [u32],
    sums: *mut i32,
) -> Ready<'x> {
    let (tiles, _) = x.as_chunks::<TILE_COLS>();
    let tiles: &[[u32; TILE_WORDS]] = bytemuck::try_cast_slice(tiles).unwrap_or_default();
    let spare = cells(spare);
    if tokens.saturating_mul(count).wrapping_sub(1) >= tiles.len() {
        return Ready { spare, ..NOTHING };
    }
    let tiles = tiles.as_ptr();
    // SAFETY: `x` is so many tokens of so many tiles, at least one; `several` has four sums.
    unsafe { sum(tiles, count, tokens, sums, MINUS_ONE) };
    Ready { tiles, count, start: sums.expose_provenance(), spare }
}

fn cells(words: &mut [u32]) -> &[Cell<u8>] {
    Cell::from_mut(bytemuck::cast_slice_mut(words)).as_slice_of_cells()
}

/// Copies tokens, with zeros up to whole tiles; gives what is left of the scratch.
#[cold]
#[inline(never)]
fn pad<'x>(
    x: &[i16],
    [tokens, cols]: [usize; 2],
    scratch: &'x mut [u8],
) -> (&'x [i16], &'x mut [u8]) {
    let len = cols.next_multiple_of(TILE_COLS);
    let (to, rest) =
        scratch.split_at_mut_checked(tokens.saturating_mul(len * 2)).unwrap_or_default();
    let to = bytemuck::try_cast_slice_mut(to).unwrap_or_default();
    let mut x = x.iter();
    let mut column = 0;
    for to in to.iter_mut() {
        *to = if column < cols { x.next().copied().unwrap_or(0) } else { 0 };
        column = if column + 1 < len { column + 1 } else { 0 };
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
