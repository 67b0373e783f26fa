//! The architecture's choices as values of options.

use clap::ValueEnum;
use model_format::config::{Activation, Family, NormPlace, Output, Positions, SourceFrame};

/// Which stacks there are.
#[derive(Clone, Copy, ValueEnum)]
pub enum FamilyOption {
    /// Text to text.
    EncoderDecoder,
    /// A language model, which goes on with a prompt.
    DecoderOnly,
    /// A label for every source symbol.
    Tagger,
    /// A label for the text.
    Classifier,
}

impl From<FamilyOption> for Family {
    fn from(option: FamilyOption) -> Self {
        match option {
            FamilyOption::EncoderDecoder => Self::EncoderDecoder,
            FamilyOption::DecoderOnly => Self::DecoderOnly,
            FamilyOption::Tagger => Self::Tagger,
            FamilyOption::Classifier => Self::Classifier,
        }
    }
}

/// Where LayerNorm stands.
#[derive(Clone, Copy, ValueEnum)]
pub enum NormOption {
    /// Before each sublayer.
    Pre,
    /// After each residual sum.
    Post,
}

impl From<NormOption> for NormPlace {
    fn from(option: NormOption) -> Self {
        match option {
            NormOption::Pre => Self::Pre,
            NormOption::Post => Self::Post,
        }
    }
}

/// How positions enter.
#[derive(Clone, Copy, ValueEnum)]
pub enum PositionsOption {
    /// Sine at even and cosine at odd columns.
    SinusoidalInterleaved,
    /// Sines, then cosines.
    SinusoidalHalves,
    /// One learned row per position.
    Learned,
}

impl From<PositionsOption> for Positions {
    fn from(option: PositionsOption) -> Self {
        match option {
            PositionsOption::SinusoidalInterleaved => Self::SinusoidalInterleaved,
            PositionsOption::SinusoidalHalves => Self::SinusoidalHalves,
            PositionsOption::Learned => Self::Learned,
        }
    }
}

/// Where the output takes its weights from.
#[derive(Clone, Copy, ValueEnum)]
pub enum OutputOption {
    /// The target embedding.
    Tied,
    /// The target embedding, with a bias of its own.
    TiedBias,
    /// A matrix of its own.
    Untied,
    /// A matrix of its own, with bias.
    UntiedBias,
}

impl From<OutputOption> for Output {
    fn from(option: OutputOption) -> Self {
        match option {
            OutputOption::Tied => Self::Tied,
            OutputOption::TiedBias => Self::TiedBias,
            OutputOption::Untied => Self::Untied,
            OutputOption::UntiedBias => Self::UntiedBias,
        }
    }
}

/// The feed-forward's non-linearity.
#[derive(Clone, Copy, ValueEnum)]
pub enum ActivationOption {
    /// `max(0, x)`.
    Relu,
    /// `x` times the normal distribution.
    Gelu,
    /// GELU by its approximation with tanh.
    GeluTanh,
    /// `x` times the logistic function.
    Silu,
}

impl From<ActivationOption> for Activation {
    fn from(option: ActivationOption) -> Self {
        match option {
            ActivationOption::Relu => Self::Relu,
            ActivationOption::Gelu => Self::Gelu,
            ActivationOption::GeluTanh => Self::GeluTanh,
            ActivationOption::Silu => Self::Silu,
        }
    }
}

/// What stands around the symbols of a source.
#[derive(Clone, Copy, ValueEnum)]
pub enum SourceFrameOption {
    /// The end id after them.
    End,
    /// The start id before and the end id after them.
    StartEnd,
    /// Nothing.
    Bare,
}

impl From<SourceFrameOption> for SourceFrame {
    fn from(option: SourceFrameOption) -> Self {
        match option {
            SourceFrameOption::End => Self::End,
            SourceFrameOption::StartEnd => Self::StartEnd,
            SourceFrameOption::Bare => Self::Bare,
        }
    }
}
