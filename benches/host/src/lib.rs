//! What is measured on a host: three sizes of an encoder-decoder, and one sentence for all of them.

use kiloformer_tests::random_model::{Random, Storage, endless_model};
use model_format::AlignedBytes;
use model_format::config::{
    Activation, Family, ModelConfig, NormPlace, Output, Positions, Precision, SourceFrame,
    SpecialIds, StackConfig,
};
use model_format::layout::Layout;
use runtime::TokenId;

/// Ids of a source, its end id among them, and ids that are generated.
pub const LEN: u16 = 32;

/// Seed of the weights.
const SEED: u64 = 1;

/// How weights and activations are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// FixedPoint, `i8` weights.
    W8A16,
    /// FixedPoint, weights of 4 bits wherever they may.
    W4A16,
    /// `f16` weights, `f32` arithmetic.
    HalfFloat,
}

impl Numbers {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::W8A16, Self::W4A16, Self::HalfFloat];

    /// The numbers of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|numbers| format!("{numbers:?}") == name)
    }
}

/// A size: `S`, `M` or `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// 64 wide, 2 + 2 layers, 1000 ids.
    S,
    /// 256 wide, 3 + 3 layers, 10000 ids.
    M,
    /// 512 wide, 6 + 6 layers, 10000 ids: the base model of Vaswani et al. 2017.
    B,
}

impl Size {
    /// The size of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::S, Self::M, Self::B].into_iter().find(|size| format!("{size:?}") == name)
    }

    /// A pre-LayerNorm model of this size whose output is tied to the target embedding.
    pub fn config(self) -> ModelConfig {
        let (d_model, n_heads, d_ff, n_layers, vocab) = match self {
            Self::S => (64, 4, 256, 2, 1000),
            Self::M => (256, 8, 512, 3, 10000),
            Self::B => (512, 8, 2048, 6, 10000),
        };
        let stack = StackConfig { n_layers, n_heads, d_ff };
        ModelConfig {
            family: Family::EncoderDecoder,
            d_model,
            encoder: stack,
            decoder: stack,
            source_vocab: vocab,
            target_vocab: vocab,
            max_source_len: LEN,
            max_target_len: LEN,
            norm: NormPlace::Pre,
            final_norm: true,
            positions: Positions::SinusoidalInterleaved,
            output: Output::TiedBias,
            shared_embedding: false,
            scale_embedding: true,
            source_frame: SourceFrame::End,
            activation: Activation::Relu,
            layer_norm_eps: 1e-5,
            special: SpecialIds::default(),
        }
    }

    /// A model of this size that never ends an answer by itself, in the layout for hosts.
    pub fn model(self, numbers: Numbers) -> AlignedBytes {
        let (precision, layout) = match numbers {
            Numbers::W8A16 | Numbers::W4A16 => (Precision::FixedPoint, Layout::QuadRows),
            Numbers::HalfFloat => (Precision::HalfFloat, Layout::SixteenRows),
        };
        let storage = Storage { layout, four_bit: numbers == Numbers::W4A16 };
        endless_model(precision, &self.config(), SEED, storage)
    }
}

/// [`LEN`] ids that a model with `config` reads, the last of them the end id.
pub fn source(config: &ModelConfig) -> Vec<TokenId> {
    let mut random = Random(SEED);
    let first = config.special.unknown + 1;
    let mut id = || first + (random.bits() % u64::from(config.source_vocab - first)) as TokenId;
    let mut ids: Vec<TokenId> = (1..LEN).map(|_| id()).collect();
    ids.push(config.special.end);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_format::Model;
    use runtime::{
        FixedPoint, GenerateOptions, HalfFloat, LogitsHash, Session, StopReason, TypedModel,
    };

    fn says_all<P: runtime::Precision>(model: Model<'_>) {
        let model = TypedModel::<P>::new(model).unwrap();
        let mut arena = AlignedBytes::filled(0, model.plan().total);
        let mut session = Session::new(&model, &mut arena).unwrap();
        let source = source(model.model().config());
        assert_eq!(source.len(), usize::from(LEN));
        let count = session.generate(&source, &GenerateOptions::default()).unwrap().count();
        assert_eq!(count, usize::from(LEN));
        assert_eq!(session.last_stop(), Some(StopReason::LengthLimit));
    }

    /// A hash of the logits of all steps.
    fn logits<P: runtime::Precision>(file: &AlignedBytes) -> u64 {
        let model = TypedModel::<P>::from_bytes(file).unwrap();
        let mut arena = AlignedBytes::filled(0, model.plan().total);
        let mut session = Session::new(&model, &mut arena).unwrap();
        let source = source(model.model().config());
        let mut answer = session.generate(&source, &GenerateOptions::default()).unwrap();
        let mut hash = LogitsHash::default();
        while answer.next_observed(|_, logit| hash.push(logit)).is_some() {}
        hash.value()
    }

    /// No feature that counts is on here, which would keep the fastest kernels from running (alone, that
    /// is, not with `--workspace`).
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_set_of_instructions_gives_the_same_logits() {
        use runtime::kernels::x86::{Isa, force};
        for (size, numbers) in
            [Size::S, Size::M].into_iter().flat_map(|size| Numbers::ALL.map(|n| (size, n)))
        {
            let file = size.model(numbers);
            let hashes = Isa::ALL.into_iter().filter(|&isa| force(isa)).map(|_| match numbers {
                Numbers::HalfFloat => logits::<HalfFloat>(&file),
                _ => logits::<FixedPoint>(&file),
            });
            let mut hashes: Vec<u64> = hashes.collect();
            hashes.dedup();
            assert_eq!(hashes.len(), 1, "{size:?} {numbers:?}");
        }
    }

    #[test]
    fn every_answer_is_as_long_as_it_may_be() {
        for size in [Size::S, Size::M] {
            for numbers in Numbers::ALL {
                let file = size.model(numbers);
                let model = Model::from_bytes(&file).unwrap();
                match model.header().precision {
                    Precision::FixedPoint => says_all::<FixedPoint>(model),
                    Precision::HalfFloat => says_all::<HalfFloat>(model),
                }
            }
        }
    }
}
