//! AdamW over the flat buffers: schedules, clipping, averaging of weights.

use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use crate::params::ParamLayout;

/// How the learning rate moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// `d_model^-0.5 * min(s^-0.5, s * warmup^-1.5)` (Vaswani et al. 2017, section 5.3), times `rate`.
    InverseSqrt,
    /// Linear warm-up to `rate`, then half a cosine down to `floor * rate` at the last step.
    Cosine,
}

/// A learning rate for every step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its shape.
    pub kind: ScheduleKind,
    /// Peak rate of the cosine; factor of the inverse square root.
    pub rate: f64,
    /// Steps until the rate is at its peak.
    pub warmup_steps: u64,
    /// Last rate over peak rate, for the cosine.
    pub floor: f64,
}

impl Schedule {
    /// The rate of step `step`, counted from 1, of `total`.
    pub fn at(&self, step: u64, total: u64, d_model: usize) -> f64 {
        let (s, warmup) = (step.max(1) as f64, self.warmup_steps.max(1) as f64);
        match self.kind {
            ScheduleKind::InverseSqrt => {
                self.rate * (d_model as f64).powf(-0.5) * s.powf(-0.5).min(s * warmup.powf(-1.5))
            }
            ScheduleKind::Cosine if s < warmup => self.rate * s / warmup,
            ScheduleKind::Cosine => {
                let rest = (total as f64 - warmup).max(1.0);
                let done = ((s - warmup) / rest).min(1.0);
                let wave = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
                self.rate * (self.floor + (1.0 - self.floor) * wave)
            }
        }
    }
}

/// Constants of AdamW (Kingma & Ba 2015; Loshchilov & Hutter 2019).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamConfig {
    /// Decay of the mean of gradients, in [0, 1).
    pub beta1: f32,
    /// Decay of the mean of squared gradients, in [0, 1).
    pub beta2: f32,
    /// Added to the root of the mean square; positive.
    pub eps: f32,
    /// Decoupled; on matrices only.
    pub weight_decay: f32,
    /// Largest norm of the whole gradient.
    pub clip_norm: f32,
    /// Decay of the average of weights; shorter at the start of a run.
    pub ema_decay: f32,
}

/// Weights, their average and the moments: all `[parameters]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// What is trained.
    pub params: Vec<f32>,
    /// Their exponential moving average: what is evaluated and exported.
    pub ema: Vec<f32>,
    /// Adam's mean of gradients.
    pub moment1: Vec<f32>,
    /// Adam's mean of squared gradients.
    pub moment2: Vec<f32>,
}

impl Weights {
    /// Starting values.
    pub fn new(params: Vec<f32>) -> Self {
        let zeros = vec![0.0; params.len()];
        Self { ema: params.clone(), moment1: zeros.clone(), moment2: zeros, params }
    }
}

/// Euclidean norm of the gradient, summed in `f64` by blocks.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn norm(grads: &[f32]) -> f32 {
    let mut sum = 0f64;
    for block in grads.chunks(1024) {
        let mut lanes = [0f32; 16];
        for chunk in block.chunks(16) {
            for (lane, &g) in lanes.iter_mut().zip(chunk) {
                *lane += g * g;
            }
        }
        sum += lanes.iter().map(|&l| f64::from(l)).sum::<f64>();
    }
    sum.sqrt() as f32
}

/// One step of AdamW, counted from 1; `norm` is that of `grads`, for clipping.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn adam_step(
    config: &AdamConfig,
    layout: &ParamLayout,
    weights: &mut Weights,
    (grads, norm): (&[f32], f32),
    step: u64,
    rate: f32,
) {
    let clip = if norm > config.clip_norm { config.clip_norm / norm } else { 1.0 };
    let t = step as f64;
    let correction1 = (1.0 - f64::from(config.beta1).powf(t)) as f32;
    let correction2 = (1.0 - f64::from(config.beta2).powf(t)) as f32;
    let ema_keep = config.ema_decay.min(((1.0 + t) / (10.0 + t)) as f32);
    let AdamConfig { beta1, beta2, eps, .. } = *config;
    for spec in &layout.specs {
        let decay = if spec.decays() { rate * config.weight_decay } else { 0.0 };
        let at = spec.range();
        let params = weights.params[at.clone()].iter_mut().zip(&mut weights.ema[at.clone()]);
        let moments = weights.moment1[at.clone()].iter_mut().zip(&mut weights.moment2[at.clone()]);
        for (((p, ema), (m, v)), &g) in params.zip(moments).zip(&grads[at]) {
            let g = g * clip;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            let direction = (*m / correction1) / ((*v / correction2).sqrt() + eps);
            *p -= decay * *p + rate * direction;
            *ema = ema_keep * *ema + (1.0 - ema_keep) * *p;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;

    #[test]
    fn schedules_have_their_shape() {
        let cosine =
            Schedule { kind: ScheduleKind::Cosine, rate: 2e-3, warmup_steps: 100, floor: 0.02 };
        assert!((cosine.at(50, 1000, 64) - 1e-3).abs() < 1e-12);
        assert!((cosine.at(100, 1000, 64) - 2e-3).abs() < 1e-12);
        assert!((cosine.at(550, 1000, 64) - 1.02e-3).abs() < 1e-9);
        assert!((cosine.at(1000, 1000, 64) - 4e-5).abs() < 1e-12);
        let inverse =
            Schedule { kind: ScheduleKind::InverseSqrt, rate: 1.0, warmup_steps: 100, floor: 0.0 };
        assert!((inverse.at(100, 0, 64) - 0.0125).abs() < 1e-12);
        assert!((inverse.at(400, 0, 64) - 0.00625).abs() < 1e-12);
        assert!((inverse.at(1, 0, 64) - 0.000125).abs() < 1e-12);
    }

    #[test]
    fn adam_finds_a_minimum() {
        let mut layout = ParamLayout::default();
        layout.push("x".into(), &[3], Init::Zero);
        let mut weights = Weights::new(vec![3.0, -2.0, 0.5]);
        let config = AdamConfig {
            beta1: 0.9,
            beta2: 0.98,
            eps: 1e-9,
            weight_decay: 0.0,
            clip_norm: 1.0,
            ema_decay: 0.9,
        };
        for step in 1..=2000 {
            let grads: Vec<f32> = weights.params.iter().map(|x| 2.0 * (x - 1.0)).collect();
            let gradient = (grads.as_slice(), norm(&grads));
            adam_step(&config, &layout, &mut weights, gradient, step, 0.01);
        }
        assert!(weights.params.iter().all(|x| (x - 1.0).abs() < 1e-2), "{:?}", weights.params);
    }
}
