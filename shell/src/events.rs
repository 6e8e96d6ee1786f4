//! `events.jsonl`: what happens in a run beside its steps.

use crate::clock::unix_seconds;
use crate::failure::Failure;
use crate::folder::{EVENTS, LineFile, RunFolder};
use crate::steps::was_told;
use codedgrad::doctor::{CheckpointCost, RunEvent, WorkerProcess};
use codedgrad::ids::Worker;
use codedgrad::train::{Incident, IncidentKind};

/// Kinds of events that tell of a worker's process.
const OF_PROCESSES: [&str; 7] = ["join", "begins", "lost", "leaving", "left", "drained", "missed"];

/// The file, which only grows.
#[derive(Debug)]
pub struct EventFile {
    file: LineFile,
    /// Whether the run goes by the wall's clock.
    timed: bool,
}

impl EventFile {
    /// The file of a run's folder, to be added to.
    pub fn open(folder: &RunFolder, timed: bool) -> Result<Self, Failure> {
        Ok(Self { file: LineFile::append(&folder.file(EVENTS))?, timed })
    }

    /// Something has happened to a run's workers; where these are processes, to which one.
    pub fn happened(
        &mut self,
        run: usize,
        happened: &Incident,
        process: Option<WorkerProcess>,
    ) -> RunEvent {
        let Incident { step, round, what } = happened;
        let seconds = match what {
            IncidentKind::Leaving { seconds, .. } => Some(*seconds),
            _ => None,
        };
        self.push(RunEvent {
            round: Some(round.0),
            worker: what.worker().map(Worker::index),
            process: process.filter(|_| OF_PROCESSES.contains(&what.kind())),
            seconds,
            told: was_told(happened),
            ..event((run, step.0), what.kind(), what.to_string())
        })
    }

    /// A run begins with a step, or goes on with it.
    /// Where seats are empty and may be, it says who is there.
    pub fn begins(&mut self, place: (usize, u64), resumed: bool, there: Option<String>) {
        let (kind, what) =
            if resumed { ("resume", "the run goes on") } else { ("begin", "the run begins") };
        let with = there.map_or(String::new(), |there| format!(" with {there}"));
        self.push(event(place, kind, format!("{what}{with}")));
    }

    /// A run is over, or is left, before a step.
    pub fn ends(&mut self, place: (usize, u64), how: String) {
        self.push(event(place, "end", how));
    }

    /// A checkpoint with a step and all before it is on disk.
    pub fn saved(&mut self, place: (usize, u64), took: CheckpointCost) {
        let timed = |seconds: Option<f64>| seconds.filter(|_| self.timed);
        let (blocked, writing) = (timed(took.blocked), timed(took.writing));
        let checkpoint = Some(CheckpointCost { blocked, writing, ..took });
        let what = "the state is saved".into();
        self.push(RunEvent { checkpoint, ..event(place, "checkpoint", what) });
    }

    /// Without it the run goes on: its steps are in the record.
    fn push(&mut self, event: RunEvent) -> RunEvent {
        let line = RunEvent { at: self.timed.then(unix_seconds), ..event };
        if let Err(error) = self.file.push(&line) {
            tracing::warn!("{error:#}");
        }
        line
    }
}

fn event((run, step): (usize, u64), kind: &str, what: String) -> RunEvent {
    RunEvent { run, step: Some(step), kind: kind.into(), what, ..RunEvent::default() }
}
