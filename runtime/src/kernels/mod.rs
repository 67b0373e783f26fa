//! The few loops that cost time. `reference` is the truth; an ISA's file has the same functions and
//! equals it in every bit.

#[cfg(kiloformer_dsp)]
#[allow(unsafe_code, reason = "the DSP instructions have no stable intrinsics")]
mod dsp;
#[cfg_attr(kiloformer_dsp, allow(dead_code, reason = "the truth that the other file is tested by"))]
pub mod reference;

#[cfg(kiloformer_dsp)]
pub use dsp::dot4;
#[cfg(not(kiloformer_dsp))]
pub use reference::dot4;

pub use reference::{dot, dot4_f32};
