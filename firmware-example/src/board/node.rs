//! WebAssembly under Node: `wasm-runner.mjs` has the other end of what is imported here.

use embedded_io::{ErrorType, Read, Write};

/// WebAssembly cannot see how many instructions run, so this is the host's clock.
pub const UNIT: &str = "ns";
pub const BARE_TERMINAL: bool = false;

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Fills `buf` from standard input, waiting for a byte; gives the number of bytes, 0 at the end.
    fn read(buf: *mut u8, len: usize) -> usize;
    /// Sends to standard output; gives the number of bytes.
    fn write(buf: *const u8, len: usize) -> usize;
    /// Ends the process.
    safe fn end(status: i32) -> !;
    safe fn nanoseconds() -> u64;
}

/// The process's own standard input and output. A read of 0 bytes is the end of the input.
pub struct Stream;

pub fn name() -> &'static str {
    if cfg!(target_feature = "simd128") {
        "Node, WebAssembly with vectors"
    } else {
        "Node, WebAssembly"
    }
}

pub fn start() -> Stream {
    Stream
}

pub fn count() -> u64 {
    nanoseconds()
}

/// Ends the run with status 0 or 1.
pub fn exit(ok: bool) -> ! {
    end(i32::from(!ok))
}

/// What the runner calls.
#[unsafe(export_name = "run")]
extern "C" fn run() -> ! {
    crate::main()
}

impl ErrorType for Stream {
    type Error = core::convert::Infallible;
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Self::Error> {
        // SAFETY: the runner writes at most `len` bytes there.
        Ok(unsafe { read(buf.as_mut_ptr(), buf.len()) })
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> Result<usize, Self::Error> {
        // SAFETY: the runner reads `len` bytes from there.
        Ok(unsafe { write(buf.as_ptr(), buf.len()) })
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}
