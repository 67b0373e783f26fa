//! A second implementation, which was written from the specification of the file alone, computes the
//! same bits: what `FORMAT.md` says is what the runtime does.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

const PYTHON: &str = "python3";

#[test]
fn an_interpreter_written_from_the_specification_gives_the_golden_answers() {
    match Command::new(PYTHON).arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: there is no `{PYTHON}`");
            return;
        }
        version => assert!(version.expect("a process").status.success(), "{PYTHON} does not run"),
    }
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read_dir(tests.join("golden/v1")).expect("golden files");
    let mut compared = 0;
    for entry in golden {
        let model = entry.expect("an entry").path();
        if model.extension().is_none_or(|extension| extension != "kfm") {
            continue;
        }
        let expected = fs::read_to_string(model.with_extension("tsv")).expect("the answers");
        let words = expected.lines().filter_map(|line| line.split('\t').next());
        let output = Command::new(PYTHON)
            .arg(tests.join("oracle/kfm.py"))
            .arg(&model)
            .args(words)
            // Without it, an interpreter in a plain locale cannot print every text.
            .env("PYTHONUTF8", "1")
            .output()
            .expect("a process");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", model.display());
        let found = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
        assert_eq!(found, expected, "{}", model.display());
        compared += 1;
    }
    assert!(compared >= 18, "only {compared} golden files");
}
