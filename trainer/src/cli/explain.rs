//! `trainer explain`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;

use crate::alignment::{Alignment, align};
use crate::checkpoint::write_atomically;
use crate::device;
use crate::heat_map::{Panel, draw};

/// Draws the weights of cross-attention: which source symbols each output symbol attends to.
#[derive(ClapArgs)]
pub struct Args {
    /// The exported file.
    model: PathBuf,
    /// The text.
    text: String,
    /// The picture.
    #[arg(short, long, value_name = "SVG", default_value = "attention.svg")]
    output: PathBuf,
    /// One panel for every head of this decoder layer, from 0 [default: the mean over all].
    #[arg(long, value_name = "N")]
    layer: Option<u16>,
}

/// Draws.
pub fn run(args: &Args) -> Result<()> {
    let file = device::read(&args.model)?;
    let model = device::check(&file).with_context(|| args.model.display().to_string())?;
    let n_layers = model.config().decoder.n_layers;
    if let Some(layer) = args.layer {
        ensure!(layer < n_layers, "there is no layer {layer}: the decoder has {n_layers}, from 0");
    }
    let alignment = align(model, &args.text)?;
    let picture = draw(&alignment.source, &alignment.target, &panels(&alignment, args.layer));
    write_atomically(&args.output, picture.as_bytes())?;
    println!("{}\t{}\t{}", args.text, alignment.target.join(" "), args.output.display());
    Ok(())
}

fn panels(alignment: &Alignment, layer: Option<u16>) -> Vec<Panel> {
    let Some(layer) = layer else {
        return vec![Panel { title: "all heads".into(), weights: alignment.mean() }];
    };
    let heads = alignment.heads.iter().filter(|head| head.layer == layer);
    heads
        .map(|head| Panel {
            title: format!("layer {layer}, head {}", head.head),
            weights: head.weights.clone(),
        })
        .collect()
}
