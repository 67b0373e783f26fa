//! `trainer` without a subcommand: the whole way on the bundled dictionary.

use anyhow::Result;

use super::train::stop_flag;
use crate::config::RunConfig;
use crate::evaluate::References;
use crate::model::TrainedModel;
use crate::session::{Session, free_folder};
use crate::train::Ended;

/// Words shown at the end.
const SAMPLES: [&str; 5] = ["kilobyte", "transformer", "microcontroller", "rust", "pronounce"];

/// Trains a small model and shows what it can do.
pub fn run() -> Result<()> {
    let mut session = Session::begin(free_folder("runs/quick"), RunConfig::default())?;
    if session.train(stop_flag()?.as_ref())? == Ended::Interrupted {
        return Ok(());
    }
    let threads = session.run.header.config.train.workers;
    let Session { split, run, .. } = session;
    let model = TrainedModel::from_checkpoint(run)?;
    let references = References::new(&split.test, &model.target);
    let outputs = model.transcribe(&references.sources, threads);
    let scores = references.score(&outputs);
    println!("parameters           {}", model.params.len());
    println!("held-out words       {}", scores.words);
    println!("WER (f32)            {:.2}%", 100.0 * scores.wer);
    println!("PER (f32)            {:.2}%", 100.0 * scores.per);
    println!("WER, no stress (f32) {:.2}%", 100.0 * scores.wer_no_stress);
    println!("PER, no stress (f32) {:.2}%", 100.0 * scores.per_no_stress);
    let words = SAMPLES.map(String::from);
    for (word, phones) in words.iter().zip(model.transcribe(&words, 1)) {
        println!("{word:<20} {}", phones.join(model.target.separator()));
    }
    Ok(())
}
