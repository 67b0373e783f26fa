//! Products of HalfFloat on a Cortex-M with an FPU, sixteen rows side by side: the FPU widens halves
//! itself, and its `VMLA` rounds the product before the sum, as the contract wants it.

use core::arch::naked_asm;

use super::float::ROWS;

/// `W x` of sixteen rows: `columns` is `[cols, 16]`, `x` at least `[cols]`.
pub fn sums(columns: &[[u16; ROWS]], x: &[f32]) -> [f32; ROWS] {
    let mut sums = [0.0; ROWS];
    // A tensor lies on a multiple of 16.
    let words: &[[u32; ROWS / 2]] = bytemuck::try_cast_slice(columns).unwrap_or_default();
    let cols = words.len().min(x.len());
    if cols != 0 {
        // SAFETY: both slices have `cols` elements, which is not 0.
        unsafe { add_columns(words.as_ptr(), x.as_ptr(), cols, &mut sums) };
    }
    sums
}

/// 36 instructions for 16 products.
///
/// # Safety
/// `columns` and `x` must have `cols` elements, at least one.
#[unsafe(naked)]
unsafe extern "C" fn add_columns(
    columns: *const [u32; ROWS / 2],
    x: *const f32,
    cols: usize,
    sums: &mut [f32; ROWS],
) {
    naked_asm!(
        // The assembler of a linker that optimises does not know the target's FPU.
        ".fpu fpv4-sp-d16",
        "vpush {{s16-s26}}",
        "vldmia r3, {{s0-s15}}",
        "2:",
        "vldmia r0!, {{s16-s23}}",
        "vldmia r1!, {{s24}}",
        "vcvtb.f32.f16 s25, s16",
        "vcvtt.f32.f16 s26, s16",
        "vmla.f32 s0, s25, s24",
        "vmla.f32 s1, s26, s24",
        "vcvtb.f32.f16 s25, s17",
        "vcvtt.f32.f16 s26, s17",
        "vmla.f32 s2, s25, s24",
        "vmla.f32 s3, s26, s24",
        "vcvtb.f32.f16 s25, s18",
        "vcvtt.f32.f16 s26, s18",
        "vmla.f32 s4, s25, s24",
        "vmla.f32 s5, s26, s24",
        "vcvtb.f32.f16 s25, s19",
        "vcvtt.f32.f16 s26, s19",
        "vmla.f32 s6, s25, s24",
        "vmla.f32 s7, s26, s24",
        "vcvtb.f32.f16 s25, s20",
        "vcvtt.f32.f16 s26, s20",
        "vmla.f32 s8, s25, s24",
        "vmla.f32 s9, s26, s24",
        "vcvtb.f32.f16 s25, s21",
        "vcvtt.f32.f16 s26, s21",
        "vmla.f32 s10, s25, s24",
        "vmla.f32 s11, s26, s24",
        "vcvtb.f32.f16 s25, s22",
        "vcvtt.f32.f16 s26, s22",
        "vmla.f32 s12, s25, s24",
        "vmla.f32 s13, s26, s24",
        "vcvtb.f32.f16 s25, s23",
        "vcvtt.f32.f16 s26, s23",
        "vmla.f32 s14, s25, s24",
        "vmla.f32 s15, s26, s24",
        "subs r2, #1",
        "bne 2b",
        "vstmia r3, {{s0-s15}}",
        "vpop {{s16-s26}}",
        "bx lr",
    )
}
