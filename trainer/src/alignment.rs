//! Weights of cross-attention of an exported file, as the device computes them.

use anyhow::{Result, ensure};
use model_format::config::Precision as Stored;
use model_format::{AlignedBytes, Model};
use runtime::{FixedModel, GenerateOptions, HalfModel, LoadError, Precision, Session, TypedModel};

/// What one text attended to.
#[derive(Debug, Clone, PartialEq)]
pub struct Alignment {
    /// Source symbols, those of the frame included.
    pub source: Vec<String>,
    /// Target symbols, the end included where it came.
    pub target: Vec<String>,
    /// Of every head of every layer.
    pub heads: Vec<Head>,
}

/// The weights of one head: `[target, source]`, each row a distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Decoder layer.
    pub layer: u16,
    /// Head of the layer.
    pub head: u16,
    /// Row-major.
    pub weights: Vec<f32>,
}

const START: &str = "<start>";
const END: &str = "<end>";

/// Runs `text` and collects the weights of every step.
pub fn align(model: Model<'_>, text: &str) -> Result<Alignment> {
    let family = model.config().family;
    ensure!(model.config().has_cross_attention(), "a {family:?} has no cross-attention");
    match model.header().precision {
        Stored::FixedPoint => align_as(FixedModel::new(model), text),
        Stored::HalfFloat => align_as(HalfModel::new(model), text),
    }
}

fn align_as<P: Precision>(
    model: Result<TypedModel<'_, P>, LoadError>,
    text: &str,
) -> Result<Alignment> {
    let model = model?;
    let file = model.model();
    let mut arena = AlignedBytes::filled(0, model.plan().total);
    let mut session = Session::new(&model, &mut arena)?;
    let mut generation = session.generate_text(text, &GenerateOptions::default())?;
    let (mut heads, mut target) = (Vec::<Head>::new(), Vec::new());
    loop {
        let id = generation.next_aligned(
            |_, _| (),
            |shown| {
                let weights = shown.weights.iter().map(|&w| f32::from(w) / 32_768.0);
                let (layer, head) = (shown.layer, shown.head);
                match heads.iter_mut().find(|h| (h.layer, h.head) == (layer, head)) {
                    Some(head) => head.weights.extend(weights),
                    None => heads.push(Head { layer, head, weights: weights.collect() }),
                }
            },
        );
        match id {
            Some(id) => target.push(file.target_vocabulary().text(id).to_owned()),
            None => break,
        }
    }
    if generation.stop_reason() == Some(runtime::StopReason::EndToken) {
        target.push(END.to_owned());
    }
    Ok(Alignment { source: source_symbols(file, text), target, heads })
}

/// What the encoder reads.
fn source_symbols(model: &Model<'_>, text: &str) -> Vec<String> {
    let frame = model.config().source_frame;
    let symbols = crate::device::source_splitting(model).symbols(text);
    let start = frame.has_start().then(|| START.to_owned());
    let end = frame.has_end().then(|| END.to_owned());
    start.into_iter().chain(symbols).chain(end).collect()
}

impl Alignment {
    /// The mean over all heads of all layers.
    pub fn mean(&self) -> Vec<f32> {
        let mut mean = vec![0.0; self.source.len() * self.target.len()];
        for head in &self.heads {
            for (mean, weight) in mean.iter_mut().zip(&head.weights) {
                *mean += weight / self.heads.len() as f32;
            }
        }
        mean
    }
}
