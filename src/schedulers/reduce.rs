//! Where results are added up.

use crate::codes::sequential::SchemeFacts;

/// Where results are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduce {
    /// All at once when a step is decoded, by one tree over the units of its batch: where every
    /// task is a micro-batch the sum has the bits of uncoded training, no matter who computed what.
    /// Workers keep every result until then.
    #[default]
    Tree,
    /// At each worker, as soon as a result's weight is final: it keeps one sum per open step.
    Worker,
}

impl Reduce {
    /// Where a scheme's results are added up if nobody says: by one tree where that keeps the bits
    /// of uncoded training, or where no job is open for longer than its round; else at the workers.
    #[must_use]
    pub fn usual(facts: &SchemeFacts) -> Self {
        // With coded parts there are no uncoded bits to keep.
        if facts.plain || facts.delay == 0 { Self::Tree } else { Self::Worker }
    }
}
