//! The bundled dictionary: English words and their phones.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::corpus::Pair;

/// `cmudict.dict`, gzipped; see `data/cmudict/README.md`.
const COMPRESSED: &[u8] = include_bytes!("../../../data/cmudict/cmudict.dict.gz");
const SHA256: &str = "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22";

/// Every pronunciation of every word of letters and apostrophes.
pub fn load(stress: bool) -> Result<Vec<Pair>> {
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(COMPRESSED);
    decoder.read_to_string(&mut text).context("unpacking the bundled dictionary")?;
    let digest: String =
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(digest == SHA256, "the bundled dictionary has sha256 {digest}, not {SHA256}");
    Ok(text.lines().enumerate().filter_map(|(i, line)| parse(line, i + 1, stress)).collect())
}

/// `word(variant) PHONE PHONE # comment`; nothing for a word with other characters.
fn parse(line: &str, number: usize, stress: bool) -> Option<Pair> {
    let entry = line.split('#').next()?;
    let (word, phones) = entry.split_once(' ')?;
    let word = word.split('(').next()?;
    let letters = |c: char| c.is_ascii_lowercase() || c == '\'';
    if !word.chars().all(letters) || !word.contains(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    let phones: Vec<&str> = phones.split_whitespace().collect();
    let mut target = phones.join(" ");
    if !stress {
        target.retain(|c| !c.is_ascii_digit());
    }
    (!target.is_empty()).then(|| Pair { source: word.to_owned(), target, line: number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn entries_lose_comments_and_variant_numbers() {
        let parsed = |line, stress| parse(line, 1, stress).map(|p| (p.source, p.target));
        let pair = |s: &str, t: &str| Some((s.to_owned(), t.to_owned()));
        let line = "aalborg(2) AA1 L B AO0 R G # place, danish";
        assert_eq!(parsed(line, true), pair("aalborg", "AA1 L B AO0 R G"));
        assert_eq!(parsed(line, false), pair("aalborg", "AA L B AO R G"));
        assert_eq!(parsed("a.m. EY2 EH1 M", true), None);
        assert_eq!(parsed("'bout B AW1 T", true), pair("'bout", "B AW1 T"));
    }

    #[test]
    fn the_bundled_dictionary_has_its_known_size() {
        let pairs = load(true).unwrap();
        let words: BTreeSet<&str> = pairs.iter().map(|p| p.source.as_str()).collect();
        let phones: BTreeSet<&str> = pairs.iter().flat_map(|p| p.target.split(' ')).collect();
        assert_eq!((pairs.len(), words.len(), phones.len()), (133_973, 124_926, 69));
        assert!(words.iter().all(|word| word.len() <= 28));
    }
}
