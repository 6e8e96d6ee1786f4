//! Which node has which sum, and who sends it to those who lack it.

use super::context::NodeContext;
use super::events::{CoordinatorEffect, report, tell};
use super::groups::Group;
use super::monitor::ExchangeMonitor;
use super::monitors::Monitors;
use super::node::NodeExchanges;
use super::store::Sum;
use crate::ids::{Step, Worker};
use crate::sums::{COORDINATOR, DecodedSum, Owner, SumCommand, SumId, SumNotice, chunks};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

type Effects = Vec<CoordinatorEffect>;

/// The sums of a run: those that the coordinator makes or keeps, and what is known of those that
/// workers make.
///
/// Who lacks a sum is [given](Self::give) it: the coordinator sends what it has itself, and
/// else a worker that has it does. That is so for one who [says that it waits](Self::waits), for
/// all who lack it when a worker is lost ([`Copies::spread`]), and for those who were not there
/// when it was begun: [`Copies::offer`], [`Copies::hand_out`], [`Copies::store`].
#[derive(Debug)]
pub(super) struct Copies {
    /// The coordinator's own.
    pub(super) node: NodeExchanges,
    pub(super) monitors: Monitors,
    /// Chunks of a sum.
    count: usize,
}

impl Copies {
    pub(super) fn new(context: NodeContext) -> Self {
        let count = chunks(context.length);
        Self { node: NodeExchanges::new(context), monitors: Monitors::new(), count }
    }

    /// Whether all of these who are to get a sum have it.
    pub(super) fn all_hold(&self, id: SumId, present: &BTreeSet<u32>) -> bool {
        let monitor = self.monitors.get(id);
        monitor.is_none_or(|monitor| monitor.lacking().all(|node| !present.contains(&node)))
    }

    /// Has a worker hold a sum that was made on this side, unless it was sent it.
    pub(super) fn store(
        &mut self,
        now: Instant,
        (worker, id): (u32, SumId),
        decoded: &DecodedSum,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) {
        if self.monitors.get(id).is_none() {
            let receivers = present.iter().copied().collect();
            let mut monitor = ExchangeMonitor::new(receivers, now);
            monitor.own = true;
            self.monitors.begin(id, monitor);
        }
        let monitor = self.monitors.get_mut(id);
        if !monitor.is_some_and(|monitor| monitor.given.insert(worker)) {
            return;
        }
        // Others may ask for it later, when their turn comes.
        self.node.sums.keep(Sum::made(id, Some(Arc::clone(&decoded.gradient)), decoded.digest));
        self.give(now, id, worker, present, out);
    }

    /// Workers are to apply a step, of bytes of this digest.
    pub(super) fn decided(&mut self, id: SumId, digest: u64) {
        for node in self.monitors.decided(id, digest) {
            warn_of_other_bytes(node, id.step);
        }
        self.node.applied(id.step.next());
    }

    /// Gives a worker a sum that it was not given yet.
    pub(super) fn give_once(
        &mut self,
        now: Instant,
        id: SumId,
        worker: u32,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) {
        let monitor = self.monitors.get_mut(id);
        if monitor.is_none_or(|monitor| monitor.given.insert(worker)) {
            self.give(now, id, worker, present, out);
        }
    }

    /// Gives a sum that is whole to those who came while it was made.
    pub(super) fn hand_out(
        &mut self,
        now: Instant,
        id: SumId,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) {
        if self.monitors.get(id).is_some_and(|monitor| !monitor.done) {
            present.iter().for_each(|worker| self.give_once(now, id, *worker, present, out));
        }
    }

    /// Gives a worker that has come, in a state that is one of the last `log_steps`, the sums that
    /// are whole and wait for holders.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        (worker, next): (u32, Step),
        log_steps: u64,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) {
        // What is older it gets with a state, which is shorter than so many sums.
        let recent = |step: Step| step.0.saturating_sub(next.0) <= log_steps;
        let open = self.monitors.undecided().map(|(id, _)| id).filter(|id| recent(id.step));
        let whole = |id: &SumId| self.node.sums.sum(*id).is_some_and(|sum| sum.finite);
        let sums: Vec<SumId> = open.filter(whole).collect();
        for id in sums {
            if let Some(monitor) = self.monitors.get_mut(id) {
                monitor.given.insert(worker);
            }
            self.give(now, id, worker, present, out);
        }
    }

    /// Has a sum sent to a node by another that has it; false if no other has it.
    pub(super) fn give(
        &mut self,
        now: Instant,
        id: SumId,
        to: u32,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) -> bool {
        if let Some(frames) = self.node.sums.give(id) {
            let send = |frame| CoordinatorEffect::Send { to, frame, most: usize::MAX };
            out.extend(frames.into_iter().map(send));
            return true;
        }
        let giver = self
            .monitors
            .get(id)
            .and_then(|monitor| monitor.giver(to, |holder| present.contains(&holder)));
        let Some(holder) = giver else { return false };
        let all = Owner { node: holder, start: 0, end: self.count };
        self.tell_senders(now, id, &[to], vec![all], out);
        tell(vec![holder], SumCommand::SendSum { sum: id, to }, out);
        true
    }

    /// These nodes get the chunks of a sum of others than those of their plan.
    pub(super) fn tell_senders(
        &mut self,
        now: Instant,
        id: SumId,
        to: &[u32],
        owners: Vec<Owner>,
        out: &mut Effects,
    ) {
        if to.contains(&COORDINATOR) {
            for reason in self.node.take_sum(id, &owners, now, &mut Vec::new()) {
                tracing::warn!("{id}: {reason}");
            }
        }
        let workers = to.iter().copied().filter(|node| *node != COORDINATOR).collect();
        tell(workers, SumCommand::TakeSum { sum: id, owners }, out);
    }

    /// A worker that lacks a sum which others have gets it from them.
    pub(super) fn spread(
        &mut self,
        now: Instant,
        id: SumId,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) {
        let Some(monitor) = self.monitors.get(id) else { return };
        let lacks = |worker: &&u32| !monitor.holders.contains_key(worker);
        let mut lacking: Vec<u32> = present.iter().filter(lacks).copied().collect();
        if monitor.receivers.contains(&COORDINATOR) && !self.node.sums.is_whole(id) {
            lacking.push(COORDINATOR);
        }
        for node in lacking {
            self.give(now, id, node, present, out);
        }
    }

    /// A group is given up. What was under way in it is sent around by the workers that have it,
    /// which this gives, or made again.
    pub(super) fn leave_group(
        &mut self,
        now: Instant,
        Group { number, members, .. }: Group,
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) -> Vec<SumId> {
        tell(members, SumCommand::LeaveGroup { group: number }, out);
        let (refused, begun) = self.monitors.leave_group(number);
        for (sum, worker) in refused {
            report(worker, SumNotice::Failed { sum }, out);
        }
        begun.iter().for_each(|id| self.spread(now, *id, present, out));
        begun
    }

    /// Nothing of a sum has come to a node for a while, and these owe it something.
    pub(super) fn waits(
        &mut self,
        now: Instant,
        id: SumId,
        (node, on): (u32, Vec<u32>),
        present: &BTreeSet<u32>,
        out: &mut Effects,
    ) {
        let monitor = self.monitors.get_mut(id);
        // The node says so at every tick, and gets the sum once, if another node has it. What the
        // coordinator has made, it has sent to all nodes itself.
        let is_to_get =
            monitor.is_some_and(|monitor| monitor.waits.says(node, on, now) && !monitor.own);
        if is_to_get {
            self.give(now, id, node, present, out);
        }
    }
}

pub(super) fn warn_of_other_bytes(worker: u32, step: Step) {
    tracing::warn!("{} holds other bytes of {step} than were decided", Worker(worker));
}
