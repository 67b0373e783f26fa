//! The host's standard input and output by semihosting, as a byte stream.

use embedded_io::{ErrorType, Read, Write};
use semihosting::io::{Read as _, Stdin, Stdout, Write as _};

/// The emulator's own standard input and output. A read of 0 bytes is the end of the input.
pub struct HostStream {
    input: Stdin,
    output: Stdout,
}

/// The host refused a read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostError;

impl HostStream {
    /// Opens both, or ends the run: without a host there is nobody to talk to.
    pub fn open() -> Self {
        match (semihosting::io::stdin(), semihosting::io::stdout()) {
            (Ok(input), Ok(output)) => Self { input, output },
            _ => super::exit(false),
        }
    }
}

impl core::fmt::Display for HostError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the host refused a read or a write")
    }
}

impl core::error::Error for HostError {}

impl embedded_io::Error for HostError {
    fn kind(&self) -> embedded_io::ErrorKind {
        embedded_io::ErrorKind::Other
    }
}

impl ErrorType for HostStream {
    type Error = HostError;
}

impl Read for HostStream {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, HostError> {
        self.input.read(buf).map_err(|_| HostError)
    }
}

impl Write for HostStream {
    fn write(&mut self, buf: &[u8]) -> Result<usize, HostError> {
        self.output.write(buf).map_err(|_| HostError)
    }

    fn flush(&mut self) -> Result<(), HostError> {
        Ok(())
    }
}
