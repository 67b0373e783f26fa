//! QEMU's RISC-V `virt` machine, running RV32IMC code.

use super::host_stream::HostStream;

pub const UNIT: &str = "instructions";
pub const BARE_TERMINAL: bool = false;

pub type Stream = HostStream;

pub fn name() -> &'static str {
    "virt, RV32IMC"
}

pub fn start() -> Stream {
    HostStream::open()
}

pub fn count() -> u64 {
    riscv::register::minstret::read64()
}

/// A trap is a failed run, not a silent loop.
#[unsafe(export_name = "ExceptionHandler")]
extern "C" fn exception(_: &riscv_rt::TrapFrame) -> ! {
    super::exit(false)
}
