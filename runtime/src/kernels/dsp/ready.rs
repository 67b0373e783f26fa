//! What paired rows need of an input: whole tiles of columns on a multiple of 4 bytes, and sums.

use core::arch::naked_asm;

use model_format::layout::TILE_COLS;

use super::TOKENS;

/// Words of a tile.
const TILE_WORDS: usize = TILE_COLS / 2;

/// Whole tiles of columns of every token, and their sums.
#[derive(Clone, Copy)]
pub struct Ready<'x> {
    /// `[tokens, tiles]`; empty where the input does not lie on a multiple of 4 bytes.
    pub tiles: &'x [[u32; TILE_WORDS]],
    /// Of the columns of every token.
    pub sums: [i32; TOKENS],
}

/// Room for copies of tokens that do not fill their last tile.
pub const fn scratch_len(tokens: usize, cols: usize) -> usize {
    match cols % TILE_COLS {
        0 => 0,
        _ => tokens.saturating_mul(cols.next_multiple_of(TILE_COLS)).saturating_mul(2),
    }
}

/// See [`Ready`].
#[inline(always)]
pub fn ready<'x>(x: &'x [i16], [tokens, cols]: [usize; 2], scratch: &'x mut [u8]) -> Ready<'x> {
    let padded = if cols.is_multiple_of(TILE_COLS) { x } else { pad(x, cols, scratch) };
    let (padded, _) = padded.as_chunks::<TILE_COLS>();
    let tiles = bytemuck::try_cast_slice(padded).unwrap_or_default();
    let mut sums = [0; TOKENS];
    sum(tiles, [tokens, cols.div_ceil(TILE_COLS)], &mut sums);
    Ready { tiles, sums }
}

#[inline(never)]
fn sum(mut tiles: &[[u32; TILE_WORDS]], [tokens, count]: [usize; 2], sums: &mut [i32; TOKENS]) {
    for sum in sums.iter_mut().take(tokens) {
        let (token, rest) = tiles.split_at_checked(count).unwrap_or_default();
        if !token.is_empty() {
            // SAFETY: as many tiles as it has, at least one.
            *sum = unsafe { sum_of(token.as_ptr(), token.len()) };
        }
        tiles = rest;
    }
}

/// Copies tokens, with zeros up to whole tiles.
#[cold]
#[inline(never)]
fn pad<'x>(x: &[i16], cols: usize, scratch: &'x mut [u8]) -> &'x [i16] {
    let to = bytemuck::try_cast_slice_mut(scratch).unwrap_or_default();
    let len = cols.next_multiple_of(TILE_COLS).max(1);
    for (to, x) in to.chunks_exact_mut(len).zip(x.chunks_exact(cols.max(1))) {
        let mut x = x.iter();
        to.fill_with(|| x.next().copied().unwrap_or(0));
    }
    to
}

/// The sum of the columns of `count` tiles, two tiles a turn.
///
/// # Safety
/// There must be `count` tiles, and `count` must not be 0.
#[unsafe(naked)]
unsafe extern "C" fn sum_of(tiles: *const [u32; TILE_WORDS], count: usize) -> i32 {
    naked_asm!(
        "push {{r4, r5, r6, lr}}",
        "mov r4, #0x00010001",
        "mov r12, r0",
        "mov r0, #0",
        "add lr, r12, r1, lsl #3",
        "lsls r1, r1, #31",
        "beq 2f",
        "ldm r12!, {{r2, r3}}",
        "smlad r0, r2, r4, r0",
        "smlad r0, r3, r4, r0",
        "b 3f",
        "2:",
        "ldm r12!, {{r2, r3, r5, r6}}",
        "smlad r0, r2, r4, r0",
        "smlad r0, r3, r4, r0",
        "smlad r0, r5, r4, r0",
        "smlad r0, r6, r4, r0",
        "3:",
        "cmp r12, lr",
        "bne 2b",
        "pop {{r4, r5, r6, pc}}",
    )
}
