//! When a process that has ended is started again.
//!
//! A [`Policy`] belongs to one process and all its starts. It starts nothing and reads no clock:
//! who drives it says how the last start ended and for how long that was up, and does what it
//! answers.
//!
//! ```text
//! let mut policy = Policy::new(restarts);
//! loop {
//!     start it, wait for its end
//!     match policy.ended(end, up) {
//!         RestartDecision::Again { after, .. } => wait for this time, or until a user asks to end
//!         RestartDecision::Over => it has ended as it should, or as a user wanted
//!         RestartDecision::GivenUp(why) => say why, and what it said last
//!     }
//! }
//! ```

use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// Who was up for less has ended at its start.
const QUICK: Duration = Duration::from_secs(10);
/// So many ends at the start, one after the other, are enough.
const QUICK_MAX: u32 = 3;
/// Who was up for longer is well: what happened before is forgotten.
const STEADY: Duration = Duration::from_secs(600);
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Exit statuses after which nothing is started again: done, bad usage or input, replaced by
/// another process, and ended by SIGINT or SIGTERM.
const MEANT: [i32; 5] = [0, 2, 4, 130, 143];

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

impl End {
    pub(crate) fn of(status: ExitStatus) -> Self {
        #[cfg(unix)]
        if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
            return Self::Signal(signal);
        }
        Self::Status(status.code().unwrap_or(1))
    }

    /// As shells count: 128 more than the signal.
    pub(crate) fn status(self) -> i32 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Whether it is as it should be, or as a user wanted.
    fn is_meant(self) -> bool {
        MEANT.contains(&self.status())
    }
}

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(out, "ended with status {status}"),
            Self::Signal(2) => write!(out, "was interrupted (SIGINT)"),
            Self::Signal(6) => write!(out, "aborted (SIGABRT)"),
            Self::Signal(9) => write!(out, "was killed (SIGKILL)"),
            Self::Signal(11) => write!(out, "crashed (SIGSEGV)"),
            Self::Signal(15) => write!(out, "was ended (SIGTERM)"),
            Self::Signal(signal) => write!(out, "was ended by signal {signal}"),
        }
    }
}

/// Why a process is not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// It ended at its start, time after time.
    AtItsStart,
    /// It may not be started more often.
    TooOften(u32),
}

impl fmt::Display for StopReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtItsStart => {
                let within = QUICK.as_secs();
                write!(out, "{QUICK_MAX} times in a row within {within} s of its start")
            }
            Self::TooOften(0) => write!(out, "--restarts 0"),
            Self::TooOften(restarts) => write!(out, "it was started again {restarts} times"),
        }
    }
}

/// What comes after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    /// Start it again, after a pause.
    Again {
        after: Duration,
        /// How often that makes.
        time: u32,
    },
    /// Leave it.
    Over,
    GivenUp(StopReason),
}

/// When one process is started again; see the module.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    restarts: u32,
    /// How often it was started again, since it was last well.
    used: u32,
    /// Ends at its start, one after the other.
    quick: u32,
    pause: Duration,
    /// What pauses grow to.
    longest: Duration,
}

impl Policy {
    /// For a process that may be started again so often.
    pub(crate) fn new(restarts: u32) -> Self {
        Self { restarts, used: 0, quick: 0, pause: PAUSE_MIN, longest: PAUSE_MAX }
    }

    /// For one that others wait for, and not for long.
    pub(crate) fn pauses_up_to(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// What comes after it has ended, having been up for so long.
    pub(crate) fn ended(&mut self, end: End, up: Duration) -> RestartDecision {
        if end.is_meant() {
            return RestartDecision::Over;
        }
        if up >= STEADY {
            *self = Self::new(self.restarts).pauses_up_to(self.longest);
        }
        self.quick = if up < QUICK { self.quick + 1 } else { 0 };
        if self.used == self.restarts {
            return RestartDecision::GivenUp(StopReason::TooOften(self.restarts));
        }
        if self.quick == QUICK_MAX {
            return RestartDecision::GivenUp(StopReason::AtItsStart);
        }
        self.used += 1;
        let after = self.pause;
        self.pause = (2 * self.pause).min(self.longest);
        RestartDecision::Again { after, time: self.used }
    }
}

#[cfg(test)]
mod tests;
