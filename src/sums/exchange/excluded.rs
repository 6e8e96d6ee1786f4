//! Workers that own nothing for a while, since sums stood still with them as owners.
//!
//! # Method
//! An owner needs a connection to everybody who has a term or gets the sum. Who owns nothing sends
//! its terms to the owners and gets the sum of them. So where a worker does not answer, or two
//! cannot reach each other, others own everything for the rest of that step. It may have been a
//! moment, and who owns nothing leaves more to the others, so in the next step they own again. If a
//! sum soon stands still with them once more they own nothing for 8 steps, then for 16, and so on
//! up to 1,024: a connection that never works costs a few steps their time, and not every step.

use crate::ids::Step;
use std::collections::BTreeMap;

/// Steps of which a worker owns nothing when it is excluded the second time in a row.
const FIRST: u64 = 8;
/// How often that is doubled.
const DOUBLED_MOST: u32 = 7;
/// Within how many steps after a worker owns again another time counts as the next in a row. Of a
/// connection that does not work something is missing only now and then, where several workers
/// have a term.
const IN_A_ROW: u64 = 16;

/// Workers that own nothing for a while.
///
/// It is told who is [excluded](Self::exclude) in which step, and who is [lost](Self::forget); from
/// that it says of which steps a worker [owns nothing](Self::owns_nothing).
#[derive(Debug, Default)]
pub(super) struct Excluded(BTreeMap<u32, Exclusion>);

#[derive(Clone, Copy, Debug)]
struct Exclusion {
    /// How many there were in a row.
    times: u32,
    /// The first step of which the worker may own something again.
    until: Step,
}

impl Excluded {
    /// The sum of a step stood still for this worker; that it does so again in a step of which the
    /// worker owns nothing is nothing new.
    pub(super) fn exclude(&mut self, worker: u32, step: Step) {
        if self.owns_nothing(worker, step) {
            return;
        }
        let last = self.0.get(&worker).filter(|last| step.0 < last.until.0 + IN_A_ROW);
        let times = last.map_or(1, |last| last.times + 1);
        let steps = match times {
            1 => 0,
            times => FIRST << (times - 2).min(DOUBLED_MOST),
        };
        self.0.insert(worker, Exclusion { times, until: Step(step.0 + 1 + steps) });
    }

    /// Whether a worker owns nothing of a step.
    pub(super) fn owns_nothing(&self, worker: u32, step: Step) -> bool {
        self.0.get(&worker).is_some_and(|exclusion| step < exclusion.until)
    }

    /// A worker is lost: when it comes again it has other connections.
    pub(super) fn forget(&mut self, worker: u32) {
        self.0.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_answers_is_tried_less_and_less() {
        let mut excluded = Excluded::default();
        let mut tried = Vec::new();
        for step in (0..10_000).map(Step) {
            if !excluded.owns_nothing(2, step) {
                tried.push(step.0);
                excluded.exclude(2, step);
                assert!(excluded.owns_nothing(2, step), "others own the rest of the step");
            }
            assert!(!excluded.owns_nothing(1, step));
        }
        let pauses: Vec<u64> = tried.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
        assert_eq!(pauses[..9], [0, 8, 16, 32, 64, 128, 256, 512, 1024]);
        assert!(pauses[9..].iter().all(|steps| *steps == 1024), "{pauses:?}");
    }

    #[test]
    fn who_has_answered_for_a_while_is_trusted_again() {
        let mut excluded = Excluded::default();
        for step in [Step(3), Step(20), Step(40)] {
            excluded.exclude(0, step);
            excluded.exclude(0, step);
            assert!(!excluded.owns_nothing(0, Step(step.0 + 1)));
        }
        excluded.exclude(0, Step(45));
        assert!(excluded.owns_nothing(0, Step(53)) && !excluded.owns_nothing(0, Step(54)));
        excluded.forget(0);
        assert!(!excluded.owns_nothing(0, Step(53)));
    }
}
