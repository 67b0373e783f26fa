//! `trainer inspect`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use model_format::Model;
use model_format::config::{Precision, StackConfig};
use model_format::directory::{Kind, Slot};
use model_format::formats::ActivationSlot;
use runtime::{Plan, saturation};

use crate::data::corpus;
use crate::device;
use crate::engine::Network;
use crate::evaluate::References;
use crate::export::is_cached;

/// Shows what an exported file holds and needs.
#[derive(ClapArgs)]
pub struct Args {
    /// The exported file.
    model: PathBuf,
    /// Texts on which saturations are counted: the sources of `source<TAB>target` lines; for a language
    /// model a text a line, of which the first half is the prompt.
    #[arg(long, value_name = "TSV")]
    data: Option<PathBuf>,
    /// Threads to run the texts with.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Inspects.
pub fn run(args: &Args) -> Result<()> {
    let file = device::read(&args.model)?;
    let model = device::check(&file).with_context(|| args.model.display().to_string())?;
    config(&model)?;
    arena(&model);
    tensors(&model);
    if model.header().precision == Precision::FixedPoint {
        let counted = match &args.data {
            Some(path) => {
                let texts = texts(&model, path)?;
                saturation::reset();
                let answers = device::run_all(model, &texts, args.threads)?;
                Some(answers.iter().filter(|answer| answer.is_ok()).count())
            }
            None => None,
        };
        formats(&model, counted);
    }
    Ok(())
}

/// What to run of a file of texts.
fn texts(model: &Model<'_>, path: &Path) -> Result<Vec<String>> {
    let pairs = corpus::read(path, model.config().family)?;
    let splitting = device::target_splitting(model);
    Ok(match model.config().has_encoder() {
        true => References::sources_of(&pairs),
        false => pairs.iter().map(|pair| splitting.first_half(&pair.target)).collect(),
    })
}

fn config(model: &Model<'_>) -> Result<()> {
    let (header, config) = (model.header(), model.config());
    println!("precision            {:?}, layout {:?}", header.precision, header.layout);
    println!("parameters           {}", Network::new(config)?.layout.len());
    println!("family               {:?}", config.family);
    println!("d_model              {}", config.d_model);
    let stack = |name: &str, s: &StackConfig| {
        println!("{name:<20} {} layers, {} heads, d_ff {}", s.n_layers, s.n_heads, s.d_ff);
    };
    if config.has_encoder() {
        stack("encoder", &config.encoder);
        println!("source               {} ids", config.source_vocab);
        println!(
            "longest source       {} (frame {:?})",
            config.max_source_len, config.source_frame
        );
    }
    if config.has_decoder() {
        stack("decoder", &config.decoder);
        println!("target               {} ids", config.target_vocab);
        println!("longest target       {} (end id included)", config.max_target_len);
    } else {
        println!("labels               {}", config.target_vocab);
    }
    println!(
        "embedding            shared {}, times sqrt(d_model) {}",
        config.shared_embedding, config.scale_embedding
    );
    println!(
        "LayerNorm            {:?}, final {}, eps {:e}",
        config.norm, config.final_norm, config.layer_norm_eps
    );
    println!("positions            {:?}", config.positions);
    println!("output               {:?}, activation {:?}", config.output, config.activation);
    println!("special ids          {:?}", config.special);
    println!("text                 {:?}", header.text);
    Ok(())
}

/// The map of the arena, phase by phase; kernels decide how much scratch there is.
fn arena(model: &Model<'_>) {
    let plan = Plan::of(model.header());
    println!("\narena                {} bytes with the kernels of this machine", plan.total);
    let at_cross = |len| (0, len);
    let caches = plan.self_cache * usize::from(plan.limits.beams).max(1);
    let after = plan.cross + caches + plan.search;
    let memory = (plan.memory_offset, plan.memory);
    let below = plan.memory_offset.saturating_sub(plan.cross);
    let map = [
        ("encode", "scratch", at_cross(plan.encoder_scratch)),
        ("encode", "stream, then memory", memory),
        ("remember", "cross keys, values", at_cross(plan.cross)),
        ("remember", "scratch", (plan.cross, if plan.cross > 0 { below } else { 0 })),
        ("remember", "memory", if plan.cross > 0 { memory } else { (0, 0) }),
        ("decode", "cross keys, values", at_cross(plan.cross)),
        ("decode", "self keys, values", (plan.cross, caches)),
        ("decode", "search", (plan.cross + caches, plan.search)),
        ("decode", "scratch", (after, plan.decoder_scratch)),
    ];
    println!("{:<10} {:<22} {:>8} {:>8}   shares bytes with", "phase", "buffer", "offset", "bytes");
    for &(phase, buffer, (offset, len)) in map.iter().filter(|(.., (_, len))| *len > 0) {
        let overlaps =
            |(start, other): (usize, usize)| start < offset + len && offset < start + other;
        let shared: Vec<String> = map
            .iter()
            .filter(|(other, name, place)| {
                (*other, *name) != (phase, buffer) && place.1 > 0 && overlaps(*place)
            })
            .map(|(other, name, _)| format!("{other}: {name}"))
            .collect();
        println!("{phase:<10} {buffer:<22} {offset:>8} {len:>8}   {}", shared.join("; "));
    }
}

fn tensors(model: &Model<'_>) {
    let config = model.config();
    let slots = || Slot::all(config).map(|slot| (slot, model.byte_len(slot)));
    let weights: usize = slots().map(|(_, len)| len).sum();
    println!("\nfile                 {} bytes, tensors {weights}", model.file_len());
    if let Some(bits) = bits_per_weight(model) {
        println!("matrices             {bits:.2} bits per weight, scales and biases included");
    }
    println!("{:<44} {:>9} {:>12} {:>6} {:>18}", "tensor", "bytes", "shape", "kind", "weights");
    for (slot, len) in slots().filter(|(_, len)| *len > 0) {
        let expected = slot.expected(model.header().precision, config);
        let shape = format!("{}x{}", expected.rows, expected.cols);
        println!(
            "{:<44} {len:>9} {shape:>12} {:>6} {:>18}",
            slot.to_string(),
            kind(model.kind(slot)),
            range(model, slot, model.kind(slot))
        );
    }
}

/// Over all matrices and tables.
fn bits_per_weight(model: &Model<'_>) -> Option<f64> {
    let (mut bytes, mut weights) = (0, 0);
    for slot in Slot::all(model.config()) {
        if matches!(model.kind(slot), Kind::LinearI8 | Kind::LinearI4 | Kind::LinearF16) {
            let expected = slot.expected(model.header().precision, model.config());
            bytes += model.byte_len(slot);
            weights += usize::from(expected.rows) * usize::from(expected.cols);
        }
    }
    (weights > 0).then(|| 8.0 * bytes as f64 / weights as f64)
}

/// What the numbers of a tensor are stored in.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::LinearI4 => "4-bit",
        Kind::LinearI8 => "8-bit",
        Kind::LinearF16 | Kind::NormF16 => "f16",
        Kind::NormI32 | Kind::Heads | Kind::Frequencies | Kind::Multipliers => "i32",
        Kind::Absent => "",
    }
}

/// Smallest and largest weight, one of 4 bits times its factor; for integers as the file holds them.
fn range(model: &Model<'_>, slot: Slot, kind: Kind) -> String {
    match kind {
        Kind::LinearI8 | Kind::LinearI4 => {
            let linear = model.linear_int(slot);
            let weights = || (0..linear.rows).flat_map(|row| linear.row(row));
            let bounds = weights().min().zip(weights().max());
            bounds.map_or_else(String::new, |(low, high)| format!("{low} .. {high}"))
        }
        Kind::LinearF16 => {
            let linear = model.linear_f16(slot);
            let weights = (0..linear.rows).flat_map(|row| linear.row(row));
            let values = weights.map(|w| half::f16::from_bits(w).to_f32());
            let (low, high) =
                values.fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(v), high.max(v)));
            format!("{low:.4} .. {high:.4}")
        }
        _ => String::new(),
    }
}

/// Q formats, and how often each tensor saturated on `counted` texts.
fn formats(model: &Model<'_>, counted: Option<usize>) {
    let config = model.config();
    match counted {
        Some(texts) => println!("\nsaturations counted on {texts} texts"),
        None => println!("\nsaturations: not counted (--data names texts)"),
    }
    println!("{:<44} {:>8} {:>6} {:>12}", "activation", "Q format", "bits", "saturations");
    let count = |n: u64| counted.map_or_else(|| "-".to_owned(), |_| n.to_string());
    for slot in ActivationSlot::all(config).filter(|slot| slot.is_used(config)) {
        let format = model.formats().get(slot);
        let saturated = match slot {
            ActivationSlot::Logits => "-".to_owned(),
            _ => count(saturation::of_activation(config, slot)),
        };
        let q = format!("Q{}", format.frac_bits);
        println!("{:<44} {q:>8} {:>6} {saturated:>12}", slot.to_string(), format.bits);
    }
    for slot in Slot::all(config).filter(|slot| is_cached(*slot) && model.byte_len(*slot) > 0) {
        let saturated = count(saturation::of_cache(config, slot));
        println!("{:<44} {:>8} {:>6} {saturated:>12}", slot.to_string(), "per head", 8);
    }
}
