//! Arm's MPS2 and MPS3 boards in QEMU, one for each core: AN385 (Cortex-M3, which also runs Cortex-M0+
//! code), AN386 (Cortex-M4F), AN500 (Cortex-M7), AN505 (Cortex-M33), AN547 (Cortex-M55).

use cortex_m::peripheral::{CPUID, SCB};

use super::{host_stream::HostStream, systick};

pub const UNIT: &str = "instructions";
pub const BARE_TERMINAL: bool = false;

pub type Stream = HostStream;

/// One tick of the board's clock (25, 20 or 32 MHz), in quarters of a nanosecond.
const TICK: u64 = if cfg!(board = "mps2-an505") {
    200
} else if cfg!(board = "mps3") {
    125
} else {
    160
};

/// One instruction at `-icount shift=6` (64 ns), in the same unit. It is longer than a tick of every
/// board, so that a count is right to one instruction.
const INSTRUCTION: u64 = 256;

/// The bit of the Configuration and Control Register that makes unaligned access a fault.
const UNALIGN_TRP: u32 = 1 << 3;

/// Tells the AN386 from the AN500, which run the same program, and so on.
pub fn name() -> &'static str {
    // SAFETY: reads a register that every Cortex-M has and nothing changes.
    let part_number = unsafe { (*CPUID::PTR).base.read() } >> 4 & 0xfff;
    match part_number {
        _ if cfg!(armv6m) => "mps2-an385, Cortex-M0+ code",
        0xc23 => "mps2-an385, Cortex-M3",
        0xc24 => "mps2-an386, Cortex-M4F",
        0xc27 => "mps2-an500, Cortex-M7",
        0xd21 => "mps2-an505, Cortex-M33",
        0xd22 => "mps3-an547, Cortex-M55",
        _ => "a board that is not of the list",
    }
}

pub fn start() -> Stream {
    if let Some(core) = cortex_m::Peripherals::take() {
        trap_unaligned_access(&core.SCB);
        systick::start(core.SYST);
    }
    HostStream::open()
}

pub fn count() -> u64 {
    systick::ticks() * TICK / INSTRUCTION
}

/// A real Cortex-M0+ faults on unaligned access; the emulated Cortex-M3 forgives it unless told
/// not to. (The other cores allow it by architecture, and may use it.)
fn trap_unaligned_access(scb: &SCB) {
    if cfg!(armv6m) {
        // SAFETY: sets one documented bit, before anything relies on unaligned access.
        unsafe { scb.ccr.modify(|bits| bits | UNALIGN_TRP) }
    }
}
