//! Messages that cannot be read: they were damaged on their way, or are none of this protocol.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// So many in so long may each cost a connection.
const MOST: usize = 3;
const WITHIN: Duration = Duration::from_secs(60);

/// When the messages came that could not be read, the last ones of one worker or of its
/// coordinator. They are counted over all connections: the next one begins as healthy as the last.
#[derive(Debug, Default)]
pub(super) struct UnreadableMessages(VecDeque<Instant>);

impl UnreadableMessages {
    /// One came. Where another connection would only be lost again, this says so, and counts from 0
    /// again.
    pub(super) fn came(&mut self, now: Instant, reason: &str) -> Option<String> {
        self.0.retain(|before| now.saturating_duration_since(*before) < WITHIN);
        self.0.push_back(now);
        let count = Some(self.0.len()).filter(|count| *count > MOST)?;
        self.0.clear();
        let seconds = WITHIN.as_secs();
        Some(format!("{count} messages in {seconds} s cannot be read, the last one: {reason}"))
    }
}

#[cfg(test)]
mod tests;
