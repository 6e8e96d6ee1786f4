//! What a coordinator tells the launcher that has started it, a JSON object a line: how it goes,
//! and the lines of `events.jsonl`.

use codedgrad::doctor::RunEvent;
use codedgrad_shell::steps::StepSummary;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// Workers can join.
    Listening { address: SocketAddr, folder: PathBuf },
    /// A worker is there, for the so manieth time.
    Joined { worker: u32, epoch: u32 },
    /// A worker's call was refused for good.
    Refused { worker: u32, reason: String },
    /// The step that is open waits for the return of one of these workers.
    Needs { workers: Vec<u32> },
    /// What `events.jsonl` has, too.
    Happened(Box<RunEvent>),
    /// A step is decided.
    Step(StepSummary),
    /// The run is over. The process ends soon after, having written what it has to.
    Over {
        outcome: Outcome,
        /// The workers that were connected to its end, and were heard of: others may hang.
        #[serde(default)]
        connected: Vec<u32>,
    },
}

impl Event {
    /// Says it on standard output. Where no launcher listens any more, that ends by itself.
    pub(crate) fn tell(&self) {
        if let Ok(mut line) = serde_json::to_vec(self) {
            line.push(b'\n');
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// All steps are decided, or a worker has ended it.
    Finished,
    /// A signal has ended it.
    Stopped,
    /// It could not go on.
    Failed,
}

#[cfg(test)]
mod tests;
