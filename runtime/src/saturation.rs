//! How often every integer tensor saturated, counted for all sessions of the program.

use core::sync::atomic::{AtomicU64, Ordering};

use model_format::config::ModelConfig;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

/// Tensors that are counted; later ones share the last place.
const TENSORS: usize = 4096;

static COUNTS: [AtomicU64; TENSORS] = [const { AtomicU64::new(0) }; TENSORS];

/// Starts again from zero.
pub fn reset() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
}

/// Elements of an activation that were out of range since the last reset.
pub fn of_activation(config: &ModelConfig, slot: ActivationSlot) -> u64 {
    read(activation_index(config, slot))
}

/// Keys or values, made by the linear tensor at `slot`, that were out of range.
pub fn of_cache(config: &ModelConfig, slot: Slot) -> u64 {
    read(cache_index(config, slot))
}

pub(crate) fn activation_index(config: &ModelConfig, slot: ActivationSlot) -> usize {
    slot.index(config)
}

pub(crate) fn cache_index(config: &ModelConfig, slot: Slot) -> usize {
    ActivationSlot::count(config).saturating_add(slot.index(config))
}

pub(crate) fn count(index: usize) {
    if let Some(count) = COUNTS.get(index.min(TENSORS - 1)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn read(index: usize) -> u64 {
    COUNTS.get(index.min(TENSORS - 1)).map_or(0, |count| count.load(Ordering::Relaxed))
}
