//! What is said of calls that are refused: enough to see what is wrong, however many there are.

use super::Host;
use crate::transport::both_ends;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

/// Refusals are summed up so often.
const WINDOW: Duration = Duration::from_secs(10);
/// Refusals of one host that are said in a window, each by itself.
const FIRST: u64 = 3;
/// Refusals of all hosts that are.
const LINES: usize = 20;
/// Hosts whose refusals are counted apart.
const HOSTS: usize = 64;
/// Hosts that a summary names.
const NAMED: usize = 3;

/// Decides what is logged of refused calls: the first of every host, then one line per 10 s that
/// counts the others. A host that goes on after such a line is only counted.
///
/// Time is told, as time since any moment:
///
/// ```
/// use codedgrad::transport::tcp::security::Refusals;
/// use std::time::Duration;
/// let (mut refusals, host) = (Refusals::default(), "192.0.2.1".parse().unwrap());
/// let lines: Vec<_> =
///     (0..100).flat_map(|ms| refusals.note(host, "no", Duration::from_millis(ms))).collect();
/// assert_eq!(lines.len(), 3);
/// let sum = refusals.sum(Duration::from_secs(10)).unwrap();
/// assert_eq!(sum, "refused 97 more calls within 10 s: 97 from 192.0.2.1; the last one: no");
/// ```
#[derive(Debug, Default)]
pub struct Refusals {
    /// When the window began that is open.
    begun: Option<Duration>,
    /// When the last one ended.
    ended: Duration,
    /// Lines that were said in this window.
    lines: usize,
    /// Refusals that were said, host by host.
    said: BTreeMap<Host, u64>,
    /// Refusals that were not.
    hidden: BTreeMap<Host, u64>,
    /// Those of further hosts.
    others: u64,
    last: String,
}

impl Refusals {
    /// A call is refused: the lines that are to be logged now.
    pub fn note(&mut self, from: IpAddr, reason: &str, now: Duration) -> Vec<String> {
        let mut lines: Vec<String> = self.sum(now).into_iter().collect();
        if self.begun.is_none() {
            if now.saturating_sub(self.ended) > WINDOW {
                self.said.clear();
            }
            self.begun = Some(now);
        }
        let host = Host::of(from);
        let reason = both_ends(reason);
        let known = self.said.len() < HOSTS || self.said.contains_key(&host);
        let said = self.said.get(&host).copied().unwrap_or(0);
        if known && said < FIRST && self.lines < LINES {
            self.said.insert(host, said + 1);
            self.lines += 1;
            lines.push(format!("refused a call from {from}: {reason}"));
            return lines;
        }
        if self.hidden.len() < HOSTS || self.hidden.contains_key(&host) {
            *self.hidden.entry(host).or_default() += 1;
        } else {
            self.others += 1;
        }
        self.last = reason;
        lines
    }

    /// When the refusals that were not said are to be summed up, if there are any.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.begun.filter(|_| !self.hidden.is_empty()).map(|begun| begun + WINDOW)
    }

    /// The line that sums up the refusals that were not said, once it is due.
    pub fn sum(&mut self, now: Duration) -> Option<String> {
        let ended = self.begun? + WINDOW;
        if now < ended {
            return None;
        }
        self.begun = None;
        self.ended = ended;
        self.lines = 0;
        // A host that had more to be refused than was said begins the next window where it was.
        let hidden = std::mem::take(&mut self.hidden);
        self.said = hidden.keys().map(|host| (*host, FIRST)).collect();
        let others = std::mem::take(&mut self.others);
        let mut hosts: Vec<(u64, Host)> =
            hidden.into_iter().map(|(host, count)| (count, host)).collect();
        hosts.sort_by_key(|(count, host)| (std::cmp::Reverse(*count), *host));
        let all = hosts.iter().map(|(count, _)| count).sum::<u64>() + others;
        if all == 0 {
            return None;
        }
        let calls = if all == 1 { "call" } else { "calls" };
        let mut line = format!("refused {all} more {calls} within {} s: ", WINDOW.as_secs());
        let mut rest = all;
        for (number, (count, host)) in hosts.iter().take(NAMED).enumerate() {
            let _ = write!(line, "{}{count} from {host}", if number > 0 { ", " } else { "" });
            rest -= count;
        }
        if rest > 0 {
            let _ = write!(line, ", {rest} from other hosts");
        }
        let _ = write!(line, "; the last one: {}", std::mem::take(&mut self.last));
        Some(line)
    }
}

#[cfg(test)]
mod tests;
