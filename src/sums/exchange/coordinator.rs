//! The coordinator's end of all sums: who makes and holds them, and what is done about those that
//! stand still.

mod disputing;
mod expecting;
mod finiteness;
mod reports;

use super::choices::Exchange;
use super::context::NodeContext;
use super::copies::Copies;
use super::counts::SumCounts;
use super::disputes::Disputes;
use super::doubts::Doubts;
use super::eager::{Answer, EagerReceiver};
use super::events::{
    CoordinatorEffect, CoordinatorEvent, SumSettings, WorkerEffect, give_up, report, tell,
};
use super::groups::Groups;
use super::hosts::Hosts;
use super::monitor::{ExchangeMonitor, StalledSum};
use super::plan::share_out;
use super::store::{SharedSums, Sum};
use super::told::SumAssignment;
use super::{Block, QUIET};
use crate::ids::{Step, Summand, Worker, named};
use crate::sums::{COORDINATOR, Header, Kind, SumCommand, SumId, SumNotice, SumPlan, chunks};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

type Effects = Vec<CoordinatorEffect>;

/// The coordinator's end of the sums of a run. How to drive it is told in [`super`].
///
/// It has a machine for each question: who is there and can sum ([`Hosts`]), who has which sum, and
/// who holds one up ([`Copies`]), whose word is wrong ([`Doubts`], [`Disputes`]), who can sum by a
/// collective ([`Groups`]). It asks them in turn, and carries out what they answer.
#[derive(Debug)]
pub(crate) struct CoordinatorSums {
    settings: SumSettings,
    context: NodeContext,
    copies: Copies,
    /// Results on their way here, where workers send them at once.
    eager: Option<EagerReceiver>,
    hosts: Hosts,
    /// The greatest number of a connection that any worker had.
    epoch: u32,
    doubts: Doubts,
    disputes: Disputes,
    groups: Groups,
    counts: SumCounts,
}

impl CoordinatorSums {
    /// Of a run without workers yet; results that come at once go to the receiver, if they do.
    pub(crate) fn new(
        settings: SumSettings,
        context: NodeContext,
        eager: Option<EagerReceiver>,
    ) -> Self {
        Self {
            settings,
            copies: Copies::new(context.clone()),
            context,
            eager,
            hosts: Hosts::new(settings.exchange),
            epoch: 0,
            doubts: Doubts::default(),
            disputes: Disputes::default(),
            groups: Groups::default(),
            counts: SumCounts::default(),
        }
    }

    /// The sums that are here.
    pub(crate) fn sums(&self) -> SharedSums {
        self.copies.node.sums.clone()
    }

    /// What has come of all sums so far.
    pub(crate) fn counts(&self) -> SumCounts {
        SumCounts { group: self.groups.size(), ..self.counts }
    }

    /// Entries that are kept: exchanges, decided steps and sums.
    pub(crate) fn len(&self) -> usize {
        self.copies.monitors.len() + self.copies.node.len()
    }

    /// Whether every worker has the sums that were decided last: then they are not needed any more.
    pub(crate) fn all_hold(&self) -> bool {
        let decided = self.copies.monitors.last_decided();
        decided.into_iter().all(|sum| self.copies.all_hold(sum, self.hosts.present()))
    }

    /// The oldest sum for which nodes wait in vain for so long.
    pub(crate) fn stalled(&self, now: Instant, patience: Duration) -> Option<StalledSum> {
        self.copies.monitors.stalled(now, patience)
    }

    /// Has the sum by which a step was decided sent to a worker; false if no node has it.
    pub(crate) fn give(&mut self, now: Instant, step: Step, to: u32, out: &mut Effects) -> bool {
        let present = self.hosts.present();
        let sum = self.copies.monitors.decided_by(step);
        sum.is_some_and(|sum| self.copies.give(now, sum, to, present, out))
    }

    /// Takes in what happened and appends what is to be done for it.
    pub(crate) fn handle(&mut self, now: Instant, event: CoordinatorEvent, out: &mut Effects) {
        match event {
            CoordinatorEvent::Begun { start, behind } => {
                self.hosts.begin(behind);
                // A resumed run begins in the middle: what is said of earlier steps is nothing to
                // it.
                self.copies.node.moved(start);
            }
            CoordinatorEvent::Connected { worker, epoch, reachable } => {
                self.epoch = self.epoch.max(epoch);
                self.hosts.comes(worker, reachable);
            }
            CoordinatorEvent::Lost { worker } => self.lost(now, worker, out),
            CoordinatorEvent::MembersChanged => {
                // A group is made of all who are there, so any change of those needs another one.
                if let Some(group) = self.groups.regroup(self.hosts.present()) {
                    self.copies.leave_group(now, group, self.hosts.present(), out);
                }
            }
            CoordinatorEvent::HasState { worker, next } => {
                let log_steps = self.settings.log_steps;
                if let Some(next) = next {
                    let present = self.hosts.present();
                    self.copies.offer(now, (worker, next), log_steps, present, out);
                }
            }
            CoordinatorEvent::Ordered { worker, order, tasks } => {
                if let Some(eager) = &mut self.eager {
                    eager.ordered(worker, order, tasks.into_iter());
                }
            }
            CoordinatorEvent::Changed { worker, order, task } => {
                self.changed(worker, (order, task), out);
            }
            CoordinatorEvent::Answered { worker, answer: Answer::Done { task, .. }, .. }
                if self.doubts.is_changed(worker, task) =>
            {
                let reason = "it says that it has done what it had changed after announcing it";
                give_up(worker, reason.into(), out);
            }
            CoordinatorEvent::Answered { worker, answer } => {
                let answers = match &mut self.eager {
                    Some(eager) => eager.answered(worker, answer),
                    None => vec![answer],
                };
                answered(worker, answers, out);
            }
            CoordinatorEvent::Expect { sum, terms } => self.expect(now, sum, terms, out),
            CoordinatorEvent::Sum { sum, terms, spares_one, mut counted } => {
                // It bears on deadlines: who holds others up is given up sooner where it can be
                // spared.
                self.copies.monitors.may_lose(spares_one);
                // Of one that is lost the engine may not have heard.
                counted.retain(|worker| self.hosts.present().contains(worker));
                if self.copies.monitors.get(sum).is_some() {
                    self.confirm(now, sum, (&terms, counted), out);
                } else {
                    self.sum(now, sum, (terms, counted), out);
                }
            }
            CoordinatorEvent::Store { worker, sum, decoded } => {
                let present = self.hosts.present();
                self.copies.store(now, (worker, sum), &decoded, present, out);
            }
            CoordinatorEvent::Decided { worker, sum, decoded } => {
                let present = self.hosts.present();
                self.copies.decided(sum, decoded.digest);
                // Where workers do not hear of chunks the sum is made here, and all of them lack
                // it. Else who holds other bytes gets it, and who was at work or away while the
                // others took it.
                match self.eager {
                    Some(_) => self.copies.store(now, (worker, sum), &decoded, present, out),
                    None => self.copies.give_once(now, sum, worker, present, out),
                }
            }
            CoordinatorEvent::Released { step, end } => {
                self.hosts.tell_all(SumCommand::Release { end }, out);
                // Workers that fell behind may still ask for the sums of the last steps.
                let oldest = Step(step.0.saturating_sub(self.settings.log_steps + 1));
                self.copies.monitors.release(step, oldest);
                self.doubts.release(step);
                let ready = self.eager.as_mut().map(|eager| eager.release(end));
                for (worker, answers) in ready.into_iter().flatten() {
                    answered(worker, answers, out);
                }
            }
            CoordinatorEvent::Said { worker, report } => self.said(now, worker, report, out),
            CoordinatorEvent::Chunk { from, header, block } => {
                self.chunk(now, from, &header, block, out);
            }
            CoordinatorEvent::Placed { from, header, slot } => {
                // It holds no terms, so there is nothing to answer a chunk with.
                let placed = self.copies.node.placed(&header, from, &slot, now, &mut Vec::new());
                placed.unwrap_or_else(|reason| give_up(from, reason, out));
            }
            CoordinatorEvent::Tick => self.tick(now, out),
        }
    }

    /// Sums one chunk, if there is one that can be summed.
    pub(crate) fn work(&mut self, out: &mut Effects) -> bool {
        let mut sent = Vec::new();
        let worked = self.copies.node.work(&mut sent);
        // It holds no terms: there is nothing to tell of them.
        let send = |effect| match effect {
            WorkerEffect::Send { to, frame, most } => {
                Some(CoordinatorEffect::Send { to, frame, most })
            }
            other => {
                debug_assert!(matches!(other, WorkerEffect::TellPeers { .. }), "{other:?}");
                None
            }
        };
        out.extend(sent.into_iter().filter_map(send));
        worked
    }

    /// Looks after the sums that have become whole here.
    pub(crate) fn finish(&mut self, now: Instant, out: &mut Effects) {
        for sum in self.copies.node.finished() {
            // Whether that is what the step is made of may not be known yet.
            if sum.confirmed {
                self.is_whole_here(now, &sum, out);
            }
        }
    }

    fn is_whole_here(&mut self, now: Instant, sum: &Sum, out: &mut Effects) {
        let id = sum.id;
        if !sum.finite {
            return self.found_not_finite(sum, out);
        }
        let monitor = self.copies.monitors.get_mut(id);
        let reports = monitor.map(|monitor| {
            // Those that it waited for are not needed any more.
            monitor.void = None;
            std::mem::take(&mut monitor.unreported)
        });
        let mut differ = false;
        for (worker, notice) in reports.into_iter().flatten() {
            match notice {
                SumNotice::Held { digest, .. } if digest != sum.digest => {
                    match self.copies.monitors.is_own(id) {
                        true => give_up(worker.0, other_bytes(id.step), out),
                        false => differ = true,
                    }
                }
                notice => report(worker.0, notice, out),
            }
        }
        if differ {
            return self.dispute(now, id, out);
        }
        self.found_finite(id, out);
        self.copies.hand_out(now, id, self.hosts.present(), out);
    }

    fn chunk(&mut self, now: Instant, from: u32, header: &Header, block: Block, out: &mut Effects) {
        let taken = if header.kind == Kind::Result {
            match &mut self.eager {
                Some(eager) => eager.chunk(from, header, block),
                None => Err("it sends a result, which is not asked for here".to_owned()),
            }
        } else if !self.copies.monitors.has_from(header.sum()) {
            // Of a step that was never told or is long over: a worker may not have heard of that.
            tracing::debug!("{}: a chunk of an exchange that is not under way", Worker(from));
            self.context.blocks.give(block);
            Ok(Vec::new())
        } else {
            let node = &mut self.copies.node;
            node.chunk(header, from, block, now, &mut Vec::new()).map(|()| Vec::new())
        };
        match taken {
            Ok(answers) => answered(from, answers, out),
            Err(reason) => give_up(from, reason, out),
        }
    }

    /// Has a sum made: tells the workers what to exchange.
    fn sum(
        &mut self,
        now: Instant,
        sum: SumId,
        (mut terms, counted): (Vec<Summand>, BTreeSet<u32>),
        out: &mut Effects,
    ) {
        let step = sum.step;
        if self.copies.monitors.last(step).is_some_and(ExchangeMonitor::is_expected) {
            self.counts.replaced += 1;
        }
        let holders = self.hosts.holders(&terms);
        // A worker says that the sum is not finite, and the coordinator has not seen it. The
        // coordinator makes the sum itself, and then knows which worker is wrong.
        let doubted = self.doubts.of(step);
        let nobody_can = !self.hosts.some_can_own(&holders);
        let alone = nobody_can || doubted;
        let coordinator = alone.then_some(COORDINATOR).or(self.settings.beside);
        let receivers: Vec<u32> = self.hosts.list().into_iter().chain(coordinator).collect();
        // Workers lost meanwhile cannot be sources; the engine hears of it and sums again.
        self.hosts.prefer_able(&mut terms);
        // In a group all workers wait for each other: it must not begin without one of its vectors.
        let mut first = terms.iter().flat_map(|term| term.holders.first());
        let all_here = first.all(|piece| self.hosts.present().contains(&piece.worker.0));
        // Before owners are chosen, since it may show that a host does not answer.
        self.look_at_hosts(step, &holders);
        let length = self.context.length;
        let by_group = self.groups.for_holders(&holders, length).filter(|_| all_here && !doubted);
        let group = by_group.as_ref().map(|(group, _)| *group);
        let carried = self.carry_on(step, &terms).filter(|_| group.is_none() && !alone);
        let (owners, stripe, predecessor) = match (by_group, carried) {
            (Some((_, owners)), _) => (owners, None, None),
            (None, Some(((stripe, owners), before))) => (owners, Some(stripe), Some(before)),
            (None, None) if alone => (share_out(&[COORDINATOR], length), None, None),
            (None, None) => (self.hosts.owners(step, &terms, length), None, None),
        };
        let places = Vec::new();
        let plan = SumPlan { sum, places, terms, owners, stripe, predecessor, receivers, group };
        if group.is_none() {
            self.hosts.tell_plan(&plan, out);
        } else {
            // Others than those whose vectors are summed get the sum, unasked.
            let members: Vec<u32> = plan.owners.iter().map(|owner| owner.node).collect();
            let is_other = |node: &u32| !members.contains(node);
            let others: Vec<u32> = plan.receivers.iter().copied().filter(is_other).collect();
            tell(members, SumCommand::Exchange(plan.clone()), out);
            self.copies.tell_senders(now, sum, &others, plan.owners.clone(), out);
        }
        let mut monitor = ExchangeMonitor::of_plan(&plan, None, &holders, length, now);
        monitor.decision.counted = counted;
        monitor.own = group.is_none() && alone;
        // Where the coordinator sums alone, no worker can go on with it.
        if group.is_none() && !alone {
            monitor.parts.told = Some(SumAssignment::of(&plan, chunks(length)));
            monitor.parts.can_ask(&plan.terms);
        }
        // Chunks may have been made of what was announced.
        if plan.predecessor.is_some()
            && let Some(before) = self.copies.monitors.last(step)
        {
            monitor.parts.announced.clone_from(&before.parts.announced);
        }
        self.copies.monitors.begin(sum, monitor);
        // What carries on a sum that was expected is not: it is waited for.
        if plan.stripe.is_some() {
            self.hosts.tell_all(SumCommand::Confirm { sum }, out);
        }
        let node = &mut self.copies.node;
        if coordinator.is_some() && group.is_none() {
            let mut none = Vec::new();
            for reason in node.begin(plan, |_| None, now, &mut none) {
                tracing::warn!("{sum}: {reason}");
            }
            node.confirm(sum, now);
        } else {
            node.supersede(sum);
        }
    }

    /// Notes who is late in a step that begins to be summed, and who lacks the last one's sum
    /// still.
    fn look_at_hosts(&mut self, step: Step, holders: &[u32]) {
        self.hosts.lack(self.copies.monitors.lacking_before(step));
        // Another attempt says nothing new of who is late.
        let was_asked = |monitor: &ExchangeMonitor| monitor.expected.is_none();
        if !self.copies.monitors.last(step).is_some_and(was_asked) {
            self.hosts.step_begins(holders);
        }
    }

    /// A worker is lost. What it would still have sent of a sum that others have comes from them.
    fn lost(&mut self, now: Instant, worker: u32, out: &mut Effects) {
        self.eager.iter_mut().for_each(|eager| eager.forget(worker));
        self.doubts.forget(worker);
        self.hosts.forget(worker);
        let Copies { node, monitors, .. } = &mut self.copies;
        for sum in monitors.forget(worker, |sum| node.sums.is_whole(sum)) {
            report(worker, SumNotice::Failed { sum }, out);
        }
        // After the sums of connections: what they lack does not depend on the group.
        let group = self.groups.lost(worker);
        let present = self.hosts.present();
        let spread = group.map(|group| self.copies.leave_group(now, group, present, out));
        let spread = spread.unwrap_or_default();
        let open = self.copies.monitors.undecided().map(|(sum, _)| sum);
        let open: Vec<SumId> = open.filter(|sum| !spread.contains(sum)).collect();
        open.into_iter().for_each(|sum| self.copies.spread(now, sum, present, out));
        let verdicts = self.disputes.forget(worker);
        self.judge(verdicts, out);
    }

    /// The coordinator is to make a sum by itself that others have made, or begun.
    fn doubt(&mut self, sum: SumId, out: &mut Effects) {
        self.doubts.raise(sum.step);
        self.fail(sum, out);
    }

    /// A sum is to be begun again.
    fn fail(&mut self, sum: SumId, out: &mut Effects) {
        if let Some(worker) = self.copies.monitors.refuse(sum) {
            report(worker, SumNotice::Failed { sum }, out);
        }
    }

    /// Something went wrong in the group.
    fn group_failed(&mut self, reason: &str, now: Instant, out: &mut Effects) {
        if let Some(group) = self.groups.fail(reason, now) {
            self.copies.leave_group(now, group, self.hosts.present(), out);
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        for (sum, on) in self.copies.node.stalled(now, QUIET) {
            self.copies.waits(now, sum, (COORDINATOR, on), self.hosts.present(), out);
        }
        let verdicts = self.disputes.overdue(now);
        self.judge(verdicts, out);
        let bytes = self.context.length * self.context.format.bytes();
        let SumSettings { stall, spare, exchange, .. } = self.settings;
        let deadlines = self.copies.monitors.deadlines(stall, spare, bytes);
        if let Some(reason) = self.copies.monitors.group_is_late(now, deadlines) {
            self.group_failed(&reason, now, out);
        }
        // One whose host does not answer costs the step no more than that, and is not given up for
        // it: others go on, and it is to own nothing for a while, or until it holds a sum.
        let idle = self.copies.monitors.do_without_idle(now, &self.hosts.able());
        if let Some((sum, worker)) = idle {
            tracing::debug!("{}: others go on without {}", sum.step, Worker(worker));
            if let Some(until) = self.hosts.exclude_idle(worker, sum.step) {
                let worker = Worker(worker);
                let step = sum.step;
                tracing::warn!("{step}: {worker} does not answer: it sums nothing until {until}");
            }
            report(worker, SumNotice::Failed { sum }, out);
        } else if let Some((sum, owners)) =
            self.copies.monitors.cut_off(now, &self.hosts.able(), deadlines.stall)
        {
            let workers: Vec<Worker> = owners.iter().copied().map(Worker).collect();
            let workers = named(&workers, |_| None);
            report(owners[0], SumNotice::Failed { sum }, out);
            let until = self.hosts.exclude(&owners, sum.step);
            let until = until.map_or_else(String::new, |until| format!(" until {until}"));
            tracing::warn!("{}: {workers} wait for each other: others sum{until}", sum.step);
        }
        if let Some((worker, reason)) = self.copies.monitors.holds_up(now, deadlines) {
            // A group is made of those who stay.
            return give_up(worker, reason, out);
        }
        if exchange == Exchange::Nccl && self.hosts.have_begun() {
            match self.groups.look(now, self.hosts.present(), self.epoch) {
                Ok(None) => {}
                Ok(Some((by, group))) => tell(vec![by], SumCommand::NameGroup { group }, out),
                Err(reason) => self.group_failed(&reason, now, out),
            }
        }
    }
}

fn answered(worker: u32, answers: Vec<Answer>, out: &mut Effects) {
    let answered = |answer| CoordinatorEffect::Answered { worker: Worker(worker), answer };
    out.extend(answers.into_iter().map(answered));
}

fn other_bytes(step: Step) -> String {
    format!("it holds other bytes of {step} than were summed")
}
