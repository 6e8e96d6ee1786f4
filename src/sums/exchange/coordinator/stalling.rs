//! Sums that stand still: who holds them up, and how they are made all the same.

use super::{CoordinatorSums, Effects, failed, report};
use crate::ids::Worker;
use crate::sums::exchange::events::CoordinatorEffect;
use crate::sums::exchange::monitor::{ExchangeMonitor, StalledSum, Void};
use crate::sums::exchange::monitors::Deadlines;
use std::time::{Duration, Instant};

impl CoordinatorSums {
    /// The oldest sum for which nodes wait in vain for so long.
    pub(crate) fn stalled(&self, now: Instant, patience: Duration) -> Option<StalledSum> {
        self.monitors.undecided().find_map(|(key, monitor)| monitor.stalled(key.0, now, patience))
    }

    /// Has the others go on with a sum that a worker holds up without which it can be made: one
    /// whose host does not answer costs the step no more than that, and is not given up for it.
    pub(super) fn do_without_idle(&mut self, now: Instant, out: &mut Effects) {
        let able = self.able();
        let found = self.monitors.undecided().find_map(|(key, monitor)| {
            let waits = monitor.lacks_holders() && monitor.group.is_none();
            let idle = waits.then(|| monitor.idle(now))??;
            monitor.can_do_without(idle, |other| able.contains(&other)).then_some((key, idle))
        });
        let Some((key, worker)) = found else { return };
        tracing::debug!("{}: others go on without {}", key.0, Worker(worker));
        // It is to own nothing until it holds a sum.
        self.shares.lack([worker].into_iter());
        if let Some(monitor) = self.monitors.get_mut(key) {
            monitor.end(Void::Interrupted);
        }
        report(worker, [failed(key)], out);
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
            monitor.is_waited_for() && monitor.is_stuck(now, stall, longest)
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
