//! What trains on a GPU is the candle reference; here it trains on the processor, beside the engine.

mod common;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use trainer::backend::Device;
use trainer::checkpoint::Checkpoint;
use trainer::config::RunConfig;
use trainer::engine::DropoutRates;
use trainer::session::Session;
use trainer::train::Ended;

fn config(pairs: &Path, dropout: DropoutRates) -> RunConfig {
    let mut config = RunConfig::default();
    (config.data.train, config.data.dev) = (Some(pairs.into()), Some(pairs.into()));
    config.model.d_model = 16;
    config.model.encoder.n_layers = 2;
    (config.model.encoder.d_ff, config.model.decoder.d_ff) = (24, 24);
    (config.train.epochs, config.train.batch_size) = (4, 32);
    (config.train.dropout, config.train.schedule.warmup_steps) = (dropout, 4);
    // With 1e-9, Adam makes whole steps of a gradient that is nothing but rounding (a key bias).
    config.train.adam.eps = 1e-5;
    config
}

fn train(folder: &Path, config: RunConfig, device: Device) -> (Session, Checkpoint) {
    let mut session = Session::begin(folder.into(), config).unwrap();
    let begun = session.run.clone();
    session.device = device;
    assert_eq!(session.train(&AtomicBool::new(false)).unwrap(), Ended::Finished);
    (session, begun)
}

/// Both take the same steps on the same masks. Gradients agree to 2e-5 (`reference::tests`); Adam
/// divides them by their size, and sixteen steps feed the difference back: a hundredth of the way that
/// the weights went is far below what one dropped element or a lost gradient would change.
#[test]
fn candle_and_the_engine_train_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = common::write_pairs(folder.path());
    for (i, dropout) in [0.0, 0.1].into_iter().enumerate() {
        let rates = DropoutRates { residual: dropout, attention: dropout, activation: dropout };
        let run = |name: &str, device| {
            train(&folder.path().join(format!("{name}{i}")), config(&pairs, rates), device)
        };
        let ((engine, begun), (candle, _)) =
            (run("engine", Device::Cpu), run("candle", Device::CandleCpu));
        assert_eq!(engine.run.header.progress.step, 16);
        assert_eq!(candle.run.header.progress, engine.run.header.progress);
        let [engine, candle] = [&engine, &candle].map(|session| &session.run.weights);
        let distance = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
        };
        let way = distance(&engine.params, &begun.weights.params);
        let apart = distance(&engine.params, &candle.params);
        assert!(way > 0.1 && apart < 0.01 * way, "{apart} apart after a way of {way}");
        assert!(distance(&engine.ema, &candle.ema) < 0.01 * way);
    }
}

#[test]
fn cuda_is_refused_where_there_is_none() {
    let mut command = common::trainer(&["--device", "cuda", "--out", "/nowhere/at/all"]);
    let output = command.stderr(std::process::Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if cfg!(not(feature = "cuda")) {
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("this build has no CUDA: build with `--features cuda`"), "{said}");
    }
}
