//! Steps that are summed while they are computed: what workers are told of them, and when it is
//! known what they are made of.

use super::{CoordinatorSums, Effects, report};
use crate::ids::{OrderId, Step, Summand, Task, Worker};
use crate::sums::exchange::monitor::ExchangeMonitor;
use crate::sums::exchange::told::SumAssignment;
use crate::sums::{Owner, Predecessor, SumCommand, SumId, SumNotice, SumPlan, chunks};
use std::collections::BTreeSet;
use std::time::Instant;

/// How long a stripe is, and who sums what of it.
type Shares = (usize, Vec<Owner>);

impl CoordinatorSums {
    /// A step is computed: workers begin to sum it as it comes, if they are to sum it. If it was
    /// expected before and owners were lost, the others sum their chunks too.
    pub(super) fn expect(
        &mut self,
        now: Instant,
        sum: SumId,
        mut terms: Vec<Summand>,
        out: &mut Effects,
    ) {
        // Owners ask holders over connections of their own: one that no worker can call must not
        // hold terms.
        let present = self.hosts.list();
        let all_can = self.hosts.all_are_reachable() && self.hosts.some_can_own(&present);
        for term in &mut terms {
            term.holders.retain(|piece| self.hosts.present().contains(&piece.worker.0));
        }
        let all_come = !terms.is_empty() && terms.iter().all(|term| !term.holders.is_empty());
        if !all_can || !all_come || self.doubts.of(sum.step) {
            return;
        }
        let length = self.context.length;
        let ((stripe, owners), predecessor) = match self.carry_on(sum.step, &terms) {
            Some((shares, predecessor)) => (shares, Some(predecessor)),
            None => (self.hosts.of_stripes(sum.step, &terms, length), None),
        };
        let beside = self.settings.beside;
        let receivers: Vec<u32> = present.into_iter().chain(beside).collect();
        let (places, stripe) = (Vec::new(), Some(stripe));
        let group = None;
        let plan = SumPlan { sum, places, terms, owners, stripe, predecessor, receivers, group };
        let mut monitor = ExchangeMonitor::of_plan(&plan, Some(Vec::new()), &[], length, now);
        monitor.parts.told = Some(SumAssignment::of(&plan, chunks(length)));
        let holders = plan.terms.iter().flat_map(|term| &term.holders);
        monitor.parts.announced = holders.map(|piece| (piece.worker, piece.task)).collect();
        self.copies.monitors.begin(sum, monitor);
        self.hosts.tell_plan(&plan, out);
        self.counts.expected += 1;
        if beside.is_some() {
            let wrong = self.copies.node.begin(plan, |_| None, now, &mut Vec::new());
            debug_assert!(wrong.is_empty(), "nothing comes before its plan");
        } else {
            self.copies.node.supersede(sum);
        }
    }

    /// Who sums what, and of which exchange each keeps what it has, if workers can go on with the
    /// last sum of a step, which was interrupted.
    pub(super) fn carry_on(&self, step: Step, terms: &[Summand]) -> Option<(Shares, Predecessor)> {
        let monitor = self.copies.monitors.interrupted(step)?;
        let told = monitor.parts.told.as_ref()?;
        // Who came meanwhile, or again, knows nothing of what the others go on with.
        let mut present = self.hosts.present().iter();
        let all_know = present.all(|node| monitor.receivers.contains(node));
        let shares = told.carry_on(terms, &self.hosts.able_to_own(step)).filter(|_| all_know)?;
        Some((shares, told.plan().clone()))
    }

    /// A worker has changed numbers of a result that it had announced. A sum that may be made of
    /// them is made again, of what others have, unless it is decided.
    pub(super) fn changed(
        &mut self,
        worker: Worker,
        (order, task): (OrderId, Task),
        out: &mut Effects,
    ) {
        // Once: that it says so again is nothing new.
        let withdrawn = self.copies.monitors.withdraw((worker, task));
        let Some((sum, monitor)) = withdrawn else { return };
        if !monitor.done {
            let is_asked_for = monitor.expected.is_none();
            self.doubts.changed(sum.step, (worker, task));
            if is_asked_for {
                self.fail(sum, out);
            }
        }
        report(worker.0, SumNotice::Changed { order, task }, out);
    }

    /// A step is made of what was expected of it: its sum is under way, or there. If it cannot be
    /// decided by that sum, the sum has failed.
    pub(super) fn confirm(
        &mut self,
        now: Instant,
        sum: SumId,
        (terms, counted): (&[Summand], BTreeSet<u32>),
        out: &mut Effects,
    ) {
        let step = sum.step;
        let holders = self.hosts.holders(terms);
        let Some(monitor) = self.copies.monitors.get_mut(sum) else { return };
        if !monitor.is_expected() {
            return;
        }
        // Such as after one of two workers has come since.
        if self.doubts.of(step) || !monitor.reaches(&counted) {
            self.counts.replaced += 1;
            return self.fail(sum, out);
        }
        self.look_at_hosts(step, &holders);
        let Some(monitor) = self.copies.monitors.get_mut(sum) else { return };
        let reports = monitor.expected.take();
        monitor.decision.counted = counted;
        // Deadlines count from here: while a step is computed, waiting is no fault.
        monitor.begun = now;
        monitor.parts.term_holders.extend(&holders);
        monitor.parts.can_ask(terms);
        self.copies.node.confirm(sum, now);
        self.hosts.tell_all(SumCommand::Confirm { sum }, out);
        self.counts.confirmed += 1;
        // Some may have been faster than the engine.
        for (worker, report) in reports.into_iter().flatten() {
            self.said(now, worker, report, out);
        }
        if let Some(whole) = self.copies.node.sums.sum(sum) {
            self.is_whole_here(now, &whole, out);
        }
    }
}
