//! Sums that are made in a group of workers, and how they are made when it is given up.

use super::{CoordinatorSums, Effects, failed, report, tell};
use crate::sums::SumCommand;
use crate::sums::exchange::Key;
use crate::sums::exchange::events::CoordinatorEffect;
use crate::sums::exchange::groups::Group;
use crate::sums::exchange::monitor::Void;
use crate::sums::exchange::monitors::Deadlines;
use std::time::Instant;

impl CoordinatorSums {
    /// Gives up a group whose sum is not made in time: who holds it up is found by connections.
    pub(super) fn look_after_sums_of_groups(
        &mut self,
        now: Instant,
        Deadlines { stall, longest }: Deadlines,
        out: &mut Effects,
    ) {
        let late = self.monitors.iter().find(|(_, monitor)| {
            let waits = monitor.group.is_some()
                && !monitor.done
                && monitor.void.is_none()
                && monitor.lacks_holders();
            // Where one worker makes the sum alone, the next to hold it has it by its connection.
            let most = if monitor.sources.len() < monitor.needed() { longest } else { stall };
            waits && !monitor.overflowed && now.duration_since(monitor.begun) > most
        });
        if let Some(((step, _), monitor)) = late {
            let waited = now.duration_since(monitor.begun).as_secs_f64();
            let reason = format!("the sum of {step} was not made in {waited:.1} s");
            self.group_failed(&reason, now, out);
        }
    }

    /// Something went wrong in the group.
    pub(super) fn group_failed(&mut self, reason: &str, now: Instant, out: &mut Effects) {
        let given_up = self.groups.fail(reason, now);
        self.leave_group(now, given_up, out);
    }

    /// A group is given up. What was under way in it is sent around by the workers that have it, or
    /// made again.
    pub(super) fn leave_group(&mut self, now: Instant, group: Option<Group>, out: &mut Effects) {
        let begun = self.dissolve(group, out);
        begun.into_iter().for_each(|key| self.spread(now, key, out));
    }

    /// Has the members of a group leave it; gives those of its sums under way that somebody has.
    pub(super) fn dissolve(&mut self, group: Option<Group>, out: &mut Effects) -> Vec<Key> {
        let Some(Group { number, members, .. }) = group else { return Vec::new() };
        tell(members, SumCommand::LeaveGroup { group: number }, out);
        out.push(CoordinatorEffect::GroupSize(0));
        let mut begun = Vec::new();
        for (key, monitor) in self.monitors.of_group(number) {
            monitor.group = None;
            let void = monitor.holders.is_empty() && !monitor.done;
            if void && monitor.end(Void::Refused) {
                report(monitor.some_worker(), [failed(key)], out);
            } else if !void && !monitor.done {
                begun.push(key);
            }
        }
        begun
    }
}
