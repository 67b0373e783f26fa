//! The training loop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::backend::Backend;
use crate::checkpoint::{self, Checkpoint, Header};
use crate::data::batch::{Example, Pairs, epoch_batches, slice_of};
use crate::engine::{Dropout, LossOptions, Network};
use crate::evaluate::{HeldOut, Quality};
use crate::optimizer::{self, adam_step};
use crate::report::{Report, TrainPoint};
use crate::rng;
use crate::workers::Slice;

/// The examples of a run.
pub struct Data {
    /// What is trained on.
    pub train: Vec<Example>,
    /// What is watched; may be empty.
    pub dev: HeldOut,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// After its last epoch.
    Finished,
    /// Stopped between two steps; `--resume` goes on.
    Interrupted,
}

/// A hash over all examples, to tell whether a resumed run sees the same ones.
pub fn data_hash(examples: &[Example]) -> u64 {
    examples.iter().fold(0, |hash, example| {
        let ids = example.source.iter().chain([&u32::MAX]).chain(&example.target);
        ids.fold(rng::key(&[hash]), |hash, &id| {
            (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01B3).rotate_left(5)
        })
    })
}

/// A run that has not begun, with its starting weights.
pub fn begin(network: &Network, header: Header) -> Checkpoint {
    let params = network.layout.init(header.config.train.seed);
    Checkpoint { header, weights: crate::optimizer::Weights::new(params) }
}

/// Trains from where `run` stands to its last epoch, or until `stop` is set.
pub fn train(
    folder: &Path,
    network: &Network,
    run: &mut Checkpoint,
    data: &Data,
    backend: &mut Backend,
    report: &mut Report,
    stop: &AtomicBool,
) -> Result<Ended> {
    let train = run.header.config.train.clone();
    ensure!(!data.train.is_empty(), "no training pair");
    ensure!(
        run.header.data_hash == data_hash(&data.train),
        "the training pairs are not those that this run began with"
    );
    let steps_per_epoch = data.train.len().div_ceil(train.batch_size) as u64;
    let total_steps = steps_per_epoch.saturating_mul(train.epochs);
    report.start(run.header.progress.step, total_steps);
    while run.header.progress.epoch < train.epochs {
        let epoch = run.header.progress.epoch;
        let batches = epoch_batches(&data.train, train.batch_size, train.seed, epoch);
        ensure!(batches.len() as u64 == steps_per_epoch, "an epoch changed its length");
        for batch in batches.iter().skip(run.header.progress.batch as usize) {
            report.step(step(network, run, data, batch, total_steps, backend)?)?;
            if stop.load(Ordering::Relaxed) {
                checkpoint::save(folder, network, &run.header, &run.weights)?;
                return Ok(Ended::Interrupted);
            }
            if run.header.progress.step.is_multiple_of(train.checkpoint_steps) {
                checkpoint::save(folder, network, &run.header, &run.weights)?;
            }
        }
        let progress = &mut run.header.progress;
        report.epoch(epoch + 1, progress.epoch_loss / progress.epoch_tokens.max(1) as f64)?;
        (progress.epoch, progress.batch) = (epoch + 1, 0);
        (progress.epoch_loss, progress.epoch_tokens) = (0.0, 0);
        checkpoint::save(folder, network, &run.header, &run.weights)?;
        if (epoch + 1).is_multiple_of(train.eval_epochs) || epoch + 1 == train.epochs {
            let start = Instant::now();
            if let Some(quality) = evaluate_run(network, run, &data.dev) {
                report.evaluation(&run.header.progress, &quality, start.elapsed())?;
            }
        }
    }
    Ok(Ended::Finished)
}

/// One optimizer step on one batch. On an error the run is as it was before.
fn step(
    network: &Network,
    run: &mut Checkpoint,
    data: &Data,
    batch: &[u32],
    total_steps: u64,
    backend: &mut Backend,
) -> Result<TrainPoint> {
    let start = Instant::now();
    let Checkpoint { header, weights } = run;
    let train = &header.config.train;
    let number = header.progress.step + 1;
    let slices = slices(network, header, &data.train, batch, number);
    let tokens: usize = slices.iter().map(|slice| slice.pairs.labels.len()).sum();
    let source_tokens: usize = slices.iter().map(|slice| slice.pairs.source.ids.len()).sum();
    let options = LossOptions { smoothing: train.label_smoothing, scale: 1.0 / tokens as f32 };
    // The workers share the parameters while they compute; here they are ours again.
    let params = Arc::new(std::mem::take(&mut weights.params));
    let result = backend.gradient(&params, slices, options);
    weights.params = Arc::try_unwrap(params).ok().context("a worker still holds the parameters")?;
    let (grads, loss) = result?;
    let norm = optimizer::norm(&grads);
    ensure!(
        loss.smoothed.is_finite() && norm.is_finite(),
        "step {number}: the loss is {} and the gradient's norm {norm}; the last checkpoint is kept. \
         A smaller --rate or more --warmup-steps may help",
        loss.smoothed_mean()
    );
    let rate = train.schedule.at(number, total_steps, network.config.d_model.into());
    adam_step(&train.adam, &network.layout, weights, (&grads, norm), number, rate as f32);
    backend.recycle(grads);
    let progress = &mut header.progress;
    progress.step = number;
    progress.batch += 1;
    progress.epoch_loss += loss.smoothed;
    progress.epoch_tokens += loss.tokens as u64;
    Ok(TrainPoint {
        step: number,
        epoch: progress.epoch + 1,
        loss: loss.smoothed_mean(),
        rate,
        grad_norm: norm,
        tokens: tokens + source_tokens,
        elapsed: start.elapsed(),
    })
}

/// The parts of a batch that are worked on at the same time, each with its own dropout.
fn slices(
    network: &Network,
    header: &Header,
    examples: &[Example],
    batch: &[u32],
    step: u64,
) -> Vec<Slice> {
    let train = &header.config.train;
    let slice = |slice| {
        let examples = slice_of(batch, slice, train.workers).map(|i| &examples[i as usize]);
        let key = rng::key(&[train.seed, step, slice as u64]);
        Slice {
            pairs: Pairs::pack(examples, &network.config),
            dropout: Dropout { key, rates: train.dropout },
        }
    };
    (0..train.workers).map(slice).collect()
}

/// How good the averaged weights are on held-out pairs; nothing where there is no pair.
pub fn evaluate_run(network: &Network, run: &Checkpoint, held_out: &HeldOut) -> Option<Quality> {
    let tokenizers = (&run.header.source, &run.header.target);
    let threads = run.header.config.train.workers;
    held_out.evaluate(network, &run.weights.ema, tokenizers, threads)
}
