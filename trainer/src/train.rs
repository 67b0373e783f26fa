//! The training loop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::checkpoint::{self, Checkpoint, Header};
use crate::data::batch::{Example, Pairs, epoch_batches, slice_of};
use crate::data::corpus::Pair;
use crate::engine::{Dropout, LossOptions, LossSum, Network};
use crate::evaluate::{self, References, Scores};
use crate::optimizer::adam_step;
use crate::report::{Report, TrainPoint};
use crate::rng;
use crate::workers::{Slice, Workers};

/// The examples of a run.
pub struct Data {
    pub train: Vec<Example>,
    pub dev: Vec<Example>,
    pub dev_pairs: Vec<Pair>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
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

/// Trains from where `run` stands to its last epoch, or until `stop` is set.
pub fn train(
    folder: &Path,
    network: &Arc<Network>,
    run: &mut Checkpoint,
    data: &Data,
    report: &mut Report,
    stop: &AtomicBool,
) -> Result<Ended> {
    let config = run.header.config.clone();
    let train = &config.train;
    ensure!(!data.train.is_empty(), "no training pair");
    ensure!(
        run.header.data_hash == data_hash(&data.train),
        "the training pairs are not those that this run began with"
    );
    let references = References::new(&data.dev_pairs, &run.header.target);
    let mut workers = Workers::start(network, train.workers);
    let steps_per_epoch = data.train.len().div_ceil(train.batch_size) as u64;
    let total_steps = steps_per_epoch * train.epochs;
    report.start(run.header.progress.step, total_steps);
    while run.header.progress.epoch < train.epochs {
        let epoch = run.header.progress.epoch;
        let batches = epoch_batches(&data.train, train.batch_size, train.seed, epoch);
        ensure!(batches.len() as u64 == steps_per_epoch, "an epoch changed its length");
        for batch in batches.iter().skip(run.header.progress.batch as usize) {
            step(network, run, data, batch, total_steps, &mut workers, report)?;
            if stop.load(Ordering::Relaxed) {
                checkpoint::save(folder, network, &run.header, &run.weights)?;
                return Ok(Ended::Interrupted);
            }
            if run.header.progress.step % train.checkpoint_steps == 0 {
                checkpoint::save(folder, network, &run.header, &run.weights)?;
            }
        }
        let progress = &mut run.header.progress;
        report.epoch(epoch + 1, progress.epoch_loss / progress.epoch_tokens.max(1) as f64)?;
        (progress.epoch, progress.batch) = (epoch + 1, 0);
        (progress.epoch_loss, progress.epoch_tokens) = (0.0, 0);
        checkpoint::save(folder, network, &run.header, &run.weights)?;
        if (epoch + 1) % train.eval_epochs == 0 || epoch + 1 == train.epochs {
            let start = Instant::now();
            let (loss, scores) = evaluate_run(network, run, data, &references);
            report.evaluation(
                epoch + 1,
                run.header.progress.step,
                loss,
                &scores,
                start.elapsed(),
            )?;
        }
    }
    Ok(Ended::Finished)
}

/// One optimizer step on one batch.
fn step(
    network: &Network,
    run: &mut Checkpoint,
    data: &Data,
    batch: &[u32],
    total_steps: u64,
    workers: &mut Workers,
    report: &mut Report,
) -> Result<()> {
    let start = Instant::now();
    let Checkpoint { header, weights } = run;
    let train = &header.config.train;
    let number = header.progress.step + 1;
    let slices: Vec<Slice> = (0..train.workers)
        .map(|slice| {
            let examples = slice_of(batch, slice, train.workers).map(|i| &data.train[i as usize]);
            let key = rng::key(&[train.seed, number, slice as u64]);
            Slice {
                pairs: Pairs::pack(examples, network.config.special),
                dropout: Dropout { key, rates: train.dropout },
            }
        })
        .collect();
    let tokens: usize = slices.iter().map(|slice| slice.pairs.labels.len()).sum();
    let source_tokens: usize = slices.iter().map(|slice| slice.pairs.source.ids.len()).sum();
    let options = LossOptions { smoothing: train.label_smoothing, scale: 1.0 / tokens as f32 };
    // The workers share the parameters while they compute; here they are ours again.
    let params = Arc::new(std::mem::take(&mut weights.params));
    let (grads, loss) = workers.gradient(&params, slices, options)?;
    weights.params = Arc::try_unwrap(params).ok().context("a worker still holds the parameters")?;
    let rate = train.schedule.at(number, total_steps, network.config.d_model.into());
    ensure!(loss.smoothed.is_finite(), "the loss is not finite at step {number}");
    let norm = adam_step(&train.adam, &network.layout, weights, &grads, number, rate as f32);
    workers.recycle(grads);
    let progress = &mut header.progress;
    progress.step = number;
    progress.batch += 1;
    progress.epoch_loss += loss.smoothed;
    progress.epoch_tokens += loss.tokens as u64;
    report.step(TrainPoint {
        step: number,
        epoch: progress.epoch + 1,
        loss: mean(&loss),
        rate,
        grad_norm: norm,
        tokens: tokens + source_tokens,
        elapsed: start.elapsed(),
    })
}

fn mean(loss: &LossSum) -> f64 {
    loss.smoothed / loss.tokens.max(1) as f64
}

/// Loss and error rates of the averaged weights on the held-out pairs.
pub fn evaluate_run(
    network: &Network,
    run: &Checkpoint,
    data: &Data,
    references: &References,
) -> (f64, Scores) {
    let threads = run.header.config.train.workers;
    let header = &run.header;
    let tokenizers = (&header.source, &header.target);
    let params = &run.weights.ema;
    let loss = evaluate::loss(network, params, &data.dev, threads);
    let outputs = evaluate::transcribe(network, params, tokenizers, &references.sources, threads);
    (loss, references.score(&outputs))
}

/// A run that has not begun, with its starting weights.
pub fn begin(network: &Network, header: Header) -> Checkpoint {
    let params = network.layout.init(header.config.train.seed);
    Checkpoint { header, weights: crate::optimizer::Weights::new(params) }
}
