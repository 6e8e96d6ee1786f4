//! Workers that call a coordinator.

use super::Listener;
use super::door::Door;
use super::security::{Role, Stream};
use crate::transport::wire::FromWorker;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A worker's first words, with what the connection tells of it.
pub(super) struct Caller {
    pub(super) stream: Stream,
    pub(super) from: SocketAddr,
    pub(super) role: Option<Role>,
    pub(super) hello: FromWorker,
    /// Where it called.
    pub(super) door: Arc<Door>,
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
                Ok((stream, peer, hello)) => {
                    drop(callers.send(Caller { stream, from, role: peer.role, hello, door }).await);
                }
                Err(reason) => door.refuse(from, &reason),
            }
        });
    }
}
