//! One file per board, each with the same list of items:
//!
//! | item | what it is |
//! | --- | --- |
//! | `UNIT` | what `count` counts |
//! | `BARE_TERMINAL` | whether the other end shows only what it is sent (a UART), or edits lines itself (the host) |
//! | `Stream` | the byte stream, with `embedded_io`'s `Read` and `Write` |
//! | `name()` | what the banner calls the board |
//! | `start()` | sets up clock, counter and stream |
//! | `count()` | instructions or clock ticks since `start` |
//!
//! (Node, which has no debugger's way to end, brings its own `exit`.)
//!
//! Exactly one is compiled, the one `build.rs` chose, and the parts that it shares with others.

#[cfg(part = "aarch64_virt")]
mod aarch64_virt;
#[cfg(part = "aarch64_virt")]
pub use aarch64_virt::*;

#[cfg(part = "microbit")]
mod microbit;
#[cfg(part = "microbit")]
pub use microbit::*;

#[cfg(part = "mps")]
mod mps;
#[cfg(part = "mps")]
pub use mps::*;

#[cfg(part = "node")]
mod node;
#[cfg(part = "node")]
pub use node::*;

#[cfg(part = "riscv_virt")]
mod riscv_virt;
#[cfg(part = "riscv_virt")]
pub use riscv_virt::*;

#[cfg(part = "rp2040")]
mod rp2040;
#[cfg(part = "rp2040")]
pub use rp2040::*;

#[cfg(part = "stm32f4")]
mod stm32f4;
#[cfg(part = "stm32f4")]
pub use stm32f4::*;

#[cfg(part = "host_stream")]
mod host_stream;
#[cfg(part = "polled")]
mod polled;
#[cfg(part = "register")]
mod register;
#[cfg(part = "systick")]
mod systick;

/// Ends an emulated run, or a `probe-rs run`, with status 0 or 1; a board without a debugger stops.
#[cfg(not(board = "node"))]
pub fn exit(ok: bool) -> ! {
    semihosting::process::exit(i32::from(!ok))
}

/// Executes an undefined instruction.
pub fn fault() -> ! {
    #[cfg(any(target_arch = "arm", target_arch = "aarch64"))]
    // SAFETY: the core leaves for its fault handler, which does not return.
    unsafe {
        core::arch::asm!("udf #0", options(noreturn));
    }
    #[cfg(target_arch = "riscv32")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("unimp", options(noreturn));
    }
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable()
}

/// A fault is a failed run, not a silent loop.
#[cfg(target_arch = "arm")]
#[cortex_m_rt::exception]
// SAFETY: the handler touches nothing but the exit of the board; no state of the program is used.
unsafe fn HardFault(_: &cortex_m_rt::ExceptionFrame) -> ! {
    exit(false)
}

/// Likewise an exception that nothing handles.
#[cfg(target_arch = "arm")]
#[cortex_m_rt::exception]
// SAFETY: as above.
unsafe fn DefaultHandler(_: i16) -> ! {
    exit(false)
}
