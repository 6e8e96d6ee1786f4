//! What workers report of sums: who holds one, whose numbers are not finite, who waits for whom.

use super::{CoordinatorSums, Effects, other_bytes, report, tell, warn_of_other_bytes};
use crate::ids::Worker;
use crate::sums::exchange::Key;
use crate::sums::exchange::events::CoordinatorEffect;
use crate::sums::{COORDINATOR, SumCommand, SumNotice, SumReport};
use std::time::Instant;

impl CoordinatorSums {
    /// A worker says what has come of a sum.
    pub(super) fn said(&mut self, now: Instant, worker: u32, report: SumReport, out: &mut Effects) {
        // Of a sum that is only expected such words wait until it is known whether the step is made
        // of it: before, they decide nothing.
        if let SumReport::Held { step, attempt, .. } | SumReport::NotFinite { step, attempt, .. } =
            report
            && let Some(monitor) = self.monitors.get_mut((step, attempt))
            && let Some(reports) = &mut monitor.expected
        {
            return reports.push((worker, report));
        }
        match report {
            SumReport::Held { step, attempt, digest } => {
                self.held(now, worker, (step, attempt), digest, out);
            }
            SumReport::NotFinite { step, attempt, of } => {
                self.says_not_finite(worker, (step, attempt), of, out);
            }
            SumReport::Waiting { step, attempt, on } => {
                self.waits(now, worker, (step, attempt), on, out);
            }
            SumReport::ChunkDigests { step, attempt, digests } => {
                self.told_digests(worker, (step, attempt), digests, out);
            }
            SumReport::GroupNamed { group, id } => {
                if let Some(members) = self.groups.named(worker, group) {
                    let command = SumCommand::JoinGroup { group, id, members: members.clone() };
                    tell(members, command, out);
                }
            }
            SumReport::GroupReady { group } => {
                if let Some(size) = self.groups.joined(worker, group) {
                    tracing::info!("{size} workers sum among themselves by their collective");
                    out.push(CoordinatorEffect::GroupSize(size));
                }
            }
            SumReport::GroupFailed { group, reason } => {
                if self.groups.is(group) {
                    self.group_failed(&format!("{}: {reason}", Worker(worker)), now, out);
                }
            }
        }
    }

    /// Nothing of a sum has come to a node for a while, and these owe it something.
    pub(super) fn waits(
        &mut self,
        now: Instant,
        node: u32,
        key: Key,
        on: Vec<u32>,
        out: &mut Effects,
    ) {
        let monitor = self.monitors.get_mut(key);
        // Said again at every tick; the sum is sent once, if anybody has it. What the coordinator
        // itself has made it has sent to all of them.
        let is_to_get = monitor.is_some_and(|monitor| monitor.waits(node, on, now) && !monitor.own);
        if is_to_get {
            self.give(now, key, node, out);
        }
    }

    /// A worker holds a sum.
    fn held(
        &mut self,
        now: Instant,
        worker: u32,
        key: Key,
        digest: Option<u64>,
        out: &mut Effects,
    ) {
        let step = key.0;
        let own = self.node.sums.sum(key.0, key.1);
        if own.as_ref().is_some_and(|sum| !sum.finite) {
            if self.sees(key) {
                let reason =
                    format!("it says that it holds the sum of {step}, which is not finite");
                out.push(CoordinatorEffect::GiveUp { worker, reason });
            }
            return;
        }
        let own = own.map(|sum| sum.digest);
        if own.zip(digest).is_some_and(|(own, digest)| own != digest) {
            // What others have summed may be wrong here.
            return match self.sees(key) {
                true => out.push(CoordinatorEffect::GiveUp { worker, reason: other_bytes(step) }),
                false => self.dispute(now, key, out),
            };
        }
        let Some(monitor) = self.monitors.get_mut(key) else { return };
        // Nobody may be told that it is held before it can be checked and handed on from here.
        let waits = own.is_none() && monitor.receivers.contains(&COORDINATOR);
        if !monitor.holds(worker, digest) {
            warn_of_other_bytes(worker, step);
            return self.dispute(now, key, out);
        }
        if monitor.differ() {
            return self.dispute(now, key, out);
        }
        // Its host answers: it may own chunks of the next sum.
        self.shares.holds(worker);
        // With two holders the sum outlives the loss of either: that is when it can be decided.
        if monitor.holders.len() == 2 && !monitor.done {
            let took = now.duration_since(monitor.begun);
            let by_collective = monitor.group.is_some();
            out.push(CoordinatorEffect::Took { seconds: took.as_secs_f64(), by_collective });
            if by_collective {
                self.groups.went_well();
            } else {
                self.monitors.took(took);
            }
        }
        // Who takes no digest has checked that of every chunk.
        let Some(digest) = digest.or(own) else { return };
        let notice = SumNotice::Held { step, attempt: key.1, digest };
        let Some(monitor) = self.monitors.get_mut(key).filter(|_| waits) else {
            return report(worker, [notice], out);
        };
        monitor.unreported.push((Worker(worker), notice));
        // It may wait for somebody who does not get through, and said so before anybody had it.
        if monitor.unreported.len() == 1 && monitor.still_waits(COORDINATOR, now) {
            self.give(now, key, COORDINATOR, out);
        }
    }
}
