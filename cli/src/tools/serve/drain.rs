//! Workers that are done without on purpose: the file `drain` of a run's folder.

use codedgrad::files;
use codedgrad::ids::Worker;
use codedgrad_shell::output::{alert, plain};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::SystemTime;

/// No such file is longer: the numbers of 65,536 workers, with a few words of each.
const DRAIN_BYTES_MAX: u64 = 4 << 20;

/// The file, as it was read last.
#[derive(Debug)]
pub(crate) struct DrainFile {
    path: PathBuf,
    workers: usize,
    /// When it was written, and how long it was; none where there was none.
    seen: Option<(SystemTime, u64)>,
    /// What was said to be wrong with it when it was looked at last.
    told: BTreeSet<String>,
}

impl DrainFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, workers: 0, seen: None, told: BTreeSet::new() }
    }

    /// A run of so many workers begins, all of whom take part.
    pub(crate) fn begins(&mut self, workers: usize) {
        (self.workers, self.seen) = (workers, None);
    }

    /// Who is to be done without, if the file is not as it was; what is no worker's number is named
    /// once.
    pub(crate) fn changed(&mut self) -> Option<Vec<Worker>> {
        let stamp = fs::metadata(&self.path).ok();
        let stamp = stamp.and_then(|found| Some((found.modified().ok()?, found.len())));
        if stamp == self.seen {
            return None;
        }
        let read = match stamp {
            None => Ok(Vec::new()),
            Some(_) => files::read(&self.path, DRAIN_BYTES_MAX),
        };
        let bytes = match read {
            Ok(bytes) => bytes,
            // It is about to be replaced: it is looked at again.
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                self.tell([format!("this file is ignored: {error}")].into());
                return None;
            }
        };
        self.seen = stamp;
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let (mut workers, mut strange) = (Vec::new(), BTreeSet::new());
        let last = self.workers.saturating_sub(1);
        for line in lines.filter(|line| !line.is_empty()) {
            match line.parse::<u32>().ok().filter(|number| (*number as usize) < self.workers) {
                Some(number) => workers.push(Worker(number)),
                None => drop(
                    strange
                        .insert(format!("{:?} is no worker's number (0 to {last})", plain(line))),
                ),
            }
        }
        self.tell(strange);
        Some(workers)
    }

    /// Says what is wrong with it, but for what was said when it was looked at last.
    fn tell(&mut self, problems: BTreeSet<String>) {
        for problem in problems.difference(&self.told) {
            alert!("warning: {}: {problem}", self.path.display());
        }
        self.told = problems;
    }
}

#[cfg(test)]
mod tests;
