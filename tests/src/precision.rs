//! Tests that run in both number types.

use model_format::config::Precision;

/// All number types.
pub const BOTH: [Precision; 2] = [Precision::FixedPoint, Precision::HalfFloat];

/// Calls a generic test with the number type of a file.
#[macro_export]
macro_rules! for_precision {
    ($precision:expr, $test:ident($($argument:expr),*)) => {
        match $precision {
            ::model_format::config::Precision::FixedPoint => {
                $test::<::runtime::FixedPoint>($($argument),*)
            }
            ::model_format::config::Precision::HalfFloat => {
                $test::<::runtime::HalfFloat>($($argument),*)
            }
        }
    };
}
