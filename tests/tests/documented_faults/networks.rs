//! Small networks with random weights, their files, and what they answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::{DType, Device};
use half::f16;
use model_format::AlignedBytes;
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, Precision as Stored,
    SourceFrame, SpecialIds, StackConfig, UnknownPolicy,
};
use runtime::{GenerateOptions, Precision, Session, StopReason, TokenId, TypedModel};
use trainer::data::batch::{Example, Pairs};
use trainer::data::corpus::Pair;
use trainer::data::tokenizer::{Splitting, Tokenizer, Unit};
use trainer::engine::{Dropout, DropoutRates, Network, Workspace};
use trainer::export::export;
use trainer::model::TrainedModel;
use trainer::reference::Reference;
use trainer::rng;

/// Ids of the source: the special ones, then `a`, `b`, ...
const SOURCE_VOCAB: u16 = 12;
/// Ids of the target: the special ones, then `A`, `B`, ...
const TARGET_VOCAB: u16 = 13;

/// An encoder-decoder whose sizes are all different.
pub fn small() -> ModelConfig {
    ModelConfig {
        family: Family::EncoderDecoder,
        d_model: 24,
        encoder: StackConfig { n_layers: 2, n_heads: 3, d_ff: 20 },
        decoder: StackConfig { n_layers: 2, n_heads: 2, d_ff: 36 },
        source_vocab: SOURCE_VOCAB,
        target_vocab: TARGET_VOCAB,
        max_source_len: 17,
        max_target_len: 14,
        norm: NormPlace::Post,
        final_norm: false,
        positions: Positions::SinusoidalInterleaved,
        output: Output::UntiedBias,
        shared_embedding: false,
        scale_embedding: true,
        source_frame: SourceFrame::End,
        activation: Activation::Relu,
        layer_norm_eps: 1e-5,
        special: SpecialIds::default(),
    }
}

/// The architectures of A, B and C, with pre-LN and learned positions among them.
pub fn architectures() -> [ModelConfig; 4] {
    let post = small();
    let pre = ModelConfig { norm: NormPlace::Pre, final_norm: true, ..post };
    [
        post,
        ModelConfig { final_norm: true, positions: Positions::Learned, ..post },
        ModelConfig { output: Output::TiedBias, ..pre },
        ModelConfig { positions: Positions::Learned, ..pre },
    ]
}

/// A network and its weights.
#[derive(Clone)]
pub struct Weighted {
    pub network: Arc<Network>,
    pub params: Vec<f32>,
}

impl Weighted {
    /// Starting weights, all of them moved: no bias is zero and no gamma one.
    pub fn new(config: &ModelConfig, seed: u64) -> Self {
        let network = Arc::new(Network::new(config).expect("a sound architecture"));
        let mut params = network.layout.init(seed);
        for (i, p) in params.iter_mut().enumerate() {
            *p += 0.3 * (rng::uniform(seed, i as u64) - 0.5);
        }
        Self { network, params }
    }

    pub fn config(&self) -> &ModelConfig {
        &self.network.config
    }

    /// The tensor `name`, to be changed.
    pub fn tensor_mut(&mut self, name: &str) -> &mut [f32] {
        let spec = self.network.layout.specs.iter().find(|spec| spec.name == name);
        &mut self.params[spec.expect("a tensor of this name").range()]
    }

    /// Adds `amount` to the logit of `id` at every step.
    pub fn favour(mut self, id: u16, amount: f32) -> Self {
        self.tensor_mut("output.bias")[usize::from(id)] += amount;
        self
    }

    /// Teacher-forced logits by the engine, packed.
    pub fn engine_logits(&self, examples: &[Example]) -> Vec<f32> {
        let mut workspace = Workspace::default();
        let pairs = Pairs::pack(examples, self.config());
        self.network.forward(&self.params, &pairs, None, &mut workspace);
        workspace.logits
    }

    pub fn reference(&self, dtype: DType) -> Reference {
        let reference = Reference::new(&self.network, &Device::Cpu, dtype);
        let reference = reference.expect("candle takes the network");
        reference.set(&self.params).expect("candle takes the weights");
        reference
    }

    /// Teacher-forced logits by candle, of sentences padded to the longest.
    pub fn candle_logits(&self, examples: &[Example], dtype: DType) -> Vec<f64> {
        let pairs = Pairs::pack(examples, self.config());
        self.reference(dtype).logits(&pairs).expect("candle computes")
    }

    /// Greedy ids of each source, decoded together, and whether it ended.
    pub fn greedy(&self, sources: &[Vec<u32>]) -> Vec<(Vec<u32>, bool)> {
        let sources: Vec<&[u32]> = sources.iter().map(Vec::as_slice).collect();
        let decoded = self.network.greedy(&self.params, &sources);
        decoded.into_iter().map(|d| (d.ids, d.ended)).collect()
    }

    /// As [`greedy`](Self::greedy), of one source without company.
    pub fn greedy_alone(&self, source: &[u32]) -> (Vec<u32>, bool) {
        self.greedy(&[source.to_vec()]).remove(0)
    }

    /// The weights that a HalfFloat file has.
    pub fn rounded(mut self) -> Self {
        self.params.iter_mut().for_each(|p| *p = f16::from_f32(*p).to_f32());
        self
    }

    /// The file for a device.
    pub fn file(&self, precision: Stored) -> AlignedBytes {
        let tokenizer = |unit, first: u8, vocab: u16| {
            let special = ["<pad>", "<start>", "<end>", "<unknown>"].map(String::from);
            let symbols = (first..).map(|c| char::from(c).to_string());
            let symbols = special.into_iter().chain(symbols).take(vocab.into()).collect();
            Tokenizer::from_symbols(Splitting { unit, lowercase: false }, symbols)
        };
        let model = TrainedModel {
            network: Network::clone(&self.network),
            source: tokenizer(Unit::Character, b'a', self.config().source_vocab),
            target: tokenizer(Unit::Word, b'A', self.config().target_vocab),
            params: self.params.clone(),
            unknown: UnknownPolicy::Refuse,
        };
        let pair = |i: usize, source: &Vec<u32>, target: Vec<u32>| Pair {
            source: source.iter().map(|&id| model.source.symbols()[id as usize].clone()).collect(),
            target: target
                .iter()
                .map(|&id| model.target.symbols()[id as usize].clone())
                .collect::<Vec<_>>()
                .join(" "),
            line: i,
        };
        let sources = sources(self.config(), 40);
        let outputs = self.greedy(&sources);
        let pairs: Vec<Pair> =
            sources.iter().zip(outputs).enumerate().map(|(i, (s, o))| pair(i, s, o.0)).collect();
        export(&model, precision, &pairs).expect("a model of moderate weights")
    }
}

/// `n` sources of lengths from 1 to the limit.
pub fn sources(config: &ModelConfig, n: u64) -> Vec<Vec<u32>> {
    let longest = u64::from(config.max_source_len) - 1;
    let symbols = f32::from(config.source_vocab - 4);
    let id = |key: u64, i: u64| 4 + (rng::uniform(rng::key(&[key]), i) * symbols) as u32;
    (0..n).map(|key| (0..1 + key * 7 % longest).map(|i| id(key, i)).collect()).collect()
}

/// A network whose answers end at different steps, some never.
pub struct Uneven {
    pub weighted: Weighted,
    pub sources: Vec<Vec<u32>>,
    /// What each source gives without company: ids, and whether they ended.
    pub alone: Vec<(Vec<u32>, bool)>,
}

pub fn uneven() -> Uneven {
    let weighted = Weighted::new(&small(), 15).favour(2, 1.5);
    let sources = sources(weighted.config(), 40);
    let alone: Vec<_> = sources.iter().map(|source| weighted.greedy_alone(source)).collect();
    let ends: BTreeSet<usize> = alone.iter().filter(|row| row.1).map(|row| row.0.len()).collect();
    assert!(ends.len() >= 6 && alone.iter().any(|row| !row.1), "{ends:?}");
    Uneven { weighted, sources, alone }
}

/// Examples of different lengths on both sides.
pub fn examples(config: &ModelConfig) -> Vec<Example> {
    let sizes = [1, 7, 3, 11, 5].into_iter().zip(0..);
    let symbols = f32::from(config.target_vocab - 4);
    let id = |key: u64, i: u64| 4 + (rng::uniform(rng::key(&[9, key]), i) * symbols) as u32;
    let target = |(len, key): (u64, u64)| (0..len).map(|i| id(key, i)).collect();
    let sources = sources(config, 5).into_iter();
    sources.zip(sizes.map(target)).map(|(source, target)| Example { source, target }).collect()
}

/// One answer of a device.
pub struct Generated {
    pub ids: Vec<TokenId>,
    /// Of every step, the one that chose the end included.
    pub logits: Vec<Vec<f64>>,
    pub stop: Option<StopReason>,
}

/// Real values of logits.
pub trait Real: Precision {
    fn real(logit: Self::Logit, frac_bits: i8) -> f64;
}

impl Real for runtime::FixedPoint {
    fn real(logit: i32, frac_bits: i8) -> f64 {
        f64::from(logit) * f64::from(-frac_bits).exp2()
    }
}

impl Real for runtime::HalfFloat {
    fn real(logit: f32, _: i8) -> f64 {
        logit.into()
    }
}

/// What a device makes of `source` (symbols; the end id is added here) in at most `max_len` ids.
pub fn generate<P: Real>(file: &AlignedBytes, source: &[u32], max_len: Option<u16>) -> Generated {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound file");
    let logits_format = model.model().formats().get(model_format::formats::ActivationSlot::Logits);
    let mut arena = AlignedBytes::filled(0, model.plan().total);
    let mut session = Session::new(&model, &mut arena).expect("the arena that it asks for");
    let end = model.model().config().special.end;
    let source: Vec<TokenId> = source.iter().map(|&id| id as TokenId).chain([end]).collect();
    let options = GenerateOptions { max_len, ..GenerateOptions::default() };
    let mut generation = session.generate(&source, &options).expect("ids of the vocabulary");
    let (mut ids, mut logits) = (Vec::new(), Vec::new());
    loop {
        let mut row = Vec::new();
        let id =
            generation.next_observed(|_, logit| row.push(P::real(logit, logits_format.frac_bits)));
        if !row.is_empty() {
            logits.push(row);
        }
        match id {
            Some(id) => ids.push(id),
            None => break,
        }
    }
    Generated { ids, logits, stop: generation.stop_reason() }
}

/// As [`generate`], by the precision of a file.
pub fn generate_as(
    stored: Stored,
    file: &AlignedBytes,
    source: &[u32],
    max_len: Option<u16>,
) -> Generated {
    match stored {
        Stored::FixedPoint => generate::<runtime::FixedPoint>(file, source, max_len),
        Stored::HalfFloat => generate::<runtime::HalfFloat>(file, source, max_len),
    }
}

/// For training steps without dropout.
pub const NO_DROPOUT: Dropout =
    Dropout { key: 0, rates: DropoutRates { residual: 0.0, attention: 0.0, activation: 0.0 } };

/// Both number types of a device.
pub const PRECISIONS: [Stored; 2] = [Stored::FixedPoint, Stored::HalfFloat];

/// Whether all of `a` and `b` differ by less than `tolerance`; a NaN is near nothing.
pub fn near<A: Copy + Into<f64>, B: Copy + Into<f64>>(a: &[A], b: &[B], tolerance: f64) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| (a.into() - b.into()).abs() < tolerance)
}
