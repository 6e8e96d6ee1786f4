//! A coordinator that is gone, and called again.

use super::super::calls::call;
use super::super::pipe::{Pipe, run};
use super::super::states::Arriving;
use super::{From, Hub, Join};
use crate::transport::wire::Offer;
use tokio::time::Instant;

impl Hub {
    /// The connection is given up, since nothing came through for too long; false if there is no other.
    pub(super) async fn silent(&mut self) -> bool {
        tracing::warn!("nothing was heard of the coordinator for {:.0} s", self.welcome.silence.as_secs_f64());
        self.coordinator.close();
        self.call_again().await
    }

    /// Gives up what the lost coordinator had asked for, and calls it again.
    pub(super) async fn call_again(&mut self) -> bool {
        if let Some(cancel) = self.live.take() {
            cancel.cancel();
        }
        self.kept.reset();
        self.summer.reset();
        self.queue.clear();
        self.states = Arriving::default();
        self.peers.clear();
        let offer = Offer { run: self.welcome.run, epoch: self.welcome.epoch, next: self.next };
        let join = Join { worker: Some(self.welcome.worker.0), ..self.join.clone() };
        match call(&*self.network, &join, self.address.clone(), Some(offer)).await {
            Ok((stream, welcome))
                if (welcome.run, welcome.worker, welcome.layout) == (self.welcome.run, self.welcome.worker, self.welcome.layout) =>
            {
                let (pipe, queues) = Pipe::new();
                self.coordinator = pipe;
                self.connection += 1;
                self.heard = Instant::now();
                self.shop.stamp.epoch = welcome.epoch;
                tokio::spawn(run(stream, queues, self.shop.clone(), From::Coordinator(self.connection), self.events.clone()));
                self.welcome = welcome;
                true
            }
            Ok(_) => {
                tracing::error!("the coordinator is at another run now");
                false
            }
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        }
    }
}
