//! The clocks of the program, which nothing else of it reads.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// By which people and processes wait.
#[expect(clippy::disallowed_methods, reason = "people wait in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// By which people are told when something was.
#[expect(clippy::disallowed_methods, reason = "people ask when something was")]
pub fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// The same as seconds since 1970, to the microsecond, for files.
pub fn unix_seconds() -> f64 {
    let since = time_of_day().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as f64 / 1e6
}
