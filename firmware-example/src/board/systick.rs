//! The core's 24-bit down counter, extended to 64 bits.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use cortex_m::peripheral::{SCB, SYST, syst::SystClkSource};

/// Highest value of the counter; it then wraps and the interrupt counts the wrap.
const TOP: u32 = 0x00ff_ffff;

/// Whole turns of the counter. Only the interrupt writes it, so a load and a store suffice
/// (a Cortex-M0+ has no atomic add).
static TURNS: AtomicU32 = AtomicU32::new(0);

/// Starts counting ticks of the core's clock.
pub fn start(mut syst: SYST) {
    syst.set_clock_source(SystClkSource::Core);
    syst.set_reload(TOP);
    syst.clear_current();
    syst.enable_interrupt();
    syst.enable_counter();
}

/// Ticks since [`start`].
pub fn ticks() -> u64 {
    loop {
        let turns = TURNS.load(Relaxed);
        let value = SYST::get_current();
        // A wrap between the two reads, taken or still pending, would pair the wrong halves.
        if turns == TURNS.load(Relaxed) && !SCB::is_pendst_pending() {
            let elapsed = if value == 0 { 0 } else { TOP - value + 1 };
            return u64::from(turns) * (u64::from(TOP) + 1) + u64::from(elapsed);
        }
    }
}

#[cortex_m_rt::exception]
fn SysTick() {
    TURNS.store(TURNS.load(Relaxed).wrapping_add(1), Relaxed);
}
