//! Finds every one of our tensors in a checkpoint, or says all that is wrong at once.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use model_format::config::Positions;

use super::{NameMap, Source};
use crate::engine::Network;
use crate::engine::network::sinusoids;
use crate::import::state_dict::{Found, StateDict};
use crate::params::ParamSpec;

/// Our tensors by name.
pub type Tensors = BTreeMap<String, Vec<f32>>;

/// What is wrong, one sentence each.
pub type Problems = Vec<String>;

/// Largest difference between a checkpoint's table of sinusoids and ours: one made in `f16`, or in
/// `f32` up to position 10,000.
const SINUSOID_TOLERANCE: f32 = 2e-3;

/// What was found in a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// All of ours.
    pub tensors: Tensors,
    /// Kinds of biases of which the checkpoint has none: zeros.
    pub zero_biases: BTreeSet<&'static str>,
}

/// Gathers all tensors of `network` from `dict`.
///
/// # Errors
/// Every tensor that is missing, has another shape, holds no usable numbers, or is in the checkpoint
/// and of no use.
pub fn resolve(map: &NameMap, dict: &StateDict, network: &Network) -> Result<Resolved, Problems> {
    let mut resolver = Resolver {
        map,
        dict,
        network,
        used: BTreeMap::new(),
        biases: BTreeSet::new(),
        problems: Problems::new(),
        known: HashSet::new(),
    };
    let mut tensors = Tensors::new();
    let mut absent = Vec::new();
    for spec in &network.layout.specs {
        match resolver.find(spec) {
            Some(values) => drop(tensors.insert(spec.name.clone(), values)),
            None => absent.push(spec),
        }
    }
    let mut zero_biases = BTreeSet::new();
    for spec in absent {
        match resolver.zeros(spec) {
            Some(kind) => {
                zero_biases.insert(kind);
                tensors.insert(spec.name.clone(), vec![0.0; spec.len()]);
            }
            None => resolver.missing(spec),
        }
    }
    resolver.check_the_rest();
    match resolver.problems.is_empty() {
        true => Ok(Resolved { tensors, zero_biases }),
        false => Err(resolver.problems),
    }
}

struct Resolver<'a> {
    map: &'a NameMap,
    dict: &'a StateDict,
    network: &'a Network,
    /// For every tensor of the checkpoint that was read, which of its parts were.
    used: BTreeMap<&'a str, Vec<bool>>,
    /// Kinds of biases that the checkpoint has.
    biases: BTreeSet<&'static str>,
    problems: Problems,
    /// The same problems, to tell one that is known.
    known: HashSet<String>,
}

impl<'a> Resolver<'a> {
    fn problem(&mut self, problem: String) {
        if self.known.insert(problem.clone()) {
            self.problems.push(problem);
        }
    }

    /// Where our tensor can be. A tied output and a shared embedding may stand in the checkpoint
    /// under both names.
    fn sources(&self, name: &str) -> (Vec<&'a Source>, Option<usize>) {
        let (mut sources, layer) = self.map.sources(name);
        if name == "target_embedding.weight" {
            let config = &self.network.config;
            if config.output.is_tied() {
                sources.extend(self.map.sources("output.weight").0);
            }
            if config.shared_embedding {
                sources.extend(self.map.sources("source_embedding.weight").0);
            }
        }
        // A decoder's last norm is the third in our names, with or without cross-attention.
        if let (false, Some(part)) = (self.network.config.has_cross_attention(), third_norm(name)) {
            sources.extend(self.map.sources(&part).0);
        }
        (sources, layer)
    }

    /// The values of one of our tensors: empty where the checkpoint's are of no use, which is a problem,
    /// and none where it has no such tensor.
    fn find(&mut self, spec: &ParamSpec) -> Option<Vec<f32>> {
        let (sources, layer) = self.sources(&spec.name);
        let mut candidates: Vec<(&'a str, &'a Found, &Source)> = Vec::new();
        for source in &sources {
            for (name, found) in self.dict {
                let is_new = candidates.iter().all(|(known, ..)| known != name);
                if is_new && source.pattern.matches_layer(name, layer) {
                    candidates.push((name, found, source));
                }
            }
        }
        if candidates.is_empty() {
            return None;
        }
        self.biases.extend(kind_of_bias(&spec.name));
        let mut chosen: Option<(&str, Vec<f32>)> = None;
        for (name, found, source) in candidates {
            let parts = self.used.entry(name).or_insert_with(|| vec![false; source.part.1]);
            if parts.len() == source.part.1 {
                parts[source.part.0] = true;
            } else {
                self.problem(format!("ambiguous: `{name}` is cut in different ways"));
            }
            match (take(spec, name, found, source), &chosen) {
                (Err(problem), _) => self.problem(problem),
                (Ok(values), None) => chosen = Some((name, values)),
                (Ok(values), Some((other, chosen))) if values != *chosen => {
                    self.problem(format!(
                        "ambiguous: `{}` may be `{other}` or `{name}`, whose values differ",
                        spec.name
                    ));
                }
                (Ok(_), Some(_)) => {}
            }
        }
        Some(chosen.map(|(_, values)| values).unwrap_or_default())
    }

    /// The kind of a bias that is zero: the map allows it, and the checkpoint has none of its kind, as with
    /// PyTorch's `bias=False`. One that is absent beside others was lost.
    fn zeros(&self, spec: &ParamSpec) -> Option<&'static str> {
        let kind = kind_of_bias(&spec.name).filter(|_| self.map.zero_biases)?;
        (!self.biases.contains(kind)).then_some(kind)
    }

    fn missing(&mut self, spec: &ParamSpec) {
        let (sources, layer) = self.sources(&spec.name);
        let names: Vec<_> =
            sources.iter().map(|s| format!("`{}`", s.pattern.of_layer(layer))).collect();
        let names = if names.is_empty() { "no name".to_owned() } else { names.join(" or ") };
        let Self { map, .. } = self;
        let problem = format!("missing: `{}` {:?}, in {} {names}", spec.name, spec.shape, map.name);
        self.problem(problem);
    }

    /// Tensors that are of no use, tables of sinusoids, unused parts.
    fn check_the_rest(&mut self) {
        for (name, found) in self.dict {
            match self.used.get(name.as_str()) {
                Some(parts) => {
                    let of = parts.len();
                    let unused = parts.iter().position(|used| !used);
                    if let Some(part) = unused {
                        self.problem(format!("extra: rows {}/{of} of `{name}`", part + 1));
                    }
                }
                None if self.map.sinusoids.iter().any(|p| p.matches(name).is_some()) => {
                    self.check_sinusoids(name, found);
                }
                None if self.map.ignore.iter().any(|p| p.matches(name).is_some()) => {}
                None => {
                    let hint = self.hint(name);
                    self.problem(format!("extra: `{name}` {:?}{hint}", found.shape));
                }
            }
        }
    }

    /// What an extra tensor would be in another config.
    fn hint(&self, name: &str) -> String {
        for rule in &self.map.rules {
            let found = rule.sources.iter().find_map(|source| source.pattern.matches(name));
            if let Some(found) = found {
                let ours = rule.ours.of_layer(found.layer);
                return format!(", which would be `{ours}`: the config has no such tensor");
            }
        }
        String::new()
    }

    fn check_sinusoids(&mut self, name: &str, found: &Found) {
        let config = &self.network.config;
        let d_model = usize::from(config.d_model);
        let Ok(table) = &found.values else { return };
        if found.shape.last() != Some(&d_model) {
            let shape = &found.shape;
            self.problem(format!("mis-shaped: positions `{name}` {shape:?}, d_model is {d_model}"));
            return;
        }
        let fits = |positions| {
            let ours = sinusoids(&model_format::config::ModelConfig { positions, ..*config });
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= SINUSOID_TOLERANCE;
            !ours.is_empty() && table.iter().zip(&ours).all(close)
        };
        if fits(config.positions) {
            return;
        }
        let orders = [Positions::SinusoidalInterleaved, Positions::SinusoidalHalves];
        let hint = match orders.into_iter().find(|order| fits(*order)) {
            Some(Positions::SinusoidalHalves) => ": they are \"sinusoidal-halves\"",
            Some(_) => ": they are \"sinusoidal-interleaved\"",
            None => ", nor are they any sinusoids",
        };
        let problem =
            format!("positions `{name}` are not the config's {:?}{hint}", config.positions);
        self.problem(problem);
    }
}

/// Which biases a program leaves out together; none for what always has one, and for weights.
fn kind_of_bias(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix(".bias")?;
    let last = name.rsplit('.').next()?;
    match last {
        "query" => Some("query"),
        "key" => Some("key"),
        "value" => Some("value"),
        "output" if name.ends_with("attention.output") => Some("attention output"),
        "linear1" | "linear2" => Some("feed-forward"),
        norm if norm.starts_with("norm") => Some("norm"),
        _ => None,
    }
}

/// The name of the second norm beside a decoder's third.
fn third_norm(name: &str) -> Option<String> {
    let is_third = name.starts_with("decoder.") && name.contains(".norm3.");
    is_third.then(|| name.replace(".norm3.", ".norm2."))
}

/// A shape without its dimensions of size 1, which do not change the order of the numbers.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|size| *size != 1).collect()
}

/// The values of our tensor from one of the checkpoint: rows cut, transposed, checked.
fn take(spec: &ParamSpec, name: &str, found: &Found, source: &Source) -> Result<Vec<f32>, String> {
    let (part, of) = source.part;
    let mut expected = spec.shape.clone();
    if let Some(rows) = expected.first_mut() {
        *rows *= of;
    }
    let mut shape = squeezed(&found.shape);
    if source.transpose {
        shape.reverse();
    }
    // A table of positions may be longer than the longest sequence.
    let is_longer = spec.name.ends_with("_positions.weight")
        && matches!((shape.as_slice(), expected.as_slice()),
            ([rows, cols], [len, d_model]) if rows > len && cols == d_model);
    if shape != squeezed(&expected) && !is_longer {
        if source.transpose {
            expected.reverse();
        }
        let ours = &spec.name;
        let found = &found.shape;
        return Err(format!("mis-shaped: `{name}` {found:?}, `{ours}` needs {expected:?}"));
    }
    let values = match &found.values {
        Ok(values) => values,
        Err(dtype) => {
            return Err(format!("unusable: `{name}` is {dtype}, not f16, bf16, f32 or f64"));
        }
    };
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        let index = index(&found.shape, at);
        return Err(format!("unusable: `{name}` holds {} at {index:?}", values[at]));
    }
    let turned;
    let rows = if source.transpose {
        turned = transposed(values, shape.first().copied().unwrap_or(1));
        &turned
    } else {
        values
    };
    Ok(rows[part * spec.len()..(part + 1) * spec.len()].to_vec())
}

/// `[n_in, n_out]` to `[n_out, n_in]`.
fn transposed(values: &[f32], n_out: usize) -> Vec<f32> {
    (0..n_out).flat_map(|row| values.iter().skip(row).step_by(n_out).copied()).collect()
}

/// The indices of a number by its place.
fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|size| {
            let i = at % size;
            at /= size;
            i
        })
        .collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_turn_and_numbers_have_indices() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(index(&[2, 3, 4], 23), [1, 2, 3]);
        assert_eq!(index(&[2, 3, 4], 5), [0, 1, 1]);
    }
}
