//! Counter-based random numbers: a value is a pure function of a key and an index.
//!
//! A run can therefore be repeated and resumed exactly, and the backward pass recomputes a
//! dropout mask instead of storing it.

/// Mixes one word (the finaliser of SplitMix64; Steele et al. 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A key made of the parts that tell one use from all others.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, &part| mix(state ^ mix(part)))
}

/// FNV-1a over bytes: a stable hash for names and words.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// The `index`-th uniform number of a key, in [0, 1).
pub fn uniform(key: u64, index: u64) -> f32 {
    (mix(key ^ mix(index)) >> 40) as f32 / (1u64 << 24) as f32
}

/// Shuffles in place (Fisher and Yates).
pub fn shuffle<T>(items: &mut [T], key: u64) {
    for i in (1..items.len()).rev() {
        let j = mix(key ^ mix(i as u64)) % (i as u64 + 1);
        items.swap(i, j as usize);
    }
}

/// One dropout mask: which elements of one tensor are kept, and what they are scaled by.
#[derive(Debug, Clone, Copy)]
pub struct Mask {
    key: u32,
    /// Elements whose hash is below are dropped.
    threshold: u32,
    /// `1 / (1 - rate)`, so that the expected value stays.
    pub scale: f32,
}

impl Mask {
    /// The mask of a key for a dropout rate in [0, 1).
    pub fn new(key: u64, rate: f32) -> Self {
        Self {
            key: key as u32 ^ (key >> 32) as u32,
            threshold: (f64::from(rate) * 4_294_967_296.0) as u32,
            scale: 1.0 / (1.0 - rate),
        }
    }

    /// The factor of the `index`-th element: 0 or `scale`.
    ///
    /// The hash is the 32-bit mixer with the lowest known bias (Wellons 2018, "hash prospector").
    #[inline(always)]
    pub fn factor(self, index: u32) -> f32 {
        let mut x = index.wrapping_mul(0x9E37_79B9) ^ self.key;
        x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
        x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
        x ^= x >> 16;
        if x >= self.threshold { self.scale } else { 0.0 }
    }
}

impl Mask {
    /// The factors of all elements from `first` on.
    #[inline(always)]
    pub fn factors(self, first: usize) -> Factors {
        Factors { mask: self, next: first as u32 }
    }
}

/// Endless; see [`Mask::factors`]. Its counter wraps: a loop over `enumerate`, which is checked for
/// overflow in a development build, would not vectorise.
#[derive(Debug, Clone)]
pub struct Factors {
    mask: Mask,
    next: u32,
}

impl Iterator for Factors {
    type Item = f32;

    #[inline(always)]
    fn next(&mut self) -> Option<f32> {
        let factor = self.mask.factor(self.next);
        self.next = self.next.wrapping_add(1);
        Some(factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_drops_its_rate_and_keeps_the_mean() {
        let mask = Mask::new(key(&[1, 2, 3]), 0.1);
        let n = 1 << 20;
        let mean = mask.factors(0).take(n).map(f64::from).sum::<f64>() / n as f64;
        // The standard error of the mean is 0.00033.
        assert!((mean - 1.0).abs() < 0.002, "{mean}");
    }

    #[test]
    fn factors_follow_each_other_and_wrap() {
        let mask = Mask::new(key(&[4]), 0.3);
        let expected = [u32::MAX - 1, u32::MAX, 0, 1].map(|i| mask.factor(i));
        let factors: Vec<f32> = mask.factors(u32::MAX as usize - 1).take(4).collect();
        assert_eq!(factors, expected);
    }

    #[test]
    fn different_keys_give_independent_masks() {
        let (a, b) = (Mask::new(key(&[7, 1]), 0.5), Mask::new(key(&[7, 2]), 0.5));
        let n = 1 << 16;
        let agree = a.factors(0).zip(b.factors(0)).take(n).filter(|(a, b)| a == b).count();
        assert!((agree as f64 / n as f64 - 0.5).abs() < 0.01, "{agree}");
    }

    #[test]
    fn uniform_covers_the_unit_interval() {
        let key = key(&[42]);
        let values: Vec<f32> = (0..10_000).map(|i| uniform(key, i)).collect();
        assert!(values.iter().all(|&x| (0.0..1.0).contains(&x)));
        assert!((values.iter().sum::<f32>() / 1e4 - 0.5).abs() < 0.01);
    }
}
