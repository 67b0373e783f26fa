//! BBC micro:bit v1: nRF51822, a Cortex-M0 at 16 MHz with 16 KB of RAM. In QEMU, and a real one
//! (not tried on hardware).
//!
//! Register names and numbers: nRF51 Series Reference Manual 3.0, sections 18 (TIMER) and 29 (UART).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{
    polled::{Polled, Uart},
    register::Register,
};

pub const UNIT: &str = "ticks of 62.5 ns";
pub const BARE_TERMINAL: bool = true;

pub type Stream = Polled<Uart0>;

/// The pins of the USB bridge.
const TX_PIN: u32 = 24;
const RX_PIN: u32 = 25;
const BAUD_115200: u32 = 0x01d7_e000;

/// A register of this file, by its address in the reference manual.
const fn register(address: usize) -> Register {
    // SAFETY: every call below names a register of the manual, and only this file uses them.
    unsafe { Register::at(address) }
}

const CLOCK_HFCLKSTART: Register = register(0x4000_0000);
const CLOCK_HFCLKSTARTED: Register = register(0x4000_0100);

const GPIO_OUTSET: Register = register(0x5000_0508);
const GPIO_DIRSET: Register = register(0x5000_0518);

const UART_STARTRX: Register = register(0x4000_2000);
const UART_STARTTX: Register = register(0x4000_2008);
const UART_RXDRDY: Register = register(0x4000_2108);
const UART_TXDRDY: Register = register(0x4000_211c);
const UART_ENABLE: Register = register(0x4000_2500);
const UART_PSELTXD: Register = register(0x4000_250c);
const UART_PSELRXD: Register = register(0x4000_2514);
const UART_RXD: Register = register(0x4000_2518);
const UART_TXD: Register = register(0x4000_251c);
const UART_BAUDRATE: Register = register(0x4000_2524);

const TIMER_START: Register = register(0x4000_8000);
const TIMER_CAPTURE0: Register = register(0x4000_8040);
const TIMER_BITMODE: Register = register(0x4000_8508);
const TIMER_PRESCALER: Register = register(0x4000_8510);
const TIMER_CC0: Register = register(0x4000_8540);
const TIMER_32_BITS: u32 = 3;

pub fn name() -> &'static str {
    "micro:bit, Cortex-M0"
}

pub fn start() -> Stream {
    CLOCK_HFCLKSTART.write(1);
    CLOCK_HFCLKSTARTED.wait(1);

    // The core has no SysTick: a timer at 16 MHz counts instead.
    TIMER_BITMODE.write(TIMER_32_BITS);
    TIMER_PRESCALER.write(0);
    TIMER_START.write(1);

    GPIO_OUTSET.write(1 << TX_PIN);
    GPIO_DIRSET.write(1 << TX_PIN);
    UART_PSELTXD.write(TX_PIN);
    UART_PSELRXD.write(RX_PIN);
    UART_BAUDRATE.write(BAUD_115200);
    UART_ENABLE.write(4);
    UART_STARTTX.write(1);
    UART_STARTRX.write(1);
    Polled(Uart0)
}

/// Right for spans below 268 s, a turn of the timer.
pub fn count() -> u64 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    static TURNS: AtomicU32 = AtomicU32::new(0);
    TIMER_CAPTURE0.write(1);
    let now = TIMER_CC0.read();
    if now < LAST.load(Relaxed) {
        TURNS.store(TURNS.load(Relaxed) + 1, Relaxed);
    }
    LAST.store(now, Relaxed);
    u64::from(TURNS.load(Relaxed)) << 32 | u64::from(now)
}

/// The chip's UART, 115200 baud.
pub struct Uart0;

impl Uart for Uart0 {
    fn put(&mut self, byte: u8) {
        UART_TXDRDY.write(0);
        UART_TXD.write(u32::from(byte));
        UART_TXDRDY.wait(1);
    }

    fn get(&mut self) -> u8 {
        UART_RXDRDY.wait(1);
        // Cleared before the read: the next byte of the chip's queue may raise it at once.
        UART_RXDRDY.write(0);
        UART_RXD.read() as u8
    }

    fn has_byte(&self) -> bool {
        UART_RXDRDY.read() != 0
    }
}
