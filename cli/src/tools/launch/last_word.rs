//! What a worker says before an end that would come again if it were started again: in a file that
//! it is told by its environment, so that the end of its process is what it is anywhere else.

use codedgrad::files;
use std::fs;
use std::path::{Path, PathBuf};

/// How a worker came to an end that would come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndKind {
    /// It never came to call.
    Failed,
    /// The run has refused it, as its coordinator knows.
    Refused,
    /// It has ended the run, whose coordinator knows: its script is wrong.
    Ends,
}

/// More than any error that a worker leaves there.
const WORD_BYTES_MAX: u64 = 1 << 20;

/// Why a worker is not started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Final {
    pub(super) how: EndKind,
    /// Why, in a line.
    pub(super) why: String,
}

impl Final {
    /// What a worker said, if it said something.
    fn read(text: &str) -> Option<Self> {
        let (how, why) = text.split_once('\n')?;
        let why = why.lines().next().unwrap_or_default().to_owned();
        let how = match how {
            "refused" => EndKind::Refused,
            "failed" => EndKind::Failed,
            "ends" => EndKind::Ends,
            _ => return None,
        };
        Some(Self { how, why })
    }
}

/// The file of a worker.
#[derive(Clone, Debug)]
pub(super) struct LastWord(PathBuf);

impl LastWord {
    pub(super) fn of(worker: u32, folder: &Path) -> Self {
        Self(folder.join(format!("worker-{worker}.final")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// What is in it, which is then no more.
    pub(super) fn take(&self) -> Option<Final> {
        let text = files::read_text(&self.0, WORD_BYTES_MAX).ok();
        // Where there is none there is nothing to remove.
        let _ = fs::remove_file(&self.0);
        Final::read(&text?)
    }
}

#[cfg(test)]
mod tests;
