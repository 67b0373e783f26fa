//! Helpers of the equivalence tests.

pub mod answer;
pub mod random_model;
