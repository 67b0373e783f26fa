//! The products of attention and the sums of LayerNorm on Cortex-M4, M7 and M33.

use core::arch::naked_asm;

use model_format::numeric::rescale;

use super::vectors;
use crate::fixed::softmax::EXP2;
use crate::precision::Rows;

/// See [`vectors::scores`]. Four rows at a time, then one column.
pub fn scores(keys: Rows<'_, i8>, query: &[i16], scores: &mut [i32]) {
    let (cols, rows) = (keys.cols.min(query.len()), scores.len());
    let reach = rows.saturating_sub(1).saturating_mul(keys.stride).saturating_add(cols);
    let whole = match rows < 4 || reach > keys.data.len() {
        true => 0,
        false => cols & !3,
    };
    if whole != 0 {
        let place = Place { data: keys.data.as_ptr(), stride: keys.stride, count: rows };
        // SAFETY: `reach` bytes from `data` on are readable, which is the end of the last row's `cols`
        // columns, as many as `query` has at least, of which `whole` are a multiple of 4 and not 0;
        // `scores` has an element for each row, four at least.
        unsafe { multiply_rows(&place, query.as_ptr(), whole, scores.as_mut_ptr()) };
    }
    if whole != cols || whole == 0 {
        let data = keys.data.get(whole..).unwrap_or_default();
        let left = Rows { data, cols: keys.cols.saturating_sub(whole), ..keys };
        add_columns(left, query.get(whole..).unwrap_or_default(), scores, whole);
    }
}

/// Adds the products of the few columns that are left after `whole` ones; of all where rows are missing
/// or few.
#[cold]
#[inline(never)]
fn add_columns(keys: Rows<'_, i8>, query: &[i16], scores: &mut [i32], whole: usize) {
    for (t, score) in scores.iter_mut().enumerate() {
        let before = if whole == 0 { 0 } else { *score };
        *score = before.wrapping_add(super::dot(keys.row(t), query));
    }
}

/// See [`vectors::context`]. Four columns at a time, then one.
#[inline]
pub fn try_context(
    values: Rows<'_, i8>,
    probabilities: &[i16],
    multiplier: i32,
    bounds: [i32; 2],
    context: &mut [i16],
) -> bool {
    let (rows, cols) = (probabilities.len(), context.len());
    let reach = rows.saturating_sub(1).saturating_mul(values.stride).saturating_add(cols);
    let whole = match rows == 0 || reach > values.data.len() {
        true => 0,
        false => cols & !3,
    };
    if whole != 0 {
        let place = Place { data: values.data.as_ptr(), stride: values.stride, count: rows };
        let end = Columns { blocks: whole / 4, multiplier };
        // SAFETY: `reach` bytes from `data` on are readable, which is the end of the last row's `cols`
        // columns, as many as `context` has elements, of which `whole` are a multiple of 4 and not 0;
        // `probabilities` has `rows` elements, not 0.
        unsafe { weigh_rows(&place, probabilities.as_ptr(), &end, context.as_mut_ptr()) };
    }
    if whole != cols {
        last_columns(&values, probabilities, multiplier, (whole, context));
    }
    narrow(context, bounds);
    true
}

/// The columns from `first` on.
#[cold]
#[inline(never)]
fn last_columns(
    values: &Rows<'_, i8>,
    probabilities: &[i16],
    multiplier: i32,
    (first, context): (usize, &mut [i16]),
) {
    for (j, context) in context.iter_mut().enumerate().skip(first) {
        let value = rescale(vectors::column(values, probabilities, j), multiplier);
        *context = value.max(i16::MIN.into()).min(i16::MAX.into()) as i16;
    }
}

/// Saturates what is saturated to `i16` to less, where that is asked for.
#[inline]
fn narrow(x: &mut [i16], bounds: [i32; 2]) {
    if bounds != [i16::MIN.into(), i16::MAX.into()] {
        let [low, high] = bounds;
        for x in x {
            *x = i32::from(*x).max(low).min(high) as i16;
        }
    }
}

/// See [`exp2_all`](crate::fixed::softmax::exp2_all), of which these are the bits.
#[inline]
pub fn exp2_all(scores: &[i32], multiplier: i32, probabilities: &mut [i16]) -> u32 {
    let len = scores.len().min(probabilities.len());
    if len == 0 {
        return 0;
    }
    // SAFETY: both slices have `len` elements at least, which is not 0.
    unsafe { exponentials(scores.as_ptr(), len, multiplier, probabilities.as_mut_ptr()) }
}

/// See [`vectors::moments`].
#[inline]
pub fn moments(x: &[i16]) -> (i32, i64) {
    let (octets, rest) = x.as_chunks::<8>();
    let (mut sum, squares) = vectors::moments(rest);
    let mut sums = [0_i32, squares as i32, (squares >> 32) as i32];
    if !octets.is_empty() {
        // SAFETY: `x` has eight elements for each of so many turns, at least one.
        unsafe { add_moments(x.as_ptr(), octets.len(), &mut sums) };
    }
    let [more, low, high] = sums;
    sum = sum.wrapping_add(more);
    (sum, (i64::from(high) << 32) | i64::from(low as u32))
}

/// Rows of a cache.
#[repr(C)]
struct Place {
    data: *const i8,
    stride: usize,
    count: usize,
}

/// What becomes of the sums of so many times four columns.
#[repr(C)]
struct Columns {
    blocks: usize,
    multiplier: i32,
}

/// The products of the first `cols` columns of all rows with `x`, four rows of four columns a turn: 26
/// instructions for 16 products. `SXTB16` widens columns 0 and 2 of a word, with a rotation 1 and 3, so
/// `x` is regrouped for the four rows. The last four rows may begin with some that are done already.
///
/// On the stack: `x`; bytes from the end of a row to the fourth next one; how many rows are left.
///
/// # Safety
/// Every row of `place` and `x` must have `cols` elements, a multiple of 4 and not 0, and `scores` one for
/// each row, at least four. No alignment is needed but that of the scores: only `LDR` reads bytes, which
/// these cores allow anywhere in normal memory.
#[unsafe(naked)]
unsafe extern "C" fn multiply_rows(place: &Place, x: *const i16, cols: usize, scores: *mut i32) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r4-r11, lr}}",
        "ldm r0, {{r0, r4, r5}}",
        "rsb r12, r2, r4, lsl #2",
        "push {{r1, r12, lr}}",
        "add r2, r1, r2, lsl #1",
        "mov lr, r5",
        "add r5, r4, r4, lsl #1",
        "2:",
        "str lr, [sp, #8]",
        "mov r6, #0",
        "mov r7, #0",
        "mov r8, #0",
        "mov r9, #0",
        "3:",
        "ldr r10, [r1], #4",
        "ldr r11, [r1], #4",
        "pkhbt r12, r10, r11, lsl #16",
        "pkhtb r11, r11, r10, asr #16",
        "ldr r10, [r0, r4]",
        "sxtb16 lr, r10",
        "sxtb16 r10, r10, ror #8",
        "smlad r7, lr, r12, r7",
        "smlad r7, r10, r11, r7",
        "ldr r10, [r0, r4, lsl #1]",
        "sxtb16 lr, r10",
        "sxtb16 r10, r10, ror #8",
        "smlad r8, lr, r12, r8",
        "smlad r8, r10, r11, r8",
        "ldr r10, [r0, r5]",
        "sxtb16 lr, r10",
        "sxtb16 r10, r10, ror #8",
        "smlad r9, lr, r12, r9",
        "smlad r9, r10, r11, r9",
        "ldr r10, [r0], #4",
        "sxtb16 lr, r10",
        "sxtb16 r10, r10, ror #8",
        "smlad r6, lr, r12, r6",
        "smlad r6, r10, r11, r6",
        "cmp r1, r2",
        "bne 3b",
        "stm r3!, {{r6, r7, r8, r9}}",
        "ldm sp, {{r1, r12, lr}}",
        "add r0, r0, r12",
        "subs lr, lr, #4",
        "beq 4f",
        "cmp lr, #4",
        "bhs 2b",
        "rsb r12, lr, #4",
        "mls r0, r12, r4, r0",
        "sub r3, r3, r12, lsl #2",
        "mov lr, #4",
        "b 2b",
        "4:",
        "add sp, #12",
        "pop {{r4-r11, pc}}",
    )
}

/// `out[j]` is the sum over the rows of column `j` times the row's weight, rescaled and saturated to
/// `i16`. 16 instructions for 8 products: four columns of two rows, of which halfwords are exchanged before
/// they are widened.
///
/// # Safety
/// `weights` must have an element for each row, at least one; every row of `place` must have four columns
/// for each block of `end`, at least one, and so many elements `out`.
#[unsafe(naked)]
unsafe extern "C" fn weigh_rows(place: &Place, weights: *const i16, end: &Columns, out: *mut i16) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r4-r11, lr}}",
        "sub sp, #16",
        "ldm r2, {{r4, r12}}",
        "mov lr, r3",
        "ldm r0, {{r0, r2, r3}}",
        "stm sp, {{r0, r1, r3, r4}}",
        "2:",
        "mov r4, #0",
        "mov r5, #0",
        "mov r6, #0",
        "mov r7, #0",
        "subs r3, #2",
        "bmi 4f",
        "3:",
        "ldr r8, [r1], #4",
        "ldr r9, [r0]",
        "ldr r10, [r0, r2]",
        "add r0, r0, r2, lsl #1",
        "pkhbt r11, r9, r10, lsl #16",
        "pkhtb r10, r10, r9, asr #16",
        "sxtb16 r9, r11",
        "sxtb16 r11, r11, ror #8",
        "smlad r4, r9, r8, r4",
        "smlad r5, r11, r8, r5",
        "sxtb16 r9, r10",
        "sxtb16 r10, r10, ror #8",
        "smlad r6, r9, r8, r6",
        "smlad r7, r10, r8, r7",
        "subs r3, #2",
        "bpl 3b",
        "4:",
        "adds r3, #1",
        "bne 5f",
        "ldrsh r8, [r1]",
        "ldr r9, [r0]",
        "sxtb16 r11, r9",
        "sxtb16 r9, r9, ror #8",
        "smlabb r4, r11, r8, r4",
        "smlabb r5, r9, r8, r5",
        "smlatb r6, r11, r8, r6",
        "smlatb r7, r9, r8, r7",
        "5:",
        "smmulr r4, r4, r12",
        "smmulr r5, r5, r12",
        "smmulr r6, r6, r12",
        "smmulr r7, r7, r12",
        "ssat r4, #16, r4",
        "ssat r5, #16, r5",
        "ssat r6, #16, r6",
        "ssat r7, #16, r7",
        "strh r4, [lr], #2",
        "strh r5, [lr], #2",
        "strh r6, [lr], #2",
        "strh r7, [lr], #2",
        "ldm sp, {{r0, r1, r3, r4}}",
        "add r0, #4",
        "subs r4, #1",
        "str r0, [sp]",
        "str r4, [sp, #12]",
        "bne 2b",
        "add sp, #16",
        "pop {{r4-r11, pc}}",
    )
}

/// Adds the sum of eight elements a turn to the first number, and the sum of their squares to the other
/// two, the low half first.
///
/// # Safety
/// `x` must have eight elements for each of `turns`, at least one. No alignment beyond that of the type
/// is needed: only `LDR` reads.
#[unsafe(naked)]
unsafe extern "C" fn add_moments(x: *const i16, turns: usize, sums: &mut [i32; 3]) {
    naked_asm!(
        dsp_cpu!(),
        "push {{r4-r7, lr}}",
        "ldm r2, {{r3, r4, r5}}",
        "mov r7, #0x00010001",
        "2:",
        "ldr r6, [r0], #4",
        "smlad r3, r6, r7, r3",
        "smlald r4, r5, r6, r6",
        "ldr r6, [r0], #4",
        "smlad r3, r6, r7, r3",
        "smlald r4, r5, r6, r6",
        "ldr r6, [r0], #4",
        "smlad r3, r6, r7, r3",
        "smlald r4, r5, r6, r6",
        "ldr r6, [r0], #4",
        "smlad r3, r6, r7, r3",
        "smlald r4, r5, r6, r6",
        "subs r1, #1",
        "bne 2b",
        "stm r2, {{r3, r4, r5}}",
        "pop {{r4-r7, pc}}",
    )
}

/// `out[i] = 2^(multiplier * (scores[i] - max))` in Q15; their sum. 20 instructions an element, and 6 to
/// find the maximum: one Horner step of the polynomial is an `SMMLAR`, and a shift leaves in the carry
/// what rounds it.
///
/// # Safety
/// `scores` and `out` must have `len` elements, at least one.
#[unsafe(naked)]
unsafe extern "C" fn exponentials(
    scores: *const i32,
    len: usize,
    multiplier: i32,
    out: *mut i16,
) -> u32 {
    naked_asm!(
        dsp_cpu!(),
        "push {{r4-r11, lr}}",
        "add r1, r0, r1, lsl #2",
        "mov r6, r0",
        "ldr r4, [r6], #4",
        "b 3f",
        "2:",
        "ldr r7, [r6], #4",
        "cmp r4, r7",
        "it lt",
        "movlt r4, r7",
        "3:",
        "cmp r6, r1",
        "bne 2b",
        "mov r5, #0",
        "movw r8, #{c1} & 0xffff",
        "movt r8, #({c1} >> 16) & 0xffff",
        "movw r9, #{c2} & 0xffff",
        "movt r9, #({c2} >> 16) & 0xffff",
        "movw r10, #{c3} & 0xffff",
        "movt r10, #({c3} >> 16) & 0xffff",
        "movw r11, #{c4} & 0xffff",
        "movt r11, #({c4} >> 16) & 0xffff",
        "mov lr, #0x40000000",
        "4:",
        "ldr r6, [r0], #4",
        "subs r6, r4, r6",
        "smmulr r6, r6, r2",
        "lsrs r7, r6, #12",
        "cmp r7, #15",
        "bhi 6f",
        "lsls r6, r6, #20",
        "lsrs r6, r6, #1",
        "smmlar r12, r11, r6, r10",
        "smmlar r12, r12, r6, r9",
        "smmlar r12, r12, r6, r8",
        "smmlar r12, r12, r6, lr",
        "adds r7, #15",
        "lsrs r12, r12, r7",
        "adc r12, r12, #0",
        "usat r12, #15, r12",
        "add r5, r12",
        "5:",
        "strh r12, [r3], #2",
        "cmp r0, r1",
        "bne 4b",
        "mov r0, r5",
        "pop {{r4-r11, pc}}",
        "6:",
        "mov r12, #0",
        "b 5b",
        c1 = const EXP2[1],
        c2 = const EXP2[2],
        c3 = const EXP2[3],
        c4 = const EXP2[4],
    )
}
