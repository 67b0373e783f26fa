//! `trainer eval`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use model_format::Model;
use model_format::config::Family;
use model_format::header::MAGIC;

use crate::checkpoint::{self, Header};
use crate::config::RunConfig;
use crate::data::batch::Example;
use crate::data::corpus::{self, Pair};
use crate::data::split;
use crate::data::tasks::Task;
use crate::decode;
use crate::device;
use crate::engine::sanity::family_name;
use crate::evaluate::{
    self, FamilyScores, HeldOut, LabelQuality, LabelScores, LanguageQuality, References, Scores,
};
use crate::model::TrainedModel;

/// Scores a checkpoint or an exported file on texts that it has not seen.
#[derive(ClapArgs)]
pub struct Args {
    /// An exported file, a run's folder, or a checkpoint file.
    model: PathBuf,
    /// What to score on, in the form of what the model learned from; lines of one source are its
    /// references [default: the test side of the task].
    #[arg(long, value_name = "TSV")]
    data: Option<PathBuf>,
    /// Which of the bundled dictionary's tasks [default: the run's own, or g2p].
    #[arg(long, value_enum, conflicts_with = "data")]
    task: Option<Task>,
    /// Write `source<TAB>output` lines here; of a language model, the first half of each text and how
    /// the model goes on with it.
    #[arg(long, value_name = "TSV")]
    outputs: Option<PathBuf>,
    /// Threads to decode with.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// What one model gave.
struct Evaluated {
    /// What was given for each output.
    texts: Vec<String>,
    outputs: Vec<Vec<String>>,
    separator: &'static str,
    scores: FamilyScores,
    /// Per target token; an exported file has none, but for a language model.
    loss: Option<f64>,
    texts_per_second: f64,
}

/// Evaluates.
pub fn run(args: &Args) -> Result<()> {
    let evaluated = match is_exported(&args.model)? {
        true => exported(args)?,
        false => checkpoint(args)?,
    };
    if let Some(path) = &args.outputs {
        let lines = evaluated.texts.iter().zip(&evaluated.outputs);
        let line = |(text, output): (&String, &Vec<String>)| {
            format!("{text}\t{}\n", output.join(evaluated.separator))
        };
        let text: String = lines.map(line).collect();
        checkpoint::write_atomically(path, text.as_bytes())?;
    }
    print(&evaluated);
    Ok(())
}

fn print(evaluated: &Evaluated) {
    let Evaluated { scores, loss, texts_per_second, texts, .. } = evaluated;
    println!("words           {}", texts.len());
    if let Some(loss) = loss {
        println!("loss            {loss:.4} per target token");
    }
    match scores {
        FamilyScores::Texts(Scores { wer, per, wer_no_stress, per_no_stress, .. }) => {
            println!("WER             {:.2}%", 100.0 * wer);
            println!("PER             {:.2}%", 100.0 * per);
            println!("WER, no stress  {:.2}%", 100.0 * wer_no_stress);
            println!("PER, no stress  {:.2}%", 100.0 * per_no_stress);
        }
        FamilyScores::Labels(LabelQuality { scores, majority, by_symbol }) => {
            println!("{:<16}{:>8}{:>16}", "right", "labels", "whole texts");
            for (name, scores) in [
                ("the model", &Some(*scores)),
                ("majority label", majority),
                ("  by symbol", by_symbol),
            ] {
                if let Some(LabelScores { label_accuracy, text_accuracy, .. }) = scores {
                    let [labels, texts] = [label_accuracy, text_accuracy].map(|s| 100.0 * s);
                    println!("{name:<16}{labels:>7.2}%{texts:>15.2}%");
                }
            }
        }
        FamilyScores::Language(LanguageQuality { perplexity, baseline }) => {
            println!("perplexity      {perplexity:.3} per symbol, end included");
            if let Some(baseline) = baseline {
                println!("  of frequency  {baseline:.3}");
            }
        }
    }
    println!("words/s         {texts_per_second:.0}");
}

/// Whether the file begins as exported ones do.
fn is_exported(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(bytes.starts_with(&MAGIC))
}

/// What to score a model of `family` on; `task` is that of its run.
fn pairs(args: &Args, family: Family, task: Task) -> Result<Vec<Pair>> {
    if let Some(path) = &args.data {
        return corpus::read(path, family);
    }
    let task = args.task.unwrap_or(task);
    ensure!(
        task.family() == family,
        "the task {task} is not for a {}: choose another --task, or --data",
        family_name(family)
    );
    Ok(split::load(&RunConfig::of_task(task).data, family)?.test)
}

fn exported(args: &Args) -> Result<Evaluated> {
    let file = device::read(&args.model)?;
    let model = device::check(&file).with_context(|| args.model.display().to_string())?;
    let family = model.config().family;
    if family == Family::DecoderOnly {
        return language(args, model);
    }
    let splitting = device::target_splitting(&model);
    let pairs = pairs(args, family, Task::default())?;
    let references = References::split(&pairs, &splitting);
    let evaluation = device::evaluate(model, &references.sources, args.threads)?;
    let scores = match family {
        Family::Tagger | Family::Classifier => {
            let scores = LabelScores::of(&references, &evaluation.outputs);
            FamilyScores::Labels(LabelQuality::new(scores))
        }
        _ => FamilyScores::Texts(references.score(&evaluation.outputs)),
    };
    Ok(Evaluated {
        texts: references.sources,
        outputs: evaluation.outputs,
        separator: splitting.separator(),
        scores,
        loss: None,
        texts_per_second: evaluation.texts_per_second,
    })
}

/// A language model's file: the probability that it gives to each text.
fn language(args: &Args, model: Model<'_>) -> Result<Evaluated> {
    let pairs = pairs(args, Family::DecoderOnly, Task::Words)?;
    let texts: Vec<String> = pairs.iter().map(|pair| pair.target.clone()).collect();
    let start = Instant::now();
    let scores = decode::score_texts(model, &texts)?;
    let seconds = start.elapsed().as_secs_f64();
    let nll: f64 = scores.iter().map(|score| -f64::from(decode::nats(score.sum))).sum();
    let tokens: f64 = scores.iter().map(|score| f64::from(score.tokens)).sum();
    let loss = nll / tokens.max(1.0);
    let splitting = device::target_splitting(&model);
    let prompts: Vec<String> = texts.iter().map(|text| splitting.first_half(text)).collect();
    let outputs = match args.outputs {
        Some(_) => device::evaluate(model, &prompts, args.threads)?.outputs,
        None => Vec::new(),
    };
    Ok(Evaluated {
        texts_per_second: texts.len() as f64 / seconds,
        texts: prompts,
        outputs,
        separator: splitting.separator(),
        scores: FamilyScores::Language(LanguageQuality { perplexity: loss.exp(), baseline: None }),
        loss: Some(loss),
    })
}

fn checkpoint(args: &Args) -> Result<Evaluated> {
    let run = checkpoint::load(&args.model)?;
    let header = run.header.clone();
    let model = TrainedModel::from_checkpoint(run)?;
    let tokenizers = (&model.source, &model.target);
    let family = model.config().family;
    let pairs = pairs(args, family, header.config.data.task)?;
    let train = training_examples(&header, family);
    let held_out = HeldOut::new(&pairs, tokenizers, &model.network, &train);
    let held_out = held_out.with_context(|| match &args.data {
        Some(path) => path.display().to_string(),
        None => "the dictionary".to_owned(),
    })?;
    let texts = match family {
        Family::DecoderOnly => held_out.examples.iter().map(|e| first_half(e, &model)).collect(),
        _ => held_out.references.sources.clone(),
    };
    let start = Instant::now();
    let outputs = model.transcribe(&texts, args.threads);
    let seconds = start.elapsed().as_secs_f64();
    let loss = evaluate::loss(&model.network, &model.params, &held_out.examples, args.threads);
    Ok(Evaluated {
        texts_per_second: texts.len() as f64 / seconds,
        scores: match family {
            Family::DecoderOnly => held_out.language(loss),
            _ => held_out.judge(family, &outputs, tokenizers),
        },
        texts,
        outputs,
        separator: model.target.separator(),
        loss: Some(loss),
    })
}

/// What a run was trained on, for the baseline; nothing where its family has none, or where its pairs
/// cannot be read any more.
fn training_examples(header: &Header, family: Family) -> Vec<Example> {
    if family == Family::EncoderDecoder {
        return Vec::new();
    }
    let examples = split::load(&header.config.data, family).and_then(|split| {
        corpus::encode(&split.train, (&header.source, &header.target), &header.config.model)
    });
    examples.unwrap_or_else(|error| {
        eprintln!("no baseline: {error:#}");
        Vec::new()
    })
}

/// The first half of a text's symbols, at least one.
fn first_half(example: &Example, model: &TrainedModel) -> String {
    model.target.decode(&example.target[..example.target.len().div_ceil(2)])
}
