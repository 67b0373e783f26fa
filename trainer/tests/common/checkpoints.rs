//! What the tests of the import share.
#![allow(dead_code)] // each of them uses a part of it

use std::path::{Path, PathBuf};

use trainer::import::config::Lengths;
use trainer::import::vocabulary::SplittingChoice;
use trainer::import::{Imported, Request, import};

/// A file of `tests/data/import`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import").join(name)
}

/// Imports with the limits and the splitting of the files.
pub fn import_files(
    checkpoint: &Path,
    config: &Path,
    vocab: &Path,
    names: &str,
) -> anyhow::Result<Imported> {
    import(Request {
        checkpoint,
        key: None,
        config,
        vocab,
        names,
        lengths: Lengths::default(),
        source: SplittingChoice::default(),
        target: SplittingChoice::default(),
    })
}

/// A pickle whose state dict has one tensor, a view of one storage.
pub fn pickle_of(class: &str, storage_len: u64, shape: &[u32], strides: &[u32]) -> Vec<u8> {
    let text = |text: &str| {
        let mut bytes = vec![b'X'];
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.bytes());
        bytes
    };
    let tuple = |sizes: &[u32]| {
        let mut bytes = vec![b'('];
        sizes.iter().for_each(|size| {
            bytes.push(0x8a);
            bytes.push(5);
            bytes.extend(size.to_le_bytes());
            bytes.push(0);
        });
        bytes.push(b't');
        bytes
    };
    let mut bytes = b"\x80\x02}".to_vec();
    bytes.extend(text("w"));
    bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    bytes.extend(text("storage"));
    bytes.extend(format!("ctorch\n{class}\n").bytes());
    bytes.extend(text("0"));
    bytes.extend(text("cpu"));
    bytes.extend([0x8a, 8]);
    bytes.extend(storage_len.to_le_bytes());
    bytes.extend(b"tQK\x00");
    bytes.extend(tuple(shape));
    bytes.extend(tuple(strides));
    bytes.extend(b"\x89NtRs.");
    bytes
}

/// An archive as PyTorch writes it, with entries of these names and contents.
pub fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in entries {
        zip.start_file(format!("model/{name}"), options).unwrap();
        std::io::Write::write_all(&mut zip, bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
