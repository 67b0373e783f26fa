//! A file with the number type that runs it.

use core::fmt;
use core::marker::PhantomData;

use model_format::config::{Activation, Precision as Stored};
use model_format::{Checks, Model, ModelError};

use crate::plan::Plan;
use crate::precision::Precision;

/// A model whose numbers are `P`: the file, checked.
#[derive(Debug, Clone, Copy)]
pub struct TypedModel<'m, P> {
    pub(crate) model: Model<'m>,
    precision: PhantomData<P>,
}

/// An integer model.
pub type FixedModel<'m> = TypedModel<'m, crate::FixedPoint>;
/// An `f16` model.
pub type HalfModel<'m> = TypedModel<'m, crate::HalfFloat>;

/// Why a file cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LoadError {
    /// The file is not a sound model.
    Model(ModelError),
    /// The file is sound, but of another number type.
    WrongPrecision {
        /// Number type of the file.
        found: model_format::config::Precision,
    },
    /// The file is sound, but this build lacks a feature of `runtime` that it needs.
    Unsupported {
        /// Its name.
        feature: &'static str,
    },
}

impl<'m, P: Precision> TypedModel<'m, P> {
    /// Checks all of `file`; nothing is copied.
    ///
    /// # Errors
    /// When the file is damaged, of another number type, or needs a feature that this build lacks.
    pub fn from_bytes(file: &'m [u8]) -> Result<Self, LoadError> {
        Self::from_bytes_with(file, Checks::Full)
    }

    /// Checks as much of `file` as `checks` asks for: the checksum and the scan of the weights read
    /// the whole file, which a device may skip for memory that it trusts.
    ///
    /// # Errors
    /// When the file is damaged, of another number type, or needs a feature that this build lacks.
    pub fn from_bytes_with(file: &'m [u8], checks: Checks) -> Result<Self, LoadError> {
        match Model::from_bytes_with(file, checks) {
            Ok(model) => Self::new(model),
            Err(error) => Err(match error.missing_feature() {
                Some(feature) => LoadError::Unsupported { feature },
                None => LoadError::Model(error),
            }),
        }
    }

    /// The typed view of a model that was checked before.
    ///
    /// # Errors
    /// When it is of another number type, or needs a feature that this build lacks.
    pub fn new(model: Model<'m>) -> Result<Self, LoadError> {
        let found = model.header().precision;
        if found != P::STORED {
            return Err(LoadError::WrongPrecision { found });
        }
        match lacking(&model) {
            Some(feature) => Err(LoadError::Unsupported { feature }),
            None => Ok(Self { model, precision: PhantomData }),
        }
    }

    /// The file.
    pub fn model(&self) -> &Model<'m> {
        &self.model
    }

    /// How the arena is laid out for the longest sequences of the file.
    pub fn plan(&self) -> Plan {
        Plan::of(self.model.header())
    }
}

/// The feature that the model needs and this build lacks.
fn lacking(model: &Model<'_>) -> Option<&'static str> {
    let header = model.header();
    let typed = match header.config.has_encoder() {
        true => model.source_vocabulary(),
        false => model.target_vocabulary(),
    };
    if !cfg!(feature = "unicode-case") && header.text.fold_case && !typed.is_ascii() {
        return Some("unicode-case");
    }
    let is_plain = header.precision != Stored::FixedPoint
        || cfg!(feature = "gated")
        || header.config.activation == Activation::Relu;
    (!is_plain).then_some("gated")
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::WrongPrecision { found } => write!(f, "the file holds a {found:?} model"),
            Self::Unsupported { feature } => {
                write!(f, "the file needs feature `{feature}`, which this build lacks")
            }
        }
    }
}

impl core::error::Error for LoadError {}
