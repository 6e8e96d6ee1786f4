//! The clocks of the program, which nothing else of it reads.

use std::time::{Instant, SystemTime};

/// By which people and processes wait.
#[expect(clippy::disallowed_methods, reason = "people wait in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// By which people are told when something was.
#[expect(clippy::disallowed_methods, reason = "people ask when something was")]
pub(crate) fn time_of_day() -> SystemTime {
    SystemTime::now()
}
