//! The least that a firmware with an integer model calls: what its code weighs is printed by `ci.sh`,
//! and what each way to search adds, which a feature adds to the calls.
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
        let _ = more(&mut session);
    }
    loop {
        core::hint::spin_loop();
    }
}

type Fixed<'m, 'a> = Session<'m, 'a, runtime::FixedPoint>;

/// Nothing more.
#[cfg(not(feature = "option"))]
fn more(_: &mut Fixed<'_, '_>) -> Option<()> {
    None
}

/// One way to search.
#[cfg(feature = "option")]
fn more(session: &mut Fixed<'_, '_>) -> Option<()> {
    let buffer: &mut [u8] = black_box(&mut []);
    let options = runtime::GenerateOptions::default();
    let generation = session.generate_text(black_box("word"), &options).ok()?;
    #[cfg(not(any(feature = "with-scores", feature = "with-poll", feature = "with-alignment")))]
    let constraints = black_box(runtime::search::Constraints::default());
    #[cfg(feature = "with-scores")]
    {
        let mut generation = generation.scored();
        black_box(generation.write_into(buffer).is_ok());
        black_box(generation.choice().score().confidence());
    }
    #[cfg(feature = "with-constraints")]
    black_box(generation.constrained(&constraints).ok()?.write_into(buffer).is_ok());
    #[cfg(feature = "with-sampling")]
    {
        let sampling = black_box(runtime::search::Sampling::default());
        let drawn = generation.sampled(&constraints, &sampling, || black_box(1));
        black_box(drawn.ok()?.write_into(buffer).is_ok());
    }
    #[cfg(feature = "with-beams")]
    {
        let beam_options = black_box(runtime::search::BeamOptions::default());
        let mut beams = generation.beams(&constraints, &beam_options).ok()?;
        beams.run();
        black_box(beams.write_into(0, buffer).is_ok());
    }
    #[cfg(feature = "with-poll")]
    {
        let mut generation = generation;
        black_box((generation.poll(black_box(9)).is_ok(), buffer.len()));
    }
    #[cfg(feature = "with-alignment")]
    {
        let mut generation = generation;
        let align = |shown: runtime::CrossAttention<'_>| {
            black_box(shown);
        };
        black_box((generation.next_aligned(|_, _| (), align), buffer.len()));
    }
    Some(())
}
