//! Checkpoints in two stages: what is to be saved is copied while training waits, and written by a
//! thread while it goes on.

use super::{BEFORE, CHECKPOINT, Place, States, file_of};
use anyhow::anyhow;
use codedgrad::doctor::CheckpointCost;
use codedgrad_shell::clock::now;
use codedgrad_shell::folder::{LineFile, RunFolder, write_keeping};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

/// Writes the states of all runs that are kept, one checkpoint at a time; the last whole one stays
/// until the new one is on disk, and after that until the next.
#[derive(Debug)]
pub(crate) struct Writer {
    path: PathBuf,
    before: PathBuf,
    /// The digest of the plan that its checkpoints are of.
    plan: String,
    busy: Option<CheckpointJob>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct CheckpointJob {
    saved: SavedCheckpoint,
    thread: JoinHandle<anyhow::Result<WriteCost>>,
}

/// What a thread has done.
#[derive(Debug)]
struct WriteCost {
    seconds: f64,
    bytes: u64,
}

/// A checkpoint that is on disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SavedCheckpoint {
    /// Which of the plan's runs it was that asked for it, and its last step that is in it.
    pub(crate) place: (usize, u64),
    pub(crate) took: CheckpointCost,
}

impl Writer {
    pub(crate) fn new(folder: &RunFolder, plan: String) -> Self {
        Self { path: folder.file(CHECKPOINT), before: folder.file(BEFORE), plan, busy: None }
    }

    /// Has states written that are copied by a function, once the checkpoint before is on disk,
    /// which is given back.
    pub(crate) fn save(
        &mut self,
        record: &LineFile,
        place: &Place,
        copied: impl FnOnce() -> anyhow::Result<States>,
    ) -> anyhow::Result<Option<SavedCheckpoint>> {
        let began = now();
        let before = self.finish()?;
        let states = copied()?;
        let record = record.same()?;
        let path = self.path.clone();
        let previous = self.before.clone();
        let (of, plan) = (place.clone(), self.plan.clone());
        let write = move || {
            let began = now();
            // A checkpoint counts the steps of the record.
            record.sync()?;
            let states: Vec<_> = states.iter().map(|(run, states)| (*run, &states[..])).collect();
            let (header, numbers) = file_of(&of, Some(&plan), &states)?;
            let parts = [&[&header[..]], &numbers[..]].concat();
            write_keeping(&path, &previous, &parts)?;
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            Ok(WriteCost { seconds: began.elapsed().as_secs_f64(), bytes })
        };
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(write)?;
        let blocked = Some(began.elapsed().as_secs_f64());
        let took = CheckpointCost { blocked, writing: None, bytes: 0 };
        self.busy = Some(CheckpointJob {
            saved: SavedCheckpoint { place: (place.run, place.next_step.saturating_sub(1)), took },
            thread,
        });
        Ok(before)
    }

    /// The checkpoint that was being written, if it is on disk now.
    pub(crate) fn poll(&mut self) -> anyhow::Result<Option<SavedCheckpoint>> {
        match &self.busy {
            Some(busy) if busy.thread.is_finished() => self.finish(),
            _ => Ok(None),
        }
    }

    /// Waits for the checkpoint that is being written.
    pub(crate) fn finish(&mut self) -> anyhow::Result<Option<SavedCheckpoint>> {
        let Some(CheckpointJob { mut saved, thread }) = self.busy.take() else { return Ok(None) };
        let written = thread.join();
        let written =
            written.map_err(|_| anyhow!("the thread that writes checkpoints panicked"))?;
        let WriteCost { seconds, bytes } = written?;
        (saved.took.writing, saved.took.bytes) = (Some(seconds), bytes);
        Ok(Some(saved))
    }
}
