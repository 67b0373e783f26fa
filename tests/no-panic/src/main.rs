//! Uses the whole public API of `model-format` and `runtime` with values the optimiser knows
//! nothing about. The panic handler calls a function that does not exist: the program links only
//! if no path can reach it.
//!
//! It is linked, never run. A panic path that survives shows as
//! `undefined symbol: a_panic_path_survives`; `-C link-arg=--trace-symbol` or the disassembly of a
//! build with the symbol defined tells whose.
#![no_std]
#![no_main]

mod file;
mod opaque;
mod run;
mod search;

unsafe extern "C" {
    /// Does not exist.
    fn a_panic_path_survives() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never reached: a program that contains this call does not link.
    unsafe { a_panic_path_survives() }
}

/// The entry point as the linker knows it.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    file::probe(opaque::bytes());
    run::probe(opaque::bytes());
    search::probe();
    #[cfg(feature = "control")]
    opaque::sink([1, 2, 3][opaque::any(7_usize)]);
    loop {
        core::hint::spin_loop();
    }
}
