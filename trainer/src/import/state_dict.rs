//! The tensors of a checkpoint by their foreign names, from either kind of file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors};

use super::torch;

/// Tensors by name.
pub type StateDict = BTreeMap<String, Found>;

/// A tensor as the checkpoint has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Row-major.
    pub shape: Vec<usize>,
    /// As many as the shape says; the name of a data type that holds no weights otherwise, which is
    /// an error only where the tensor is used.
    pub values: Result<Vec<f32>, String>,
}

/// The element types that weights come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl Float {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The value of one little-endian element.
    fn decode(self, bytes: &[u8]) -> f32 {
        let word = bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        match self {
            Self::F64 => f64::from_bits(word) as f32,
            Self::F32 => f32::from_bits(word as u32),
            Self::F16 => f16::from_bits(word as u16).to_f32(),
            Self::Bf16 => bf16::from_bits(word as u16).to_f32(),
        }
    }

    /// The values of little-endian elements.
    pub fn decode_all(self, bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(self.size()).map(|element| self.decode(element)).collect()
    }
}

/// Reads a checkpoint of PyTorch's zip form, or a safetensors file; which of them it is, its first
/// bytes say. `key` chooses among several state dicts of a `.pt`.
pub fn read(path: &Path, key: Option<&str>) -> Result<StateDict> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let tensors = parse(&bytes, key).with_context(|| path.display().to_string())?;
    ensure!(!tensors.is_empty(), "{}: no tensor", path.display());
    Ok(without_wrappers(tensors))
}

/// As [`read`], from the bytes of a file.
pub fn parse(bytes: &[u8], key: Option<&str>) -> Result<StateDict> {
    match bytes {
        [b'P', b'K', ..] => torch::read(bytes, key),
        [0x80, 2..=5, ..] => bail!(
            "PyTorch's legacy pickle form, which is not read. Convert it once, in Python: \
             `import torch; torch.save(torch.load(\"old.pt\", map_location=\"cpu\", \
             weights_only=True), \"new.pt\")`"
        ),
        [_, _, _, _, _, _, _, _, b'{', ..] => {
            ensure!(key.is_none(), "--key is for .pt files: a safetensors file has one state dict");
            safetensors(bytes)
        }
        _ => bail!("neither a .pt file (zip) nor a safetensors file"),
    }
}

fn safetensors(bytes: &[u8]) -> Result<StateDict> {
    let file = SafeTensors::deserialize(bytes)?;
    let tensor = |(name, view): (String, safetensors::tensor::TensorView)| {
        let values = match view.dtype() {
            Dtype::F64 => Ok(Float::F64),
            Dtype::F32 => Ok(Float::F32),
            Dtype::F16 => Ok(Float::F16),
            Dtype::BF16 => Ok(Float::Bf16),
            other => Err(other.to_string()),
        };
        let values = values.map(|float| float.decode_all(view.data()));
        (name, Found { shape: view.shape().to_vec(), values })
    };
    Ok(file.tensors().into_iter().map(tensor).collect())
}

/// What `torch.nn.DataParallel` and `torch.compile` put before every name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// Takes wrappers' prefixes off where all names have them.
fn without_wrappers(mut tensors: StateDict) -> StateDict {
    loop {
        let common = |prefix: &&&str| tensors.keys().all(|name| name.starts_with(**prefix));
        let Some(prefix) = WRAPPERS.iter().find(common) else { return tensors };
        let short = |(name, tensor): (String, Found)| (name[prefix.len()..].to_owned(), tensor);
        tensors = tensors.into_iter().map(short).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_is_decoded() {
        let value = |float: Float, bytes: &[u8]| float.decode_all(bytes)[0];
        assert_eq!(value(Float::F64, &(-1.5_f64).to_le_bytes()), -1.5);
        assert_eq!(value(Float::F32, &(-1.5_f32).to_le_bytes()), -1.5);
        assert_eq!(value(Float::F16, &[0x00, 0xbe]), -1.5);
        assert_eq!(value(Float::Bf16, &[0xc0, 0xbf]), -1.5);
        assert_eq!(value(Float::F64, &1e300_f64.to_le_bytes()), f32::INFINITY);
    }

    #[test]
    fn wrappers_are_taken_off_where_all_names_have_them() {
        let tensor = Found { shape: vec![1], values: Ok(vec![0.0]) };
        let names = |names: &[&str]| -> Vec<String> {
            let tensors = names.iter().map(|name| ((*name).to_owned(), tensor.clone())).collect();
            without_wrappers(tensors).into_keys().collect()
        };
        assert_eq!(names(&["_orig_mod.module.a", "_orig_mod.module.b"]), ["a", "b"]);
        assert_eq!(names(&["module.a", "b"]), ["b", "module.a"]);
    }

    #[test]
    fn what_is_no_checkpoint_is_said_to_be_none() {
        let error = |bytes: &[u8]| format!("{:#}", parse(bytes, None).unwrap_err());
        let legacy = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
        assert!(error(legacy).contains("legacy pickle form"));
        assert!(error(legacy).contains("torch.save(torch.load("));
        assert!(error(b"").contains("neither"));
        assert!(
            error(b"\x02\0\0\0\0\0\0\0{").contains("eader"),
            "{}",
            error(b"\x02\0\0\0\0\0\0\0{")
        );
    }
}
