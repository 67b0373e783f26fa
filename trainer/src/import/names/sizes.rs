//! What the tensors of a checkpoint tell about the architecture.

use model_format::config::Output;

use super::NameMap;
use crate::import::state_dict::{Found, StateDict};

/// A checkpoint seen through a map of names.
pub struct Seen<'a> {
    map: &'a NameMap,
    dict: &'a StateDict,
}

impl<'a> Seen<'a> {
    /// Sees `dict` through `map`.
    pub fn new(map: &'a NameMap, dict: &'a StateDict) -> Self {
        Self { map, dict }
    }

    /// The first tensor of the checkpoint that may be ours, and its shape in our orientation.
    fn find(&self, ours: &str) -> Option<(&'a Found, Vec<usize>)> {
        let (sources, layer) = self.map.sources(ours);
        sources.iter().find_map(|source| {
            let mut tensors = self.dict.iter();
            let (_, found) = tensors.find(|(name, _)| source.pattern.matches_layer(name, layer))?;
            let mut shape: Vec<_> = found.shape.clone();
            if source.transpose {
                shape.reverse();
            }
            if let Some(rows) = shape.first_mut() {
                *rows /= source.part.1;
            }
            Some((found, shape))
        })
    }

    fn shape(&self, ours: &str) -> Option<[usize; 2]> {
        self.find(ours)?.1.try_into().ok()
    }

    /// Columns of an embedding.
    pub fn d_model(&self) -> Option<usize> {
        let embeddings = ["source_embedding.weight", "target_embedding.weight"];
        embeddings.into_iter().find_map(|name| self.shape(name)).map(|[_, d_model]| d_model)
    }

    /// Rows of the embeddings; without a decoder, the second is the number of labels.
    pub fn vocabularies(&self, has_decoder: bool, shared: bool) -> (Option<usize>, Option<usize>) {
        let rows = |name: &str| self.shape(name).map(|[rows, _]| rows);
        let target = if has_decoder { "target_embedding.weight" } else { "output.weight" };
        let (source, target) = (rows("source_embedding.weight"), rows(target));
        if shared { (source.or(target), target.or(source)) } else { (source, target) }
    }

    /// One more than the highest layer that any name has.
    pub fn n_layers(&self, stack: &str) -> usize {
        let prefix = format!("{stack}.layers.");
        let rules = self.map.rules.iter();
        let rules = rules.filter(|rule| rule.ours.to_string().starts_with(&prefix));
        let sources = rules.flat_map(|rule| &rule.sources);
        let layers = sources.flat_map(|source| {
            let layer = |name: &String| source.pattern.matches(name).and_then(|m| m.layer);
            self.dict.keys().filter_map(layer)
        });
        layers.max().map_or(0, |layer| layer.saturating_add(1))
    }

    /// Rows of the first layer's feed-forward.
    pub fn d_ff(&self, stack: &str) -> Option<usize> {
        let name = format!("{stack}.layers.0.feed_forward.linear1.weight");
        self.shape(&name).map(|[d_ff, _]| d_ff)
    }

    /// Whether a stack ends with a LayerNorm.
    pub fn has_final_norm(&self) -> bool {
        ["encoder.norm.weight", "decoder.norm.weight"].iter().any(|n| self.find(n).is_some())
    }

    /// Tied where there is no output matrix, or where it has the target embedding's values.
    pub fn output(&self, has_decoder: bool) -> Output {
        let values = |name: &str| self.find(name).map(|(found, _)| &found.values);
        let is_tied = match (values("output.weight"), values("target_embedding.weight")) {
            (None, _) => has_decoder,
            (Some(output), Some(embedding)) => output == embedding,
            (Some(_), None) => false,
        };
        match (is_tied, self.find("output.bias").is_some()) {
            (true, false) => Output::Tied,
            (true, true) => Output::TiedBias,
            (false, false) => Output::Untied,
            (false, true) => Output::UntiedBias,
        }
    }
}
