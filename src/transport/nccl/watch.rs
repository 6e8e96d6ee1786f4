//! When a call of several ranks is over: all are ready, one failed, or the time is up. Reads no
//! clock.

use std::fmt;
use std::time::{Duration, Instant};

/// What a communicator is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Ranks find each other.
    Connecting,
    /// NCCL puts its kernels on the streams.
    Launching,
    /// The devices sum or send.
    Running,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Connecting => "connecting",
            Phase::Launching => "launching",
            Phase::Running => "running",
        })
    }
}

/// Longest times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For all ranks to find each other.
    pub connect: Duration,
    /// For an operation, launch included.
    pub operate: Duration,
    /// For giving up.
    pub abort: Duration,
}

impl Default for Timeouts {
    /// A minute to connect, ten seconds for an operation, ten to give up.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(60),
            operate: Duration::from_secs(10),
            abort: Duration::from_secs(10),
        }
    }
}

/// How far one rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ready,
    Busy,
    /// NCCL's number for what went wrong.
    Failed(i32),
}

/// How far all are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Wait,
    Done,
    Failed(i32),
    Late { busy: usize },
}

/// A failure of one rank counts before the time limit does; readiness of all ranks counts whenever
/// it is seen.
pub(super) fn judge(statuses: &[Status], now: Instant, deadline: Instant) -> Verdict {
    let failure = statuses
        .iter()
        .find_map(|status| if let Status::Failed(code) = status { Some(*code) } else { None });
    if let Some(code) = failure {
        return Verdict::Failed(code);
    }
    let busy = statuses.iter().filter(|status| **status == Status::Busy).count();
    match busy {
        0 => Verdict::Done,
        _ if now >= deadline => Verdict::Late { busy },
        _ => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests;
