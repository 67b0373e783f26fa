//! Any UART that is polled for one byte at a time, as a byte stream.

use core::convert::Infallible;
use embedded_io::{ErrorType, Read, Write};

/// The two things a UART driver must do.
pub trait Uart {
    /// Sends one byte, waiting for room.
    fn put(&mut self, byte: u8);
    /// Waits for one byte.
    fn get(&mut self) -> u8;
    /// Whether [`Self::get`] would not wait.
    fn has_byte(&self) -> bool;
}

/// A byte stream over a UART; it has no end and no errors.
pub struct Polled<U>(pub U);

impl<U> ErrorType for Polled<U> {
    type Error = Infallible;
}

impl<U: Uart> Read for Polled<U> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Infallible> {
        let mut length = 0;
        for slot in buf {
            if length > 0 && !self.0.has_byte() {
                break;
            }
            *slot = self.0.get();
            length += 1;
        }
        Ok(length)
    }
}

impl<U: Uart> Write for Polled<U> {
    fn write(&mut self, buf: &[u8]) -> Result<usize, Infallible> {
        for byte in buf {
            self.0.put(*byte);
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
