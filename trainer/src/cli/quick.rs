//! `trainer` without a subcommand: the whole way on the bundled dictionary.

use std::time::Instant;

use anyhow::{Context, Result};
use model_format::config::Precision;

use super::train::stop_flag;
use crate::checkpoint::write_atomically;
use crate::config::RunConfig;
use crate::device::{self, Evaluation};
use crate::evaluate::{References, Scores};
use crate::export::export;
use crate::model::TrainedModel;
use crate::session::{Session, free_folder};
use crate::train::Ended;

/// The file's name in the run's folder.
const FILE_NAME: &str = "g2p.kfm";
/// Words shown at the end.
const SAMPLES: [&str; 6] =
    ["kilobyte", "transformer", "microcontroller", "rust", "pronounce", "Ljubljana"];

/// Trains a small model, exports it, and shows what both can do.
pub fn run() -> Result<()> {
    let mut session = Session::begin(free_folder("runs/quick"), RunConfig::default())?;
    if session.train(stop_flag()?.as_ref())? == Ended::Interrupted {
        return Ok(());
    }
    let threads = session.run.header.config.train.workers;
    let Session { split, run, folder, .. } = session;
    let model = TrainedModel::from_checkpoint(run)?;
    let file = export(&model, Precision::FixedPoint, &split.train)?;
    let path = folder.join(FILE_NAME);
    write_atomically(&path, &file)?;
    let read = device::read(&path)?;
    let exported = device::check(&read).context("reading back what was written")?;

    let references = References::new(&split.test, &model.target);
    let start = Instant::now();
    let float = Evaluation {
        outputs: model.transcribe(&references.sources, threads),
        texts_per_second: references.sources.len() as f64 / start.elapsed().as_secs_f64(),
    };
    let fixed = device::evaluate(exported, &references.sources, threads)?;

    println!("\nheld-out words      {}", references.sources.len());
    println!("parameters          {}", model.params.len());
    println!("flash               {} bytes ({})", file.len(), path.display());
    println!("arena               {} bytes", runtime::Plan::of(exported.header()).total);
    table(&references, &float, &fixed);
    samples(&model, exported)
}

fn table(references: &References, float: &Evaluation, fixed: &Evaluation) {
    let equal = float.outputs.iter().zip(&fixed.outputs).filter(|(a, b)| a == b).count();
    let share = 100.0 * equal as f64 / float.outputs.len().max(1) as f64;
    println!("identical outputs   {share:.2}%\n");
    let columns = [references.score(&float.outputs), references.score(&fixed.outputs)];
    println!("{:<20}{:>12}{:>16}", "", "f32 model", "exported file");
    let row = |name: &str, value: fn(&Scores) -> f64| {
        let [float, fixed] = columns.each_ref().map(|scores| 100.0 * value(scores));
        println!("{name:<20}{float:>11.2}%{fixed:>15.2}%");
    };
    row("word error rate", |s| s.wer);
    row("  without stress", |s| s.wer_no_stress);
    row("phone error rate", |s| s.per);
    row("  without stress", |s| s.per_no_stress);
    let [float, fixed] = [float, fixed].map(|evaluation| evaluation.texts_per_second);
    println!("{:<20}{float:>12.0}{fixed:>16.0}\n", "words per second");
}

fn samples(model: &TrainedModel, exported: model_format::Model<'_>) -> Result<()> {
    let words = SAMPLES.map(String::from);
    let floats = model.transcribe(&words, 1);
    let answers = device::run_all(exported, &words, 1)?;
    for ((word, float), answer) in words.iter().zip(floats).zip(answers) {
        let float = float.join(model.target.separator());
        match answer {
            Ok(answer) if answer.text == float => println!("{word:<18}{float}"),
            Ok(answer) => println!("{word:<18}{} (f32: {float})", answer.text),
            Err(reason) => println!("{word:<18}{reason}"),
        }
    }
    Ok(())
}
