//! Constrained choice: the outputs of a sorted list share their prefixes as in a trie, and the range
//! of those that share one is its node. Nothing is built.

use crate::tokenizer::TokenId;

/// A node: the outputs that begin with the ids so far.
#[derive(Debug, Clone, Copy)]
pub struct Trie<'a> {
    /// Ascending; all begin with the same `depth` ids.
    sequences: &'a [&'a [TokenId]],
    depth: usize,
}

impl<'a> Trie<'a> {
    /// The root over `sequences`, which must ascend.
    pub fn new(sequences: &'a [&'a [TokenId]]) -> Self {
        Self { sequences, depth: 0 }
    }

    /// The node after `history`; two binary searches per id.
    pub fn after(self, history: &[TokenId]) -> Self {
        history.iter().fold(self, |node, id| node.child(*id))
    }

    /// The node after one more id: empty where no output goes on with it.
    pub fn child(self, id: TokenId) -> Self {
        let below = self.partition(|next| next < Some(id));
        let upto = self.partition(|next| next <= Some(id));
        Self {
            sequences: self.sequences.get(below..upto).unwrap_or_default(),
            depth: self.depth.saturating_add(1),
        }
    }

    /// Whether an output goes on with `id`.
    pub fn allows(self, id: TokenId) -> bool {
        let at = self.partition(|next| next < Some(id));
        self.sequences.get(at).is_some_and(|sequence| sequence.get(self.depth) == Some(&id))
    }

    /// Whether an output ends here.
    pub fn is_complete(self) -> bool {
        self.sequences.first().is_some_and(|sequence| sequence.len() == self.depth)
    }

    /// Number of outputs whose next id satisfies `is_below`; an output that ends here has none and
    /// comes first.
    fn partition(self, is_below: impl Fn(Option<TokenId>) -> bool) -> usize {
        self.sequences.partition_point(|sequence| is_below(sequence.get(self.depth).copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const OUTPUTS: [&[TokenId]; 6] = [&[], &[4], &[4, 4], &[4, 7], &[5, 6, 7], &[9]];

    #[test]
    fn exactly_the_next_ids_of_the_outputs_are_allowed() {
        // Against a search of the list, for every history of up to 4 ids.
        let mut histories: Vec<Vec<TokenId>> = std::vec![Vec::new()];
        for len in 0..4 {
            let longest: Vec<_> = histories.iter().filter(|h| h.len() == len).cloned().collect();
            for history in longest {
                histories.extend((3..=10).map(|id| [&history[..], &[id]].concat()));
            }
        }
        for history in &histories {
            let node = Trie::new(&OUTPUTS).after(history);
            assert_eq!(node.is_complete(), OUTPUTS.contains(&&history[..]), "{history:?}");
            for id in 0..12 {
                let longer = [&history[..], &[id]].concat();
                let expected = OUTPUTS.iter().any(|output| output.starts_with(&longer));
                assert_eq!(node.allows(id), expected, "{history:?} {id}");
            }
        }
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        assert!(!Trie::new(&[]).allows(1) && !Trie::new(&[]).is_complete());
    }
}
