//! The coordinator's end of all sums: who makes and holds them, and what is done about those that
//! stand still.

mod disputing;
mod expecting;
mod finiteness;
mod grouping;
mod reports;
mod stalling;

use super::choices::Exchange;
use super::context::NodeContext;
use super::disputes::Disputes;
use super::doubts::Doubts;
use super::eager::{Answer, EagerReceiver};
use super::events::{CoordinatorEffect, CoordinatorEvent, Expectation, SumSettings};
use super::groups::{GroupStep, Groups};
use super::monitor::{ExchangeMonitor, Void};
use super::monitors::Monitors;
use super::node::NodeExchanges;
use super::owners::{OwnerShares, prefer};
use super::part::Outgoing;
use super::plan::share_out;
use super::store::{SharedSums, Sum};
use super::suspects::Suspects;
use super::told::Told;
use super::{Block, DATA_WAITING_MAX, Key, QUIET};
use crate::ids::{Step, Worker};
use crate::sums::{
    COORDINATOR, Decoded, Header, Kind, Owner, SumCommand, SumNotice, SumPlan, SumReport, Summand,
    chunks,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

type Effects = Vec<CoordinatorEffect>;

/// Which of all terms a worker is told of, and these.
type SomeTerms = (Vec<u32>, Vec<Summand>);

/// The coordinator's end of the sums of a run. How to drive it is told in [`super`].
#[derive(Debug)]
pub(crate) struct CoordinatorSums {
    settings: SumSettings,
    context: NodeContext,
    node: NodeExchanges,
    /// Results on their way here, where workers send them at once.
    eager: Option<EagerReceiver>,
    present: BTreeSet<u32>,
    /// The greatest number of a connection that any worker had.
    epoch: u32,
    monitors: Monitors,
    shares: OwnerShares,
    doubts: Doubts,
    disputes: Disputes,
    suspects: Suspects,
    term_suspects: Suspects,
    groups: Groups,
    begun: bool,
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
            node: NodeExchanges::new(context.clone()),
            context,
            eager,
            present: BTreeSet::new(),
            epoch: 0,
            monitors: Monitors::new(),
            shares: OwnerShares::new(settings.exchange),
            doubts: Doubts::default(),
            disputes: Disputes::default(),
            suspects: Suspects::default(),
            term_suspects: Suspects::default(),
            groups: Groups::default(),
            begun: false,
        }
    }

    /// The sums that are here.
    pub(crate) fn sums(&self) -> SharedSums {
        self.node.sums.clone()
    }

    /// Numbers in a vector.
    #[cfg(test)]
    pub(super) fn length(&self) -> usize {
        self.context.length
    }

    /// Entries that are kept: exchanges, decided steps and sums.
    pub(crate) fn len(&self) -> usize {
        self.monitors.len() + self.node.len()
    }

    /// The steps decided last, with their attempts.
    pub(crate) fn last_decided(&self) -> Vec<Key> {
        self.monitors.last_decided()
    }

    /// Whether every worker has a sum that is decided: then it is not needed any more.
    pub(crate) fn all_hold(&self, key: Key) -> bool {
        self.monitors.get(key).is_none_or(|monitor| {
            let has = |node: &u32| monitor.holders.contains_key(node);
            monitor.receivers.iter().all(|node| has(node) || !self.present.contains(node))
        })
    }

    /// A step is applied by all who were sent it.
    fn release(&mut self, step: Step) {
        // Workers that fell behind may still ask for the sums of the last steps.
        let oldest = Step(step.0.saturating_sub(self.settings.log_steps + 1));
        self.monitors.release(step, oldest);
        self.doubts.release(step);
    }

    /// Takes in what happened and appends what is to be done for it.
    pub(crate) fn handle(&mut self, now: Instant, event: CoordinatorEvent, out: &mut Effects) {
        match event {
            CoordinatorEvent::Begun { start, behind } => {
                self.begun = true;
                self.shares.lack(behind.into_iter());
                // A resumed run begins in the middle: what is said of earlier steps is nothing to
                // it.
                self.node.moved(start);
            }
            CoordinatorEvent::Connected { worker, epoch, reachable } => {
                self.present.insert(worker);
                self.epoch = self.epoch.max(epoch);
                self.shares.comes(worker, reachable, self.begun);
            }
            CoordinatorEvent::Lost { worker } => self.lost(now, worker, out),
            CoordinatorEvent::MembersChanged => {
                // A group is made of all who are there, so any change of those needs another one.
                let given_up = self.groups.regroup(&self.present);
                self.leave_group(now, given_up, out);
            }
            CoordinatorEvent::HasState { worker, next } => {
                self.offer_sums(now, worker, next, out);
            }
            CoordinatorEvent::Ordered { worker, order, tasks } => {
                if let Some(eager) = &mut self.eager {
                    eager.ordered(worker, order, tasks.into_iter());
                }
            }
            CoordinatorEvent::Changed { worker, task } => self.changed(worker, task, out),
            CoordinatorEvent::Done { worker, task, .. } if self.doubts.is_changed(worker, task) => {
                let reason = "it says that it has done what it had changed after announcing it";
                out.push(CoordinatorEffect::GiveUp { worker, reason: reason.into() });
            }
            CoordinatorEvent::Done { worker, order, task, word, finite } => {
                let answers = match &mut self.eager {
                    Some(eager) => eager.done(worker, order, task, word, finite),
                    None => vec![Answer::Done { task, word, finite }],
                };
                answered(worker, answers, out);
            }
            CoordinatorEvent::Dropped { worker, order, spent } => {
                let answers = match &mut self.eager {
                    Some(eager) => eager.dropped(worker, order, spent),
                    None => vec![Answer::Dropped { spent }],
                };
                answered(worker, answers, out);
            }
            CoordinatorEvent::Expect { step, attempt, terms } => {
                self.expect(now, (step, attempt), terms, out);
            }
            CoordinatorEvent::Sum { step, attempt, terms, spares_one, mut counted } => {
                // It bears on deadlines: who holds others up is given up sooner where it can be
                // spared.
                self.monitors.may_lose(spares_one);
                // Of one that is lost the engine may not have heard.
                counted.retain(|worker| self.present.contains(worker));
                let key = (step, attempt);
                if self.monitors.get(key).is_some() {
                    self.confirm(now, key, (&terms, counted), out);
                } else {
                    self.sum(now, key, (terms, counted), out);
                }
            }
            CoordinatorEvent::Store { worker, step, attempt, decoded } => {
                self.store(now, worker, (step, attempt), &decoded, out);
            }
            CoordinatorEvent::Decided { worker, step, attempt, decoded } => {
                self.decided(now, worker, (step, attempt), &decoded, out);
            }
            CoordinatorEvent::Released { step, end } => {
                self.tell_all(SumCommand::Release { step, end }, out);
                self.release(step);
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
                let placed = self.node.placed(&header, from, &slot, now, &mut Vec::new());
                if let Err(reason) = placed {
                    out.push(CoordinatorEffect::GiveUp { worker: from, reason });
                }
            }
            CoordinatorEvent::Tick => self.tick(now, out),
        }
    }

    /// Sums one chunk, if there is one that can be summed.
    pub(crate) fn work(&mut self, out: &mut Effects) -> bool {
        let mut sent: Vec<Outgoing> = Vec::new();
        let worked = self.node.work(&mut sent);
        // It holds no terms: there is nothing to tell of them.
        let send = |outgoing| match outgoing {
            Outgoing::Chunk { to, frame } => {
                Some(CoordinatorEffect::Send { to, frame, most: DATA_WAITING_MAX })
            }
            Outgoing::Tell { .. } => None,
        };
        out.extend(sent.into_iter().filter_map(send));
        worked
    }

    /// Looks after the sums that have become whole here.
    pub(crate) fn finish(&mut self, now: Instant, out: &mut Effects) {
        for sum in self.node.finished() {
            // Whether that is what the step is made of may not be known yet.
            if sum.confirmed {
                self.is_whole_here(now, &sum, out);
            }
        }
    }

    fn is_whole_here(&mut self, now: Instant, sum: &Sum, out: &mut Effects) {
        let key = (sum.step, sum.attempt);
        if !sum.finite {
            return self.found_not_finite(sum, out);
        }
        let monitor = self.monitors.get_mut(key);
        let reports = monitor.map(|monitor| {
            // Those that it waited for are not needed any more.
            monitor.void = None;
            std::mem::take(&mut monitor.unreported)
        });
        let mut differ = false;
        for (worker, notice) in reports.into_iter().flatten() {
            match notice {
                SumNotice::Held { digest, .. } if digest != sum.digest && self.sees(key) => {
                    let reason = other_bytes(sum.step);
                    out.push(CoordinatorEffect::GiveUp { worker: worker.0, reason });
                }
                SumNotice::Held { digest, .. } if digest != sum.digest => differ = true,
                notice => report(worker.0, [notice], out),
            }
        }
        if differ {
            return self.dispute(now, key, out);
        }
        self.found_finite(key, out);
        self.hand_out(now, key, out);
    }

    /// Whether the coordinator itself makes a sum, and sees what it is made of.
    fn sees(&self, key: Key) -> bool {
        self.monitors.get(key).is_some_and(|monitor| monitor.own)
    }

    fn chunk(&mut self, now: Instant, from: u32, header: &Header, block: Block, out: &mut Effects) {
        let taken = if header.kind == Kind::Result {
            match &mut self.eager {
                Some(eager) => eager.chunk(from, header, block),
                None => Err("it sends a result, which is not asked for here".to_owned()),
            }
        } else if !self.monitors.has_from((Step(header.number), header.attempt)) {
            // Of a step that was never told or is long over: a worker may not have heard of that.
            tracing::debug!("{}: a chunk of an exchange that is not under way", Worker(from));
            self.context.blocks.give(block);
            Ok(Vec::new())
        } else {
            self.node.chunk(header, from, block, now, &mut Vec::new()).map(|()| Vec::new())
        };
        match taken {
            Ok(answers) => answered(from, answers, out),
            Err(reason) => out.push(CoordinatorEffect::GiveUp { worker: from, reason }),
        }
    }

    /// Who is there of those that hold some term.
    fn present_holders(&self, terms: &[Summand]) -> Vec<u32> {
        let holders: BTreeSet<u32> =
            terms.iter().flat_map(|term| &term.holders).map(|piece| piece.worker.0).collect();
        holders.intersection(&self.present).copied().collect()
    }

    /// Has a sum made: tells everybody what to exchange.
    fn sum(
        &mut self,
        now: Instant,
        key: Key,
        (mut terms, counted): (Vec<Summand>, BTreeSet<u32>),
        out: &mut Effects,
    ) {
        let (step, attempt) = key;
        if self.monitors.last(step).is_some_and(ExchangeMonitor::is_expected) {
            out.push(CoordinatorEffect::Expected(Expectation::Replaced));
        }
        let holders = self.present_holders(&terms);
        // Somebody says that the sum is not finite, and the coordinator has not seen it: it makes
        // the sum itself, and then knows who is wrong.
        let doubted = self.doubts.of(step);
        let nobody_can = !self.shares.some_can_own(&holders);
        let alone = nobody_can || doubted;
        let coordinator = alone.then_some(COORDINATOR).or(self.settings.beside);
        let receivers: Vec<u32> = self.present.iter().copied().chain(coordinator).collect();
        // Workers lost meanwhile cannot be sources; the engine hears of it and folds again.
        let is_here = |worker: Worker| self.present.contains(&worker.0);
        let is_able = |worker: Worker| self.shares.answers(worker.0);
        for term in &mut terms {
            prefer(term, is_here);
            prefer(term, is_able);
        }
        // In a group everybody waits for everybody: it must not begin without one of its vectors.
        let all_here =
            terms.iter().flat_map(|term| term.holders.first()).all(|piece| is_here(piece.worker));
        // Before owners are chosen, since it may show that a host does not answer.
        self.look_at_hosts(step, &holders);
        let length = self.context.length;
        let by_group = self.groups.for_holders(&holders, length).filter(|_| all_here && !doubted);
        let group = by_group.as_ref().map(|(group, _)| *group);
        let carried = self.go_on(step, &terms).filter(|_| group.is_none() && !alone);
        let (owners, stripe, predecessor) = match (by_group, carried) {
            (Some((_, owners)), _) => (owners, None, None),
            (None, Some(((stripe, owners), before))) => (owners, Some(stripe), Some(before)),
            (None, None) if alone => (share_out(&[COORDINATOR], length), None, None),
            (None, None) => (self.shares.owners(&self.present, &terms, length), None, None),
        };
        let places = Vec::new();
        let plan =
            SumPlan { step, attempt, places, terms, owners, stripe, predecessor, receivers, group };
        match group {
            Some(_) => self.tell_group(now, &plan, out),
            None => self.tell_plan(&plan, out),
        }
        let mut monitor = self.monitor_of(&plan, None, &holders, now);
        monitor.decision.counted = counted;
        monitor.own = group.is_none() && alone;
        monitor.parts.term_holders.extend(&holders);
        // Where the coordinator sums alone, nobody else can go on with it.
        if group.is_none() && !alone {
            monitor.parts.told = Some(Told::of(&plan, chunks(length)));
            monitor.parts.can_ask(&plan.terms);
        }
        // Chunks may have been made of what was announced.
        if plan.predecessor.is_some()
            && let Some(before) = self.monitors.last(step)
        {
            monitor.parts.announced.clone_from(&before.parts.announced);
        }
        self.monitors.begin(key, monitor);
        // What carries on a sum that was expected is not: it is waited for.
        if plan.stripe.is_some() {
            self.tell_all(SumCommand::Confirm { step, attempt }, out);
        }
        if coordinator.is_some() && group.is_none() {
            let mut none = Vec::new();
            for reason in self.node.begin(plan, |_| None, now, &mut none) {
                tracing::warn!("{step}, attempt {attempt}: {reason}");
            }
            self.node.confirm(key, now);
        } else {
            self.node.supersede(step, attempt);
        }
    }

    /// What is known of a sum of which everybody is told.
    fn monitor_of(
        &self,
        plan: &SumPlan,
        expected: Option<Vec<(u32, SumReport)>>,
        holders: &[u32],
        now: Instant,
    ) -> ExchangeMonitor {
        let summing = plan.owners.iter().map(|owner| owner.node);
        let sources = holders.iter().copied().chain(summing).collect();
        let mut monitor = ExchangeMonitor::new(expected, plan.receivers.clone(), sources, now);
        monitor.given.extend(&plan.receivers);
        monitor.group = plan.group;
        if plan.group.is_none() {
            monitor.parts.owners = plan.all_owners(chunks(self.context.length));
        }
        monitor
    }

    /// Those who are there and answer, as far as is known.
    fn able(&self) -> BTreeSet<u32> {
        self.present.iter().copied().filter(|worker| self.shares.answers(*worker)).collect()
    }

    fn tell_all(&self, command: SumCommand, out: &mut Effects) {
        tell(self.present.iter().copied().collect(), command, out);
    }

    /// Notes who is late in a step that begins to be summed, and who lacks the last one's sum
    /// still.
    fn look_at_hosts(&mut self, step: Step, holders: &[u32]) {
        let is_held = |monitor: &ExchangeMonitor| monitor.done || monitor.holders.len() > 1;
        let before = self.monitors.iter().filter(|(key, _)| key.0 < step);
        let last = before.filter(|(_, monitor)| is_held(monitor)).last();
        if let Some((_, monitor)) = last {
            let has = |node: &u32| monitor.holders.contains_key(node);
            self.shares.lack(monitor.receivers.iter().copied().filter(|node| !has(node)));
        }
        // Another attempt says nothing new of who is late.
        let was_asked = |monitor: &ExchangeMonitor| monitor.expected.is_none();
        if !self.monitors.last(step).is_some_and(was_asked) {
            self.shares.step_begins(&self.present, &holders.iter().copied().collect());
        }
    }

    /// Tells those whose vectors are summed in a group; the others get the sum, unasked.
    fn tell_group(&mut self, now: Instant, plan: &SumPlan, out: &mut Effects) {
        let members: Vec<u32> = plan.owners.iter().map(|owner| owner.node).collect();
        let others: Vec<u32> =
            plan.receivers.iter().copied().filter(|node| !members.contains(node)).collect();
        tell(members, SumCommand::Exchange(plan.clone()), out);
        self.tell_senders(now, (plan.step, plan.attempt), &others, plan.owners.clone(), out);
    }

    /// Tells everybody their part in an exchange: those who sum, all of it; others, the terms they
    /// hold.
    fn tell_plan(&self, plan: &SumPlan, out: &mut Effects) {
        let owners: BTreeSet<u32> = plan.owners.iter().map(|owner| owner.node).collect();
        // With many workers most hold few of the terms: the whole plan would be the larger part of
        // what they are sent.
        let mut parts: BTreeMap<u32, SomeTerms> = BTreeMap::new();
        for (place, term) in (0..).zip(&plan.terms) {
            for piece in term.holders.iter().filter(|piece| !owners.contains(&piece.worker.0)) {
                let part = parts.entry(piece.worker.0).or_default();
                // A worker may hold a term twice.
                if part.0.last() != Some(&place) {
                    part.0.push(place);
                    part.1.push(term.clone());
                }
            }
        }
        let (summing, others): (Vec<u32>, Vec<u32>) =
            self.present.iter().partition(|worker| owners.contains(worker));
        // Only where somebody sums: a whole plan is not small.
        if !summing.is_empty() {
            tell(summing, SumCommand::Exchange(plan.clone()), out);
        }
        for worker in others {
            let (places, terms) = parts.remove(&worker).unwrap_or_default();
            let part = SumPlan {
                places,
                terms,
                owners: plan.owners.clone(),
                predecessor: plan.predecessor.clone(),
                receivers: Vec::new(),
                ..*plan
            };
            tell(vec![worker], SumCommand::Exchange(part), out);
        }
    }

    /// Has a worker hold a sum that was made on this side, unless it was sent it.
    fn store(&mut self, now: Instant, worker: u32, key: Key, decoded: &Decoded, out: &mut Effects) {
        let present = &self.present;
        let monitor = self.monitors.get_or_begin(key, || {
            let receivers = present.iter().copied().collect();
            let mut monitor = ExchangeMonitor::new(None, receivers, BTreeSet::new(), now);
            monitor.own = true;
            monitor
        });
        if !monitor.given.insert(worker) {
            return;
        }
        // Others may ask for it later, when their turn comes.
        self.node.sums.keep(Sum::made(key, Some(Arc::clone(&decoded.gradient)), decoded.digest));
        self.give(now, key, worker, out);
    }

    /// A worker is to apply a step. One that holds other bytes of it gets them again; one that was
    /// at work or away while the others took its sum is sent it.
    fn decided(
        &mut self,
        now: Instant,
        worker: u32,
        key: Key,
        decoded: &Decoded,
        out: &mut Effects,
    ) {
        let wrong = self.monitors.decided(key, decoded.digest);
        wrong.into_iter().for_each(|node| warn_of_other_bytes(node, key.0));
        self.node.applied(key.0.next());
        // Workers do not hear of chunks then: the sum is made here, and all of them lack it.
        if self.eager.is_some() {
            return self.store(now, worker, key, decoded, out);
        }
        let monitor = self.monitors.get_mut(key);
        if monitor.is_none_or(|monitor| monitor.given.insert(worker)) {
            self.give(now, key, worker, out);
        }
    }

    /// Gives a sum that is whole to those who came while it was made.
    fn hand_out(&mut self, now: Instant, key: Key, out: &mut Effects) {
        let monitor = self.monitors.get_mut(key).filter(|monitor| !monitor.done);
        let Some(given) = monitor.map(|monitor| &mut monitor.given) else { return };
        let late: Vec<u32> =
            self.present.iter().copied().filter(|worker| given.insert(*worker)).collect();
        for worker in late {
            self.give(now, key, worker, out);
        }
    }

    /// Gives a worker that has come, in a state that is one of the last, the sums that are whole
    /// and wait for holders.
    fn offer_sums(&mut self, now: Instant, worker: u32, next: Option<Step>, out: &mut Effects) {
        let Some(next) = next else { return };
        // What is older it gets with a state, which is shorter than so many sums.
        let recent = |step: Step| step.0.saturating_sub(next.0) <= self.settings.log_steps;
        let open = self.monitors.undecided().map(|(key, _)| key).filter(|key| recent(key.0));
        let whole = |key: &Key| self.node.sums.sum(key.0, key.1).is_some_and(|sum| sum.finite);
        let sums: Vec<Key> = open.filter(whole).collect();
        for key in sums {
            if let Some(monitor) = self.monitors.get_mut(key) {
                monitor.given.insert(worker);
            }
            self.give(now, key, worker, out);
        }
    }

    /// Has a sum sent to a node by somebody who has it; false if there is nobody.
    pub(crate) fn give(&mut self, now: Instant, key: Key, to: u32, out: &mut Effects) -> bool {
        let (step, attempt) = key;
        if let Some(frames) = self.node.sums.give(step, attempt) {
            let send = |frame| CoordinatorEffect::Send { to, frame, most: usize::MAX };
            out.extend(frames.into_iter().map(send));
            return true;
        }
        let monitor = self.monitors.get(key);
        let giver =
            monitor.and_then(|monitor| monitor.giver(to, |holder| self.present.contains(&holder)));
        let Some(holder) = giver else { return false };
        let all = Owner { node: holder, start: 0, end: chunks(self.context.length) };
        self.tell_senders(now, key, &[to], vec![all], out);
        tell(vec![holder], SumCommand::SendSum { step, attempt, to }, out);
        true
    }

    /// These nodes get the chunks of a sum of others than those of their plan.
    fn tell_senders(
        &mut self,
        now: Instant,
        key: Key,
        to: &[u32],
        owners: Vec<Owner>,
        out: &mut Effects,
    ) {
        if to.contains(&COORDINATOR) {
            for reason in self.node.take_sum(key, &owners, now, &mut Vec::new()) {
                tracing::warn!("{}, attempt {}: {reason}", key.0, key.1);
            }
        }
        let workers = to.iter().copied().filter(|node| *node != COORDINATOR).collect();
        let (step, attempt) = key;
        tell(workers, SumCommand::TakeSum { step, attempt, owners }, out);
    }

    /// Which attempt at a step was decided.
    pub(crate) fn attempt(&self, step: Step) -> Option<u32> {
        self.monitors.attempt(step)
    }

    /// A worker is lost. What it would still have sent of a sum that others have comes from them.
    fn lost(&mut self, now: Instant, worker: u32, out: &mut Effects) {
        self.present.remove(&worker);
        self.eager.iter_mut().for_each(|eager| eager.forget(worker));
        self.doubts.forget(worker);
        self.shares.forget(worker);
        let node = &self.node;
        for key in self.monitors.forget(worker, |key| node.sums.is_whole(key)) {
            report(worker, [failed(key)], out);
        }
        // After the sums of connections: what they lack does not depend on the group.
        let group = self.groups.lost(worker);
        self.dissolve(group, out);
        let open: Vec<Key> = self.monitors.undecided().map(|(key, _)| key).collect();
        open.into_iter().for_each(|key| self.spread(now, key, out));
        let ended = self.disputes.forget(worker);
        ended.into_iter().for_each(|(key, verdict)| self.judge(key, verdict, out));
    }

    /// A worker that lacks a sum which others have gets it from them.
    fn spread(&mut self, now: Instant, key: Key, out: &mut Effects) {
        let Some(monitor) = self.monitors.get(key) else { return };
        let lacks = |worker: &&u32| !monitor.holders.contains_key(worker);
        let mut lacking: Vec<u32> = self.present.iter().filter(lacks).copied().collect();
        if monitor.receivers.contains(&COORDINATOR) && !self.node.sums.is_whole(key) {
            lacking.push(COORDINATOR);
        }
        for node in lacking {
            self.give(now, key, node, out);
        }
    }

    /// The coordinator is to make a sum by itself that others have made, or begun.
    fn doubt(&mut self, key: Key, out: &mut Effects) {
        self.doubts.raise(key.0);
        self.fail(key, out);
    }

    /// A sum is to be begun again.
    fn fail(&mut self, key: Key, out: &mut Effects) {
        let Some(monitor) = self.monitors.get_mut(key) else { return };
        let worker = monitor.some_worker();
        if monitor.end(Void::Refused) {
            report(worker, [failed(key)], out);
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        for (step, attempt, on) in self.node.stalled(now, QUIET) {
            self.waits(now, COORDINATOR, (step, attempt), on, out);
        }
        self.end_disputes(now, out);
        let bytes = self.context.length * self.context.format.bytes();
        let deadlines = self.monitors.deadlines(self.settings.stall, self.settings.spare, bytes);
        self.look_after_sums_of_groups(now, deadlines, out);
        self.do_without_idle(now, out);
        let given_up = self.give_up_who_holds_up(now, deadlines, out);
        // A group is made of those who stay.
        if self.settings.exchange == Exchange::NCCL && self.begun && !given_up {
            match self.groups.look(now, &self.present, self.epoch) {
                GroupStep::Nothing => {}
                GroupStep::Name { by, number } => {
                    tell(vec![by], SumCommand::NameGroup { group: number }, out);
                }
                GroupStep::Failed { reason } => self.group_failed(&reason, now, out),
            }
        }
    }
}

fn tell(to: Vec<u32>, command: SumCommand, out: &mut Effects) {
    if !to.is_empty() {
        out.push(CoordinatorEffect::Tell { to, command: Box::new(command) });
    }
}

fn report(worker: u32, notices: impl IntoIterator<Item = SumNotice>, out: &mut Effects) {
    let report = |notice| CoordinatorEffect::Report { worker: Worker(worker), notice };
    out.extend(notices.into_iter().map(report));
}

fn answered(worker: u32, answers: Vec<Answer>, out: &mut Effects) {
    let answered = |answer| CoordinatorEffect::Answered { worker: Worker(worker), answer };
    out.extend(answers.into_iter().map(answered));
}

/// A sum is to be begun again.
fn failed((step, attempt): Key) -> SumNotice {
    SumNotice::Failed { step, attempt }
}

fn warn_of_other_bytes(worker: u32, step: Step) {
    tracing::warn!("{} holds other bytes of {step} than were decided", Worker(worker));
}

fn other_bytes(step: Step) -> String {
    format!("it holds other bytes of {step} than were summed")
}
