//! How deep the stack ever was: free memory is painted at boot, and what is still painted later
//! was never used.

/// No address or small number looks like this.
const PAINT: u32 = 0x5afe_57ac;

/// Bytes below the stack pointer that painting itself may be using.
const MARGIN: usize = 128;

unsafe extern "C" {
    /// First free word above all statics; from `cortex-m-rt` and `riscv-rt` alike.
    static mut __sheap: u32;
    /// One past the stack's first word; likewise.
    static _stack_start: u32;
}

/// Paints all memory between the statics and the current depth of the stack.
#[inline(never)]
pub fn paint() {
    let mut word = &raw mut __sheap;
    let top = (stack_pointer() - MARGIN) as *mut u32;
    while word < top {
        // SAFETY: between the end of the statics and the stack's current depth less a margin for
        // this function lies memory that nothing owns (there is no heap); both ends are 4-aligned.
        unsafe {
            word.write_volatile(PAINT);
            word = word.add(1);
        }
    }
}

/// Bytes of stack used since boot, at the deepest moment.
pub fn high_water() -> usize {
    let mut word = (&raw const __sheap).cast_mut();
    let top = &raw const _stack_start;
    // SAFETY: reads stay between the end of the statics and the start of the stack, all of it RAM;
    // nothing else than the stack is there, and volatile reads of it are not assumed stable.
    while word.cast_const() < top && unsafe { word.read_volatile() } == PAINT {
        word = word.wrapping_add(1);
    }
    top as usize - word as usize
}

#[inline(always)]
fn stack_pointer() -> usize {
    let sp: usize;
    #[cfg(target_arch = "arm")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "riscv32")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mv {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    sp
}
