//! The tests of this package are of `runtime` without features.
