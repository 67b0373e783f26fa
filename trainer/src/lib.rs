//! Trains Kiloformer models on a workstation.
//!
//! ```text
//! cli          the command line
//!   train      the loop: batches -> gradients -> optimizer, checkpoints, metrics
//!   evaluate   loss, error rates, accuracies and perplexity, beside their baselines
//!   export     integers or f16 into a file; `device` runs it as a device does
//!     checkpoint   what a run is, on disk
//!     backend      loss and gradient of a batch, by one of:
//!       engine       the network forward and back on the CPU (flat buffers)
//!       reference    the same network in candle: the judge of `engine`, and the GPU path
//!     optimizer    AdamW, schedules, clipping, averaging
//!       data       pairs, vocabularies, batches
//!       params     names and places of all tensors
//!       rng        counter-based random numbers
//! ```

pub mod alignment;
pub mod backend;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod decode;
pub mod device;
pub mod engine;
pub mod evaluate;
pub mod export;
pub mod heat_map;
pub mod import;
pub mod model;
pub mod optimizer;
pub mod params;
pub mod reference;
pub mod report;
pub mod rng;
pub mod session;
pub mod train;
pub mod workers;
