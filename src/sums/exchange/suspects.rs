//! Which worker must have lied, if one alone has.
//!
//! # Method
//! Words that contradict each other show that one of a few workers has said what is not so: who
//! sent something, or who says what came of it. One contradiction seldom tells which, but the one
//! who lies is among those of each. So what is left of all of them is kept, over steps, until it is
//! one worker. Where nothing is left several have lied, and it begins again.

use std::collections::BTreeSet;

/// What contradictions have shown so far.
#[derive(Debug, Default)]
pub(super) struct Suspects(BTreeSet<u32>);

impl Suspects {
    /// One of these has lied, since what they have said cannot all be so; gives who it was, if that
    /// is known now.
    pub(super) fn one_of(&mut self, workers: &BTreeSet<u32>) -> Option<u32> {
        let left: BTreeSet<u32> = self.0.intersection(workers).copied().collect();
        self.0 = if left.is_empty() { workers.clone() } else { left };
        if self.0.len() > 1 {
            return None;
        }
        // Another contradiction may be another's lie.
        self.0.pop_first()
    }

    /// One of these has lied, and it is not known which.
    pub(super) fn left(&self) -> &BTreeSet<u32> {
        &self.0
    }
}

#[cfg(test)]
mod tests;
