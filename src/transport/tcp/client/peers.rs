//! A worker's connections to other workers.

use super::super::calls::call_peer;
use super::super::pipe::{Pipe, Queues, run};
use super::super::security::Stream;
use super::{From, Hub};
use crate::ids::Worker;
use crate::transport::wire::{Across, Peer};
use std::sync::Arc;
use std::time::Duration;

/// Another worker.
pub(super) struct Remote {
    pub(super) epoch: u32,
    address: String,
    pub(super) pipe: Pipe,
    /// What is sent once there is a connection.
    queues: Option<Queues>,
}

impl Hub {
    /// Learns who the others are, and calls those with a lower number.
    pub(super) fn meet(&mut self, peers: Vec<Peer>) {
        let me = self.welcome.worker.0;
        self.peers.retain(|worker, remote| peers.iter().any(|peer| (peer.worker, peer.epoch) == (*worker, remote.epoch)));
        for Peer { worker, epoch, address } in peers {
            if worker == me || self.peers.contains_key(&worker) {
                continue;
            }
            let (pipe, queues) = Pipe::new();
            self.peers.insert(worker, Remote { epoch, address: address.clone(), pipe, queues: Some(queues) });
            if worker < me {
                self.dial(worker, epoch, address, Duration::ZERO);
            }
        }
        for (worker, epoch, stream) in std::mem::take(&mut self.early) {
            self.connected(worker, epoch, Some(stream));
        }
    }

    fn dial(&self, worker: u32, epoch: u32, address: String, pause: Duration) {
        let (network, security, dialled) = (Arc::clone(&self.network), self.join.security.clone(), self.dialled.clone());
        let hello = Across::Peer { worker: self.welcome.worker.0, run: self.welcome.run, epoch: self.welcome.epoch };
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let stream = call_peer(&*network, &address, Worker(worker), &security, &hello).await;
            let stream = stream.inspect_err(|error| tracing::warn!("worker {worker}: {error}")).ok();
            let _ = dialled.send((worker, epoch, stream));
        });
    }

    /// A connection to another worker is there, or could not be made.
    pub(super) fn connected(&mut self, worker: u32, epoch: u32, stream: Option<Stream>) {
        let Some(remote) = self.peers.get_mut(&worker).filter(|remote| remote.epoch == epoch) else {
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
                tokio::spawn(run(stream, queues, self.shop.clone(), From::Peer(worker, epoch), self.events.clone()));
            }
            None => {
                let address = remote.address.clone();
                self.dial(worker, epoch, address, Duration::from_millis(500));
            }
        }
    }

    pub(super) fn disconnected(&mut self, worker: u32, epoch: u32, reason: &str) {
        let Some(remote) = self.peers.get_mut(&worker).filter(|remote| remote.epoch == epoch) else { return };
        tracing::debug!("worker {worker} is gone from here: {reason}");
        let (pipe, queues) = Pipe::new();
        (remote.pipe, remote.queues) = (pipe, Some(queues));
        let address = remote.address.clone();
        if worker < self.welcome.worker.0 {
            self.dial(worker, epoch, address, Duration::from_millis(50));
        }
    }
}
