//! Sums that are not finite: the coordinator makes them itself, and sees whose fault it is.

use super::{CoordinatorSums, Effects, give_up, report};
use crate::ids::Step;
use crate::sums::exchange::copies::Copies;
use crate::sums::exchange::monitor::ExchangeMonitor;
use crate::sums::exchange::store::Sum;
use crate::sums::{COORDINATOR, NotFinite, SumId, SumNotice};

impl CoordinatorSums {
    /// A worker says that numbers of a sum are not finite, and whose.
    pub(super) fn says_not_finite(
        &mut self,
        worker: u32,
        id: SumId,
        mut of: NotFinite,
        out: &mut Effects,
    ) {
        let Copies { node, monitors, .. } = &mut self.copies;
        let sees = monitors.is_own(id);
        let seen = node.sums.sum(id).filter(|_| sees);
        match seen.map(|sum| sum.finite) {
            Some(true) => return give_up(worker, denies(id.step), out),
            Some(false) => return,
            None => {}
        }
        if let Some(monitor) = monitors.get_mut(id).filter(|monitor| !monitor.done) {
            of.sums_of.retain(|node| monitor.parts.owners.iter().any(|owner| owner.node == *node));
            monitor.overflowed = true;
            self.doubts.accuse(id, worker, of.clone());
            // It goes on if only terms came as such numbers: who sums them asks other holders.
            let accused = self.doubts.accused(id.step);
            let present = self.hosts.present();
            let can = |holder: &u32| present.contains(holder) && !accused.contains(holder);
            let goes_on = of.sums_of.is_empty() && !of.terms_of.is_empty() && monitor.can_ask(can);
            if !sees && !goes_on {
                self.doubt(id, out);
            }
        } else {
            // It is decided, or under way here already; who is wrong will be seen then.
            self.doubts.accuse_too(id, worker, of.clone());
        }
        for holder in of.terms_of {
            self.doubts.suspect_term(id, (worker, holder), out);
        }
    }

    /// A sum that is whole here is not finite, or so those say who summed it.
    pub(super) fn found_not_finite(&mut self, sum: &Sum, out: &mut Effects) {
        let id = sum.id;
        if !self.copies.monitors.is_own(id) {
            self.doubts.accuse(id, COORDINATOR, sum.nonfinite.clone());
            return self.doubt(id, out);
        }
        if sum.nonfinite.terms_of.is_empty() {
            let monitor = self.copies.monitors.get(id);
            let worker = monitor.map_or(0, ExchangeMonitor::some_worker);
            report(worker, SumNotice::NotFinite { sum: id }, out);
        }
        for &culprit in &sum.nonfinite.terms_of {
            report(culprit, SumNotice::ResultNotFinite { sum: id }, out);
        }
        self.doubts.are_right(id.step);
    }

    /// A sum that was made here is finite: those who said of it that it is not are lost, and those
    /// who have said so of an earlier one, or have sent such sums, as far as that can be told.
    pub(super) fn found_finite(&mut self, id: SumId, out: &mut Effects) {
        if !self.copies.monitors.is_own(id) {
            return;
        }
        let wrong = self.doubts.are_wrong(id);
        for worker in wrong.deny {
            give_up(worker, denies(id.step), out);
        }
        let what = format!("it was said that the sum of {} is not finite, and it is", id.step);
        out.extend(wrong.one_of.and_then(|workers| self.hosts.suspect(&workers, &what)));
    }
}

fn denies(step: Step) -> String {
    format!("it says that the sum of {step} is not finite, and it is")
}
