//! Arm's MPS2 boards in QEMU: AN386 (Cortex-M4F), and AN385 (Cortex-M3) running Cortex-M0+ code.

use super::{host_stream::HostStream, systick};

pub const NAME: &str =
    if cfg!(armv6m) { "mps2-an385, Cortex-M0+ code" } else { "mps2-an386, Cortex-M4F" };
pub const UNIT: &str = "instructions";
pub const BARE_TERMINAL: bool = false;

pub type Stream = HostStream;

/// Instructions in one tick of the 25 MHz clock (40 ns) at `-icount shift=3` (8 ns each).
const INSTRUCTIONS_PER_TICK: u64 = 5;

/// The bit of the Configuration and Control Register that makes unaligned access a fault.
const UNALIGN_TRP: u32 = 1 << 3;

pub fn start() -> Stream {
    if let Some(core) = cortex_m::Peripherals::take() {
        trap_unaligned_access(&core.SCB);
        systick::start(core.SYST);
    }
    HostStream::open()
}

pub fn count() -> u64 {
    systick::ticks() * INSTRUCTIONS_PER_TICK
}

/// A real Cortex-M0+ faults on unaligned access; the emulated Cortex-M3 forgives it unless told
/// not to. (The Cortex-M4F allows it by architecture, and may use it.)
fn trap_unaligned_access(scb: &cortex_m::peripheral::SCB) {
    if cfg!(armv6m) {
        // SAFETY: sets one documented bit, before anything relies on unaligned access.
        unsafe { scb.ccr.modify(|bits| bits | UNALIGN_TRP) }
    }
}
