//! Workers that are done without on purpose: the file `drain` of a run's folder.

use crate::output::alert;
use crate::tools::status::plain;
use codedgrad::ids::Worker;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

/// One worker's number per line; what comes after `#` is for people.
pub(crate) const DRAIN: &str = "drain";

/// The file, as it was read last.
#[derive(Debug)]
pub(crate) struct DrainFile {
    path: PathBuf,
    workers: usize,
    /// When it was written, and how long it was; none where there was none.
    seen: Option<(SystemTime, u64)>,
    /// Lines of which it was said that they are no worker's number.
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
        let text = match stamp {
            None => String::new(),
            Some(_) => match fs::read(&self.path) {
                Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                // Somebody may be about to replace it: it is looked at again.
                Err(error) => {
                    tracing::debug!("cannot read {}: {error}", self.path.display());
                    return None;
                }
            },
        };
        self.seen = stamp;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let (mut workers, mut strange) = (Vec::new(), BTreeSet::new());
        for line in lines.filter(|line| !line.is_empty()) {
            match line.parse::<u32>().ok().filter(|number| (*number as usize) < self.workers) {
                Some(number) => workers.push(Worker(number)),
                None => drop(strange.insert(line.to_owned())),
            }
        }
        for line in strange.difference(&self.told) {
            let (path, last) = (self.path.display(), self.workers.saturating_sub(1));
            alert!("warning: {path}: {:?} is no worker's number (0 to {last})", plain(line));
        }
        self.told = strange;
        Some(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_when_it_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(DRAIN);
        let mut file = DrainFile::at(path.clone());
        file.begins(8);
        assert_eq!(file.changed(), None, "there is none");
        fs::write(&path, "7\n# what is slow\n\n 3 # host 1\n8\nx\n-1\n").unwrap();
        assert_eq!(file.changed(), Some(vec![Worker(7), Worker(3)]));
        assert_eq!(file.told, ["-1", "8", "x"].map(str::to_owned).into());
        assert_eq!(file.changed(), None, "it is the same");
        fs::write(&path, "3\n").unwrap();
        assert_eq!(file.changed(), Some(vec![Worker(3)]));
        fs::remove_file(&path).unwrap();
        assert_eq!((file.changed(), file.changed()), (Some(vec![]), None));
    }
}
