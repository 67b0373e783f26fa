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
    let tiles: &[[u32; TILE_WORDS]] = bytemuck::try_cast_slice(padded).unwrap_or_default();
    let count = cols.div_ceil(TILE_COLS);
    let mut sums = [0; TOKENS];
    if tokens <= TOKENS && tokens * count != 0 && tokens as u64 * count as u64 <= tiles.len() as u64
    {
        // SAFETY: there are `count` tiles of `tokens` tokens, at least one, and as many sums.
        unsafe { sum(tiles.as_ptr(), count, tokens, sums.as_mut_ptr()) };
    }
    Ready { tiles, sums }
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

/// The sums of the columns of tokens of `tiles` tiles, four tiles a turn.
///
/// # Safety
/// `x` must be `tokens` times `tiles` tiles, `sums` must have room for `tokens`, and neither may be 0.
#[unsafe(naked)]
unsafe extern "C" fn sum(x: *const [u32; TILE_WORDS], tiles: usize, tokens: usize, sums: *mut i32) {
    naked_asm!(
        "push {{r4-r11, lr}}",
        "mov r12, #0x00010001",
        "2:",
        "mov lr, #0",
        "ands r4, r1, #3",
        "beq 4f",
        "3:",
        "ldm r0!, {{r5, r6}}",
        "smlad lr, r5, r12, lr",
        "smlad lr, r6, r12, lr",
        "subs r4, r4, #1",
        "bne 3b",
        "4:",
        "lsrs r11, r1, #2",
        "beq 6f",
        "5:",
        "ldm r0!, {{r4, r5, r6, r7, r8, r9, r10}}",
        "smlad lr, r4, r12, lr",
        "smlad lr, r5, r12, lr",
        "smlad lr, r6, r12, lr",
        "smlad lr, r7, r12, lr",
        "smlad lr, r8, r12, lr",
        "smlad lr, r9, r12, lr",
        "smlad lr, r10, r12, lr",
        "ldr r4, [r0], #4",
        "smlad lr, r4, r12, lr",
        "subs r11, r11, #1",
        "bne 5b",
        "6:",
        "str lr, [r3], #4",
        "subs r2, r2, #1",
        "bne 2b",
        "pop {{r4-r11, pc}}",
    )
}
