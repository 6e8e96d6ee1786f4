//! `events.jsonl`: what happens in a run beside its steps.

use crate::clock::unix_seconds;
use crate::failure::Failure;
use crate::folder::{EVENTS, LineFile, RunFolder};
use codedgrad::ids::Worker;
use codedgrad::train::{Happened, Happening};
use serde::Serialize;

/// One line of the file.
#[derive(Serialize)]
struct Line<'a> {
    /// Unix time; null under a virtual clock.
    at: Option<f64>,
    run: usize,
    step: u64,
    round: Option<u64>,
    worker: Option<Worker>,
    kind: &'a str,
    what: String,
    /// Where workers are processes.
    #[serde(flatten)]
    of: Option<Of>,
    /// With how much notice a worker leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(flatten)]
    checkpoint: Option<Checkpoint>,
}

/// Which process a worker is, or was last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Of {
    /// Its name; null where none has come.
    pub identity: Option<String>,
    /// With which others it may fail at once, as far as it says.
    pub domain: Option<String>,
}

/// Kinds of events that tell of a worker's process.
const OF_PROCESSES: [&str; 7] = ["join", "begins", "lost", "leaving", "left", "drained", "missed"];

/// What a checkpoint took; under a virtual clock its times are null.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Checkpoint {
    /// Seconds for which it held up training.
    pub blocked: Option<f64>,
    /// Seconds that it took beside training.
    pub writing: Option<f64>,
    /// Of its file.
    pub bytes: u64,
}

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
    pub fn happened(&mut self, run: usize, happened: &Happened, of: Option<Of>) {
        let Happened { step, round, what } = happened;
        let seconds = match what {
            Happening::Leaving { seconds, .. } => Some(*seconds),
            _ => None,
        };
        let line = Line {
            round: Some(round.0),
            worker: what.worker(),
            of: of.filter(|_| OF_PROCESSES.contains(&what.kind())),
            seconds,
            ..self.line((run, step.0), what.kind(), what.to_string())
        };
        self.push(&line);
    }

    /// A run begins with a step, or goes on with it.
    /// Where seats are empty and may be, it says who is there.
    pub fn begins(&mut self, place: (usize, u64), resumed: bool, there: Option<String>) {
        let (kind, what) =
            if resumed { ("resume", "the run goes on") } else { ("begin", "the run begins") };
        let with = there.map_or(String::new(), |there| format!(" with {there}"));
        self.push(&self.line(place, kind, format!("{what}{with}")));
    }

    /// A run is over, or is left, before a step.
    pub fn ends(&mut self, place: (usize, u64), how: String) {
        self.push(&self.line(place, "end", how));
    }

    /// A checkpoint with a step and all before it is on disk.
    pub fn saved(&mut self, place: (usize, u64), took: Checkpoint) {
        let timed = |seconds: Option<f64>| seconds.filter(|_| self.timed);
        let took =
            Checkpoint { blocked: timed(took.blocked), writing: timed(took.writing), ..took };
        let line = Line {
            checkpoint: Some(took),
            ..self.line(place, "checkpoint", "the state is saved".into())
        };
        self.push(&line);
    }

    fn line<'a>(&self, (run, step): (usize, u64), kind: &'a str, what: String) -> Line<'a> {
        Line {
            at: self.timed.then(unix_seconds),
            run,
            step,
            round: None,
            worker: None,
            kind,
            what,
            of: None,
            seconds: None,
            checkpoint: None,
        }
    }

    /// Without it the run goes on: its steps are in the record.
    fn push(&mut self, line: &Line<'_>) {
        if let Err(error) = self.file.push(line) {
            tracing::warn!("{error:#}");
        }
    }
}
