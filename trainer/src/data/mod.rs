//! From text to packed batches.

pub mod batch;
pub mod cmudict;
pub mod corpus;
pub mod split;
pub mod tasks;
pub mod tokenizer;
