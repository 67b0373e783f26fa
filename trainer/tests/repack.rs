//! `trainer repack`: the same answers from every layout; what cannot be is refused.

use std::path::{Path, PathBuf};
use std::process::Command;

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name)
}

/// Runs to the end: whether it succeeded, and what it said.
fn run(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(args).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), said)
}

#[test]
fn a_file_in_the_layout_of_a_processor_answers_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (file, processors) in [
        ("g2p-en.kfm", ["cortex-m4", "cortex-m0plus", "cortex-m55"].as_slice()),
        ("g2p-en-f16.kfm", &["x86-64"]),
    ] {
        let original = shipped(file);
        let words = ["--", "kilobyte", "transformer"];
        let ask = |path: &Path| run(&[&["run", path.to_str().unwrap()], &words[..]].concat());
        assert!(ask(&original).1.contains("K IH1 L AH0 B AY2 T"), "{}", ask(&original).1);
        for processor in processors {
            let packed = folder.path().join(format!("{processor}.kfm"));
            let (from, to) = (original.to_str().unwrap(), packed.to_str().unwrap());
            let (ok, said) = run(&["repack", from, "--for", processor, "-o", to]);
            assert!(ok, "{said}");
            assert_eq!(ask(&packed), ask(&original), "{processor}");
            let back = folder.path().join("back.kfm");
            let (ok, said) =
                run(&["repack", to, "--layout", "row-major", "-o", back.to_str().unwrap()]);
            assert!(ok, "{said}");
            assert_eq!(std::fs::read(back).unwrap(), std::fs::read(&original).unwrap());
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.kfm");
    let to = output.to_str().unwrap();
    let (fixed, half) = (shipped("g2p-en.kfm"), shipped("g2p-en-f16.kfm"));
    let (fixed, half) = (fixed.to_str().unwrap(), half.to_str().unwrap());
    for (args, expected) in [
        (vec!["repack", fixed, "-o", to], "--layout LAYOUT or --for PROCESSOR"),
        (vec!["repack", fixed, "--layout", "sixteen-rows", "-o", to], "cannot have its matrices"),
        (vec!["repack", half, "--layout", "quad-rows", "-o", to], "cannot have its matrices"),
        (vec!["repack", fixed, "--for", "z80", "-o", to], "cortex-m0plus"),
        (vec!["repack", file!(), "--for", "cortex-m4", "-o", to], "error"),
    ] {
        let (ok, said) = run(&args);
        assert!(!ok && said.contains(expected), "{said}");
        assert!(!output.exists(), "nothing may be left behind");
    }
}
