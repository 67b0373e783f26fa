//! How many multiply-accumulates all matrix products took, counted for all sessions of the program.

use core::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The count since the last call, which starts again from zero.
pub fn take() -> u64 {
    COUNT.swap(0, Ordering::Relaxed)
}

pub(crate) fn count(rows: usize, cols: usize) {
    COUNT.fetch_add(rows.saturating_mul(cols) as u64, Ordering::Relaxed);
}
