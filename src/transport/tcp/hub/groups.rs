//! Groups of workers that sum among themselves by a fabric, as NCCL between their GPUs. A group is
//! whoever is there; when somebody comes or goes, or something goes wrong, it is given up and
//! another one is made, and sums go by connections meanwhile.

use super::super::Exchange;
use super::super::part::share_out;
use super::Hub;
use crate::ids::{Step, Worker};
use crate::transport::Notice;
use crate::transport::wire::{Down, Owner, chunks};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// How often in a row it may go wrong until nothing more is tried with these workers.
const TRIES: u32 = 4;
/// How long nothing is tried after the first time; then twice as long each time.
const PAUSE: Duration = Duration::from_secs(1);
/// How long members may take to find each other, beyond what their own limits allow.
const MEETING: Duration = Duration::from_secs(90);

#[derive(Debug)]
struct Group {
    number: u64,
    members: Vec<u32>,
    since: Instant,
    named: bool,
    /// Who has found the others.
    joined: BTreeSet<u32>,
}

impl Group {
    fn is_together(&self) -> bool {
        self.joined.len() == self.members.len()
    }
}

/// The group there is, and how it went so far.
#[derive(Debug, Default)]
pub(super) struct Groups {
    group: Option<Group>,
    /// How many there were.
    count: u32,
    /// How often it went wrong in a row.
    failures: u32,
    /// Nothing is tried before.
    rest: Option<Instant>,
}

impl Groups {
    /// The group whose members these are, if it has found itself.
    fn of(&self, workers: &[u32]) -> Option<&Group> {
        self.group.as_ref().filter(|group| {
            group.is_together() && workers.iter().all(|worker| group.members.contains(worker))
        })
    }

    /// A sum was made in a group.
    pub(super) fn went_well(&mut self) {
        self.failures = 0;
    }
}

impl Hub {
    /// Somebody has come or gone.
    pub(super) fn regroup(&mut self) {
        let there: Vec<u32> = self.members.connected().map(|(worker, _)| worker).collect();
        if self.groups.group.as_ref().is_some_and(|group| group.members != there) {
            self.part();
        }
        (self.groups.failures, self.groups.rest) = (0, None);
    }

    /// Makes a group where there is none, and gives up one that does not find itself.
    pub(super) fn look_after_groups(&mut self, now: Instant) {
        if self.listen.exchange != Exchange::Nccl || !self.begun {
            return;
        }
        let lost =
            |group: &Group| !group.is_together() && now.duration_since(group.since) > MEETING;
        if let Some(group) = self.groups.group.as_ref().filter(|group| lost(group)) {
            let absent = group
                .members
                .iter()
                .filter(|member| !group.joined.contains(*member))
                .map(|member| Worker(*member).to_string());
            let reason =
                format!("{} did not find the others", absent.collect::<Vec<_>>().join(", "));
            return self.failed(&reason, now);
        }
        let rests = self.groups.rest.is_some_and(|rest| now < rest);
        if self.groups.group.is_some() || rests || self.groups.failures >= TRIES {
            return;
        }
        let members: Vec<u32> = self.members.connected().map(|(worker, _)| worker).collect();
        let [first, _, ..] = members[..] else { return };
        self.groups.count += 1;
        // A coordinator that was restarted goes on above, since whoever comes back to it has a new
        // epoch.
        let epoch = Worker::all(self.listen.config.shape.workers)
            .map(|worker| self.members.epoch(worker.0))
            .max()
            .unwrap_or(0);
        let number = u64::from(epoch) << 32 | u64::from(self.groups.count);
        self.members.tell(first, &Down::Name { group: number });
        self.groups.group =
            Some(Group { number, members, since: now, named: false, joined: BTreeSet::new() });
    }

    fn group(&mut self, number: u64) -> Option<&mut Group> {
        self.groups.group.as_mut().filter(|group| group.number == number)
    }

    pub(super) fn named(&mut self, worker: Worker, number: u64, id: &str) {
        let Some(group) =
            self.group(number).filter(|group| group.members[0] == worker.0 && !group.named)
        else {
            return;
        };
        group.named = true;
        let members = group.members.clone();
        let join = Down::Join { group: number, id: id.to_owned(), members: members.clone() };
        members.into_iter().for_each(|member| self.members.tell(member, &join));
    }

    pub(super) fn together(&mut self, worker: Worker, number: u64) {
        let Some(group) =
            self.group(number).filter(|group| group.named && group.members.contains(&worker.0))
        else {
            return;
        };
        group.joined.insert(worker.0);
        if group.is_together() {
            let size = group.members.len();
            tracing::info!("{size} workers sum among themselves by their fabric");
            self.watched.status().group = size;
        }
    }

    pub(super) fn apart(&mut self, worker: Worker, number: u64, reason: &str, now: Instant) {
        if self.group(number).is_some() {
            self.failed(&format!("{worker}: {reason}"), now);
        }
    }

    /// Something went wrong in the group.
    pub(super) fn failed(&mut self, reason: &str, now: Instant) {
        self.groups.failures += 1;
        let failures = self.groups.failures;
        self.groups.rest = Some(now + PAUSE * (1 << failures.min(10)) / 2);
        let what = if failures < TRIES {
            "another group is tried later"
        } else {
            "no other group is tried until somebody comes or goes"
        };
        tracing::warn!("sums go by connections, {what}: {reason}");
        self.part();
    }

    /// Gives up the group. What was under way in it is sent around by whoever has it, or made anew.
    fn part(&mut self) {
        self.dissolve().into_iter().for_each(|(step, attempt)| self.spread(step, attempt));
    }

    /// Gives up the group if a worker that is lost is in it.
    pub(super) fn part_from(&mut self, worker: u32) {
        if self.groups.group.as_ref().is_some_and(|group| group.members.contains(&worker)) {
            // Whatever is still under way is spread for its loss.
            self.dissolve();
        }
    }

    /// Gives up the group; of the sums under way those that somebody has.
    fn dissolve(&mut self) -> Vec<(Step, u32)> {
        let Some(Group { number, members, .. }) = self.groups.group.take() else {
            return Vec::new();
        };
        members
            .into_iter()
            .for_each(|member| self.members.tell(member, &Down::Leave { group: number }));
        self.watched.status().group = 0;
        let (mut begun, mut unmade) = (Vec::new(), Vec::new());
        for ((step, attempt), monitor) in self.exchanges.of_group(number) {
            monitor.group = None;
            let void = monitor.holders.is_empty() && !monitor.done;
            if void && !std::mem::replace(&mut monitor.void, true) {
                let source = monitor.receivers.first().copied().unwrap_or_default();
                unmade.push((Worker(source), Notice::Unmade { step, attempt }));
            } else if !void && !monitor.done {
                begun.push((step, attempt));
            }
        }
        unmade.into_iter().for_each(|(source, notice)| self.notify(source, notice));
        begun
    }

    /// The group that can make a sum of what these workers hold, and what each of them sums.
    pub(super) fn group_for(&self, holders: &[u32]) -> Option<(u64, Vec<Owner>)> {
        let number = self.groups.of(holders).filter(|_| !holders.is_empty())?.number;
        let (mut owners, end) =
            (share_out(holders, self.listen.config.length), chunks(self.listen.config.length));
        let without =
            holders.iter().skip(owners.len()).map(|node| Owner { node: *node, start: end, end });
        owners.extend(without);
        Some((number, owners))
    }

    /// Gives up a group whose sum is not made in time: who holds it up is found by connections.
    pub(super) fn look_after_sums_of_groups(
        &mut self,
        now: Instant,
        [patience, longest]: [Duration; 2],
        needed: usize,
    ) {
        let late = self.exchanges.iter().find(|(_, monitor)| {
            let waits = monitor.group.is_some()
                && !monitor.done
                && !monitor.void
                && monitor.holders.len() < needed;
            // Where one worker makes the sum alone, the next to hold it has it by its connection.
            let most = if monitor.sources.len() < needed { longest } else { patience };
            waits && !monitor.overflowed && now.duration_since(monitor.begun) > most
        });
        if let Some(((step, _), monitor)) = late {
            let waited = now.duration_since(monitor.begun).as_secs_f64();
            self.failed(&format!("the sum of {step} was not made in {waited:.1} s"), now);
        }
    }

    /// Whoever lacks a sum that others have gets it from them.
    pub(super) fn spread(&mut self, step: Step, attempt: u32) {
        let holders = self
            .exchanges
            .get(step, attempt)
            .map(|monitor| monitor.holders.clone())
            .unwrap_or_default();
        let mut lacking: Vec<u32> = self
            .members
            .connected()
            .map(|(worker, _)| worker)
            .filter(|worker| !holders.contains_key(worker))
            .collect();
        if self.takes_part() && self.node.sum(step, attempt).is_none() {
            lacking.push(super::COORDINATOR);
        }
        for node in lacking {
            self.give(step, attempt, node);
        }
    }
}
