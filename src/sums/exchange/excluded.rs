//! Workers that own nothing for a while, since sums stood still with them as owners.
//!
//! # Method
//! An owner needs a connection to each node that has a term or gets the sum. A worker that owns
//! nothing sends its terms to the owners and gets the sum from them. So where a worker does not
//! answer, or two cannot reach each other, others own everything for the rest of that step, and in
//! the next one, which may have been planned already. The cause may be over in a moment, and who
//! owns nothing leaves more to the others, so then they own again. If a sum soon stands still for
//! them once more they own nothing for 8 steps more, then for 16, and so on up to 256: a connection
//! that never works costs a few steps their time, and not every step.

use crate::ids::Step;
use std::collections::BTreeMap;

/// Steps of which a worker owns nothing in any case: that which stood still, and the next.
const IN_ANY_CASE: u64 = 2;
/// Further steps when it is excluded the second time in a row.
const FIRST: u64 = 8;
/// How often that is doubled.
const DOUBLED_MOST: u32 = 5;
/// A worker that is excluded again within so many steps after it owns again is excluded for longer.
/// Not 1: where several workers have a term, a broken connection is needed only in some steps.
const IN_A_ROW: u64 = 16;

/// Workers that own nothing for a while.
///
/// Its caller says which worker is [excluded](Self::exclude) in which step, and that a worker is
/// [lost](Self::clear). From that it says of which steps a worker
/// [owns nothing](Self::owns_nothing).
#[derive(Debug, Default)]
pub(super) struct Exclusions(BTreeMap<u32, Exclusion>);

#[derive(Clone, Copy, Debug)]
struct Exclusion {
    /// How many there were in a row.
    times: u32,
    /// The first step of which the worker may own something again.
    until: Step,
}

impl Exclusions {
    /// A sum of this step stood still for the worker; ignored if it owns nothing of the step: that
    /// was counted. Gives the first step of which it may own something again, if it has been
    /// excluded several times in a row.
    pub(super) fn exclude(&mut self, worker: u32, step: Step) -> Option<Step> {
        if self.owns_nothing(worker, step) {
            return None;
        }
        let last = self.0.get(&worker).filter(|last| step.0 < last.until.0 + IN_A_ROW);
        let times = last.map_or(1, |last| last.times + 1);
        let more = match times {
            1 => 0,
            times => FIRST << (times - 2).min(DOUBLED_MOST),
        };
        let until = Step(step.0 + IN_ANY_CASE + more);
        self.0.insert(worker, Exclusion { times, until });
        (times > 1).then_some(until)
    }

    /// Whether a worker owns nothing of a step.
    pub(super) fn owns_nothing(&self, worker: u32, step: Step) -> bool {
        self.0.get(&worker).is_some_and(|exclusion| step < exclusion.until)
    }

    /// How many own nothing of a step.
    pub(super) fn count(&self, step: Step) -> usize {
        self.0.values().filter(|exclusion| step < exclusion.until).count()
    }

    /// A worker is lost. It may be the one to which the others had no connection: all own again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
