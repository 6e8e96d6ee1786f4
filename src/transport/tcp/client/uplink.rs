//! The connection to the coordinator.
//!
//! # How to drive it
//! [`Uplink::heard`] with everything that comes over it, [`Uplink::used`] with the first order.
//! [`Uplink::is_silent`] is asked at every tick; a connection that is, or that ended, is over:
//! [`Uplink::ended`] gives the pause before the next call, none if it was used, and
//! [`Uplink::replace`] takes the new connection. [`Uplink::brings`] with every order of tasks, so
//! that [`Uplink::brought`] tells those of an earlier connection; what else came over one is told
//! by [`Uplink::is_current`].

use super::super::pipe::Pipe;
use super::ConnectionName;
use crate::ids::OrderId;
use crate::sums::exchange::Frame;
use crate::transport::wire::FromWorker;
use std::time::Duration;
use tokio::time::Instant;

/// After a connection over which no order came there is a pause, longer every time: a worker that
/// is thrown out as soon as it is let in does not come back at once.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The connection to the coordinator that there is, and what came of those before it.
pub(super) struct Uplink {
    pipe: Pipe,
    /// Connections before it.
    number: u64,
    /// The first order of tasks that came over it.
    first: Option<OrderId>,
    /// Whether an order has come over this connection, and over how many in a row before it none
    /// had.
    of_use: bool,
    of_no_use: u32,
    /// How long the coordinator wants to be left alone once it has hung up.
    wait: Duration,
    heard: Instant,
}

impl Uplink {
    /// The first connection.
    pub(super) fn new(pipe: Pipe) -> Self {
        let wait = Duration::ZERO;
        Self {
            pipe,
            number: 0,
            first: None,
            of_use: false,
            of_no_use: 0,
            wait,
            heard: Instant::now(),
        }
    }

    pub(super) fn name(&self) -> ConnectionName {
        ConnectionName::Coordinator(self.number)
    }

    pub(super) fn is_current(&self, number: u64) -> bool {
        number == self.number
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// An order of tasks comes over it.
    pub(super) fn brings(&mut self, order: OrderId) {
        self.first.get_or_insert(order);
    }

    /// Whether an order has come over this connection: those of earlier ones are void. Numbers of
    /// orders only grow.
    pub(super) fn brought(&self, order: OrderId) -> bool {
        self.first.is_some_and(|first| first <= order)
    }

    pub(super) fn tell(&self, message: &FromWorker) {
        self.pipe.tell(message);
    }

    /// Sends a frame unless so many bytes wait already.
    pub(super) fn send(&self, frame: Frame, most: usize) -> bool {
        self.pipe.send(frame, most)
    }

    /// Something came.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether nothing came for longer than this.
    pub(super) fn is_silent(&self, silence: Duration) -> bool {
        self.heard.elapsed() > silence
    }

    /// What the connection is for came over it.
    pub(super) fn used(&mut self) {
        self.of_use = true;
    }

    pub(super) fn close(&self) {
        self.pipe.close();
    }

    /// The coordinator hangs up, and wants to be called in a while.
    pub(super) fn waits(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Whether the coordinator wants to be called in a while.
    pub(super) fn is_to_wait(&self) -> bool {
        !self.wait.is_zero()
    }

    /// The connection is over: how long to wait before there is another.
    pub(super) fn ended(&mut self) -> Option<Duration> {
        let wait = std::mem::take(&mut self.wait);
        if !wait.is_zero() {
            self.of_no_use = 0;
            return Some(wait);
        }
        self.of_no_use = if self.of_use { 0 } else { self.of_no_use + 1 };
        let doublings = self.of_no_use.checked_sub(1)?;
        Some((FIRST_PAUSE * 2u32.saturating_pow(doublings)).min(LONGEST_PAUSE))
    }

    /// There is another connection.
    pub(super) fn replace(&mut self, pipe: Pipe) {
        self.pipe = pipe;
        self.number += 1;
        self.first = None;
        (self.heard, self.of_use) = (Instant::now(), false);
    }
}

#[cfg(test)]
mod tests;
