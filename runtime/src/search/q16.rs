//! A number in Q16, so that firmware chooses temperatures and penalties without floats at run time.

use super::error::OptionsError;

/// A number of 16 fractional bits, from -32768 to just below 32768.
///
/// ```
/// use runtime::{q16, search::Q16};
///
/// const TEMPERATURE: Q16 = q16!(0.8);
/// assert_eq!(TEMPERATURE.to_bits(), 52429);
/// assert_eq!(Q16::ONE.to_bits(), 65536);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Q16(i32);

impl Q16 {
    /// 0.
    pub const ZERO: Self = Self(0);
    /// 1.
    pub const ONE: Self = Self(1 << 16);

    /// `bits * 2^-16`.
    pub const fn from_bits(bits: i32) -> Self {
        Self(bits)
    }

    /// The nearest number to `value`; ties away from zero. In a constant, [`q16!`](crate::q16) is
    /// shorter.
    ///
    /// # Errors
    /// When `value` is not a number, or out of range.
    pub const fn from_f32(value: f32) -> Result<Self, OptionsError> {
        // Exact in f64: no second rounding.
        let scaled = value as f64 * 65_536.0;
        let rounded = if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 };
        if rounded > -2_147_483_649.0 && rounded < 2_147_483_648.0 {
            Ok(Self(rounded as i32))
        } else {
            Err(OptionsError::NotQ16)
        }
    }

    /// Itself times 2^16.
    pub const fn to_bits(self) -> i32 {
        self.0
    }

    /// The nearest float.
    pub fn to_f32(self) -> f32 {
        self.0 as f32 / 65_536.0
    }

    /// Itself times 2^16; 0 where it is negative.
    pub(crate) const fn magnitude(self) -> u32 {
        if self.0 < 0 { 0 } else { self.0 as u32 }
    }
}

/// A [`Q16`](crate::search::Q16) from a float, computed by the compiler, which refuses what is not a
/// number or out of range.
#[macro_export]
macro_rules! q16 {
    ($value:expr) => {
        const {
            match $crate::search::Q16::from_f32($value) {
                Ok(q16) => q16,
                Err(_) => panic!("not a number, or out of range"),
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_rounded_to_the_nearest() {
        for (value, bits) in [(0.5, 32768), (-0.5, -32768), (1e-6, 0), (0.9, 58982), (8e-6, 1)] {
            assert_eq!(Q16::from_f32(value), Ok(Q16::from_bits(bits)), "{value}");
        }
        assert_eq!(q16!(-32768.0).to_bits(), i32::MIN);
        assert_eq!(q16!(0.25).to_f32(), 0.25);
    }

    #[test]
    fn what_is_no_number_or_out_of_range_is_refused() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 32768.0, -32769.0, 1e30] {
            assert_eq!(Q16::from_f32(value), Err(OptionsError::NotQ16), "{value}");
        }
    }
}
