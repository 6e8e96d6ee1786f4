//! What workers report of sums: who holds one, whose numbers are not finite, who waits for whom.

use super::{CoordinatorSums, Effects, give_up, other_bytes, report, tell};
use crate::ids::Worker;
use crate::sums::exchange::copies::warn_of_other_bytes;
use crate::sums::{COORDINATOR, SumCommand, SumId, SumNotice, SumReport};
use std::time::Instant;

impl CoordinatorSums {
    /// A worker says what has come of a sum.
    pub(super) fn said(&mut self, now: Instant, worker: u32, report: SumReport, out: &mut Effects) {
        // Of a sum that is only expected such words wait until it is known whether the step is made
        // of it: before, they decide nothing.
        if let SumReport::Held { sum, .. } | SumReport::NotFinite { sum, .. } = report
            && let Some(monitor) = self.copies.monitors.get_mut(sum)
            && let Some(reports) = &mut monitor.expected
        {
            return reports.push((worker, report));
        }
        match report {
            SumReport::Held { sum, digest } => self.held(now, worker, sum, digest, out),
            SumReport::NotFinite { sum, of } => self.says_not_finite(worker, sum, of, out),
            SumReport::Waiting { sum, on } => {
                self.copies.waits(now, sum, (worker, on), self.hosts.present(), out);
            }
            SumReport::ChunkDigests { sum, digests } => {
                let verdict = self.disputes.said(sum, worker, digests);
                self.judge(verdict, out);
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
                }
            }
            SumReport::GroupFailed { group, reason } => {
                if self.groups.is(group) {
                    self.group_failed(&format!("{}: {reason}", Worker(worker)), now, out);
                }
            }
        }
    }

    /// A worker holds a sum.
    fn held(
        &mut self,
        now: Instant,
        worker: u32,
        id: SumId,
        digest: Option<u64>,
        out: &mut Effects,
    ) {
        let step = id.step;
        let sees = self.copies.monitors.is_own(id);
        let own = self.copies.node.sums.sum(id);
        if own.as_ref().is_some_and(|sum| !sum.finite) {
            if sees {
                let reason =
                    format!("it says that it holds the sum of {step}, which is not finite");
                give_up(worker, reason, out);
            }
            return;
        }
        let own = own.map(|sum| sum.digest);
        if own.zip(digest).is_some_and(|(own, digest)| own != digest) {
            // What others have summed may be wrong here.
            return match sees {
                true => give_up(worker, other_bytes(step), out),
                false => self.dispute(now, id, out),
            };
        }
        let Some(monitor) = self.copies.monitors.get_mut(id) else { return };
        // The coordinator must not report that it is held before it can check it and hand it on.
        let waits = own.is_none() && monitor.receivers.contains(&COORDINATOR);
        if !monitor.holds(worker, digest) {
            warn_of_other_bytes(worker, step);
            return self.dispute(now, id, out);
        }
        if monitor.differ() {
            return self.dispute(now, id, out);
        }
        // Its host answers: it may own chunks of the next sum.
        self.hosts.holds(worker);
        // With two holders the sum outlives the loss of either: that is when it can be decided.
        if monitor.holders.len() == 2 && !monitor.done {
            let took = now.duration_since(monitor.begun);
            let by_collective = monitor.group.is_some();
            self.counts.exchanges += 1;
            self.counts.exchange_seconds = took.as_secs_f64();
            self.counts.by_collective += u64::from(by_collective);
            if by_collective {
                self.groups.went_well();
            } else {
                self.copies.monitors.took(took);
            }
        }
        // Who takes no digest has checked that of every chunk.
        let Some(digest) = digest.or(own) else { return };
        let notice = SumNotice::Held { sum: id, digest };
        let Some(monitor) = self.copies.monitors.get_mut(id).filter(|_| waits) else {
            return report(worker, notice, out);
        };
        monitor.unreported.push((Worker(worker), notice));
        // It may wait for a worker that does not get through, and said so before a worker had it.
        if monitor.unreported.len() == 1 && monitor.waits.is_waiting(COORDINATOR, now) {
            self.copies.give(now, id, COORDINATOR, self.hosts.present(), out);
        }
    }
}
