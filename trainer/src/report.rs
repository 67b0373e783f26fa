//! What a run says: a progress bar or plain lines, and `metrics.jsonl`.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::checkpoint::Progress;
use crate::evaluate::Quality;

/// Steps between two lines of `metrics.jsonl`.
const METRIC_STEPS: u64 = 50;
/// Seconds between two plain lines.
const LINE_SECONDS: u64 = 15;

/// One training step.
#[derive(Debug, Clone, Copy)]
pub struct TrainPoint {
    /// Counted from 1, over the whole run.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// Smoothed loss per target token, in nats.
    pub loss: f64,
    /// Learning rate.
    pub rate: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Source and target tokens.
    pub tokens: usize,
    /// What the step took.
    pub elapsed: Duration,
}

/// Where a run's news go.
pub struct Report {
    metrics: File,
    bar: Option<ProgressBar>,
    total_steps: u64,
    first_step: u64,
    started: Instant,
    last_line: Instant,
    epoch_started: Instant,
    /// Running means.
    loss: f64,
    tokens_per_second: f64,
}

impl Report {
    /// Opens `metrics.jsonl` in a run's folder; lines are appended.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("metrics.jsonl");
        let metrics = OpenOptions::new().create(true).append(true).open(&path);
        let now = Instant::now();
        Ok(Self {
            metrics: metrics.with_context(|| format!("opening {}", path.display()))?,
            bar: None,
            total_steps: 0,
            first_step: 0,
            started: now,
            last_line: now,
            epoch_started: now,
            loss: f64::NAN,
            tokens_per_second: f64::NAN,
        })
    }

    /// Begins to count.
    pub fn start(&mut self, step: u64, total_steps: u64) {
        (self.first_step, self.total_steps) = (step, total_steps);
        self.started = Instant::now();
        self.epoch_started = self.started;
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total_steps).with_position(step);
            let style = "{bar:30} {pos}/{len} {msg}, {eta} left";
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.reset_eta();
            self.bar = Some(bar);
        }
    }

    /// One step was done.
    pub fn step(&mut self, point: TrainPoint) -> Result<()> {
        let speed = point.tokens as f64 / point.elapsed.as_secs_f64().max(1e-9);
        self.loss = running(self.loss, point.loss);
        self.tokens_per_second = running(self.tokens_per_second, speed);
        let text = format!(
            "epoch {} loss {:.4} lr {:.2e} {:.0} tokens/s",
            point.epoch, self.loss, point.rate, self.tokens_per_second
        );
        if let Some(bar) = &self.bar {
            bar.set_position(point.step);
            bar.set_message(text);
        } else if self.last_line.elapsed().as_secs() >= LINE_SECONDS {
            self.last_line = Instant::now();
            let done = (point.step - self.first_step) as f64;
            let left = self.started.elapsed().as_secs_f64() / done
                * (self.total_steps - point.step) as f64;
            eprintln!("step {}/{} {text}, {left:.0} s left", point.step, self.total_steps);
        }
        if point.step.is_multiple_of(METRIC_STEPS) {
            self.write(json!({
                "kind": "train", "step": point.step, "epoch": point.epoch, "loss": self.loss,
                "lr": point.rate, "grad_norm": point.grad_norm,
                "tokens_per_second": self.tokens_per_second,
            }))?;
        }
        Ok(())
    }

    /// An epoch was done.
    pub fn epoch(&mut self, epoch: u64, loss: f64) -> Result<()> {
        let seconds = self.epoch_started.elapsed().as_secs_f64();
        self.epoch_started = Instant::now();
        self.say(&format!("epoch {epoch}: loss {loss:.4}, {seconds:.1} s"));
        self.write(json!({"kind": "epoch", "epoch": epoch, "loss": loss, "seconds": seconds}))
    }

    /// An evaluation on the watched held-out pairs was done.
    pub fn evaluation(
        &mut self,
        progress: &Progress,
        quality: &Quality,
        took: Duration,
    ) -> Result<()> {
        let Progress { step, epoch, .. } = *progress;
        let seconds = took.as_secs_f64();
        self.say(&format!("epoch {epoch}: held-out {quality}, {seconds:.1} s"));
        self.epoch_started = Instant::now();
        let Quality { loss, scores } = quality;
        self.write(json!({
            "kind": "eval", "epoch": epoch, "step": step, "loss": loss, "scores": scores,
            "seconds": seconds,
        }))
    }

    /// The last evaluation of a finished run, on the pairs of `side`.
    pub fn last_evaluation(&mut self, step: u64, side: &str, quality: &Quality) -> Result<()> {
        self.say(&format!("finished: {side} pairs, {quality}"));
        let Quality { loss, scores } = quality;
        self.write(
            json!({"kind": "final", "step": step, "side": side, "loss": loss, "scores": scores}),
        )
    }

    /// Ends the bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// One line for the reader.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    fn write(&mut self, value: serde_json::Value) -> Result<()> {
        writeln!(self.metrics, "{value}").context("writing metrics.jsonl")
    }
}

/// A mean that forgets: the last fifty values count most.
fn running(mean: f64, value: f64) -> f64 {
    if mean.is_nan() { value } else { mean + (value - mean) / 50.0 }
}
