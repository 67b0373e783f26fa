//! Trains Kiloformer models on a workstation.
//!
//! ```text
//! cli          the command line
//!   train      the loop: batches -> gradients -> optimizer, checkpoints, metrics
//!   evaluate   loss, word and symbol error rates
//!     checkpoint   what a run is, on disk
//!     engine       the network forward and back on the CPU (flat buffers)
//!     reference    the same network in candle: the judge of `engine`, and the GPU path
//!     optimizer    AdamW, schedules, clipping, averaging
//!       data       pairs, vocabularies, batches
//!       params     names and places of all tensors
//!       rng        counter-based random numbers
//! ```
#![allow(missing_docs)]

pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod engine;
pub mod evaluate;
pub mod export;
pub mod model;
pub mod optimizer;
pub mod params;
pub mod report;
pub mod rng;
pub mod session;
pub mod train;
pub mod workers;
