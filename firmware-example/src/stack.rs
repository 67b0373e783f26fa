//! How deep the stack ever was: free memory is painted, and what is still painted later was not used.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// No address or small number looks like this.
const PAINT: u32 = 0x5afe_57ac;
/// Bytes below the stack pointer that painting itself may be using.
const MARGIN: usize = 128;
/// Bytes below the start of the stack that are watched; a deeper stack reads as this.
const WATCHED: usize = 32 * 1024;

/// Bytes below the start of the stack, at the deepest moment before the last painting.
static WHOLE: AtomicUsize = AtomicUsize::new(0);
/// Bytes below the caller of [`watch`], at the deepest moment.
static RUNTIME: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// First free word above all statics; from `cortex-m-rt`, `riscv-rt` and our own linker script alike.
    static mut __sheap: u32;
    /// One past the stack's first word; likewise.
    static _stack_start: u32;
}

/// Paints the memory below the current depth of the stack.
#[inline(always)]
pub fn paint() {
    let mut word = bottom();
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

/// Runs `work`, which is what [`in_runtime`] counts.
#[inline(never)]
pub fn watch<R>(work: impl FnOnce() -> R) -> R {
    /// A frame of its own, so that nothing of `work` lies above the noted stack pointer.
    #[inline(never)]
    fn call<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    WHOLE.store(in_all(), Relaxed);
    let start = stack_pointer();
    paint();
    let result = call(work);
    let used = start.saturating_sub(deepest() as usize);
    RUNTIME.store(in_runtime().max(used), Relaxed);
    result
}

/// Bytes of stack used since boot, at the deepest moment.
pub fn in_all() -> usize {
    (&raw const _stack_start as usize - deepest() as usize).max(WHOLE.load(Relaxed))
}

/// Bytes of stack that watched work has used, at the deepest moment.
pub fn in_runtime() -> usize {
    RUNTIME.load(Relaxed)
}

/// The lowest word in use since the last painting.
fn deepest() -> *const u32 {
    let mut word = bottom().cast_const();
    let top = &raw const _stack_start;
    // SAFETY: reads stay between the end of the statics and the start of the stack, all of it RAM;
    // nothing else than the stack is there, and volatile reads of it are not assumed stable.
    while word < top && unsafe { word.read_volatile() } == PAINT {
        word = word.wrapping_add(1);
    }
    word
}

/// The lowest watched word.
fn bottom() -> *mut u32 {
    let lowest = &raw mut __sheap;
    let watched = (&raw const _stack_start).cast_mut().wrapping_byte_sub(WATCHED);
    lowest.max(watched)
}

#[inline(always)]
fn stack_pointer() -> usize {
    let sp: usize;
    #[cfg(any(target_arch = "arm", target_arch = "aarch64"))]
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
