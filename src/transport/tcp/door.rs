//! A port as strangers find it: who is let in, how many at once, and what is said of those who are
//! not.

use super::pipe::{PipeError, read_hello, refuse};
use super::security::{self, HandshakeGate, Pass, Refusals, Role, Security, Stream};
use super::status::TcpStatus;
use super::{HANDSHAKE, Listener};
use crate::sums::lock;
use crate::transport::wire::{self, HELLO_BYTES_MAX, Hello, Offer, ToWorker, WireError};
use serde::de::DeserializeOwned;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// How long no call is taken after one that could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest name of a worker, and longest address, in bytes: a host's name has at most 253.
const WORDS_MAX: usize = 255;
/// A worker joins fewer times than this: as much room is left for the joins counted here.
const EPOCHS_MAX: u32 = 1 << 31;
/// The operating system's numbers for too many open files, of this process and of all.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// What all calls at a port have in common.
#[derive(Debug)]
pub(super) struct Door {
    gate: HandshakeGate,
    security: Security,
    refusals: Mutex<Refusals>,
    begun: Instant,
    /// Calls that could not be taken.
    failed: AtomicU32,
    /// Where refusals are counted, if they are.
    status: Option<Arc<Mutex<TcpStatus>>>,
}

impl Door {
    /// A door where strangers find places, and so many workers besides: they may all come at once.
    pub(super) fn new(
        security: Security,
        workers: usize,
        status: Option<Arc<Mutex<TcpStatus>>>,
    ) -> Arc<Self> {
        let gate = HandshakeGate::new(HandshakeGate::STRANGERS.saturating_add(workers));
        let (refusals, failed) = (Mutex::default(), AtomicU32::new(0));
        Arc::new(Self { gate, security, refusals, begun: Instant::now(), failed, status })
    }

    /// The next call, and its place among those who prove themselves.
    pub(super) async fn next(&self, listener: &dyn Listener) -> (Stream, SocketAddr, Pass) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => return (stream, from, self.gate.enter(from.ip())),
                // A port that gave up at the first error would be closed for ever by too many open
                // files.
                Err(error) => self.cannot(&error).await,
            }
        }
    }

    /// A call could not be taken: it is said every time there were twice as many of them.
    async fn cannot(&self, error: &io::Error) {
        let times = self.failed.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if times.is_power_of_two() {
            let too_many =
                error.raw_os_error().is_some_and(|number| TOO_MANY_FILES.contains(&number));
            let advice = if too_many { "; `ulimit -n` says how many it may have" } else { "" };
            tracing::warn!("cannot take a call, {times} times so far: {error}{advice}");
        }
        tokio::time::sleep(PAUSE).await;
    }

    /// Lets a caller prove itself, and reads its first message; its role is what its certificate
    /// says, if it has one.
    pub(super) async fn meet<M: DeserializeOwned>(
        &self,
        stream: Stream,
        pass: &Pass,
    ) -> Result<(Stream, Option<Role>, M), String> {
        let proven = async {
            let accepted = security::accept(stream, &self.security, HANDSHAKE).await;
            let (mut stream, role) = accepted.map_err(|error| error.to_string())?;
            let body =
                tokio::time::timeout(HANDSHAKE, read_hello(&mut stream, HELLO_BYTES_MAX)).await;
            let body = body.map_err(|_| "it says nothing".to_owned())?;
            let body = match body {
                // A program of another release understands no answer, but sees which version it is
                // of, and that it need not call again.
                Err(PipeError::Wire(error @ WireError::Version { .. })) => {
                    refuse(&mut stream, &ToWorker::refused(error.to_string())).await;
                    Err(error.to_string())
                }
                body => body.map_err(|error| error.to_string()),
            };
            Ok((stream, role, wire::decode(&body?)?))
        };
        tokio::select! {
            // Who has proved itself is in, even if its place was lost in the same moment.
            biased;
            met = proven => met,
            () = pass.lost() => Err("it had not proved itself yet when others needed its \
                place".into()),
        }
    }

    /// A call is refused. That counts, and is logged unless much is.
    pub(super) fn refuse(self: &Arc<Self>, from: SocketAddr, reason: &str) {
        if let Some(status) = &self.status {
            lock(status).refused += 1;
        }
        let mut refusals = lock(&self.refusals);
        let was_due = refusals.due();
        let lines = refusals.note(from.ip(), reason, self.begun.elapsed());
        let due = refusals.due();
        // Logging may be slow, and must not hold up those who are refused next.
        drop(refusals);
        lines.into_iter().for_each(|line| tracing::warn!("{line}"));
        if let Some(due) = due.filter(|_| due != was_due) {
            let door = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep_until(door.begun + due).await;
                let line = lock(&door.refusals).sum(door.begun.elapsed());
                line.into_iter().for_each(|line| tracing::warn!("{line}"));
            });
        }
    }
}

/// Refuses what is too much of a hello, in words that do not repeat it.
pub(super) fn check_hello(hello: &Hello) -> Result<(), String> {
    let Hello { identity, address, domain, offer, .. } = hello;
    let said = [("identity", Some(identity)), ("address", address.as_ref())];
    for (what, text) in said.into_iter().chain([("domain", domain.as_ref())]) {
        let length = text.map_or(0, String::len);
        if length > WORDS_MAX {
            return Err(format!("its {what} has {length} bytes; at most {WORDS_MAX} can be"));
        }
    }
    match offer {
        Some(Offer { epoch: epoch @ EPOCHS_MAX.., .. }) => Err(format!(
            "it says that it has joined {epoch} times; it must be less than {EPOCHS_MAX}"
        )),
        _ => Ok(()),
    }
}

/// The beginning of a text of others, for a log.
pub(super) fn brief(text: &str) -> String {
    let start: String = text.chars().take(64).collect();
    if start.len() < text.len() { format!("{start:?}..") } else { format!("{start:?}") }
}

/// A pause that differs between callers: from half of `pause` to all of it, by the caller and its
/// tries.
pub(super) fn jittered(pause: Duration, caller: &str, tries: u32) -> Duration {
    let drawn = xxhash_rust::xxh3::xxh3_64_with_seed(caller.as_bytes(), tries.into());
    pause.mul_f64(0.5 + 0.5 * (drawn >> 40) as f64 / (1u64 << 24) as f64)
}

#[cfg(test)]
mod tests;
