//! When workers are asked whether they are there.

use std::time::Duration;
use tokio::time::Instant;

const PING: Duration = Duration::from_secs(1);

/// When workers were asked last whether they are there.
pub(super) struct Pings {
    count: u64,
    last: Instant,
}

impl Pings {
    /// Nobody was asked yet; the first is due a second from now.
    pub(super) fn new(now: Instant) -> Self {
        Self { count: 0, last: now }
    }

    /// The number of another one, if it is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.last) < PING {
            return None;
        }
        self.count += 1;
        self.last = now;
        Some(self.count)
    }
}
