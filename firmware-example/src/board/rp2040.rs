//! RP2040 boards such as the Raspberry Pi Pico. Not tried on hardware.
//!
//! Runs from the 12 MHz crystal without a PLL. UART0 on GPIO 0 (TX) and 1 (RX), where a Pico's
//! debug probe has its serial port.
//!
//! Register names and numbers: RP2040 Datasheet, sections 2.14 (resets), 2.15 (clocks), 2.16 (XOSC),
//! 2.19 (GPIO) and 4.2 (UART).

use super::{
    polled::{Polled, Uart},
    register::Register,
    systick,
};

pub const UNIT: &str = "cycles";
pub const BARE_TERMINAL: bool = true;

pub type Stream = Polled<Uart0>;

/// The second-stage boot loader, for the flash chip of a Pico and most that are like it.
#[unsafe(link_section = ".boot2")]
#[used]
static BOOT2: [u8; 256] = rp2040_boot2::BOOT_LOADER_GENERIC_03H;

/// A register of this file, by its address in the datasheet.
const fn register(address: usize) -> Register {
    // SAFETY: every call below names a register of the manual, and only this file uses them.
    unsafe { Register::at(address) }
}

const RESETS_RESET: Register = register(0x4000_c000);
const RESETS_RESET_DONE: Register = register(0x4000_c008);
const IO_BANK0_PADS_BANK0_UART0: u32 = 1 << 5 | 1 << 8 | 1 << 22;

const XOSC_CTRL: Register = register(0x4002_4000);
const XOSC_STATUS: Register = register(0x4002_4004);
const XOSC_STARTUP: Register = register(0x4002_400c);
const XOSC_1_TO_15_MHZ_ENABLE: u32 = 0xfa_baa0;
/// 1 ms of 12 MHz, in units of 256 cycles.
const XOSC_DELAY: u32 = 47;
const XOSC_STABLE: u32 = 1 << 31;

const CLK_REF_CTRL: Register = register(0x4000_8030);
const CLK_REF_SELECTED: Register = register(0x4000_8038);
const CLK_PERI_CTRL: Register = register(0x4000_8048);
const CLK_REF_FROM_XOSC: u32 = 2;
const CLK_PERI_ENABLE: u32 = 1 << 11;

const GPIO0_CTRL: Register = register(0x4001_4004);
const GPIO1_CTRL: Register = register(0x4001_400c);
const FUNCTION_UART: u32 = 2;

const UARTDR: Register = register(0x4003_4000);
const UARTFR: Register = register(0x4003_4018);
const UARTIBRD: Register = register(0x4003_4024);
const UARTFBRD: Register = register(0x4003_4028);
const UARTLCR_H: Register = register(0x4003_402c);
const UARTCR: Register = register(0x4003_4030);
const RXFE: u32 = 1 << 4;
const TXFF: u32 = 1 << 5;
const FIFO_8_BITS: u32 = 1 << 4 | 3 << 5;
const UARTEN_TXE_RXE: u32 = 1 << 0 | 1 << 8 | 1 << 9;

pub fn name() -> &'static str {
    "RP2040, Cortex-M0+"
}

pub fn start() -> Stream {
    start_clocks();
    if let Some(core) = cortex_m::Peripherals::take() {
        systick::start(core.SYST);
    }
    RESETS_RESET.replace(IO_BANK0_PADS_BANK0_UART0, 0);
    RESETS_RESET_DONE.wait(IO_BANK0_PADS_BANK0_UART0);
    GPIO0_CTRL.write(FUNCTION_UART);
    GPIO1_CTRL.write(FUNCTION_UART);
    // 12 MHz / (16 * 115200) = 6 + 33/64.
    UARTIBRD.write(6);
    UARTFBRD.write(33);
    UARTLCR_H.write(FIFO_8_BITS);
    UARTCR.write(UARTEN_TXE_RXE);
    Polled(Uart0)
}

/// The crystal drives the reference clock, and with it the core, which reset leaves on that clock.
fn start_clocks() {
    XOSC_STARTUP.write(XOSC_DELAY);
    XOSC_CTRL.write(XOSC_1_TO_15_MHZ_ENABLE);
    XOSC_STATUS.wait(XOSC_STABLE);
    CLK_REF_CTRL.write(CLK_REF_FROM_XOSC);
    CLK_REF_SELECTED.wait(1 << CLK_REF_FROM_XOSC);
    CLK_PERI_CTRL.write(CLK_PERI_ENABLE);
}

pub fn count() -> u64 {
    systick::ticks()
}

/// UART0, 115200 baud.
pub struct Uart0;

impl Uart for Uart0 {
    fn put(&mut self, byte: u8) {
        while UARTFR.read() & TXFF != 0 {}
        UARTDR.write(u32::from(byte));
    }

    fn get(&mut self) -> u8 {
        while !self.has_byte() {}
        UARTDR.read() as u8
    }

    fn has_byte(&self) -> bool {
        UARTFR.read() & RXFE == 0
    }
}
