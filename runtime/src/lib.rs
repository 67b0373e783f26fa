//! Transformer inference for microcontrollers: `no_std`, no heap, one static arena. Encoder-decoders,
//! language models (decoder-only), taggers and classifiers (encoder-only).
//!
//! ```text
//! session      text -> text; owns no arithmetic
//! generation   ids -> ids; steps in units that a budget pays for; a choice of the next id
//!   beams      several outputs at once, their caches
//!   tokenizer  text <-> TokenId
//!   search     which token follows: greedy, beam, sampling; sees ids and logits only
//!   encoder    source ids -> [source_len, d_model]
//!   decoder    one id -> [d_model]; hidden [d_model] -> logits
//!   stack      the layers of either: -> memory [source_len, d_model], hidden [d_model] (kv_cache)
//!     layers   embedding, norm, attention, feed_forward; once, for every Precision
//!       fixed  integers: the numeric contract     half  f16 weights, f32 arithmetic
//!         kernels  the few loops that cost time; `reference` is the truth
//! plan, arena  which buffers lie where, a pure function of the file's configuration
//! ```
//!
//! Layers go down only. On a device, a session is a few lines:
//!
//! ```
//! use runtime::{FixedModel, Session};
//!
//! # fn main() {}
//! # #[allow(dead_code)]
//! fn pronounce(file: &[u8], arena: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
//!     let model = FixedModel::from_bytes(file)?;
//!     let mut session = Session::new(&model, arena)?;
//!     let phones = session.run::<64>("kilobyte")?;
//!     assert_eq!(phones, "K IH1 L AH0 B AY2 T");
//!     Ok(())
//! }
//! ```
#![cfg_attr(not(test), no_std)]

#[cfg(all(feature = "std", not(test)))]
extern crate std;

mod align;
#[allow(unsafe_code, reason = "hands out the bytes of a static")]
mod arena;
mod beam_cache;
mod beams;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod budget;
mod choice;
mod decoder;
mod encoder;
mod error;
mod fixed;
mod generation;
mod half;
#[doc(hidden)]
pub mod kernels;
mod layers;
mod logit;
#[cfg(feature = "mac-counts")]
pub mod macs;
mod model;
mod plan;
mod precision;
#[cfg(not(feature = "profile"))]
mod profile;
#[cfg(feature = "profile")]
#[doc(hidden)]
pub mod profile;
#[cfg(feature = "saturation-counts")]
pub mod saturation;
pub mod search;
mod searching;
mod session;
mod slices;
mod stack;
mod steps;
mod tokenizer;

pub use align::CrossAttention;
pub use arena::{ARENA_ALIGN, StaticArena};
pub use beams::Beams;
pub use choice::{Choice, Constrained, Sampled, Scored};
pub use error::{ArenaTooSmall, BudgetTooSmall, RunError, SearchError};
pub use fixed::FixedPoint;
pub use generation::{GenerateOptions, Generation, Poll, StopReason};
pub use half::HalfFloat;
pub use logit::Logit;
pub use model::{FixedModel, HalfModel, LoadError, TypedModel};
pub use model_format;
pub use model_format::Checks;
pub use plan::{Limits, Plan, arena_len, arena_len_with};
pub use precision::Precision;
pub use search::LogitsHash;
pub use session::Session;
pub use tokenizer::{EncodeError, MAX_SYMBOL_LEN, TokenId};

/// The bytes of a model file, aligned as [`FixedModel::from_bytes`] needs them, as a
/// `&'static [u8]`; usable in a `const`, so that [`arena_len`] can read its configuration.
///
/// `include_model!("g2p.kfm", section = ".external_flash")` puts the bytes into a link section.
#[macro_export]
macro_rules! include_model {
    ($path:expr $(, section = $section:expr)? $(,)?) => {{
        #[repr(C, align(16))]
        struct Aligned<T>(T);
        $(#[unsafe(link_section = $section)])?
        static FILE: Aligned<[u8; include_bytes!($path).len()]> = Aligned(*include_bytes!($path));
        &FILE.0 as &'static [u8]
    }};
}

/// The README's code is tested with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
