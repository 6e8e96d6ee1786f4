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
mod tests {
    use super::*;

    #[test]
    fn a_last_word_is_heard_once() {
        let folder = tempfile::tempdir().unwrap();
        let word = LastWord::of(3, folder.path());
        assert_eq!(word.take(), None);
        fs::write(word.path(), "refused\nunits of a batch: 8 here, 4 in the run\nmore\n").unwrap();
        let why = "units of a batch: 8 here, 4 in the run".to_owned();
        assert_eq!(word.take(), Some(Final { how: EndKind::Refused, why }));
        assert_eq!(word.take(), None);
        fs::write(word.path(), "failed\nunits is 0: it must be 1 or more\n").unwrap();
        let failed = |said: &Final| said.how == EndKind::Failed && said.why.contains("units is 0");
        assert!(word.take().is_some_and(|said| failed(&said)));
        fs::write(word.path(), "ends\nRuntimeError: lr was changed\n").unwrap();
        assert!(word.take().is_some_and(|said| said.how == EndKind::Ends));
        fs::write(word.path(), "what").unwrap();
        assert_eq!(word.take(), None);
    }
}
