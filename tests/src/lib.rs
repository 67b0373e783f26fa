//! Helpers of the equivalence tests.
