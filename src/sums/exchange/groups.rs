//! Groups of workers that sum among themselves by a collective, as NCCL between their GPUs.
//!
//! A group is all workers that are there. When a worker comes or goes, or something goes wrong,
//! another group takes its place; meanwhile sums go by connections.

use super::plan::share_out;
use crate::ids::Worker;
use crate::sums::{Owner, chunks};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often in a row it may go wrong until nothing more is tried with these workers.
const TRIES: u32 = 4;
/// How long nothing is tried after the first time; then twice as long each time.
const PAUSE: Duration = Duration::from_secs(1);
/// How long members may take to find each other, beyond what their own limits allow.
const MEETING: Duration = Duration::from_secs(90);

/// Workers that sum among themselves, or are about to.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) number: u64,
    pub(super) members: Vec<u32>,
    since: Instant,
    named: bool,
    /// Who has found the others.
    joined: BTreeSet<u32>,
}

impl Group {
    fn is_complete(&self) -> bool {
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
    /// Gives up the group of other workers, after a worker has come or gone.
    pub(super) fn regroup(&mut self, present: &BTreeSet<u32>) -> Option<Group> {
        self.failures = 0;
        self.rest = None;
        self.group.take_if(|group| !group.members.iter().eq(present))
    }

    /// Begins a group if there is to be one now: which worker is to name it, and its number.
    /// `epoch` is the greatest of the workers': a coordinator that was restarted goes on above its
    /// earlier numbers, since workers that come back have new epochs.
    ///
    /// # Errors
    /// Why the group that was begun does not come about.
    pub(super) fn look(
        &mut self,
        now: Instant,
        present: &BTreeSet<u32>,
        epoch: u32,
    ) -> Result<Option<(u32, u64)>, String> {
        if let Some(group) = &self.group {
            if group.is_complete() || now.duration_since(group.since) <= MEETING {
                return Ok(None);
            }
            let absent = group.members.iter().filter(|member| !group.joined.contains(*member));
            let absent: Vec<String> = absent.map(|member| Worker(*member).to_string()).collect();
            return Err(format!("{} did not find the others", absent.join(", ")));
        }
        let rests = self.rest.is_some_and(|rest| now < rest);
        if rests || self.failures >= TRIES || present.len() < 2 {
            return Ok(None);
        }
        self.count += 1;
        let number = u64::from(epoch) << 32 | u64::from(self.count);
        let members: Vec<u32> = present.iter().copied().collect();
        let by = members[0];
        let joined = BTreeSet::new();
        self.group = Some(Group { number, members, since: now, named: false, joined });
        Ok(Some((by, number)))
    }

    fn numbered(&mut self, number: u64) -> Option<&mut Group> {
        self.group.as_mut().filter(|group| group.number == number)
    }

    /// Whether there is a group of this number.
    pub(super) fn is(&self, number: u64) -> bool {
        self.group.as_ref().is_some_and(|group| group.number == number)
    }

    /// A worker has named the group; gives the members, who are to be told.
    pub(super) fn named(&mut self, worker: u32, number: u64) -> Option<Vec<u32>> {
        let group = self.numbered(number)?;
        if group.members[0] != worker || group.named {
            return None;
        }
        group.named = true;
        Some(group.members.clone())
    }

    /// A worker has found the others; gives the size of the group once all have.
    pub(super) fn joined(&mut self, worker: u32, number: u64) -> Option<usize> {
        let group = self.numbered(number)?;
        if !group.named || !group.members.contains(&worker) {
            return None;
        }
        group.joined.insert(worker);
        group.is_complete().then_some(group.members.len())
    }

    /// How many can sum by it now.
    pub(super) fn size(&self) -> usize {
        let complete = self.group.as_ref().filter(|group| group.is_complete());
        complete.map_or(0, |group| group.members.len())
    }

    /// A sum was made in a group.
    pub(super) fn went_well(&mut self) {
        self.failures = 0;
    }

    /// Something went wrong: gives up the group.
    pub(super) fn fail(&mut self, reason: &str, now: Instant) -> Option<Group> {
        self.failures += 1;
        self.rest = Some(now + PAUSE * (1 << self.failures.min(10)) / 2);
        let what = if self.failures < TRIES {
            "another group is tried later"
        } else {
            "no other group is tried until a worker comes or goes"
        };
        tracing::warn!("sums go by connections, {what}: {reason}");
        self.group.take()
    }

    /// Gives up the group if a worker that is lost is in it.
    pub(super) fn lost(&mut self, worker: u32) -> Option<Group> {
        self.group.take_if(|group| group.members.contains(&worker))
    }

    /// The number of the group that can make a sum of what these workers hold, and what each of
    /// them sums of a vector of `length`.
    pub(super) fn for_holders(&self, holders: &[u32], length: usize) -> Option<(u64, Vec<Owner>)> {
        let group = self.group.as_ref().filter(|group| {
            let all_in = holders.iter().all(|holder| group.members.contains(holder));
            group.is_complete() && all_in && !holders.is_empty()
        })?;
        let mut owners = share_out(holders, length);
        let end = chunks(length);
        let idle = holders.iter().skip(owners.len());
        let without: Vec<Owner> = idle.map(|node| Owner { node: *node, start: end, end }).collect();
        owners.extend(without);
        Some((group.number, owners))
    }
}
