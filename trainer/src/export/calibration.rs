//! Ranges of all activations, seen on real sentences in `f32`.

use std::collections::HashMap;

use crate::data::batch::Example;
use crate::export::trained::Trained;

/// Values kept of a head's keys or values; what follows is not looked at.
const MAX_SAMPLES: usize = 200_000;

/// What calibration saw.
#[derive(Debug, Clone, Default)]
pub struct Calibration {
    /// Largest magnitude of every activation, by its name.
    max_abs: HashMap<String, f32>,
    /// Magnitudes of keys and values, by name, for every head.
    samples: HashMap<String, Vec<Vec<f32>>>,
}

impl Calibration {
    /// The largest magnitude of an activation; 0 where it was never seen.
    pub fn max_abs(&self, name: &str) -> f32 {
        self.max_abs.get(name).copied().unwrap_or(0.0)
    }

    /// The step of 8-bit keys or values of one head that loses least in squares.
    ///
    /// Saturation costs what it cuts off, a wider range costs resolution: the best of a few clips is
    /// taken.
    pub fn cached_step(&self, name: &str, head: usize) -> f32 {
        let samples = self.samples.get(name).and_then(|heads| heads.get(head));
        let samples = samples.map(Vec::as_slice).unwrap_or_default();
        let max = samples.iter().copied().fold(0.0, f32::max);
        if max == 0.0 {
            return 1.0 / 127.0;
        }
        let candidates = (0..16).map(|i| max * (1.0 - 0.04 * i as f32) / 127.0);
        let loss = |step: f32| -> f64 {
            samples.iter().map(|&v| f64::from(v - (v / step).round().min(127.0) * step).powi(2)).sum()
        };
        candidates.map(|step| (loss(step), step)).min_by(|a, b| a.0.total_cmp(&b.0)).map_or(max, |b| b.1)
    }

    fn observe(&mut self, name: &str, values: &[f32], heads: usize) {
        let is_cached = name.ends_with("attention.key") || name.ends_with("attention.value");
        if is_cached {
            let samples =
                self.samples.entry(name.to_owned()).or_insert_with(|| vec![Vec::new(); heads]);
            for (i, part) in values.chunks_exact(values.len() / rows_of(values, heads)).enumerate() {
                let samples = &mut samples[i % heads];
                if samples.len() < MAX_SAMPLES {
                    samples.extend(part.iter().map(|v| v.abs()));
                }
            }
        }
        let max = self.max_abs.entry(name.to_owned()).or_default();
        *max = values.iter().fold(*max, |max, v| max.max(v.abs()));
    }
}

fn rows_of(_values: &[f32], _heads: usize) -> usize {
    1
}

/// Runs `examples` through the model, teacher forced, and notes what every activation does.
pub fn calibrate(trained: &Trained, examples: &[Example]) -> Calibration {
    let mut calibration = Calibration::default();
    let config = &trained.config;
    for example in examples {
        let source: Vec<u32> = example.source.iter().copied().chain([config.special.end.into()]).collect();
        let target: Vec<u32> = [config.special.start.into()].into_iter().chain(example.target.iter().copied()).collect();
        trained.network.forward_observed(&trained.params, &source, &target, &mut |name, values, shape| {
            let stack = if name.starts_with("encoder") { &config.encoder } else { &config.decoder };
            calibration.observe(name, values, stack.n_heads.into());
            let _ = shape;
        });
    }
    calibration
}
