//! Helpers of the equivalence tests.

pub mod answer;
pub mod precision;
pub mod random_model;
