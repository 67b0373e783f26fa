//! Which token follows: a sink of (id, logit), which sees nothing else.

use model_format::config::SpecialIds;

use crate::precision::Logit;
use crate::tokenizer::TokenId;

/// Greedy search: the largest logit, the lowest id among equals; never padding, never start.
pub(crate) struct Greedy<L> {
    best: Option<(TokenId, L)>,
    never: [TokenId; 2],
}

impl<L: Logit> Greedy<L> {
    pub fn new(special: &SpecialIds) -> Self {
        Self { best: None, never: [special.pad, special.start] }
    }

    /// Among labels, none of which is special.
    pub fn among_labels() -> Self {
        // A vocabulary has at most `u16::MAX` ids, the last of which is one less.
        Self { best: None, never: [TokenId::MAX; 2] }
    }

    /// Takes the next logit, ids ascending.
    pub fn push(&mut self, id: TokenId, logit: L) {
        let is_better = match self.best {
            None => true,
            Some((_, best)) => logit > best,
        };
        if is_better && !self.never.contains(&id) {
            self.best = Some((id, logit));
        }
    }

    /// The token; `None` where every id is excluded.
    pub fn finish(&self) -> Option<TokenId> {
        self.best.map(|(id, _)| id)
    }
}

/// FNV-1a-64 over the little-endian logits of every step: what equivalence tests compare.
///
/// ```
/// let mut hash = runtime::LogitsHash::default();
/// hash.push(1_i32);
/// assert_eq!(hash.value(), 0xad2a_ca77_4798_5764);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitsHash(u64);

impl Default for LogitsHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl LogitsHash {
    /// Takes one logit.
    pub fn push<L: Logit>(&mut self, logit: L) {
        for byte in logit.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lowest_id_and_special_ids_never_win() {
        let mut greedy = Greedy::new(&SpecialIds::default());
        for (id, logit) in [(0, 100), (1, 90), (2, -3), (3, 5), (4, 5)] {
            greedy.push(id, logit);
        }
        assert_eq!(greedy.finish(), Some(3));
    }
}
