//! A queue out of the tasks of a hub, for a thread that waits or for another task.

use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;

/// Tells when something has been put in a mailbox; ends with whoever puts it in.
#[derive(Clone, Debug)]
pub struct Bell(watch::Receiver<()>);

impl Bell {
    /// Waits until something was put in since the last time; false if nothing ever will be.
    pub async fn rung(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[derive(Debug)]
pub(super) struct Inlet<T> {
    queue: Sender<T>,
    bell: watch::Sender<()>,
}

impl<T> Inlet<T> {
    pub(super) fn send(&self, item: T) {
        // Nobody may be listening any more.
        let _ = self.queue.send(item);
        self.bell.send_replace(());
    }
}

pub(super) fn mailbox<T>() -> (Inlet<T>, Receiver<T>, Bell) {
    let (queue, out) = channel();
    let (bell, rung) = watch::channel(());
    (Inlet { queue, bell }, out, Bell(rung))
}
