//! Ranges of all activations, seen on real sentences in `f32`.

use std::collections::HashMap;

use model_format::config::ModelConfig;

use crate::data::batch::{Example, framed};
use crate::export::trained::Trained;

/// Values kept of a head's keys or values; what follows is not looked at.
const MAX_SAMPLES: usize = 200_000;

/// What calibration saw.
#[derive(Debug, Clone, Default)]
pub struct Calibration {
    /// Largest magnitude of every activation, by its name.
    max_abs: HashMap<String, f32>,
    /// Steps of 8-bit keys and values, by name, for every head.
    cached_steps: HashMap<String, Vec<f64>>,
    /// Mean square of every column of every activation, by its name.
    mean_squares: HashMap<String, Vec<f32>>,
}

impl Calibration {
    /// The largest magnitude of an activation; 0 where it was never seen.
    pub fn max_abs(&self, name: &str) -> f32 {
        self.max_abs.get(name).copied().unwrap_or(0.0)
    }

    /// The mean square of every column of an activation; nothing where it was never seen.
    pub fn mean_squares(&self, name: &str) -> &[f32] {
        self.mean_squares.get(name).map_or(&[], Vec::as_slice)
    }

    /// The real value of one unit of the keys or values of a head; 1/127 where none was ever seen.
    pub fn cached_step(&self, name: &str, head: usize) -> f64 {
        let step = self.cached_steps.get(name).and_then(|heads| heads.get(head));
        step.copied().unwrap_or(1.0 / 127.0)
    }
}

/// The step of 8-bit numbers that loses least in squares.
///
/// Saturation costs what it cuts off, a wider range costs resolution: the best of a few clips is
/// taken.
fn best_step(samples: &[f32]) -> f64 {
    let max = f64::from(samples.iter().copied().fold(0.0, f32::max));
    if max == 0.0 {
        return 1.0 / 127.0;
    }
    let loss = |step: f64| -> f64 {
        let error = |v: f64| v - (v / step).round().min(127.0) * step;
        samples.iter().map(|&v| error(v.into()).powi(2)).sum()
    };
    let steps = (0..16).map(|i| max * (1.0 - 0.04 * f64::from(i)) / 127.0);
    let best = steps.map(|step| (loss(step), step)).min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(max / 127.0, |(_, step)| step)
}

/// Magnitudes as they are seen.
#[derive(Default)]
struct Ranges {
    max_abs: HashMap<String, f32>,
    /// Of keys and values, by name, for every head.
    samples: HashMap<String, Vec<Vec<f32>>>,
    /// Sums of squares of every column, by name, and the number of rows.
    squares: HashMap<String, (Vec<f64>, usize)>,
}

impl Ranges {
    /// `values` is `[rows, cols]`; `heads` parts of a row belong to one head each.
    fn observe(&mut self, name: &str, values: &[f32], cols: usize, heads: usize) {
        let max = self.max_abs.entry(name.to_owned()).or_default();
        *max = values.iter().fold(*max, |max, v| max.max(v.abs()));
        let empty = || (vec![0.0; cols], 0);
        let (squares, count) = self.squares.entry(name.to_owned()).or_insert_with(empty);
        for row in values.chunks_exact(cols) {
            squares.iter_mut().zip(row).for_each(|(sum, &v)| *sum += f64::from(v).powi(2));
            *count += 1;
        }
        if name.ends_with("attention.key") || name.ends_with("attention.value") {
            let empty = || vec![Vec::new(); heads];
            let samples = self.samples.entry(name.to_owned()).or_insert_with(empty);
            for (i, part) in values.chunks_exact(cols / heads).enumerate() {
                let samples = &mut samples[i % heads];
                if samples.len() < MAX_SAMPLES {
                    samples.extend(part.iter().map(|v| v.abs()));
                }
            }
        }
    }
}

/// Runs `examples` through the model, teacher forced, and notes what every activation does.
pub fn calibrate(trained: &Trained<'_>, examples: &[Example]) -> Calibration {
    let mut ranges = Ranges::default();
    let config = &trained.config;
    for example in examples {
        let (source, target) = read_by_stacks(config, example);
        let mut observe = |name: &str, values: &[f32], shape: &[usize]| {
            let stack = if name.starts_with("encoder") { &config.encoder } else { &config.decoder };
            let cols = shape.last().copied().unwrap_or(1);
            ranges.observe(name, values, cols, stack.n_heads.into());
        };
        trained.model.forward_observed(&source, &target, &mut observe);
    }
    let steps = |heads: &Vec<Vec<f32>>| heads.iter().map(|samples| best_step(samples)).collect();
    let cached_steps = ranges.samples.iter().map(|(name, heads)| (name.clone(), steps(heads)));
    let means = |(sums, count): &(Vec<f64>, usize)| {
        sums.iter().map(|sum| (sum / (*count).max(1) as f64) as f32).collect()
    };
    let mean_squares = ranges.squares.iter().map(|(name, sums)| (name.clone(), means(sums)));
    Calibration {
        cached_steps: cached_steps.collect(),
        mean_squares: mean_squares.collect(),
        max_abs: ranges.max_abs,
    }
}

/// What the encoder reads and what the decoder reads of an example; nothing for a stack that is not
/// there.
fn read_by_stacks(config: &ModelConfig, example: &Example) -> (Vec<u32>, Vec<u32>) {
    let (mut source, mut target) = (Vec::new(), Vec::new());
    if config.has_encoder() {
        source.extend(framed(config, &example.source));
    }
    if config.has_decoder() {
        target.push(u32::from(config.special.start));
        // The last id of an output as long as allowed is never read.
        target.extend(&example.target);
        target.truncate(config.max_target_len.into());
    }
    (source, target)
}
