//! A worker's connections to other workers.
//!
//! # How to drive it
//! [`Peers::meet`] with every list of the coordinator: workers with a lower number are called, the
//! others call. [`Peers::connected`] takes in what came of a call, one's own or another's, and
//! [`Peers::disconnected`] the end of a connection. In between, [`Peers::pipe`] is where frames for
//! a worker go in: they wait there while there is no connection yet. At every tick [`Peers::renew`]
//! is told who owes something, and calls those of whom nothing has come ([`Peers::heard_of`]).
//! When the coordinator is lost, [`Peers::hang_up`] gives up all of it.

use super::super::door::jittered;
use super::super::pipe::{Pipe, Queues};
use super::super::security::Stream;
use super::ConnectionName;
use super::dialer::{DialResult, Dialer};
use crate::transport::wire::Peer;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A worker that owes chunks and of whom nothing has come for so long is called again.
const RENEWAL: Duration = Duration::from_secs(3);
/// All workers of a run learn of each other at once. A worker calls another the later the further
/// apart their numbers are: none calls, or is called by, all others at the same moment.
const STAGGER: Duration = Duration::from_millis(1);
/// The pause after a call that failed, which doubles, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Another worker.
struct Remote {
    epoch: u32,
    address: String,
    pipe: Pipe,
    /// What is sent once there is a connection.
    queues: Option<Queues>,
    /// The number of that connection.
    line: u64,
    /// Calls since there was one.
    tries: u32,
    /// Since when it owes something and nothing has come of it.
    owing: Option<Instant>,
}

/// The other workers, as far as the coordinator has told of them.
#[derive(Default)]
pub(super) struct Peers {
    remotes: BTreeMap<u32, Remote>,
    /// Connections to other workers that there were.
    lines: u64,
    /// Calls of workers that are not known yet, one of each, and since when they wait.
    early: Vec<(u32, u32, Stream, Instant)>,
}

/// How long a worker that is not known may have called before the coordinator tells of it.
const EARLY: Duration = Duration::from_secs(5);

impl Peers {
    /// What is sent to a worker goes in here.
    pub(super) fn pipe(&self, worker: u32) -> Option<&Pipe> {
        self.remotes.get(&worker).map(|remote| &remote.pipe)
    }

    /// All connections are given up, until it is told again who is there.
    pub(super) fn hang_up(&mut self) {
        self.remotes.clear();
    }

    /// Learns who the others are, and calls those with a lower number; gives those that are to be
    /// sent again what they are owed.
    pub(super) fn meet(&mut self, peers: Vec<Peer>, dialer: &Dialer) -> Vec<u32> {
        let me = dialer.me();
        let stays = |worker: u32, epoch: u32| {
            peers.iter().any(|peer| (peer.worker, peer.epoch) == (worker, epoch))
        };
        let gone: Vec<u32> = self
            .remotes
            .iter()
            .filter(|(worker, remote)| !stays(**worker, remote.epoch))
            .map(|(worker, _)| *worker)
            .collect();
        for worker in gone {
            self.remotes.remove(&worker);
        }
        for Peer { worker, epoch, address } in peers {
            if worker == me || self.remotes.contains_key(&worker) {
                continue;
            }
            let (pipe, queues) = Pipe::new();
            self.remotes.insert(
                worker,
                Remote {
                    epoch,
                    address,
                    pipe,
                    queues: Some(queues),
                    line: 0,
                    tries: 0,
                    owing: None,
                },
            );
            // One of two calls, or both would, and one of the connections were too many.
            if worker < me {
                self.dial(worker, STAGGER * (me - worker - 1), dialer);
            }
        }
        // Those that are still not known are put there again.
        let early = std::mem::take(&mut self.early).into_iter();
        early
            .filter_map(|(worker, epoch, stream, _)| {
                self.connected((worker, epoch, Some(stream)), dialer)
            })
            .collect()
    }

    /// Calls a worker after a pause.
    fn dial(&mut self, worker: u32, pause: Duration, dialer: &Dialer) {
        let Some(remote) = self.remotes.get_mut(&worker) else { return };
        remote.tries = remote.tries.saturating_add(1);
        let (epoch, address) = (remote.epoch, remote.address.clone());
        dialer.dial((worker, epoch), address, remote.tries, pause);
    }

    /// A connection to another worker is there, or could not be made; names the worker if it had
    /// another one before.
    pub(super) fn connected(
        &mut self,
        (worker, epoch, stream): DialResult,
        dialer: &Dialer,
    ) -> Option<u32> {
        let Some(remote) = self.remotes.get_mut(&worker).filter(|remote| remote.epoch == epoch)
        else {
            // It may have heard of this worker before this worker has heard of it.
            self.early.retain(|early| early.0 != worker);
            let now = Instant::now();
            self.early.extend(stream.map(|stream| (worker, epoch, stream, now)));
            return None;
        };
        match stream {
            Some(stream) => {
                // What waited for the first connection goes over it; a later one begins with
                // nothing, since what the last one carried may have come through.
                let queues = remote.queues.take().unwrap_or_else(|| {
                    let (pipe, queues) = Pipe::new();
                    remote.pipe = pipe;
                    queues
                });
                self.lines += 1;
                let again = remote.line > 0;
                remote.line = self.lines;
                remote.tries = 0;
                remote.owing = None;
                let name = ConnectionName::Peer(worker, self.lines);
                tokio::spawn(dialer.carry(stream, queues, name));
                again.then_some(worker)
            }
            None if remote.queues.is_some() => {
                let pause =
                    (PAUSE * (1 << remote.tries.saturating_sub(1).min(2))).min(LONGEST_PAUSE);
                let me = format!("worker {} to worker {worker}", dialer.me());
                let pause = jittered(pause, &me, remote.tries);
                self.dial(worker, pause, dialer);
                None
            }
            None => None,
        }
    }

    /// Something has come from a worker.
    pub(super) fn heard_of(&mut self, worker: u32, line: u64) {
        if let Some(remote) = self.remotes.get_mut(&worker).filter(|remote| remote.line == line) {
            remote.owing = None;
        }
    }

    /// A connection can be gone without a word. A worker that is `owing`, since it is waited for in
    /// vain, if for several sums, is called, whoever of the two has called before; the newest
    /// connection counts.
    pub(super) fn renew(&mut self, owing: BTreeSet<u32>, now: Instant, dialer: &Dialer) {
        self.early.retain(|(.., since)| now.duration_since(*since) < EARLY);
        for worker in owing {
            let Some(remote) =
                self.remotes.get_mut(&worker).filter(|remote| remote.queues.is_none())
            else {
                continue;
            };
            if now.duration_since(*remote.owing.get_or_insert(now)) < RENEWAL {
                continue;
            }
            remote.owing = None;
            tracing::warn!(
                "worker {worker} owes chunks and has sent nothing for {:.0} s: calling it again",
                RENEWAL.as_secs_f64()
            );
            self.dial(worker, Duration::ZERO, dialer);
        }
    }

    /// A connection is over; whether it was the one to a worker.
    pub(super) fn disconnected(
        &mut self,
        worker: u32,
        line: u64,
        reason: &str,
        dialer: &Dialer,
    ) -> bool {
        let Some(remote) = self.remotes.get_mut(&worker).filter(|remote| remote.line == line)
        else {
            return false;
        };
        tracing::debug!("worker {worker} cannot be reached from here: {reason}");
        let (pipe, queues) = Pipe::new();
        (remote.pipe, remote.queues) = (pipe, Some(queues));
        if worker < dialer.me() {
            self.dial(worker, Duration::from_millis(50), dialer);
        }
        true
    }
}
