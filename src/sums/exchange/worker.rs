//! A worker's end of all sums: what it holds for them, what it sends, sums and gathers.

use super::QUIET;
use super::context::NodeContext;
use super::eager;
use super::events::{WorkerEffect, WorkerEvent, chunk_for};
use super::node::NodeExchanges;
use super::store::{Sum, chunks_of};
use super::warnings::Warnings;
use crate::gpu::{SumCheck, nonfinite_mask};
use crate::ids::{Task, Worker};
use crate::sums::collective::{CollectiveCommand, CollectiveEvent, CollectiveSum, ResultStore};
use crate::sums::{COORDINATOR, NotFinite, SumCommand, SumId, SumPlan, SumReport, chunks};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

type Effects = Vec<WorkerEffect>;

/// Whether a collective sums vectors beside the connections.
enum Support {
    /// The trainer has not said.
    Unknown {
        asked: Vec<CollectiveCommand>,
    },
    /// Nothing, and why.
    Missing {
        reason: String,
    },
    Present,
}

/// A worker's end of the sums of a run. How to drive it is told in [`super`].
pub(crate) struct WorkerSums {
    me: Worker,
    length: usize,
    node: NodeExchanges,
    results: Box<dyn ResultStore>,
    collective: Support,
    /// Sums under way in a group.
    in_group: Vec<SumId>,
    warnings: Warnings,
    /// How often the collective has not yet left what another coordinator had asked for: it is not
    /// listened to until then.
    leaving: usize,
}

impl WorkerSums {
    /// Of a worker whose results are there until its trainer says something else.
    pub(crate) fn new(context: NodeContext, results: Box<dyn ResultStore>) -> Self {
        Self {
            me: Worker(context.me),
            length: context.length,
            node: NodeExchanges::new(context),
            results,
            collective: Support::Unknown { asked: Vec::new() },
            in_group: Vec::new(),
            warnings: Warnings::default(),
            leaving: 0,
        }
    }

    /// Whether a sum with these bytes is here.
    pub(crate) fn has(&self, id: SumId, digest: u64) -> bool {
        self.node.sums.has(id, digest)
    }

    /// The vector of a sum that is here; an empty one where the collective has it.
    pub(crate) fn vector(&self, id: SumId) -> Option<Arc<Vec<f32>>> {
        self.node.sums.sum(id).map(|sum| sum.vector.unwrap_or_default())
    }

    /// Whether a step is summed, while it is computed, of the result of a task.
    pub(crate) fn expects(&self, task: Task) -> bool {
        self.node.expects(task)
    }

    /// Whether a sum is under way here.
    pub(crate) fn is_open(&self, id: SumId) -> bool {
        self.node.is_open(id) || self.in_group.contains(&id)
    }

    /// Takes in what happened and appends what is to be done for it.
    pub(crate) fn handle(&mut self, now: Instant, event: WorkerEvent, out: &mut Effects) {
        match event {
            WorkerEvent::SendEagerly { task, order } => {
                if let Some(vector) = self.results.read(task) {
                    let frames = eager::frames(&vector, task, order);
                    out.extend(frames.map(|frame| chunk_for(COORDINATOR, frame)));
                    drop(vector);
                    self.results.discard(task);
                }
            }
            WorkerEvent::Told(command) => self.told(now, command, out),
            WorkerEvent::Announced { task, chunks, numbers } => {
                self.node.announce(task, chunks, numbers, now, out);
            }
            WorkerEvent::Computed { task } => {
                let result = || self.results.read(task);
                if let Some(result) = self.node.expects(task).then(result).flatten() {
                    let all = 0..chunks(self.length);
                    self.node.announce(task, all, result, now, out);
                }
            }
            WorkerEvent::Peer { from, message } => {
                let taken = self.node.hear(from, message, now, out);
                self.warn_of(from, taken);
            }
            WorkerEvent::Disconnected { worker } => {
                self.node.disconnected(worker, now, out);
            }
            WorkerEvent::Decided { step, sum } => self.node.decided(step, sum),
            WorkerEvent::Applied { next } => self.node.applied(next),
            WorkerEvent::Moved { next } => self.node.moved(next),
            WorkerEvent::Chunk { from, header, block } => {
                let taken = self.node.chunk(&header, from, block, now, out);
                self.warn_of(from, taken);
            }
            WorkerEvent::Placed { from, header, slot } => {
                let taken = self.node.placed(&header, from, &slot, now, out);
                self.warn_of(from, taken);
            }
            WorkerEvent::ConnectedAgain { worker } => {
                let owed = self.node.owed_to(worker);
                self.node.disconnected(worker, now, out);
                out.extend(owed);
            }
            WorkerEvent::Equipped(equipment) => self.equipped(equipment, out),
            WorkerEvent::Collective(reported) => self.reported(reported, out),
            WorkerEvent::CoordinatorLost => {
                self.results.clear();
                self.in_group.clear();
                self.node.reset();
                match &mut self.collective {
                    Support::Unknown { asked } => asked.clear(),
                    Support::Missing { .. } => {}
                    Support::Present => {
                        // A collective may be in the middle of a sum for the lost coordinator, and
                        // cannot be stopped.
                        self.leaving += 1;
                        out.push(WorkerEffect::Collective(CollectiveCommand::Leave {
                            group: u64::MAX,
                        }));
                    }
                }
            }
            WorkerEvent::Tick => {
                self.node.look(now, out);
                let mut owing = BTreeSet::new();
                for (sum, on) in self.node.stalled(now, QUIET) {
                    owing.extend(&on);
                    out.push(WorkerEffect::Tell(SumReport::Waiting { sum, on }));
                }
                out.push(WorkerEffect::Owing(owing));
            }
        }
    }

    /// The coordinator wants something done.
    fn told(&mut self, now: Instant, command: SumCommand, out: &mut Effects) {
        match command {
            SumCommand::Discard { task } => self.results.discard(task),
            SumCommand::Release { end } => {
                self.results.release(end);
                self.node.announced.release(end);
            }
            SumCommand::Exchange(plan) => match plan.group {
                Some(group) => self.exchange_in_group(group, plan, out),
                None => self.exchange(now, plan, out),
            },
            SumCommand::Confirm { sum } => self.node.confirm(sum, now),
            SumCommand::SendSum { sum, to } => self.give(sum, to, out),
            SumCommand::TakeSum { sum, owners } => {
                let wrong = self.node.take_sum(sum, &owners, now, out);
                wrong.iter().for_each(|reason| tracing::warn!("{sum}: {reason}"));
            }
            SumCommand::TellDigests { sum } => {
                let digests = self.node.digests(sum);
                out.push(WorkerEffect::Tell(SumReport::ChunkDigests { sum, digests }));
            }
            SumCommand::NameGroup { group } => {
                self.tell_collective(CollectiveCommand::Name { group }, out);
            }
            SumCommand::JoinGroup { group, id, members } => {
                let members: Vec<Worker> = members.into_iter().map(Worker).collect();
                if let Some(rank) = members.iter().position(|member| *member == self.me) {
                    let join = CollectiveCommand::Join { group, id, members, rank };
                    self.tell_collective(join, out);
                }
            }
            SumCommand::LeaveGroup { group } => {
                self.tell_collective(CollectiveCommand::Leave { group }, out);
            }
        }
    }

    /// Sums one chunk, if there is one that can be summed.
    pub(crate) fn work(&mut self, out: &mut Effects) -> bool {
        let worked = self.node.work(out);
        for (id, of) in self.node.not_finite() {
            out.push(WorkerEffect::Tell(told_of(id, 0, Some(&of))));
        }
        worked
    }

    fn warn_of(&mut self, from: u32, taken: Result<(), String>) {
        if let Err(reason) = taken {
            self.warnings.warn(from, &reason);
        }
    }

    /// Tells of the sums that have become whole; whether there are any.
    pub(crate) fn finish(&mut self, out: &mut Effects) -> bool {
        let finished = self.node.finished();
        for Sum { id, digest, finite, nonfinite, .. } in &finished {
            let word = told_of(*id, *digest, (!finite).then_some(nonfinite));
            out.push(WorkerEffect::Tell(word));
        }
        !finished.is_empty()
    }

    fn exchange(&mut self, now: Instant, plan: SumPlan, out: &mut Effects) {
        let sum = plan.sum;
        let held = |task| self.results.read(task);
        for reason in self.node.begin(plan, held, now, out) {
            tracing::warn!("{sum}: {reason}");
        }
    }

    /// Makes a sum with others of a group.
    fn exchange_in_group(&mut self, group: u64, plan: SumPlan, out: &mut Effects) {
        let SumPlan { sum, terms, owners, receivers, .. } = plan;
        self.node.supersede(sum);
        self.node.sums.forget(sum);
        self.in_group.push(sum);
        let length = self.length;
        // Members have the sum by then; the others are sent it.
        let shown = receivers
            .into_iter()
            .filter(|node| owners.iter().all(|owner| owner.node != *node))
            .collect();
        let parts =
            owners.iter().map(|owner| (Worker(owner.node), owner.elements(length))).collect();
        let collective = CollectiveSum { me: self.me, sum, length, terms, parts, shown };
        self.tell_collective(CollectiveCommand::Sum { group, collective }, out);
    }

    fn equipped(&mut self, equipment: Result<Box<dyn ResultStore>, String>, out: &mut Effects) {
        let collective = match equipment {
            Err(reason) => Support::Missing { reason },
            Ok(results) => {
                self.results = results;
                Support::Present
            }
        };
        let before = std::mem::replace(&mut self.collective, collective);
        if let Support::Unknown { asked } = before {
            asked.into_iter().for_each(|told| self.tell_collective(told, out));
        }
    }

    /// Hands something on to the collective.
    fn tell_collective(&mut self, told: CollectiveCommand, out: &mut Effects) {
        match &mut self.collective {
            Support::Unknown { asked } if matches!(told, CollectiveCommand::Leave { .. }) => {
                asked.clear();
            }
            // The trainer may still be loading; what it will be asked waits for it.
            Support::Unknown { asked } => asked.push(told),
            Support::Missing { reason } => {
                if let CollectiveCommand::Name { group } | CollectiveCommand::Join { group, .. } =
                    told
                {
                    let reason = reason.clone();
                    out.push(WorkerEffect::Tell(SumReport::GroupFailed { group, reason }));
                }
            }
            Support::Present => {
                if let CollectiveCommand::Leave { .. } = told {
                    self.in_group.clear();
                }
                out.push(WorkerEffect::Collective(told));
            }
        }
    }

    fn reported(&mut self, reported: CollectiveEvent, out: &mut Effects) {
        if let CollectiveEvent::Left { group } = reported {
            // All groups: that is how a lost coordinator's were left.
            self.leaving = self.leaving.saturating_sub(usize::from(group == u64::MAX));
        }
        if self.leaving > 0 {
            return;
        }
        match reported {
            CollectiveEvent::Left { .. } => {}
            CollectiveEvent::Named { group, id } => {
                out.push(WorkerEffect::Tell(SumReport::GroupNamed { group, id }));
            }
            CollectiveEvent::Joined { group } => {
                out.push(WorkerEffect::Tell(SumReport::GroupReady { group }));
            }
            CollectiveEvent::Failed { group, reason } => {
                self.in_group.clear();
                out.push(WorkerEffect::Tell(SumReport::GroupFailed { group, reason }));
            }
            CollectiveEvent::Summed { sum, folded: SumCheck { digest, finite } } => {
                self.in_group.retain(|other| *other != sum);
                if finite {
                    self.node.sums.forget(sum);
                    self.node.sums.keep(Sum::made(sum, None, digest));
                }
                // Of a collective it cannot be told whose numbers were not.
                let unknown = NotFinite::default();
                let nonfinite = (!finite).then_some(&unknown);
                out.push(WorkerEffect::Tell(told_of(sum, digest, nonfinite)));
            }
            CollectiveEvent::Part { sum, start, numbers, to } => {
                let finite = nonfinite_mask(&numbers) == 0.0;
                let part = Sum { finite, ..Sum::made(sum, None, 0) };
                for frame in chunks_of(&part, &numbers, start, self.length) {
                    // It is in memory anyway, and no node would ask for what is dropped.
                    let send = |&to: &u32| {
                        let frame = frame.clone();
                        WorkerEffect::Send { to, frame, most: usize::MAX }
                    };
                    out.extend(to.iter().map(send));
                }
            }
        }
    }

    /// Sends a sum to a node that lacks it.
    fn give(&mut self, id: SumId, to: u32, out: &mut Effects) {
        if let Some(frames) = self.node.sums.give(id) {
            out.extend(frames.into_iter().map(|frame| chunk_for(to, frame)));
        } else if self.node.sums.sum(id).is_some() {
            self.tell_collective(CollectiveCommand::Give { sum: id, to }, out);
        } else {
            tracing::warn!("{id}: the sum is asked for and not here");
        }
    }
}

/// What the coordinator is told of a sum that is whole.
fn told_of(id: SumId, digest: u64, nonfinite: Option<&NotFinite>) -> SumReport {
    match nonfinite {
        None => SumReport::Held { sum: id, digest: Some(digest) },
        Some(of) => SumReport::NotFinite { sum: id, of: of.clone() },
    }
}
