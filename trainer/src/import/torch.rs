//! PyTorch's zip form of a checkpoint: `NAME/data.pkl` says which tensors there are, `NAME/data/KEY`
//! are their numbers.

use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{Id, Object, Pickle, Storage, TensorView};
use super::state_dict::{Float, Found, StateDict};

/// Where training programs keep the state dict inside of a checkpoint, most usual first.
const USUAL_KEYS: [&str; 5] = ["model_state_dict", "state_dict", "model_state", "model", "net"];

/// Reads the state dict of a `.pt` file: the file's own dictionary where that holds tensors, one
/// under a usual key of a training checkpoint otherwise, or the one under `key`.
pub fn read(bytes: &[u8], key: Option<&str>) -> Result<StateDict> {
    let mut archive = Archive::open(bytes)?;
    let pickle = Pickle::parse(&archive.entry("data.pkl")?).context("data.pkl")?;
    let tensors = state_dict(&pickle, key)?;
    // Views may share storages, but not make a small file fill the memory.
    let mut budget = bytes.len() as u64;
    let read = |(name, view): (String, &TensorView)| {
        let found = archive.tensor(view, &mut budget);
        Ok((name.clone(), found.with_context(|| format!("tensor `{name}`"))?))
    };
    tensors.into_iter().map(read).collect()
}

/// The tensors of the chosen dictionary.
fn state_dict<'a>(pickle: &'a Pickle, key: Option<&str>) -> Result<Vec<(String, &'a TensorView)>> {
    let Object::Dict(root) = pickle.root() else {
        bail!("the file holds no dictionary: save `model.state_dict()`");
    };
    let keys: Vec<(&str, Id)> = root.iter().filter_map(|(k, v)| text(pickle, *k, *v)).collect();
    let list = || keys.iter().map(|(k, _)| format!("`{k}`")).collect::<Vec<_>>().join(", ");
    let nested = |wanted: &str| keys.iter().find(|(k, _)| *k == wanted).map(|(_, id)| *id);
    if let Some(key) = key {
        let id = nested(key);
        let id = id.with_context(|| format!("no key `{key}` in the checkpoint: {}", list()))?;
        let Object::Dict(items) = pickle.get(id) else { bail!("`{key}` is no dictionary") };
        return Ok(tensors(pickle, items));
    }
    let own = tensors(pickle, root);
    if !own.is_empty() {
        return Ok(own);
    }
    for id in USUAL_KEYS.into_iter().filter_map(nested) {
        if let Object::Dict(items) = pickle.get(id) {
            let found = tensors(pickle, items);
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
    bail!("no state dict under a usual key; --key chooses one of {}", list())
}

fn text(pickle: &Pickle, key: Id, value: Id) -> Option<(&str, Id)> {
    match pickle.get(key) {
        Object::Text(key) => Some((key, value)),
        _ => None,
    }
}

fn tensors<'a>(pickle: &'a Pickle, items: &[(Id, Id)]) -> Vec<(String, &'a TensorView)> {
    let items = items.iter().filter_map(|(k, v)| text(pickle, *k, *v));
    let tensor = |(name, id): (&str, Id)| match pickle.get(id) {
        Object::Tensor(view) => Some((name.to_owned(), view)),
        _ => None,
    };
    items.filter_map(tensor).collect()
}

/// The archive, with the storages that were read.
struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// The folder that all entries lie in, with its slash.
    folder: String,
    storages: HashMap<String, Vec<u8>>,
}

impl<'a> Archive<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self> {
        let zip = ZipArchive::new(Cursor::new(bytes)).context("not a whole zip archive")?;
        let folder = |name: &str| name.strip_suffix("data.pkl").map(str::to_owned);
        let folder = zip.file_names().flatten().find_map(|name| folder(&name));
        let folder = folder.context("no `data.pkl` in the archive: not a checkpoint of PyTorch")?;
        let mut archive = Self { zip, folder, storages: HashMap::new() };
        if archive.zip.index_for_name(&format!("{}byteorder", archive.folder)).is_some() {
            let order = archive.entry("byteorder")?;
            ensure!(
                order == b"little",
                "numbers are in byte order `{}`; only `little` is read",
                String::from_utf8_lossy(&order)
            );
        }
        Ok(archive)
    }

    /// The bytes of an entry; never more than the file has, since PyTorch compresses nothing.
    fn entry(&mut self, name: &str) -> Result<Vec<u8>> {
        let name = format!("{}{name}", self.folder);
        let mut entry =
            self.zip.by_name(&name).with_context(|| format!("entry `{name}` of the archive"))?;
        ensure!(
            entry.compression() == CompressionMethod::Stored,
            "entry `{name}` is compressed, which PyTorch never does"
        );
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).with_context(|| format!("entry `{name}` of the archive"))?;
        ensure!(
            bytes.len() as u64 == entry.size(),
            "entry `{name}` of the archive has {} bytes, not {}",
            bytes.len(),
            entry.size()
        );
        Ok(bytes)
    }

    /// The values of a view; `budget` is how many more values may be made.
    fn tensor(&mut self, view: &TensorView, budget: &mut u64) -> Result<Found> {
        let (len, range) = extent(view)?;
        ensure!(
            range.end <= view.storage.len,
            "its view {:?} reaches element {} of a storage of {}",
            view.shape,
            range.end,
            view.storage.len
        );
        let shape = view.shape.iter().map(|size| *size as usize).collect();
        let Some(float) = float(&view.storage.class) else {
            let class = view.storage.class.trim_end_matches("Storage").to_lowercase();
            return Ok(Found { shape, values: Err(class) });
        };
        if len == 0 {
            return Ok(Found { shape, values: Ok(Vec::new()) });
        }
        *budget = budget.checked_sub(len).context("all views together are larger than the file")?;
        let bytes = self.storage(&view.storage, float)?;
        let size = float.size();
        if is_contiguous(view) {
            let start = range.start as usize * size;
            let values = float.decode_all(&bytes[start..start + len as usize * size]);
            return Ok(Found { shape, values: Ok(values) });
        }
        let mut gathered = Vec::with_capacity(len as usize * size);
        for at in elements(view) {
            gathered.extend_from_slice(&bytes[at * size..(at + 1) * size]);
        }
        Ok(Found { shape, values: Ok(float.decode_all(&gathered)) })
    }

    fn storage(&mut self, storage: &Storage, float: Float) -> Result<&[u8]> {
        let key = storage.key.as_str();
        if !self.storages.contains_key(key) {
            let bytes = self.entry(&format!("data/{key}"))?;
            self.storages.insert(key.to_owned(), bytes);
        }
        let bytes = self.storages.get(key).context("no storage")?;
        let needed = u128::from(storage.len) * float.size() as u128;
        ensure!(
            bytes.len() as u128 == needed,
            "its storage `{key}` should have {} x {} bytes, and has {}",
            storage.len,
            float.size(),
            bytes.len()
        );
        Ok(bytes)
    }
}

fn float(class: &str) -> Option<Float> {
    match class {
        "DoubleStorage" => Some(Float::F64),
        "FloatStorage" => Some(Float::F32),
        "HalfStorage" => Some(Float::F16),
        "BFloat16Storage" => Some(Float::Bf16),
        _ => None,
    }
}

/// Number of values of a view, and the elements of the storage between its first and its last.
fn extent(view: &TensorView) -> Result<(u64, Range<u64>)> {
    let sizes = || view.shape.iter().zip(&view.strides);
    let len = view.shape.iter().try_fold(1_u64, |len, size| len.checked_mul(*size));
    let span = sizes().try_fold(0_u64, |span, (size, stride)| {
        span.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
    });
    let extent = len.zip(span).and_then(|(len, span)| {
        let span = if len == 0 { 0 } else { span.checked_add(1)? };
        Some((len, view.offset..view.offset.checked_add(span)?))
    });
    extent.with_context(|| format!("its shape {:?} is beyond all memory", view.shape))
}

fn is_contiguous(view: &TensorView) -> bool {
    let mut expected = 1_u64;
    view.shape.iter().zip(&view.strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == expected;
        expected = expected.saturating_mul(*size);
        fits
    })
}

/// The elements of the storage that a view shows, in row-major order.
fn elements(view: &TensorView) -> Vec<usize> {
    let sizes = view.shape.iter().zip(&view.strides);
    sizes.fold(vec![view.offset as usize], |starts, (size, stride)| {
        let steps = |start: usize| (0..*size).map(move |i| start + (i * stride) as usize);
        starts.into_iter().flat_map(steps).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(offset: u64, shape: &[u64], strides: &[u64]) -> TensorView {
        let storage = Storage { class: "FloatStorage".into(), key: "0".into(), len: 12 };
        TensorView { storage, offset, shape: shape.to_vec(), strides: strides.to_vec() }
    }

    #[test]
    fn strides_and_offsets_are_followed() {
        assert_eq!(elements(&view(1, &[2, 3], &[1, 4])), [1, 5, 9, 2, 6, 10]);
        assert!(is_contiguous(&view(1, &[2, 3], &[3, 1])));
        assert!(is_contiguous(&view(1, &[1, 3], &[7, 1])));
        assert!(!is_contiguous(&view(1, &[2, 3], &[1, 2])));
        assert_eq!(extent(&view(1, &[2, 3], &[1, 4])).unwrap(), (6, 1..11));
        assert_eq!(extent(&view(1, &[0, 3], &[1, 4])).unwrap(), (0, 1..1));
        assert_eq!(elements(&view(4, &[], &[])), [4]);
    }

    #[test]
    fn sizes_beyond_all_memory_are_refused() {
        assert!(extent(&view(0, &[u64::MAX, 2], &[0, 0])).is_err());
        assert!(extent(&view(0, &[3, 1], &[u64::MAX, 1])).is_err());
        assert!(extent(&view(u64::MAX, &[1], &[1])).is_err());
    }
}
