//! Who has joined the run, and when it is said who has not.

use codedgrad_shell::clock::now;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// After how long it is said who has not joined, at first.
const NOBODY: Duration = Duration::from_secs(30);

/// The workers of all hosts, and whether they come.
#[derive(Debug)]
pub(super) struct JoinProgress {
    /// How many are to come.
    all: u32,
    /// Those that have ever joined.
    joined: BTreeSet<u32>,
    /// Since when they are waited for.
    began: Instant,
    /// How long after that it is said next who has not joined.
    told_after: Duration,
}

impl JoinProgress {
    /// None of `all` workers has joined yet.
    pub(super) fn of(all: u32) -> Self {
        Self { all, joined: BTreeSet::new(), began: now(), told_after: NOBODY }
    }

    /// Waits for them from now on.
    pub(super) fn begin(&mut self) {
        (self.began, self.told_after) = (now(), NOBODY);
    }

    pub(super) fn joined(&mut self, worker: u32) {
        self.joined.insert(worker);
    }

    pub(super) fn is_nobody(&self) -> bool {
        self.joined.is_empty()
    }

    /// Now and then, who is missing.
    pub(super) fn told(&mut self, name: &str, joins_by: &str) -> Option<String> {
        if self.joined.len() == self.all as usize || self.began + self.told_after > now() {
            return None;
        }
        let seconds = self.told_after.as_secs();
        self.told_after *= 2;
        if self.is_nobody() {
            return Some(format!(
                "no worker has joined in {seconds} s: {name} is still busy before it calls \
                 {joins_by} (imports, data, the model), or does not call it"
            ));
        }
        let missing = (0..self.all).filter(|worker| !self.joined.contains(worker));
        let missing: Vec<u32> = missing.collect();
        let have = if missing.len() == 1 { "has" } else { "have" };
        let missing = named(&missing);
        Some(format!("{missing} {have} not joined, after {seconds} s"))
    }
}

/// Some workers, in words.
pub(super) fn named(workers: &[u32]) -> String {
    let list: Vec<String> = workers.iter().map(u32::to_string).collect();
    let s = if list.len() == 1 { "" } else { "s" };
    format!("worker{s} {}", list.join(", "))
}

#[cfg(test)]
mod tests;
