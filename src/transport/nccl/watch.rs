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
mod tests {
    use super::*;
    use Status::{Busy, Failed, Ready};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "there is no other way to an instant")]
    fn the_verdict_follows_from_statuses_and_time() {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(3);
        let after = |seconds| start + Duration::from_secs(seconds);
        let cases: [(&[Status], u64, Verdict); 9] = [
            (&[Ready, Ready], 0, Verdict::Done),
            (&[Ready, Ready], 9, Verdict::Done),
            (&[], 0, Verdict::Done),
            (&[Ready, Busy], 0, Verdict::Wait),
            (&[Busy, Busy], 2, Verdict::Wait),
            (&[Busy, Ready, Busy], 3, Verdict::Late { busy: 2 }),
            (&[Busy, Failed(6)], 0, Verdict::Failed(6)),
            (&[Busy, Failed(6)], 9, Verdict::Failed(6)),
            (&[Failed(1), Ready, Failed(6)], 0, Verdict::Failed(1)),
        ];
        for (statuses, seconds, verdict) in cases {
            assert_eq!(
                judge(statuses, after(seconds), deadline),
                verdict,
                "{statuses:?} after {seconds} s"
            );
        }
    }
}
