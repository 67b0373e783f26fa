//! QEMU's AArch64 `virt` machine, and the little that code needs to start there: one core, at EL1.

use core::arch::{asm, global_asm};

use super::host_stream::HostStream;

pub const UNIT: &str = "instructions";
pub const BARE_TERMINAL: bool = false;

pub type Stream = HostStream;

pub fn name() -> &'static str {
    "virt, AArch64"
}

/// Starts the cycle counter: at `-icount shift=0` an instruction takes 1 ns, and a cycle at the
/// emulator's 1 GHz as well.
pub fn start() -> Stream {
    /// Enables the counters, sets the one of cycles to zero and makes it 64 bits long (PMCR_EL0.{E, C, LC}).
    const ENABLE_AND_RESET: u64 = 1 | 1 << 2 | 1 << 6;
    const CYCLE_COUNTER: u64 = 1 << 31;
    // SAFETY: writes registers that only this function and `count` use.
    unsafe {
        asm!(
            "msr pmcntenset_el0, {counter}",
            "msr pmcr_el0, {enable}",
            "isb",
            counter = in(reg) CYCLE_COUNTER,
            enable = in(reg) ENABLE_AND_RESET,
            options(nomem, nostack),
        );
    }
    HostStream::open()
}

/// One core without interrupts, which are off from reset on, is always alone.
#[cfg(feature = "bench")]
struct Alone;

#[cfg(feature = "bench")]
critical_section::set_impl!(Alone);

#[cfg(feature = "bench")]
// SAFETY: nothing else runs on this core, and no other one is started.
unsafe impl critical_section::Impl for Alone {
    unsafe fn acquire() {}

    unsafe fn release((): ()) {}
}

pub fn count() -> u64 {
    let cycles;
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {}, pmccntr_el0", out(reg) cycles, options(nomem, nostack));
    }
    cycles
}

// The stack, floating point and vectors (CPACR_EL1.FPEN), zeroed statics; faults that end the run. The
// second gigabyte of addresses, where all the memory is, becomes normal cached memory: without the MMU it
// would count as a device, where unaligned access is a fault. Everything outside of it is a fault.
global_asm!(
    ".pushsection .text.start, \"ax\"",
    ".global _start",
    "_start:",
    "   ldr x0, =_stack_start",
    "   mov sp, x0",
    "   mov x0, #3 << 20",
    "   msr cpacr_el1, x0",
    "   adr x0, vectors",
    "   msr vbar_el1, x0",
    "   mov x0, #0xff", // Memory attribute 0: normal, write-back.
    "   msr mair_el1, x0",
    "   ldr x0, ={translation_control}",
    "   msr tcr_el1, x0",
    "   adr x0, gigabytes",
    "   msr ttbr0_el1, x0",
    "   tlbi vmalle1",
    "   dsb sy",
    "   isb",
    "   ldr x0, ={system_control}",
    "   msr sctlr_el1, x0",
    "   isb",
    "   ldr x0, =__sbss",
    "   ldr x1, =__ebss",
    "1: cmp x0, x1",
    "   b.hs 2f",
    "   stp xzr, xzr, [x0], #16",
    "   b 1b",
    "2: b {main}",
    "fault:",
    "   ldr x0, =_stack_start", // The fault may have been a stack that ran out of its memory.
    "   mov sp, x0",
    "   b {fault}",
    ".balign 64",
    "gigabytes:",
    "   .quad 0, {normal_memory}, 0, 0",
    ".balign 2048",
    "vectors:",
    ".rept 16",
    "   b fault",
    "   .balign 128",
    ".endr",
    ".popsection",
    // TCR_EL1: 32-bit addresses in pages of 4 KB, tables cached (T0SZ, IRGN0, ORGN0, SH0), no upper half (EPD1).
    translation_control = const 32 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23,
    // SCTLR_EL1: bits that are always one, instruction cache, data cache, MMU; unaligned access allowed.
    system_control = const 0x30d0_0800_u32 | 1 << 12 | 1 << 2 | 1,
    // A block that starts at its own address: accessed, shared, attribute 0.
    normal_memory = const 0x4000_0000 | 1 << 10 | 3 << 8 | 1,
    main = sym main,
    fault = sym fault,
);

extern "C" fn main() -> ! {
    crate::main()
}

/// An exception is a failed run, not a silent loop.
extern "C" fn fault() -> ! {
    super::exit(false)
}
