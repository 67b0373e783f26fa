//! Levels 4 and 5: the shipped model on all words that its training held out, in candle, in HalfFloat
//! and in FixedPoint.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device};
use half::f16;
use model_format::config::{Family, Precision};
use model_format::directory::{Kind, Slot};
use model_format::{AlignedBytes, Model};
use runtime::StopReason;
use trainer::config::RunConfig;
use trainer::data::batch::{Example, Pairs};
use trainer::data::split;
use trainer::data::tokenizer::{Splitting, Tokenizer, Unit};
use trainer::device::{self, Answer};
use trainer::evaluate::References;
use trainer::model::TrainedModel;
use trainer::reference::Reference;

fn shipped(name: &str) -> AlignedBytes {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models").join(name);
    device::read(&path).expect("the repository carries the model")
}

/// The trainer's model with the weights of a HalfFloat file, which are exact in `f32`.
fn unpack(file: &Model<'_>) -> TrainedModel {
    let config = file.config();
    let mut tensors = BTreeMap::new();
    let wide = |bits: &[u16]| bits.iter().map(|b| f16::from_bits(*b).to_f32()).collect::<Vec<_>>();
    for slot in Slot::all(config) {
        match slot.expected(Precision::HalfFloat, config).kind {
            Kind::LinearF16 => {
                let linear = file.linear_f16(slot);
                tensors.insert(format!("{slot}.weight"), wide(linear.data));
                tensors.insert(format!("{slot}.bias"), wide(linear.bias));
            }
            Kind::NormF16 => {
                let norm = file.norm_f16(slot);
                tensors.insert(format!("{slot}.weight"), wide(norm.gamma));
                tensors.insert(format!("{slot}.bias"), wide(norm.beta));
            }
            _ => {}
        }
    }
    let tokenizer = |unit, lowercase, texts: Vec<String>| {
        let special = ["<pad>", "<start>", "<end>", "<unknown>"].map(String::from);
        Tokenizer::from_symbols(
            Splitting { unit, lowercase },
            special.into_iter().chain(texts).collect(),
        )
    };
    let (source, target) = (file.source_vocabulary(), file.target_vocabulary());
    let source = (4..source.len()).map(|id| source.text(id).to_owned()).collect();
    let target = (4..target.len()).map(|id| target.text(id).to_owned()).collect();
    TrainedModel::from_tensors(
        config,
        tokenizer(Unit::Character, true, source),
        tokenizer(Unit::Word, false, target),
        &tensors,
    )
    .expect("the file has every tensor")
}

/// The held-out words of the bundled dictionary, with their references.
fn held_out() -> References {
    let split = split::load(&RunConfig::default().data, Family::EncoderDecoder)
        .expect("the bundled dictionary");
    References::split(&split.test, &Splitting { unit: Unit::Word, lowercase: false })
}

fn answers(file: &Model<'_>, words: &[String]) -> Vec<Answer> {
    let answers = device::run_all(*file, words, 2).expect("the file runs");
    answers.into_iter().map(|answer| answer.expect("every word can be encoded")).collect()
}

/// A token that candle would not have chosen, and by how much its choice was better.
struct Difference {
    word: String,
    position: usize,
    margin: f64,
}

/// Every difference between the greedy tokens of candle and `answers`: candle reads what the runtime
/// produced, and must want the same token next.
fn differences(model: &TrainedModel, words: &[String], answers: &[Answer]) -> Vec<Difference> {
    let reference = Reference::new(&Arc::new(model.network.clone()), &Device::Cpu, DType::F32)
        .expect("candle takes the network");
    reference.set(&model.params).expect("candle takes the weights");
    let special = model.config().special;
    let vocab = usize::from(model.config().target_vocab);
    let mut found = Vec::new();
    for (words, answers) in words.chunks(128).zip(answers.chunks(128)) {
        let examples: Vec<Example> = words
            .iter()
            .zip(answers)
            .map(|(word, answer)| Example {
                source: model.source.encode(word),
                target: model.target.encode(&answer.text),
            })
            .collect();
        let pairs = Pairs::pack(&examples, model.config());
        let logits = reference.logits(&pairs).expect("candle computes");
        let mut rows = logits.chunks_exact(vocab).zip(&pairs.labels);
        for ((word, answer), &(_, len)) in words.iter().zip(answers).zip(&pairs.target.spans) {
            for (position, (row, &label)) in rows.by_ref().take(len).enumerate() {
                // The end that teacher forcing adds to an answer cut by the length limit.
                if answer.stop != Some(StopReason::EndToken) && position + 1 == len {
                    continue;
                }
                let wanted = row.iter().enumerate().filter(|(id, _)| {
                    *id != usize::from(special.pad) && *id != usize::from(special.start)
                });
                let best = wanted.map(|(_, &logit)| logit).fold(f64::NEG_INFINITY, f64::max);
                let margin = best - row[label as usize];
                if margin > 0.0 {
                    found.push(Difference { word: word.clone(), position, margin });
                }
            }
        }
    }
    found
}

/// The rounding of `f32` sums in another order: a few units in the last place of logits near 10.
const NEAR_TIE: f64 = 1e-4;

#[test]
fn half_float_gives_the_tokens_of_candle_on_all_held_out_words() {
    let file = shipped("g2p-en-f16.kfm");
    let file = Model::from_bytes(&file).unwrap();
    let words = held_out().sources;
    let found = differences(&unpack(&file), &words, &answers(&file, &words));
    for Difference { word, position, margin } in &found {
        println!("{word}: token {position} differs by a margin of {margin:e}");
        assert!(*margin < NEAR_TIE, "{word}: token {position} is no near tie: {margin:e}");
    }
    println!("{} words, {} near ties", words.len(), found.len());
    assert!(found.len() * 1000 < words.len(), "near ties are rare");
}

#[test]
fn fixed_point_keeps_the_error_rate_on_all_held_out_words() {
    let (half, fixed) = (shipped("g2p-en-f16.kfm"), shipped("g2p-en.kfm"));
    let (half, fixed) = (Model::from_bytes(&half).unwrap(), Model::from_bytes(&fixed).unwrap());
    let references = held_out();
    let float = unpack(&half).transcribe(&references.sources, 2);
    let fixed = device::evaluate(fixed, &references.sources, 2).unwrap().outputs;
    let equal = float.iter().zip(&fixed).filter(|(a, b)| a == b).count();
    let share = equal as f64 / float.len() as f64;
    let (float, fixed) = (references.score(&float), references.score(&fixed));
    println!(
        "{} words: WER {:.2}% in f32, {:.2}% in integers; {:.2}% identical",
        float.words,
        100.0 * float.wer,
        100.0 * fixed.wer,
        100.0 * share
    );
    // The bar of the shipped model: at most 0.3 points.
    assert!(fixed.wer <= float.wer + 0.003);
    assert!(fixed.wer_no_stress <= 0.31);
    assert!(share >= 0.98);
}
