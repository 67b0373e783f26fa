//! The least that a firmware with an integer model calls: what its code weighs is printed by `ci.sh`.
#![no_std]
#![no_main]

use core::hint::black_box;
use runtime::{FixedModel, Session};

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
    let file: &[u8] = black_box(&[]);
    if let Ok(model) = FixedModel::from_bytes(file)
        && let Ok(mut session) = Session::new(&model, black_box(&mut []))
    {
        let answer = session.run_into(black_box("word"), black_box(&mut []));
        black_box(answer.is_ok());
    }
    loop {
        core::hint::spin_loop();
    }
}
