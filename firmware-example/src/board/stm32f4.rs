//! STM32F405/F407 boards. Not tried on hardware; its UART is tested in QEMU's netduinoplus2.
//!
//! Runs from the internal 16 MHz oscillator, so that no board's crystal matters. USART2 on PA2 (TX)
//! and PA3 (RX): the USB bridge of a Nucleo; on a Discovery board, a serial adapter.
//!
//! Register names and numbers: ST's RM0090, sections 7 (RCC), 8 (GPIO) and 30 (USART).

use super::{
    polled::{Polled, Uart},
    register::Register,
    systick,
};

pub const UNIT: &str = "cycles";
pub const BARE_TERMINAL: bool = true;

pub type Stream = Polled<Usart2>;

const CLOCK_HZ: u32 = 16_000_000;
const BAUD: u32 = 115_200;

/// A register of this file, by its address in the reference manual.
const fn register(address: usize) -> Register {
    // SAFETY: every call below names a register of the manual, and only this file uses them.
    unsafe { Register::at(address) }
}

const RCC_AHB1ENR: Register = register(0x4002_3830);
const RCC_APB1ENR: Register = register(0x4002_3840);
const GPIOAEN: u32 = 1 << 0;
const USART2EN: u32 = 1 << 17;

const GPIOA_MODER: Register = register(0x4002_0000);
const GPIOA_AFRL: Register = register(0x4002_0020);

const USART2_SR: Register = register(0x4000_4400);
const USART2_DR: Register = register(0x4000_4404);
const USART2_BRR: Register = register(0x4000_4408);
const USART2_CR1: Register = register(0x4000_440c);
const RXNE: u32 = 1 << 5;
const TXE: u32 = 1 << 7;
const RE_TE_UE: u32 = 1 << 2 | 1 << 3 | 1 << 13;

pub fn name() -> &'static str {
    "STM32F4, Cortex-M4F"
}

pub fn start() -> Stream {
    if let Some(core) = cortex_m::Peripherals::take() {
        systick::start(core.SYST);
    }
    RCC_AHB1ENR.replace(GPIOAEN, GPIOAEN);
    RCC_APB1ENR.replace(USART2EN, USART2EN);
    // PA2 and PA3: alternate function (2), number 7.
    GPIOA_MODER.replace(0xf << 4, 0b1010 << 4);
    GPIOA_AFRL.replace(0xff << 8, 0x77 << 8);
    USART2_BRR.write((CLOCK_HZ + BAUD / 2) / BAUD);
    USART2_CR1.write(RE_TE_UE);
    Polled(Usart2)
}

pub fn count() -> u64 {
    systick::ticks()
}

/// USART2, 115200 baud.
pub struct Usart2;

impl Uart for Usart2 {
    fn put(&mut self, byte: u8) {
        USART2_SR.wait(TXE);
        USART2_DR.write(u32::from(byte));
    }

    fn get(&mut self) -> u8 {
        USART2_SR.wait(RXNE);
        USART2_DR.read() as u8
    }

    fn has_byte(&self) -> bool {
        USART2_SR.read() & RXNE != 0
    }
}
