//! Looks at every activation of one sentence.
