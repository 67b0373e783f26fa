//! One file per board, each with the same list of items:
//!
//! | item | what it is |
//! | --- | --- |
//! | `NAME` | what the banner calls the board |
//! | `UNIT` | what `count` counts |
//! | `BARE_TERMINAL` | whether the other end shows only what it is sent (a UART), or edits lines itself (the host) |
//! | `Stream` | the byte stream, with `embedded_io`'s `Read` and `Write` |
//! | `start()` | sets up clock, counter and stream |
//! | `count()` | instructions or clock ticks since `start` |
//!
//! Exactly one is compiled, the one `build.rs` chose.

#[cfg(board = "microbit")]
mod microbit;
#[cfg(board = "microbit")]
pub use microbit::*;

#[cfg(board = "mps2")]
mod mps2;
#[cfg(board = "mps2")]
pub use mps2::*;

#[cfg(board = "riscv-virt")]
mod riscv_virt;
#[cfg(board = "riscv-virt")]
pub use riscv_virt::*;

#[cfg(board = "rp2040")]
mod rp2040;
#[cfg(board = "rp2040")]
pub use rp2040::*;

#[cfg(board = "stm32f4")]
mod stm32f4;
#[cfg(board = "stm32f4")]
pub use stm32f4::*;

#[cfg(any(board = "mps2", board = "riscv-virt"))]
mod host_stream;

#[cfg(any(board = "mps2", board = "stm32f4", board = "rp2040"))]
mod systick;

#[cfg(any(board = "microbit", board = "stm32f4", board = "rp2040"))]
mod polled;
#[cfg(any(board = "microbit", board = "stm32f4", board = "rp2040"))]
mod register;

/// Ends an emulated run, or a `probe-rs run`, with status 0 or 1; a board without a debugger stops.
pub fn exit(ok: bool) -> ! {
    semihosting::process::exit(i32::from(!ok))
}

/// A fault is a failed run, not a silent loop.
#[cfg(target_arch = "arm")]
#[cortex_m_rt::exception]
// SAFETY: the handler touches nothing but the exit of the board; no state of the program is used.
unsafe fn HardFault(_: &cortex_m_rt::ExceptionFrame) -> ! {
    exit(false)
}
