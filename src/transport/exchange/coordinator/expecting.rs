//! Steps that are summed while they are computed: what workers are told of them, and when it is
//! known what they are made of.

use super::{CoordinatorSums, Effects, report, tell};
use crate::ids::{Step, Task, Worker};
use crate::transport::exchange::Key;
use crate::transport::exchange::events::{CoordinatorEffect, Expectation, SumSettings};
use crate::transport::exchange::monitor::ExchangeMonitor;
use crate::transport::exchange::plan::{Plan, of_all_stripes, without};
use crate::transport::wire::{COORDINATOR, Owner, Predecessor, ToWorker, chunks};
use crate::transport::{Notice, Piece, Summand, What, lock};
use std::collections::BTreeSet;
use std::time::Instant;

/// Who sums which chunks of every stripe.
struct Shared {
    stripe: usize,
    owners: Vec<Owner>,
    predecessor: Option<Predecessor>,
}

impl CoordinatorSums {
    /// A step is computed from now on: workers begin to sum it as it comes, if they are to sum it.
    pub(super) fn expect(
        &mut self,
        now: Instant,
        step: Step,
        terms: Vec<Summand>,
        out: &mut Effects,
    ) {
        let SumSettings { overlap, by_workers, collective, .. } = self.settings;
        let by_connections = overlap && by_workers && !collective;
        // Owners ask holders over connections of their own: one that nobody can call must not hold
        // terms.
        let present: Vec<u32> = self.present.iter().copied().collect();
        let all_can =
            self.shares.all_are_reachable(&self.present) && self.shares.some_can_own(&present);
        if !by_connections || !all_can || self.doubts.of(step) || terms.is_empty() {
            return;
        }
        self.expected.begin(step, terms);
        self.tell_expected(now, None, out);
    }

    /// An owner is lost while its step is computed: the others sum its chunks too. Nothing is
    /// expected any more if nobody else can have some term.
    pub(super) fn expect_without(
        &mut self,
        now: Instant,
        (lost, key): (u32, Key),
        out: &mut Effects,
    ) {
        let receivers = self.monitors.get(key).map_or(&[][..], |monitor| &monitor.receivers);
        // Who came meanwhile, or again, knows nothing of what the others go on with.
        let all_know = self.present.iter().all(|node| receivers.contains(node));
        let shared = self.expected.told().filter(|_| all_know).and_then(|told| {
            let (stripe, owners) = without(lost, &told.owners, told.stripe)?;
            Some(Shared { stripe, owners, predecessor: Some(told.clone()) })
        });
        self.tell_expected(now, shared, out);
    }

    /// Tells workers what the step is expected to be made of, by those who are there, and who sums
    /// it, unless that is known.
    fn tell_expected(&mut self, now: Instant, shared: Option<Shared>, out: &mut Effects) {
        let Some((step, terms)) = self.expected.of_present(&self.present) else { return };
        // It is made again, not of this.
        if self.doubts.of(step) {
            return;
        }
        let number = self.monitors.number(step, 0);
        let key = (step, number);
        let length = self.context.length;
        let Shared { stripe, owners, predecessor } = shared.unwrap_or_else(|| {
            let (stripe, owners) = self.shares.of_stripes(&self.present, &terms, length);
            Shared { stripe, owners, predecessor: None }
        });
        let coordinator = self.settings.keeps.then_some(COORDINATOR);
        let receivers: Vec<u32> = self.present.iter().copied().chain(coordinator).collect();
        self.expected.tell(Predecessor { attempt: number, owners: owners.clone(), stripe });
        let sources = owners.iter().map(|owner| owner.node).collect();
        let mut monitor = ExchangeMonitor::new(None, receivers.clone(), sources, now);
        monitor.given.extend(&receivers);
        monitor.parts.owners = of_all_stripes(&owners, stripe, chunks(length));
        let result = |piece: &Piece| match piece.what {
            What::Result(task) => Some((piece.worker, task)),
            What::Sum => None,
        };
        monitor.parts.announced =
            terms.iter().flat_map(|term| &term.holders).filter_map(result).collect();
        self.monitors.begin(key, monitor);
        // Until the step is known to be made of it, nobody may take this sum for the step's.
        lock(&self.node.sums()).expect(key);
        let (places, stripe) = (Vec::new(), Some(stripe));
        let attempt = number;
        let plan = Plan { step, attempt, places, terms, owners, stripe, predecessor, receivers };
        self.tell_plan(&plan, out);
        out.push(CoordinatorEffect::Expected(Expectation::Told));
        if self.settings.keeps {
            let wrong = self.node.begin(plan, |_| None, now, &mut Vec::new());
            debug_assert!(wrong.is_empty(), "nothing comes before its plan");
        } else {
            self.node.supersede(step, number);
        }
    }

    /// A worker has changed numbers of a result that it had announced. A sum that may be made of
    /// them is made again, of what others have, unless it is decided.
    pub(super) fn changed(&mut self, worker: Worker, task: Task, out: &mut Effects) {
        // Once: that it says so again is nothing new.
        let Some((key, monitor)) = self.monitors.withdraw((worker, task)) else { return };
        if !monitor.done {
            let is_asked_for = monitor.attempt.is_some();
            self.doubts.changed(key.0, (worker, task));
            if is_asked_for {
                self.doubt(key, out);
            }
        }
        report(worker.0, Some(Notice::Changed { task }), out);
    }

    /// Whether a step is made of what was expected of it: then its sum is under way, or there.
    pub(super) fn confirm(
        &mut self,
        now: Instant,
        named: Key,
        (terms, counted): (&[Summand], &BTreeSet<u32>),
        out: &mut Effects,
    ) -> bool {
        let (step, attempt) = named;
        let Some(key) = self.monitors.expected(step) else {
            self.expected.release(step);
            return false;
        };
        // Such as after a straggler's task was given to somebody else: its result is another
        // vector. Or of two workers one has come since.
        let reaches = self.monitors.get(key).is_some_and(|monitor| monitor.reaches(counted));
        if self.doubts.of(step) || !reaches || !self.expected.is_of(step, terms) {
            self.expected.release(step);
            out.push(CoordinatorEffect::Expected(Expectation::Replaced));
            return false;
        }
        lock(&self.node.sums()).name(named, key.1);
        let holders = self.present_holders(terms);
        self.look_at_hosts((step, attempt), &holders);
        if let Some(monitor) = self.monitors.get_mut(key) {
            monitor.attempt = Some(attempt);
            monitor.decision.counted.clone_from(counted);
            // Deadlines count from here: while a step is computed, waiting is no fault.
            monitor.begun = now;
            monitor.sources.extend(&holders);
            monitor.parts.term_holders.extend(&holders);
            let askable =
                |term: &Summand| term.holders.iter().map(|piece| piece.worker.0).collect();
            monitor.parts.askable = terms.iter().map(askable).collect();
        }
        self.node.confirm(key, now);
        let told = ToWorker::Confirm { step, attempt: key.1 };
        tell(self.present.iter().copied().collect(), told, out);
        out.push(CoordinatorEffect::Expected(Expectation::Confirmed));
        // Some may have been faster than the engine.
        for (worker, what) in self.expected.release(step) {
            self.heard(now, worker, key, what, out);
        }
        if let Some(sum) = self.node.sum(key.0, key.1) {
            self.is_whole_here(now, &sum, out);
        }
        true
    }
}
