//! A worker's connections to other workers.

use super::super::QUIET;
use super::super::calls::call_peer;
use super::super::door::jittered;
use super::super::pipe::{Pipe, Queues, run};
use super::super::security::Stream;
use super::{From, Hub};
use crate::ids::Worker;
use crate::transport::wire::{Across, Peer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A worker that owes chunks and of whom nothing has come for so long is called anew.
const RENEWAL: Duration = Duration::from_secs(3);
/// All workers of a run learn of each other at once. A worker is called the later the further its
/// number is from the caller's: nobody calls all others at the same moment, and nobody is called by
/// all others.
const STAGGER: Duration = Duration::from_millis(1);
/// The pause after a call that failed, which doubles, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Another worker.
pub(super) struct Remote {
    pub(super) epoch: u32,
    address: String,
    pub(super) pipe: Pipe,
    /// What is sent once there is a connection.
    queues: Option<Queues>,
    /// The number of that connection.
    line: u64,
    /// Calls since there was one.
    tries: u32,
    /// Since when it owes something and nothing has come of it.
    owing: Option<Instant>,
}

impl Hub {
    /// Learns who the others are, and calls those with a lower number.
    pub(super) fn meet(&mut self, peers: Vec<Peer>) {
        let me = self.welcome.worker.0;
        let stays = |worker: u32, epoch: u32| {
            peers.iter().any(|peer| (peer.worker, peer.epoch) == (worker, epoch))
        };
        let gone: Vec<u32> = self
            .peers
            .iter()
            .filter(|(worker, remote)| !stays(**worker, remote.epoch))
            .map(|(worker, _)| *worker)
            .collect();
        for worker in gone {
            self.peers.remove(&worker);
        }
        for Peer { worker, epoch, address } in peers {
            if worker == me || self.peers.contains_key(&worker) {
                continue;
            }
            let (pipe, queues) = Pipe::new();
            self.peers.insert(
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
            if worker < me {
                self.dial(worker, STAGGER * (me - worker - 1));
            }
        }
        for (worker, epoch, stream) in std::mem::take(&mut self.early) {
            self.connected(worker, epoch, Some(stream));
        }
    }

    /// Calls a worker after a pause. It is said if that fails, but not the first time, when it may
    /// only have had many calls, and of many times only now and then.
    fn dial(&mut self, worker: u32, pause: Duration) {
        let Some(remote) = self.peers.get_mut(&worker) else { return };
        remote.tries = remote.tries.saturating_add(1);
        let (tries, epoch, address) = (remote.tries, remote.epoch, remote.address.clone());
        let (network, security, dialled) =
            (Arc::clone(&self.network), self.join.security.clone(), self.dialled.clone());
        let hello = Across::Peer {
            worker: self.welcome.worker.0,
            run: self.welcome.run,
            epoch: self.welcome.epoch,
        };
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let stream = call_peer(&*network, &address, Worker(worker), &security, &hello).await;
            match &stream {
                Err(error) if tries > 1 && tries.is_power_of_two() => {
                    tracing::warn!("worker {worker}, called {tries} times: {error}");
                }
                Err(error) => tracing::debug!("worker {worker}: {error}"),
                Ok(_) => {}
            }
            let _ = dialled.send((worker, epoch, stream.ok()));
        });
    }

    /// A connection to another worker is there, or could not be made.
    pub(super) fn connected(&mut self, worker: u32, epoch: u32, stream: Option<Stream>) {
        let Some(remote) = self.peers.get_mut(&worker).filter(|remote| remote.epoch == epoch)
        else {
            // It may have heard of this worker before this worker has heard of it.
            self.early.retain(|early| early.0 != worker);
            self.early.extend(stream.map(|stream| (worker, epoch, stream)));
            return;
        };
        match stream {
            Some(stream) => {
                let queues = remote.queues.take().unwrap_or_else(|| {
                    let (pipe, queues) = Pipe::new();
                    remote.pipe = pipe;
                    queues
                });
                self.lines += 1;
                let again = remote.line > 0;
                (remote.line, remote.tries, remote.owing) = (self.lines, 0, None);
                tokio::spawn(run(
                    stream,
                    queues,
                    self.shop.clone(),
                    From::Peer(worker, self.lines),
                    self.events.clone(),
                ));
                if again {
                    self.send_again(worker);
                }
            }
            None if remote.queues.is_some() => {
                let pause =
                    (PAUSE * (1 << remote.tries.saturating_sub(1).min(2))).min(LONGEST_PAUSE);
                let me = format!("worker {} to worker {worker}", self.welcome.worker.0);
                let pause = jittered(pause, &me, remote.tries);
                self.dial(worker, pause);
            }
            None => {}
        }
    }

    /// Sends a worker what it is owed of sums under way: with the old connection it may have been
    /// lost.
    fn send_again(&self, worker: u32) {
        let held = |step, what| self.kept.read(step, what);
        self.summer.owed_to(worker, held).into_iter().for_each(|frame| self.send(worker, frame));
    }

    /// Something has come from a worker.
    pub(super) fn heard_of(&mut self, worker: u32, line: u64) {
        if let Some(remote) = self.peers.get_mut(&worker).filter(|remote| remote.line == line) {
            remote.owing = None;
        }
    }

    /// A connection can be gone without a word. Whoever waits for a worker in vain, if for several
    /// sums, calls it, whoever of the two has called before; the newest connection counts.
    pub(super) fn renew(&mut self, now: Instant) {
        let owing: BTreeSet<u32> =
            self.summer.stalled(now, QUIET).into_iter().flat_map(|(_, _, on)| on).collect();
        for worker in owing {
            let Some(remote) = self.peers.get_mut(&worker).filter(|remote| remote.queues.is_none())
            else {
                continue;
            };
            if now.duration_since(*remote.owing.get_or_insert(now)) < RENEWAL {
                continue;
            }
            remote.owing = None;
            tracing::warn!(
                "worker {worker} owes chunks and has sent nothing for {:.0} s: calling it anew",
                RENEWAL.as_secs_f64()
            );
            self.dial(worker, Duration::ZERO);
        }
    }

    pub(super) fn disconnected(&mut self, worker: u32, line: u64, reason: &str) {
        let Some(remote) = self.peers.get_mut(&worker).filter(|remote| remote.line == line) else {
            return;
        };
        tracing::debug!("worker {worker} is gone from here: {reason}");
        let (pipe, queues) = Pipe::new();
        (remote.pipe, remote.queues) = (pipe, Some(queues));
        if worker < self.welcome.worker.0 {
            self.dial(worker, Duration::from_millis(50));
        }
    }
}
