//! Cortex-M52, M55 and M85: Helium, the M-profile vector extension.
//!
//! Four rows share the activations, eight columns a turn: 10 instructions for 32 products. The loop
//! is tail-predicated, so that any number of columns runs through it; nothing past a row is read.

use core::arch::naked_asm;
use core::mem::offset_of;

use model_format::layout::{LinearInt, Packing};
use model_format::numeric::rescale;

use super::Input;
use super::reference;
pub use super::reference::{Ready, TOKENS, ready, scratch_len};

/// Rows of a block.
pub const ROWS: usize = 16;
/// Rows that share the activations.
const GROUP: usize = 4;

/// Whole groups of rows of a row-major matrix, and where their outputs go.
#[repr(C)]
struct Product {
    weights: *const i8,
    cols: usize,
    bias: *const i32,
    /// Where the biases of the last group end.
    bias_end: *const i32,
    multipliers: *const i32,
    x: *const i16,
    /// One `i16` a row, or one `i32`.
    out: *mut (),
    /// What an `i16` saturates to.
    low: i32,
    high: i32,
    /// Multiplier of what `out` holds before.
    stream_multiplier: i32,
}

impl Product {
    /// `rows` rows from `first_row` on, a multiple of 4 and not 0. `None` where this file is not made
    /// for the matrix.
    #[inline(always)]
    fn of(
        linear: &LinearInt<'_>,
        first_row: usize,
        rows: usize,
        input: &Input<'_>,
    ) -> Option<Self> {
        let cols = linear.cols;
        if linear.packing != Packing::RowMajor
            || rows == 0
            || !rows.is_multiple_of(GROUP)
            || cols == 0
        {
            return None;
        }
        let end = first_row.checked_add(rows)?;
        let weights = linear.data.get(first_row.checked_mul(cols)?..end.checked_mul(cols)?)?;
        let bias = linear.bias.get(first_row..end)?.as_ptr_range();
        Some(Self {
            weights: weights.as_ptr(),
            cols,
            bias: bias.start,
            bias_end: bias.end,
            multipliers: linear.multipliers.get(first_row..end)?.as_ptr(),
            x: input.x.get(..cols)?.as_ptr(),
            out: core::ptr::null_mut(),
            low: 0,
            high: 0,
            stream_multiplier: 0,
        })
    }
}

/// Rows that are in whole groups.
const fn whole(rows: usize) -> usize {
    rows & !(GROUP - 1)
}

/// See [`block`](super::block).
#[inline(never)]
pub fn block(
    linear: &LinearInt<'_>,
    first_row: usize,
    input: &Input<'_>,
    out: &mut [[i32; ROWS]; TOKENS],
) {
    let [out] = out;
    let rows = linear.rows.saturating_sub(first_row).min(ROWS);
    let whole = whole(rows);
    match Product::of(linear, first_row, whole, input) {
        Some(product) => {
            let product = Product { out: out.as_mut_ptr().cast(), ..product };
            // SAFETY: `Product::of` has seen all operands; `whole` is at most the length of `out`.
            unsafe { rescaled(&product) };
            rest(linear, first_row.saturating_add(whole), input, out.get_mut(whole..rows));
        }
        None => reference::block(linear, first_row, input, core::array::from_mut(out)),
    }
}

/// The rows from `first_row` on that are no whole group.
#[inline(never)]
fn rest(linear: &LinearInt<'_>, first_row: usize, input: &Input<'_>, out: Option<&mut [i32]>) {
    for (row, out) in (first_row..).zip(out.unwrap_or_default()) {
        let mut one = [[0]];
        reference::block(linear, row, input, &mut one);
        let [[output]] = one;
        *out = output;
    }
}

/// A whole product, saturated to `bounds`.
#[inline(never)]
pub fn try_project(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    [low, high]: [i32; 2],
    out: &mut [i16],
) -> bool {
    let whole = whole(linear.rows);
    let (Some(product), Some(out)) =
        (Product::of(linear, 0, whole, input), out.get_mut(..linear.rows))
    else {
        return false;
    };
    let product = Product { out: out.as_mut_ptr().cast(), low, high, ..product };
    // SAFETY: `Product::of` has seen all operands; `out` has `linear.rows` elements.
    unsafe { saturated(&product) };
    let mut outputs = [0; GROUP];
    let tail = out.get_mut(whole..).unwrap_or_default();
    rest(linear, whole, input, outputs.get_mut(..tail.len()));
    for (out, output) in tail.iter_mut().zip(outputs) {
        *out = output.max(low).min(high) as i16;
    }
    true
}

/// A whole product added to a stream that is rescaled by `multiplier`, saturated to `bounds`.
#[inline(never)]
pub fn try_project_add(
    linear: &LinearInt<'_>,
    input: &Input<'_>,
    multiplier: i32,
    [low, high]: [i32; 2],
    stream: &mut [i16],
) -> bool {
    let whole = whole(linear.rows);
    let (Some(product), Some(stream)) =
        (Product::of(linear, 0, whole, input), stream.get_mut(..linear.rows))
    else {
        return false;
    };
    let out = stream.as_mut_ptr().cast();
    let product = Product { out, low, high, stream_multiplier: multiplier, ..product };
    // SAFETY: `Product::of` has seen all operands; `stream` has `linear.rows` elements.
    unsafe { added(&product) };
    let mut outputs = [0; GROUP];
    let tail = stream.get_mut(whole..).unwrap_or_default();
    rest(linear, whole, input, outputs.get_mut(..tail.len()));
    for (old, output) in tail.iter_mut().zip(outputs) {
        let kept = rescale(i32::from(*old) << 14, multiplier);
        *old = output.saturating_add(kept).max(low).min(high) as i16;
    }
    true
}

/// Adds eight columns of four rows, whose sums are in r4, r6, r8 and r10; the rows are at r0 to r3,
/// the activations at r5.
macro_rules! dot_loop {
    () => {
        "2:
        vldrh.u16 q0, [r5], #16
        vldrb.s16 q1, [r0], #8
        vmlava.s16 r4, q1, q0
        vldrb.s16 q1, [r1], #8
        vmlava.s16 r6, q1, q0
        vldrb.s16 q1, [r2], #8
        vmlava.s16 r8, q1, q0
        vldrb.s16 q1, [r3], #8
        vmlava.s16 r10, q1, q0
        letp lr, 2b"
    };
}

/// A function that multiplies group after group, rescales, and stores four outputs from q0 at r7.
///
/// `VRMULH` is the contract's rescale. q2 and q3 hold the bounds, q4 the multiplier of the stream.
macro_rules! product {
    ($name:ident, $store:literal, $what:literal) => {
        #[doc = $what]
        ///
        /// # Safety
        /// Every pointer of the product must be good for its whole groups of rows, at least one, and
        /// `cols` not 0. Elements of 2 and 4 bytes are aligned.
        #[unsafe(naked)]
        unsafe extern "C" fn $name(product: &Product) {
            naked_asm!(
                ".cpu cortex-m55",
                "push {{r4-r12, lr}}",
                "vpush {{d8-d9}}",
                "ldr r1, [r0, #{low}]",
                "vdup.32 q2, r1",
                "ldr r1, [r0, #{high}]",
                "vdup.32 q3, r1",
                "ldr r1, [r0, #{stream_multiplier}]",
                "vdup.32 q4, r1",
                "ldr r9, [r0, #{bias}]",
                "ldr r11, [r0, #{multipliers}]",
                "ldr r7, [r0, #{out}]",
                "ldr r5, [r0, #{x}]",
                "ldr r12, [r0, #{cols}]",
                "ldr r1, [r0, #{bias_end}]",
                "ldr r0, [r0, #{weights}]",
                "push {{r5, r12}}",
                "push {{r1, r2}}",
                "3:",
                "ldrd r4, r6, [r9], #8",
                "ldrd r8, r10, [r9], #8",
                "ldrd r5, r12, [sp, #8]",
                "add r1, r0, r12",
                "add r2, r1, r12",
                "add r3, r2, r12",
                "dlstp.16 lr, r12",
                "add r12, r3, r12",
                dot_loop!(),
                "mov r0, r12",
                "vmov q0[2], q0[0], r4, r8",
                "vmov q0[3], q0[1], r6, r10",
                "vldrw.u32 q1, [r11], #16",
                "vrmulh.s32 q0, q0, q1",
                $store,
                "ldr r1, [sp]",
                "cmp r9, r1",
                "bne 3b",
                "add sp, #16",
                "vpop {{d8-d9}}",
                "pop {{r4-r12, pc}}",
                weights = const offset_of!(Product, weights),
                cols = const offset_of!(Product, cols),
                bias = const offset_of!(Product, bias),
                bias_end = const offset_of!(Product, bias_end),
                multipliers = const offset_of!(Product, multipliers),
                x = const offset_of!(Product, x),
                out = const offset_of!(Product, out),
                low = const offset_of!(Product, low),
                high = const offset_of!(Product, high),
                stream_multiplier = const offset_of!(Product, stream_multiplier),
            )
        }
    };
}

product!(rescaled, "vstrw.32 q0, [r7], #16", "Writes `i32`.");
product!(
    saturated,
    "vmax.s32 q0, q0, q2
    vmin.s32 q0, q0, q3
    vstrh.32 q0, [r7], #8",
    "Writes `i16` between the bounds."
);
product!(
    added,
    "vldrh.s32 q1, [r7]
    vshl.i32 q1, q1, #14
    vrmulh.s32 q1, q1, q4
    vqadd.s32 q0, q0, q1
    vmax.s32 q0, q0, q2
    vmin.s32 q0, q0, q3
    vstrh.32 q0, [r7], #8",
    "Adds to `i16`, between the bounds."
);

/// Four dot products with the same `x`.
#[inline]
pub fn dot4(rows: [&[i8]; 4], x: &[i16]) -> [i32; 4] {
    let cols = rows.iter().fold(x.len(), |cols, row| cols.min(row.len()));
    let mut sums = [0; 4];
    if cols != 0 {
        // SAFETY: every row and `x` have `cols` elements, at least one.
        unsafe { dot4_cols(&rows.map(<[i8]>::as_ptr), x.as_ptr(), cols, &mut sums) };
    }
    sums
}

/// The products of the first `cols` columns.
///
/// # Safety
/// Every row and `x` must have `cols` elements, and `cols` must not be 0.
#[unsafe(naked)]
unsafe extern "C" fn dot4_cols(
    rows: &[*const i8; 4],
    x: *const i16,
    cols: usize,
    sums: &mut [i32; 4],
) {
    naked_asm!(
        ".cpu cortex-m55",
        "push {{r3-r10, lr}}",
        "sub sp, #4",
        "mov r5, r1",
        "dlstp.16 lr, r2",
        "mov r4, #0",
        "mov r6, #0",
        "mov r8, #0",
        "mov r10, #0",
        "ldm r0, {{r0-r3}}",
        dot_loop!(),
        "ldr r3, [sp, #4]",
        "stm r3, {{r4, r6, r8, r10}}",
        "add sp, #4",
        "pop {{r3-r10, pc}}",
    )
}
