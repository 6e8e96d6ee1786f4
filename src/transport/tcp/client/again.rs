//! A coordinator that is lost, and called again.

use super::super::pipe::Pipe;
use super::super::{TcpError, Welcome};
use super::WorkerNode;
use crate::sums::exchange::WorkerEvent;
use crate::transport::Dismissal;
use crate::transport::tcp::states::IncomingStates;
use crate::transport::wire::{FromWorker, Offer};
use tokio::time::Instant;

impl WorkerNode {
    /// The connection is given up, since what came over it is not what was sent; false if there is
    /// no other.
    pub(super) async fn lost_on_the_way(&mut self, reason: &str) -> bool {
        tracing::warn!("the coordinator is called again: {reason}");
        self.uplink.close();
        self.call_again().await
    }

    /// A message of the coordinator cannot be read: the same, unless that goes on and on.
    pub(super) async fn cannot_read(&mut self, reason: &str) -> bool {
        if let Some(why) = self.unreadable.came(Instant::now(), reason) {
            tracing::error!("from the coordinator: {why}");
            return false;
        }
        self.lost_on_the_way(reason).await
    }

    /// The connection is given up, since nothing came through for too long; false if there is no
    /// other.
    pub(super) async fn silent(&mut self) -> bool {
        tracing::warn!(
            "nothing was heard of the coordinator for {:.0} s",
            self.welcome.silence.as_secs_f64()
        );
        self.uplink.close();
        self.call_again().await
    }

    /// Gives up what the lost coordinator had asked for, and calls it again.
    pub(super) async fn call_again(&mut self) -> bool {
        self.trainer.reset();
        self.sums(WorkerEvent::CoordinatorLost);
        self.states = IncomingStates::default();
        self.peers.hang_up();
        let pause = self.uplink.ended().unwrap_or_default();
        let Welcome { run, epoch, .. } = self.welcome;
        let offer = Offer { run, epoch, next: self.trainer.next() };
        let called = async {
            tokio::time::sleep(pause).await;
            self.dialer.call_again(offer).await
        };
        let mut leaving = self.leaving.clone();
        let called = tokio::select! {
            called = called => Some(called),
            Ok(()) = async { leaving.wait_for(Option::is_some).await.map(drop) } => None,
        };
        // The run needs no worker that leaves while it is not connected.
        let Some(called) = called else { return self.leave(Dismissal::LetGo) };
        match called {
            Ok((stream, welcome))
                if (welcome.run, welcome.worker, welcome.layout)
                    == (self.welcome.run, self.welcome.worker, self.welcome.layout) =>
            {
                let (pipe, queues) = Pipe::new();
                self.uplink.replace(pipe);
                self.dialer.let_in(&welcome);
                tokio::spawn(self.dialer.carry(stream, queues, self.uplink.name()));
                self.welcome = welcome;
                for (step, digest) in self.trainer.say_again() {
                    self.uplink.tell(&FromWorker::Applied { step, digest: Some(digest) });
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
