//! Sums that are not finite: the coordinator makes them itself, and sees whose fault it is.

use super::{CoordinatorSums, Effects, report};
use crate::ids::{Step, Worker};
use crate::sums::exchange::Key;
use crate::sums::exchange::events::CoordinatorEffect;
use crate::sums::exchange::monitor::ExchangeMonitor;
use crate::sums::exchange::store::Sum;
use crate::sums::{COORDINATOR, NotFinite, SumNotice};
use std::collections::BTreeSet;

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
        let seen = self.node.sums.sum(key.0, key.1).filter(|_| sees);
        match seen.map(|sum| sum.finite) {
            Some(true) => {
                return out.push(CoordinatorEffect::GiveUp { worker, reason: denies(key.0) });
            }
            Some(false) => return,
            None => {}
        }
        let Some(monitor) = self.monitors.get_mut(key).filter(|monitor| !monitor.done) else {
            // It is decided, or under way here already; who is wrong will be seen then.
            self.doubts.accuse_too(key, worker, of.clone());
            return of.terms_of.iter().for_each(|holder| {
                self.suspect_term((worker, *holder), key, out);
            });
        };
        of.sums_of.retain(|node| monitor.parts.owners.iter().any(|owner| owner.node == *node));
        monitor.overflowed = true;
        self.doubts.accuse(key, worker, of.clone());
        if !sees && !self.can_ask_others(key, &of) {
            self.doubt(key, out);
        }
        for holder in of.terms_of {
            self.suspect_term((worker, holder), key, out);
        }
    }

    /// Whether the exchange goes on though some terms came as numbers that are not finite: who sums
    /// them asks other holders.
    fn can_ask_others(&self, key: Key, of: &NotFinite) -> bool {
        let Some(monitor) = self.monitors.get(key).filter(|_| of.sums_of.is_empty()) else {
            return false;
        };
        let accused = self.doubts.accused(key.0);
        let can = |holder: &u32| self.present.contains(holder) && !accused.contains(holder);
        let asks = !of.terms_of.is_empty() && !monitor.parts.askable.is_empty();
        asks && monitor.parts.askable.iter().all(|holders| holders.iter().any(can))
    }

    /// A worker says that a term came of another as numbers that are not finite. Who sends such
    /// counts for nothing in the step, as if the coordinator had seen it, once it can be told from
    /// who says so; who says so of others is lost.
    fn suspect_term(&mut self, (worker, holder): (u32, u32), key: Key, out: &mut Effects) {
        let (step, attempt) = key;
        let found = self.term_suspects.one_of(&BTreeSet::from([worker, holder]));
        tracing::warn!(
            "{}: a term of {step} came of {} and is not finite",
            Worker(worker),
            Worker(holder)
        );
        if found == Some(holder) {
            report(holder, [SumNotice::ResultNotFinite { step, attempt }], out);
        } else if let Some(worker) = found {
            let reason = format!("it says that terms of {step} are not finite, of several workers");
            out.push(CoordinatorEffect::GiveUp { worker, reason });
        }
    }

    /// A sum that is whole here is not finite, or so those say who summed it.
    pub(super) fn found_not_finite(&mut self, sum: &Sum, out: &mut Effects) {
        let (step, attempt) = (sum.step, sum.attempt);
        let key = (step, attempt);
        if !self.sees(key) {
            self.doubts.accuse(key, COORDINATOR, sum.nonfinite.clone());
            return self.doubt(key, out);
        }
        if sum.nonfinite.terms_of.is_empty() {
            let worker = self.monitors.get(key).map_or(0, ExchangeMonitor::some_worker);
            report(worker, [SumNotice::NotFinite { step, attempt }], out);
        }
        for &culprit in &sum.nonfinite.terms_of {
            report(culprit, [SumNotice::ResultNotFinite { step, attempt }], out);
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
