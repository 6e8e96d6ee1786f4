//! `run.jsonl` of a coordinator: where it can be written no more, the run goes on without it.

use codedgrad_shell::folder::LineFile;
use codedgrad_shell::output::alert;
use serde::Serialize;
use std::io;

pub(super) struct RecordFile {
    file: LineFile,
    /// The first step that is not in it, once one could not be written.
    lost: Option<u64>,
}

impl RecordFile {
    pub(super) fn new(file: LineFile) -> Self {
        Self { file, lost: None }
    }

    /// Adds the line of a step. A record with gaps would be worth little: nothing comes behind a
    /// line that could not be written.
    pub(super) fn push(&mut self, step: u64, line: &impl Serialize) -> anyhow::Result<()> {
        if self.lost.is_some() {
            return Ok(());
        }
        match self.file.push(line) {
            Err(error) if error.is::<io::Error>() => {
                self.lost = Some(step);
                alert!(
                    "error: {error:#}: not recorded from step {step} on; the training goes on, \
                     and this command ends with status 1"
                );
                Ok(())
            }
            pushed => pushed,
        }
    }

    pub(super) fn sync(&self) -> anyhow::Result<()> {
        self.file.sync()
    }

    /// The first step that is not recorded, if there is one.
    pub(super) fn lost(&self) -> Option<u64> {
        self.lost
    }
}
