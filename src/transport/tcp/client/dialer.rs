//! How a worker calls others, and what its connections have in common.

use super::super::calls::{call, call_peer};
use super::super::join::Join;
use super::super::pipe::{ConnectionContext, PipeItem, Queues, run};
use super::super::security::Stream;
use super::super::{Network, TcpError, Welcome};
use super::ConnectionName;
use crate::ids::Worker;
use crate::sums::PeerMessage;
use crate::transport::RunFacts;
use crate::transport::wire::Offer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// A connection to a worker: its number and epoch, and the stream if the call was answered.
pub(super) type DialResult = (u32, u32, Option<Stream>);

/// Calls the coordinator and other workers, and runs the connections that come of it.
pub(super) struct Dialer {
    pub(super) network: Arc<dyn Network>,
    pub(super) join: Join,
    /// Where other workers reach this one.
    pub(super) address: Option<String>,
    /// What the trainer said of itself, which the coordinator is told with every call.
    pub(super) facts: RunFacts,
    pub(super) context: ConnectionContext,
    /// How many seats the run has: a coordinator that goes on may give it others.
    pub(super) seats: Arc<AtomicUsize>,
    /// Where what comes over connections goes.
    pub(super) events: mpsc::Sender<(ConnectionName, PipeItem)>,
    /// Where connections to other workers go, once there are any.
    pub(super) dialled: mpsc::UnboundedSender<DialResult>,
}

impl Dialer {
    /// This worker's number.
    pub(super) fn me(&self) -> u32 {
        self.context.stamp.worker
    }

    /// Calls the coordinator again, as the worker that it had let in.
    pub(super) async fn call_again(&self, offer: Offer) -> Result<(Stream, Welcome), TcpError> {
        let join = Join { worker: Some(self.me()), ..self.join.clone() };
        call(&*self.network, &join, self.address.clone(), (Some(offer), &self.facts)).await
    }

    /// Frames are of this connection to the coordinator from now on.
    pub(super) fn let_in(&mut self, welcome: &Welcome) {
        self.context.stamp.epoch = welcome.epoch;
        self.seats.store(welcome.workers, Ordering::Relaxed);
    }

    /// Calls a worker after a pause, in a task of its own. It is said if that fails, but not the
    /// first time, when it may only have had many calls, and of many times only now and then.
    pub(super) fn dial(
        &self,
        (worker, epoch): (u32, u32),
        address: String,
        tries: u32,
        pause: Duration,
    ) {
        let network = Arc::clone(&self.network);
        let security = self.join.security.clone();
        let dialled = self.dialled.clone();
        let stamp = &self.context.stamp;
        let hello = PeerMessage::Peer { worker: stamp.worker, run: stamp.run, epoch: stamp.epoch };
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

    /// Carries a connection until it ends.
    pub(super) fn carry(
        &self,
        stream: Stream,
        queues: Queues,
        name: ConnectionName,
    ) -> impl Future<Output = ()> + use<> {
        run(stream, queues, self.context.clone(), name, self.events.clone())
    }
}
