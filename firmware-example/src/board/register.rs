//! Memory-mapped registers of the real boards: the few that a UART and a clock need.

/// One 32-bit register.
#[derive(Clone, Copy)]
pub struct Register(*mut u32);

impl Register {
    /// The register at an address of the chip's reference manual.
    ///
    /// # Safety
    /// `address` is the 4-byte aligned address of a device register of the chip this is built for,
    /// and nothing else in the program writes it.
    pub const unsafe fn at(address: usize) -> Self {
        Self(address as *mut u32)
    }

    /// Reads it.
    pub fn read(self) -> u32 {
        // SAFETY: `at`'s caller vouched for the address.
        unsafe { self.0.read_volatile() }
    }

    /// Writes it.
    pub fn write(self, value: u32) {
        // SAFETY: `at`'s caller vouched for the address.
        unsafe { self.0.write_volatile(value) }
    }

    /// Replaces the bits under `mask`.
    #[cfg(not(board = "microbit"))]
    pub fn replace(self, mask: u32, bits: u32) {
        self.write(self.read() & !mask | bits);
    }

    /// Waits until these bits are all set.
    pub fn wait(self, bits: u32) {
        while self.read() & bits != bits {}
    }
}
