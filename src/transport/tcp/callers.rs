//! Workers that call a coordinator.

use super::door::{Door, brief};
use super::pipe::write_first;
use super::security::{Role, Stream};
use super::{HANDSHAKE, Listener};
use crate::transport::wire::{FromWorker, Hello, ToWorker};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A worker's first words, with what the connection tells of it.
pub(super) struct Caller {
    pub(super) stream: Stream,
    pub(super) from: SocketAddr,
    pub(super) role: Option<Role>,
    pub(super) hello: Box<Hello>,
    /// Where it called.
    pub(super) door: Arc<Door>,
}

impl Caller {
    /// Tells it why it is not let in.
    pub(super) async fn refuse(self, answer: ToWorker) {
        let Self { mut stream, from, hello, door, .. } = self;
        let why = match &answer {
            ToWorker::Refused { reason, .. } => reason,
            _ => "another process has its place",
        };
        door.refuse(from, &format!("{}: {why}", brief(&hello.identity)));
        let _ = tokio::time::timeout(HANDSHAKE, write_first(&mut stream, &answer)).await;
    }
}

/// Takes calls, as many at a time as the door has places for.
pub(super) async fn answer(
    listener: Box<dyn Listener>,
    door: Arc<Door>,
    callers: mpsc::Sender<Caller>,
) {
    loop {
        let (stream, from, pass) = door.next(&*listener).await;
        let (door, callers) = (Arc::clone(&door), callers.clone());
        tokio::spawn(async move {
            let met = door.meet::<FromWorker>(stream, &pass).await;
            drop(pass);
            match met {
                Ok((stream, role, FromWorker::Hello(hello))) => {
                    drop(callers.send(Caller { stream, from, role, hello, door }).await);
                }
                Ok(_) => door.refuse(from, "no hello"),
                Err(reason) => door.refuse(from, &reason),
            }
        });
    }
}
