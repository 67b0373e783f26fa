//! Text in, text out on a microcontroller.
//!
//! From the top: [`shell`] talks to a person or a test over the board's byte stream, [`speller`] owns
//! the model, and [`board`] holds all that differs between machines. The rest measures and explains.
#![no_std]
#![no_main]

#[cfg(feature = "bench")]
mod bench;
mod board;
mod console;
mod explain;
mod provoke;
#[cfg(feature = "search")]
mod searches;
mod shell;
mod speller;
#[cfg_attr(board = "node", path = "stack_out_of_sight.rs")]
mod stack;

use console::Console;
// Linked for its critical section, which `StaticArena::take` uses where there is no atomic swap.
#[cfg(target_arch = "arm")]
use cortex_m as _;

/// Never returns: `:quit` or the end of the stream ends an emulated run with a status.
#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    stack::paint();
    let mut console = Console::new(board::start(), board::BARE_TERMINAL);
    let finished = shell::run(&mut console);
    board::exit(finished)
}

/// Nothing in `runtime` panics; should this program do so, a test sees the status.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    board::exit(false)
}
