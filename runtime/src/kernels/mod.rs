//! The few loops that cost time. `reference` is the truth; an ISA's file has the same functions and
//! equals it in every bit.
//!
//! | item of an ISA | what it is |
//! | --- | --- |
//! | `TOKENS` | most tokens that one [`Input`] holds |
//! | `ROWS` | rows of a block, a multiple of 4 |
//! | `Ready` | what is made of an input before the first product |
//! | `scratch_len(tokens, cols)` | bytes of memory for that, with so many tokens of `cols` columns |
//! | `ready(x, [tokens, cols], scratch)` | makes it |
//! | `block(linear, first_row, input, out)` | outputs of the next [`rows`] rows for every token |
//! | `try_project(linear, input, bounds, out)` | a whole product in one go; `false` where it cannot |
//! | `try_project_add(linear, input, multiplier, bounds, stream)` | the same, added to a stream |
//! | `dot4(rows, x)` | four dot products of rows in memory |
//! | `DOTS` | sums that `try_dots` gives at once, 4 or more |
//! | `try_dots(data, stride, rows, x, sums)` | those of many rows in one go; `None` where it cannot |
//!
//! and, of `vectors` where the ISA has nothing better:
//!
//! | item | what it is |
//! | --- | --- |
//! | `rows(linear, input)` | rows of a block, of which a token's follow those of the one before: `ROWS` or more |
//! | `scores(keys, query, scores)` | the products of attention's keys with the query |
//! | `try_add_row(table, [row, column], multiplier, sums)` | adds sixteen columns of an embedding; `false` where it cannot |
//! | `try_attend(cache, (heads, d_k), bounds, x)` | scores, softmax and context of all heads in one go; `false` where it cannot |
//! | `try_context(values, probabilities, multiplier, bounds, context)` | the values' weighted sum; `false` where it cannot |
//! | `try_project_cached(linear, input, out, room)` | `try_project` of keys and values; `false` where it cannot |
//! | `exp2_all(scores, multiplier, probabilities)` | the powers of softmax, and their sum |
//! | `moments(x)` | sum and sum of squares, for LayerNorm |
//! | `try_blocks(linear, rows, input, each)` | a loop over `block`s; `false` where it cannot |
//! | `wide(f)` | `f`, its loops compiled for the instructions that the processor has |
//!
//! Outputs are `rescale(bias + W x, multiplier)`. An ISA is fast with the packing it is made for and
//! leaves the others to `reference::block`.

/// First line of a naked function with DSP instructions: the assembler of a linker that optimises does not
/// know which extensions of Armv8-M the target has.
#[cfg(all(kiloformer_dsp, kiloformer_v8m))]
macro_rules! dsp_cpu {
    () => {
        ".cpu cortex-m33"
    };
}
#[cfg(all(kiloformer_dsp, not(kiloformer_v8m)))]
macro_rules! dsp_cpu {
    () => {
        ""
    };
}

#[cfg(kiloformer_armv6m)]
#[allow(unsafe_code, reason = "multiplications and registers as the compiler would not use them")]
mod armv6m;
#[cfg(kiloformer_armv7m)]
#[allow(unsafe_code, reason = "multiplications and registers as the compiler would not use them")]
mod armv7m;
#[cfg(kiloformer_dsp)]
#[allow(unsafe_code, reason = "the DSP instructions have no stable intrinsics")]
mod dsp;
#[cfg(any(kiloformer_neon, kiloformer_simd128))]
#[allow(unsafe_code, reason = "walks along rows by pointers")]
mod eight_columns;
pub mod float;
#[cfg(kiloformer_vfp)]
#[allow(unsafe_code, reason = "the FPU's conversions of halves have no stable intrinsics")]
mod float_vfp;
#[cfg(kiloformer_mve)]
#[allow(unsafe_code, reason = "Helium has no stable intrinsics")]
mod mve;
#[cfg(kiloformer_neon)]
#[allow(unsafe_code, reason = "intrinsics that read through pointers")]
mod neon;
#[cfg(kiloformer_quad)]
#[allow(unsafe_code, reason = "calls the kernels of cores without DSP")]
mod quad;
#[cfg_attr(kiloformer_isa, allow(dead_code, reason = "the truth that the other file is tested by"))]
pub mod reference;
#[cfg(kiloformer_rv32m)]
#[allow(unsafe_code, reason = "multiplications and registers as the compiler would not use them")]
mod rv32m;
#[cfg(any(test, feature = "kernel-suite"))]
pub mod suite;
pub mod vectors;
#[cfg(kiloformer_dsp)]
#[allow(unsafe_code, reason = "the DSP instructions have no stable intrinsics")]
mod vectors_dsp;
#[cfg(kiloformer_simd128)]
#[allow(unsafe_code, reason = "intrinsics that read through pointers")]
mod wasm;
#[cfg(kiloformer_x86)]
#[allow(unsafe_code, reason = "intrinsics that read and write through pointers")]
pub mod x86;

#[cfg(kiloformer_armv6m)]
use armv6m as isa;
#[cfg(kiloformer_armv7m)]
use armv7m as isa;
#[cfg(kiloformer_dsp)]
use dsp as isa;
#[cfg(kiloformer_mve)]
use mve as isa;
#[cfg(kiloformer_neon)]
use neon as isa;
#[cfg(not(kiloformer_isa))]
use reference as isa;
#[cfg(kiloformer_rv32m)]
use rv32m as isa;
#[cfg(kiloformer_simd128)]
use wasm as isa;
#[cfg(kiloformer_x86)]
use x86 as isa;

#[cfg(any(kiloformer_mve, kiloformer_quad))]
pub use isa::try_context;
#[cfg(any(kiloformer_mve, kiloformer_neon, kiloformer_simd128))]
pub use isa::{DOTS, try_dots};
pub use isa::{ROWS, TOKENS, block, dot4, scratch_len, try_project, try_project_add};
#[cfg(kiloformer_dsp)]
pub use isa::{rows, try_project_cached};
pub use reference::dot;
#[cfg(not(any(kiloformer_mve, kiloformer_neon, kiloformer_simd128)))]
pub use reference::{DOTS, try_dots};
#[cfg(not(kiloformer_dsp))]
pub use vectors::rows;
#[cfg(not(any(kiloformer_dsp, kiloformer_mve, kiloformer_quad, kiloformer_x86)))]
pub use vectors::try_context;
#[cfg(not(any(kiloformer_dsp, kiloformer_x86)))]
pub use vectors::try_project_cached;
#[cfg(not(any(kiloformer_dsp, kiloformer_x86)))]
pub use vectors::{exp2_all, moments, scores};
#[cfg(not(kiloformer_x86))]
pub use vectors::{try_add_row, try_attend, try_blocks, wide};
#[cfg(kiloformer_dsp)]
pub use vectors_dsp::{exp2_all, moments, scores, try_context};
#[cfg(kiloformer_x86)]
pub use x86::{
    exp2_all, moments, scores, try_add_row, try_attend, try_blocks, try_context,
    try_project_cached, wide,
};

/// Outputs of one block, by token.
pub type Block = [[i32; ROWS]; TOKENS];

/// Activations that matrices are multiplied with, made ready once for all that read them.
#[derive(Clone, Copy)]
pub struct Input<'x> {
    /// `[tokens, cols]`.
    pub x: &'x [i16],
    /// At most [`TOKENS`].
    pub tokens: usize,
    /// Columns.
    pub cols: usize,
    /// What the ISA has made of them.
    pub ready: isa::Ready<'x>,
}

impl<'x> Input<'x> {
    /// Makes the `tokens` of `x` `[tokens, cols]` ready; `scratch` is [`scratch_len`] bytes, on a
    /// multiple of 4.
    pub fn new(x: &'x [i16], [tokens, cols]: [usize; 2], scratch: &'x mut [u8]) -> Self {
        Self { x, tokens, cols, ready: isa::ready(x, [tokens, cols], scratch) }
    }

    /// Token `token`, `[cols]`; empty past the last.
    pub fn token(&self, token: usize) -> &'x [i16] {
        let start = token.saturating_mul(self.cols);
        self.x.get(start..start.saturating_add(self.cols)).unwrap_or_default()
    }
}
