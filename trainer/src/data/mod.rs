//! From text to packed batches.

pub mod batch;
pub mod corpus;
pub mod tokenizer;
