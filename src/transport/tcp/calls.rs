//! How a worker calls its coordinator and other workers, and takes their calls.

use super::door::{Door, jittered};
use super::join::Join;
use super::pipe::{PipeError, read_hello, write_first};
use super::security::{self, Role, Security, SecurityError, Stream};
use super::{HANDSHAKE, Listener, Network, TcpError, Welcome};
use crate::ids::Worker;
use crate::run::Limits;
use crate::sums::PeerMessage;
use crate::transport::RunFacts;
use crate::transport::wire::{
    self, CONTROL_BYTES_MAX, FromWorker, Hello, Offer, ToWorker, WireError,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Longest pause between two calls, for so long at first, and afterwards.
const PAUSE_AT_FIRST: Duration = Duration::from_millis(250);
const AT_FIRST: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(2);

/// Opens the port for other workers.
pub(super) async fn listen(
    network: &dyn Network,
    join: &Join,
) -> Result<Box<dyn Listener>, TcpError> {
    let address = match join.listen {
        Some(address) => address,
        // Where the coordinator can be reached from, others can be too, in most networks.
        None => SocketAddr::new(
            network.route(&join.address).await.map_err(unreachable(&join.address))?,
            0,
        ),
    };
    let checked = security::check_address(address, &join.security);
    // Where nothing else was asked for, it is the way to the coordinator that leaves this host.
    checked.map_err(|error| match error {
        SecurityError::Exposed { .. } if join.listen.is_none() => {
            SecurityError::Exposed { address: join.address.clone() }
        }
        error => error,
    })?;
    network
        .bind(address)
        .await
        .map_err(|source| TcpError::Listen { address: address.to_string(), source })
}

/// Calls the coordinator until it answers, and says hello.
pub(super) async fn call(
    network: &dyn Network,
    join: &Join,
    address: Option<String>,
    (offer, facts): (Option<Offer>, &RunFacts),
) -> Result<(Stream, Welcome), TcpError> {
    let begun = Instant::now();
    // A deadline beyond what a clock can hold would be an overflow.
    let mut deadline = begun + join.patience.min(Limits::WAIT_MAX);
    let mut pause = Duration::from_millis(50);
    let mut tries = 0;
    let mut told = false;
    loop {
        tries += 1;
        let called = Instant::now();
        let attempt =
            tokio::time::timeout(HANDSHAKE, hello(network, join, address.clone(), (offer, facts)))
                .await;
        let error = match attempt {
            Ok(Ok(welcome)) => return Ok(welcome),
            Ok(Err(
                // Trying again changes none of these.
                error @ (TcpError::Refused { again: false, .. }
                | TcpError::Replaced
                | TcpError::Version { .. }
                | TcpError::Security(
                    SecurityError::Exposed { .. }
                    | SecurityError::NotOurs { .. }
                    | SecurityError::WrongToken { .. }
                    | SecurityError::Certificate { .. }
                    | SecurityError::Tls { .. },
                )),
            )) => return Err(error),
            Ok(Err(error)) => error,
            Err(_) => unreachable(&join.address)("no answer"),
        };
        if let TcpError::Refused { wait: wait @ 1.., .. } = error {
            tracing::info!("{error}; calling again in {wait} s");
            tokio::time::sleep(Duration::from_secs(wait.into())).await;
            // It is there, and says when it wants to be called: that needs no patience.
            deadline += called.elapsed();
            continue;
        }
        if Instant::now() + pause > deadline {
            return Err(error);
        }
        if !told && begun.elapsed() > AT_FIRST {
            told = true;
            let left = deadline.saturating_duration_since(Instant::now()).as_secs_f64();
            tracing::warn!("{error}; calling again for {left:.0} s more");
        } else {
            tracing::debug!("{error}; trying again");
        }
        tokio::time::sleep(jittered(pause, &join.identity, tries)).await;
        pause = (pause * 2).min(if begun.elapsed() < AT_FIRST { PAUSE_AT_FIRST } else { PAUSE });
    }
}

async fn hello(
    network: &dyn Network,
    join: &Join,
    address: Option<String>,
    (offer, facts): (Option<Offer>, &RunFacts),
) -> Result<(Stream, Welcome), TcpError> {
    let mut stream = dial(network, &join.address, Role::Coordinator, &join.security).await?;
    let Join { worker, process, has, .. } = *join;
    let hello = FromWorker::Hello(Box::new(Hello {
        worker,
        identity: join.identity.clone(),
        process,
        address,
        offer,
        has,
        facts: facts.clone(),
        supports_collectives: true,
        domain: Some(join.domain.clone()),
    }));
    write_first(&mut stream, &hello).await.map_err(unreachable(&join.address))?;
    let body = read_hello(&mut stream, CONTROL_BYTES_MAX).await;
    let body = body.map_err(|error| match error {
        PipeError::Wire(source @ WireError::Version { .. }) => {
            TcpError::Version { address: join.address.clone(), source }
        }
        error => unreachable(&join.address)(error),
    })?;
    match wire::decode(&body).map_err(unreachable(&join.address))? {
        ToWorker::Welcome(welcome) => Ok((stream, *welcome)),
        ToWorker::Refused { reason, again, wait } => {
            Err(TcpError::Refused { reason, again, wait: if again { wait } else { 0 } })
        }
        ToWorker::Replaced {} => Err(TcpError::Replaced),
        _ => Err(unreachable(&join.address)("another message came where a welcome was due")),
    }
}

/// Takes calls of other workers.
pub(super) async fn answer(
    listener: Box<dyn Listener>,
    door: Arc<Door>,
    (run, seats): (u64, Arc<AtomicUsize>),
    streams: mpsc::UnboundedSender<(u32, u32, Option<Stream>)>,
) {
    loop {
        let (stream, from, pass) = door.next(&*listener).await;
        let (door, streams) = (Arc::clone(&door), streams.clone());
        let workers = seats.load(Ordering::Relaxed);
        // A caller that says nothing must not keep the others waiting.
        tokio::spawn(async move {
            let met = door.meet(stream, &pass).await;
            // It has proved itself, or never will: others may have its place.
            drop(pass);
            match met {
                Ok((_, role, PeerMessage::Peer { worker, run: theirs, .. }))
                    if theirs != run
                        || worker as usize >= workers
                        || role.is_some_and(|role| role != Role::Worker(Worker(worker))) =>
                {
                    door.refuse(
                        from,
                        &format!("worker {worker} of run {theirs:016x} is not who it says"),
                    );
                }
                Ok((stream, _, PeerMessage::Peer { worker, epoch, .. })) => {
                    drop(streams.send((worker, epoch, Some(stream))));
                }
                Ok((_, _, PeerMessage::Ready { .. } | PeerMessage::Ask { .. })) => {
                    door.refuse(from, "it does not say first who it is");
                }
                Err(reason) => door.refuse(from, &reason),
            }
        });
    }
}

/// Calls another worker and says who is calling.
pub(super) async fn call_peer(
    network: &dyn Network,
    address: &str,
    worker: Worker,
    security: &Security,
    hello: &PeerMessage,
) -> Result<Stream, TcpError> {
    let mut stream = dial(network, address, Role::Worker(worker), security).await?;
    write_first(&mut stream, hello).await.map_err(unreachable(address))?;
    Ok(stream)
}

/// Connects to who has this role, and lets both prove themselves.
async fn dial(
    network: &dyn Network,
    address: &str,
    role: Role,
    security: &Security,
) -> Result<Stream, TcpError> {
    let (stream, peer) = network.connect(address).await.map_err(unreachable(address))?;
    security::check_address(peer, security)?;
    Ok(security::connect(stream, role, security, HANDSHAKE).await?)
}

/// No process of ours answers at an address, for such a reason.
fn unreachable<E: ToString>(address: &str) -> impl Fn(E) -> TcpError {
    move |reason| TcpError::Unreachable { address: address.into(), reason: reason.to_string() }
}
