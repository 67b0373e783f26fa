//! Worker threads: each computes the gradient of its slices of the batch; the sum is taken in the order
//! of slices, so that the result does not depend on timing or on the number of processors.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

use crate::data::batch::Pairs;
use crate::engine::kernels::add_assign;
use crate::engine::{Dropout, LossOptions, LossSum, Network, Workspace};

/// One slice of a batch.
pub struct Slice {
    /// Its sentences.
    pub pairs: Pairs,
    /// Tells its dropout from that of other slices and steps.
    pub dropout: Dropout,
}

struct Job {
    params: Arc<Vec<f32>>,
    slice: Slice,
    options: LossOptions,
    /// Cleared and filled by the worker, then sent back.
    grads: Vec<f32>,
}

struct Done {
    grads: Vec<f32>,
    loss: LossSum,
}

/// A thread for each slice.
pub struct Workers {
    jobs: Vec<Sender<Job>>,
    results: Vec<Receiver<Done>>,
    threads: Vec<JoinHandle<()>>,
    /// One gradient a slice, here between steps.
    grads: Vec<Vec<f32>>,
}

impl Workers {
    /// Starts `slices` threads.
    pub fn start(network: &Arc<Network>, slices: usize) -> Self {
        let mut workers =
            Self { jobs: vec![], results: vec![], threads: vec![], grads: vec![vec![]; slices] };
        for _ in 0..slices {
            let (job_sender, job_receiver) = channel::<Job>();
            let (done_sender, done_receiver) = channel();
            let network = Arc::clone(network);
            workers.threads.push(std::thread::spawn(move || {
                let mut workspace = Workspace::default();
                for job in job_receiver {
                    if done_sender.send(work(&network, job, &mut workspace)).is_err() {
                        break;
                    }
                }
            }));
            workers.jobs.push(job_sender);
            workers.results.push(done_receiver);
        }
        workers
    }

    /// The gradient of a whole batch, summed over its slices, in the first element of the returned
    /// list; the list must come back by [`Workers::recycle`].
    pub fn gradient(
        &mut self,
        params: &Arc<Vec<f32>>,
        slices: Vec<Slice>,
        options: LossOptions,
    ) -> Result<(Vec<f32>, LossSum)> {
        let died = || anyhow!("a worker thread died");
        for ((slice, sender), grads) in slices.into_iter().zip(&self.jobs).zip(&mut self.grads) {
            let job =
                Job { params: Arc::clone(params), slice, options, grads: std::mem::take(grads) };
            sender.send(job).map_err(|_| died())?;
        }
        let mut total: Option<Vec<f32>> = None;
        let mut loss = LossSum::default();
        for (receiver, kept) in self.results.iter().zip(&mut self.grads) {
            let done = receiver.recv().map_err(|_| died())?;
            loss += done.loss;
            match &mut total {
                None => total = Some(done.grads),
                Some(total) => {
                    add_assign(total, &done.grads);
                    *kept = done.grads;
                }
            }
        }
        Ok((total.unwrap_or_default(), loss))
    }

    /// Gives the buffer of [`Workers::gradient`] back for the next step.
    pub fn recycle(&mut self, grads: Vec<f32>) {
        self.grads[0] = grads;
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            // A panic has been printed by its thread, and `gradient` has reported it.
            let _ = thread.join();
        }
    }
}

fn work(network: &Network, job: Job, workspace: &mut Workspace) -> Done {
    let Job { params, slice, options, mut grads } = job;
    let Slice { pairs, dropout } = slice;
    grads.clear();
    grads.resize(network.layout.len(), 0.0);
    network.forward(&params, &pairs, Some(&dropout), workspace);
    let loss = network.loss(&pairs, options, workspace);
    network.backward(&params, &pairs, Some(&dropout), &mut grads, workspace);
    // Freed before the answer, so that the caller is the only owner again.
    drop(params);
    Done { grads, loss }
}
