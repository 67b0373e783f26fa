//! Values that the optimiser knows nothing about, and a place for results that it must compute.

use core::{fmt, hint::black_box};

/// A value it cannot know.
pub fn any<T>(seed: T) -> T {
    black_box(seed)
}

/// Bytes of unknown content, length and alignment.
pub fn bytes() -> &'static [u8] {
    static BYTES: [u8; 64] = [0; 64];
    black_box(&BYTES[..])
}

/// Uses a result, so that it is computed.
pub fn sink<T>(value: T) {
    black_box(value);
}

/// Formats an error for a person. (`Debug` of a `char` has panics that core alone could remove.)
pub fn print<E: fmt::Display>(error: &E) {
    struct Nowhere;
    impl fmt::Write for Nowhere {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            sink(text);
            Ok(())
        }
    }
    sink(fmt::write(&mut Nowhere, format_args!("{error}")));
}
