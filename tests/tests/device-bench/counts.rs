//! The committed counts, and what has become of them.

use std::{collections::BTreeMap, path::Path};

/// Instructions by `board<TAB>operator<TAB>packing<TAB>shape<TAB>tokens`.
pub type Counts = BTreeMap<String, u64>;

/// What a count may grow or shrink by before it is talked about, in percent.
const TOLERANCE: u64 = 2;

const HEADING: &str = "# Instructions of one call, in QEMU; `./ci.sh bench` compares, and writes them with \
                       KILOFORMER_COUNTS=write.\n\
                       # board\toperator\tpacking\tcolumns x rows\ttokens\tinstructions\n";

/// What is to be said about counts that were measured.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Reasons to fail.
    pub worse: Vec<String>,
    /// Reasons to commit new counts.
    pub better: Vec<String>,
}

/// Compares `measured` with the `committed` counts.
pub fn compare(committed: &Counts, measured: &Counts) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, &now) in measured {
        let said = |before: u64| {
            let change = (now as f64 / before as f64 - 1.0) * 100.0;
            format!("{key}: {before} -> {now} ({change:+.1}%)")
        };
        match committed.get(key) {
            None => verdict.worse.push(format!("{key}: {now}, of which no count is committed")),
            Some(&before) if now * 100 > before * (100 + TOLERANCE) => {
                verdict.worse.push(said(before));
            }
            Some(&before) if now * 100 < before * (100 - TOLERANCE) => {
                verdict.better.push(said(before));
            }
            Some(_) => {}
        }
    }
    let gone = committed.keys().filter(|key| !measured.contains_key(*key));
    verdict.worse.extend(gone.map(|key| format!("{key}: committed, but not measured any more")));
    verdict
}

/// The counts in the file at `path`; none where there is no file.
pub fn read(path: &Path) -> Counts {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (key, count) = line.rsplit_once('\t').expect("a key and a count");
            (key.to_owned(), count.parse().expect("a number"))
        })
        .collect()
}

/// Replaces the file at `path`.
pub fn write(path: &Path, counts: &Counts) {
    let lines = counts.iter().map(|(key, count)| format!("{key}\t{count}\n"));
    let text = HEADING.to_owned() + &lines.collect::<String>();
    std::fs::write(path, text).expect("writing the counts");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(list: &[(&str, u64)]) -> Counts {
        list.iter().map(|&(key, count)| (key.to_owned(), count)).collect()
    }

    #[test]
    fn growth_and_missing_counts_fail_and_shrinking_is_reported() {
        let committed = counts(&[("a", 1000), ("b", 1000), ("c", 1000), ("d", 1000), ("e", 1000)]);
        let measured = counts(&[("a", 1020), ("b", 1021), ("c", 980), ("d", 979), ("f", 7)]);
        let verdict = compare(&committed, &measured);
        let starts = |list: &[String]| -> Vec<char> {
            list.iter().filter_map(|line| line.chars().next()).collect()
        };
        assert_eq!(starts(&verdict.worse), ['b', 'f', 'e']);
        assert_eq!(starts(&verdict.better), ['d']);
        assert_eq!(compare(&committed, &committed), Verdict::default());
    }

    #[test]
    fn a_file_gives_back_what_was_written() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("counts.tsv");
        let written = counts(&[("board\tfull\trow-major\t64 x 64\t1", 12_345), ("b\tc", 0)]);
        write(&path, &written);
        assert_eq!(read(&path), written);
    }
}
