//! A coordinator that is gone, and called again.

use super::super::TcpError;
use super::super::calls::call;
use super::super::join::Join;
use super::super::pipe::{Pipe, run};
use super::super::states::Arriving;
use super::{From, Hub};
use crate::transport::Dismissal;
use crate::transport::wire::{Offer, Up};
use std::time::Duration;
use tokio::time::Instant;

/// After a connection over which no order came there is a pause, longer every time: whoever is
/// thrown out as soon as it is let in does not come back at once.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Hub {
    /// The connection is given up, since nothing came through for too long; false if there is no
    /// other.
    pub(super) async fn silent(&mut self) -> bool {
        tracing::warn!(
            "nothing was heard of the coordinator for {:.0} s",
            self.welcome.silence.as_secs_f64()
        );
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
        self.of_no_use = if self.of_use { 0 } else { self.of_no_use + 1 };
        if self.of_no_use > 0 {
            let pause = FIRST_PAUSE * 2u32.saturating_pow(self.of_no_use - 1);
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        }
        let offer = Offer { run: self.welcome.run, epoch: self.welcome.epoch, next: self.next };
        let join = Join { worker: Some(self.welcome.worker.0), ..self.join.clone() };
        match call(&*self.network, &join, self.address.clone(), (Some(offer), &self.facts)).await {
            Ok((stream, welcome))
                if (welcome.run, welcome.worker, welcome.layout)
                    == (self.welcome.run, self.welcome.worker, self.welcome.layout) =>
            {
                let (pipe, queues) = Pipe::new();
                self.coordinator = pipe;
                self.connection += 1;
                (self.heard, self.of_use) = (Instant::now(), false);
                self.shop.stamp.epoch = welcome.epoch;
                tokio::spawn(run(
                    stream,
                    queues,
                    self.shop.clone(),
                    From::Coordinator(self.connection),
                    self.events.clone(),
                ));
                self.welcome = welcome;
                self.gap_since = None;
                for (step, digest) in self.word.again(self.next) {
                    self.coordinator.tell(&Up::Applied { step, digest: Some(digest) });
                }
                true
            }
            Ok(_) => {
                tracing::error!("the coordinator is at another run now");
                false
            }
            Err(TcpError::Replaced) => self.leave(Dismissal::Replaced),
            Err(TcpError::Refused { reason, .. }) => self.leave(Dismissal::Refused { reason }),
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        }
    }
}
