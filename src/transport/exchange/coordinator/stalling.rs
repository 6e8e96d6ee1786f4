//! Sums that stand still: who holds them up, and how they are made all the same.

use super::{CoordinatorSums, Effects, failed, report};
use crate::ids::Worker;
use crate::transport::exchange::events::CoordinatorEffect;
use crate::transport::exchange::monitor::{ExchangeMonitor, StalledSum};
use crate::transport::exchange::monitors::Deadlines;
use std::time::{Duration, Instant};

/// How long an owner that holds no term may send nothing before the sum is made without it.
const IDLE_OWNER: Duration = Duration::from_millis(400);

impl CoordinatorSums {
    /// The oldest sum for which nodes wait in vain for so long.
    pub(in crate::transport) fn stalled(
        &self,
        now: Instant,
        patience: Duration,
    ) -> Option<StalledSum> {
        self.monitors.undecided().find_map(|(key, monitor)| monitor.stalled(key.0, now, patience))
    }

    /// Makes a sum again without an owner that holds none of its terms and holds everybody up: a
    /// late worker whose host does not answer costs the step no more than that.
    pub(super) fn do_without_idle_owners(
        &mut self,
        now: Instant,
        Deadlines { longest, .. }: Deadlines,
        out: &mut Effects,
    ) {
        let found = self.monitors.undecided().find_map(|(key, monitor)| {
            let stuck = monitor.holders.len() < monitor.needed()
                && monitor.group.is_none()
                && monitor.is_stuck(now, IDLE_OWNER, longest);
            let culprit = stuck.then(|| monitor.culprit(now))??;
            // Who holds a term cannot be done without like that: its result has to come from
            // elsewhere.
            (!monitor.parts.term_holders.contains(&culprit)).then_some((key, culprit))
        });
        let Some((key, owner)) = found else { return };
        tracing::debug!("{}: made again without {}", key.0, Worker(owner));
        // It is to own nothing in the next attempt, and again once it holds a sum.
        self.shares.lack([owner].into_iter());
        if let Some(monitor) = self.monitors.get_mut(key) {
            monitor.void = true;
        }
        report(owner, Some(failed(key)), out);
    }

    /// Gives up the worker that holds up an exchange: for whose chunks others wait while nothing
    /// else comes to them, or who is left when it has taken much longer than exchanges take.
    /// Whether there is one.
    pub(super) fn give_up_who_holds_up(
        &self,
        now: Instant,
        Deadlines { stall, longest }: Deadlines,
        out: &mut Effects,
    ) -> bool {
        let stuck = |monitor: &&ExchangeMonitor| {
            monitor.holders.len() < monitor.needed() && monitor.is_stuck(now, stall, longest)
        };
        let found = self
            .monitors
            .iter()
            .map(|(_, monitor)| monitor)
            .filter(stuck)
            .find_map(|monitor| Some((monitor.culprit(now)?, monitor.begun)));
        if let Some((worker, begun)) = found {
            let waited = now.duration_since(begun).as_secs_f64();
            let reason = format!("its vectors did not come for {waited:.1} s");
            out.push(CoordinatorEffect::GiveUp { worker, reason });
        }
        found.is_some()
    }
}
