//! Sums that are not finite: the coordinator makes them itself, and sees whose fault it is.

use super::{CoordinatorSums, Effects, report};
use crate::ids::Step;
use crate::transport::Notice;
use crate::transport::exchange::Key;
use crate::transport::exchange::events::CoordinatorEffect;
use crate::transport::exchange::store::{NotFinite, Sum};
use crate::transport::wire::COORDINATOR;

impl CoordinatorSums {
    /// A worker says that numbers of a sum are not finite, and whose.
    pub(super) fn says_not_finite(
        &mut self,
        worker: u32,
        key: Key,
        mut of: NotFinite,
        out: &mut Effects,
    ) {
        let sees = self.sees(key);
        let seen = self.node.sum(key.0, key.1).filter(|_| sees);
        match seen.map(|sum| sum.finite) {
            Some(true) => {
                return out.push(CoordinatorEffect::GiveUp { worker, reason: denies(key.0) });
            }
            Some(false) => return,
            None => {}
        }
        let Some(monitor) = self.monitors.get_mut(key).filter(|monitor| !monitor.done) else {
            // It is decided, or under way here already; who is wrong will be seen then.
            return self.doubts.accuse_too(key, worker, of);
        };
        of.sums_of.retain(|node| monitor.owners.iter().any(|owner| owner.node == *node));
        monitor.overflowed = true;
        self.doubts.accuse(key, worker, of);
        if !sees {
            self.doubt(key, out);
        }
    }

    /// A sum that is whole here is not finite, or so those say who summed it.
    pub(super) fn found_not_finite(&mut self, sum: &Sum, out: &mut Effects) {
        let key = (sum.step, sum.attempt);
        let step = sum.step;
        let attempt = self.attempt_of(key);
        if !self.sees(key) {
            self.doubts.accuse(key, COORDINATOR, sum.nonfinite.clone());
            return self.doubt(key, out);
        }
        if sum.nonfinite.terms_of.is_empty() {
            let of = self.monitors.get(key).and_then(|monitor| monitor.receivers.first().copied());
            report(of.unwrap_or_default(), Some(Notice::SumNotFinite { step, attempt }), out);
        }
        for &culprit in &sum.nonfinite.terms_of {
            report(culprit, Some(Notice::ResultNotFinite { step, attempt }), out);
        }
        self.doubts.are_right(step);
    }

    /// A sum that was made here is finite: those who said of it that it is not are lost, and those
    /// who have said so of an earlier one, or have sent such sums, as far as that can be told.
    pub(super) fn found_finite(&mut self, key: Key, out: &mut Effects) {
        if !self.sees(key) {
            return;
        }
        let wrong = self.doubts.are_wrong(key);
        for worker in wrong.deny {
            out.push(CoordinatorEffect::GiveUp { worker, reason: denies(key.0) });
        }
        let what = format!("it was said that the sum of {} is not finite, and it is", key.0);
        wrong.one_of.iter().for_each(|workers| self.suspect(workers, &what, out));
    }
}

fn denies(step: Step) -> String {
    format!("it says that the sum of {step} is not finite, and it is")
}
