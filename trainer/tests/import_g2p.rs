//! A trained PyTorch checkpoint with foreign names, and its outputs for 11,994 words.
//!
//! Looks for `../shared/data` beside the repository and is skipped where there is none. A sample of the
//! words is run; `KILOFORMER_ALL_WORDS=1` runs all of them.

#[path = "common/checkpoints.rs"]
mod checkpoints;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device};
use checkpoints::{data, import_files};
use model_format::config::Precision;
use trainer::data::batch::{Example, Pairs};
use trainer::data::corpus::{self, Pair};
use trainer::data::tokenizer::{Splitting, Unit};
use trainer::device;
use trainer::evaluate::References;
use trainer::export::{Weights, export_with};
use trainer::import::Imported;
use trainer::model::TrainedModel;
use trainer::reference::Reference;

/// One word in this many is run.
const SAMPLE: usize = 40;

fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no {}", path.display());
    None
}

fn load(file: &str) -> Option<Imported> {
    let folder = shared("g2p-pytorch-checkpoint")?;
    let names = data("g2p/names.toml");
    let (config, vocab) = (data("g2p/config.json"), folder.join("vocab.json"));
    Some(import_files(&folder.join(file), &config, &vocab, &names.to_string_lossy()).unwrap())
}

fn model() -> Option<&'static TrainedModel> {
    static MODEL: OnceLock<Option<TrainedModel>> = OnceLock::new();
    MODEL.get_or_init(|| load("model.pt").map(|imported| imported.model)).as_ref()
}

/// Words and what PyTorch answered.
fn expected() -> Vec<Pair> {
    let path = shared("g2p-pytorch-checkpoint/expected.tsv").unwrap();
    let all = std::env::var_os("KILOFORMER_ALL_WORDS").is_some();
    let pairs = corpus::read_tsv(&path).unwrap();
    assert_eq!(pairs.len(), 11_994);
    pairs.into_iter().step_by(if all { 1 } else { SAMPLE }).collect()
}

fn words(pairs: &[Pair]) -> Vec<String> {
    pairs.iter().map(|pair| pair.source.clone()).collect()
}

/// The file's outputs, joined by spaces, and its length.
fn run(
    model: &TrainedModel,
    (precision, weights): (Precision, Weights),
    texts: &[String],
) -> (Vec<String>, usize) {
    let calibration = match (precision, shared("g2p-cmudict-0.7b-split/train.tsv")) {
        (Precision::FixedPoint, Some(path)) => {
            let mut pairs: Vec<Pair> =
                corpus::read_tsv(&path).unwrap().into_iter().step_by(100).collect();
            let outputs = model.transcribe(&words(&pairs), 2);
            pairs.iter_mut().zip(outputs).for_each(|(pair, o)| pair.target = o.join(" "));
            pairs
        }
        _ => Vec::new(),
    };
    let file = export_with(model, precision, weights, &calibration).unwrap();
    let answers = device::run_all(device::check(&file).unwrap(), texts, 2).unwrap();
    (answers.into_iter().map(|answer| answer.unwrap().text).collect(), file.len())
}

/// Distance of the two best logits, in the engine, where `ours` first leaves `theirs`.
fn margin(model: &TrainedModel, word: &str, ours: &str, theirs: &str) -> f32 {
    let symbols = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (ours, theirs) = (symbols(ours), symbols(theirs));
    let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    let special = model.config().special;
    let mut source = model.source.encode(word);
    source.push(special.end.into());
    let mut target = vec![u32::from(special.start)];
    target.extend(model.target.encode(&theirs[..same].join(" ")));
    let logits = model.forward_observed(&source, &target, &mut |_, _, _| {});
    let vocab = usize::from(model.config().target_vocab);
    let mut last = logits[logits.len() - vocab..].to_vec();
    last.sort_by(|a, b| b.total_cmp(a));
    last[0] - last[1]
}

#[test]
fn pt_and_safetensors_hold_the_same_model() {
    let (Some(pt), Some(safetensors)) = (load("model.pt"), load("model.safetensors")) else {
        return;
    };
    assert_eq!(pt.model.tensors(), safetensors.model.tensors());
    // 567,280 of the checkpoint, and a row for unknown letters.
    assert_eq!(pt.model.params.len(), 567_280 + 112);
}

#[test]
fn the_engine_gives_every_output_of_pytorch() {
    let Some(model) = model() else { return };
    let pairs = expected();
    let outputs = model.transcribe(&words(&pairs), 2);
    let differ = pairs.iter().zip(outputs).filter(|(pair, output)| pair.target != output.join(" "));
    let differ: Vec<_> = differ.map(|(pair, _)| &pair.source).collect();
    println!("{} of {} words differ", differ.len(), pairs.len());
    assert!(differ.is_empty(), "{differ:?}");
}

/// Every id of PyTorch's outputs is the one that candle chooses after the ids before it.
#[test]
fn candle_chooses_every_token_of_pytorch() {
    const SENTENCES: usize = 64;
    let Some(model) = model() else { return };
    let config = model.config();
    let network = Arc::new(model.network.clone());
    let candle = Reference::new(&network, &Device::Cpu, DType::F32).unwrap();
    candle.set(&model.params).unwrap();
    let pairs = expected();
    for pairs in pairs.chunks(SENTENCES) {
        let examples: Vec<Example> = pairs
            .iter()
            .map(|pair| {
                let mut target = model.target.encode(&pair.target);
                // The start id is read too.
                target.truncate(usize::from(config.max_target_len) - 1);
                Example { source: model.source.encode(&pair.source), target }
            })
            .collect();
        let packed = Pairs::pack(&examples, config);
        let logits = candle.logits(&packed).unwrap();
        let rows = logits.chunks_exact(config.target_vocab.into());
        for ((row, label), at) in rows.zip(&packed.labels).zip(0..) {
            // An output that was cut at PyTorch's length limit has no end.
            let is_cut = *label == u32::from(config.special.end)
                && packed
                    .target
                    .spans
                    .iter()
                    .any(|&(first, len)| first + len == at + 1 && len > 32);
            let special = [config.special.pad, config.special.start].map(usize::from);
            let ids = (0..row.len()).filter(|id| !special.contains(id));
            let best = ids.reduce(|best, id| if row[id] > row[best] { id } else { best });
            assert!(is_cut || best == Some(*label as usize), "{}: {at}", pairs[0].source);
        }
    }
}

/// Rounding weights to f16 moves logits by about a thousandth: only near-ties can change.
#[test]
fn the_half_float_file_gives_all_but_near_ties() {
    const NEAR: f32 = 0.002;
    let Some(model) = model() else { return };
    let pairs = expected();
    let kind = (Precision::HalfFloat, Weights::default());
    let (outputs, _) = run(model, kind, &words(&pairs));
    let mut differ = 0;
    for (pair, output) in
        pairs.iter().zip(&outputs).filter(|(pair, output)| pair.target != **output)
    {
        let margin = margin(model, &pair.source, output, &pair.target);
        println!("near-tie {margin:.5}: {} `{}` `{output}`", pair.source, pair.target);
        assert!(margin < NEAR, "{}: margin {margin}", pair.source);
        differ += 1;
    }
    println!("HalfFloat: {differ} of {} words differ", pairs.len());
    assert!(differ * 1000 <= pairs.len(), "{differ} of {} words differ", pairs.len());
}

/// What an integer file is worth.
struct Integers {
    bytes: usize,
    words: usize,
    /// Outputs equal to PyTorch's.
    same: usize,
    wer: f64,
}

/// Nothing where the test words are not there.
fn integers(weights: Weights) -> Option<Integers> {
    let model = model()?;
    let test = shared("g2p-cmudict-0.7b-split/test.tsv")?;
    shared("g2p-cmudict-0.7b-split/train.tsv")?;
    let pairs = expected();
    let (outputs, bytes) = run(model, (Precision::FixedPoint, weights), &words(&pairs));
    let same = pairs.iter().zip(&outputs).filter(|(pair, output)| pair.target == **output).count();
    let splitting = Splitting { unit: Unit::Word, lowercase: false };
    let wanted: std::collections::HashSet<&str> = pairs.iter().map(|p| p.source.as_str()).collect();
    let test = corpus::read_tsv(&test).unwrap();
    let test: Vec<Pair> =
        test.into_iter().filter(|pair| wanted.contains(pair.source.as_str())).collect();
    let references = References::split(&test, &splitting);
    let by_word: std::collections::HashMap<_, _> =
        pairs.iter().map(|p| p.source.as_str()).zip(&outputs).collect();
    let sorted: Vec<Vec<String>> =
        references.sources.iter().map(|w| splitting.symbols(by_word[w.as_str()])).collect();
    let scores = references.score(&sorted);
    println!(
        "{weights:?}: {bytes} bytes, {same} of {} identical, {:.2}% WER, {:.2}% PER on {} words",
        pairs.len(),
        100.0 * scores.wer,
        100.0 * scores.per,
        scores.words
    );
    assert_eq!(scores.words, pairs.len());
    Some(Integers { bytes, words: pairs.len(), same, wer: scores.wer })
}

/// The rate of a sample says nothing of that of all words.
fn is_all(words: usize) -> bool {
    words == 11_994
}

#[test]
fn the_fixed_point_file_gives_99_percent_and_the_same_error_rate() {
    let Some(Integers { words, same, wer, .. }) = integers(Weights::EightBit) else { return };
    assert!(same * 100 >= words * 99, "{same} of {words}");
    assert!(!is_all(words) || wer <= 0.283, "{wer}");
}

/// Measured on all words: 95.2% are identical, and the error rate is within 0.2 points of `f32`'s 28.05%.
#[test]
fn weights_of_4_bits_halve_the_file_and_keep_the_error_rate() {
    let Some(Integers { bytes, words, same, wer }) = integers(Weights::FourBit) else { return };
    assert!(bytes <= 330_000, "{bytes} bytes");
    assert!(same * 100 >= words * 92, "{same} of {words}");
    assert!(!is_all(words) || wer <= 0.285, "{wer}");
}
