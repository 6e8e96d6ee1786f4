//! A queue out of the tasks of a node, for a thread that waits or for another task.
//!
//! A thread waits at the receiver itself. A task asks it without waiting until it is empty, then
//! awaits [`Waker::woken`], then asks again: what was put in meanwhile has woken it already.

use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;

/// Tells when something has been put in a mailbox; ends with its sender.
#[derive(Clone, Debug)]
pub struct Waker(watch::Receiver<()>);

impl Waker {
    /// Waits until something was put in since the last time; false if nothing ever will be.
    pub async fn woken(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[derive(Debug)]
pub(super) struct MailboxSender<T> {
    queue: Sender<T>,
    waker: watch::Sender<()>,
}

impl<T> MailboxSender<T> {
    pub(super) fn send(&self, item: T) {
        // The receiver may be dropped.
        let _ = self.queue.send(item);
        self.waker.send_replace(());
    }
}

pub(super) fn mailbox<T>() -> (MailboxSender<T>, Receiver<T>, Waker) {
    let (queue, out) = channel();
    let (waker, woken) = watch::channel(());
    (MailboxSender { queue, waker }, out, Waker(woken))
}
