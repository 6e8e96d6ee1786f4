//! What a worker says of itself when it joins a run, whether it joins for the first time or again.

use super::environment::domain_of_process;
use super::random;
use super::security::Security;
use crate::transport::RunFacts;
use crate::transport::wire::InitialReplica;
use std::net::SocketAddr;
use std::time::Duration;

/// What a worker needs to know to join a run.
#[derive(Clone, Debug)]
pub struct Join {
    /// Where the coordinator listens, `host:port`.
    pub address: String,
    /// How peers know each other.
    pub security: Security,
    /// The number this worker wants, or whichever is free.
    pub worker: Option<u32>,
    /// A name that stays the same when the worker comes back.
    pub identity: String,
    /// With which others this worker may fail at once: the name of what they have in common, such
    /// as a rack.
    pub domain: String,
    /// A number that only this process has: it tells it from others of the same name. Of two
    /// processes that ask for one number, the newer one has it and the older one is told to end.
    pub process: u64,
    /// Which replica this worker has before it joins.
    pub has: InitialReplica,
    /// What this worker trains, as far as it knows before it joins; compared with what the run
    /// trains.
    pub facts: RunFacts,
    /// Where other workers may connect to this one; if not given, on the interface that reaches the
    /// coordinator.
    pub listen: Option<SocketAddr>,
    /// How long the coordinator is called again when it cannot be reached.
    pub patience: Duration,
}

impl Join {
    /// A worker that takes any number, by a name that no other has, and calls for half a minute.
    /// Its replica is as the run's start, and its domain what `CODEDGRAD_DOMAIN` says, or its host.
    #[must_use]
    pub fn new(address: String, security: Security) -> Self {
        let process = random();
        Self {
            address,
            security,
            worker: None,
            identity: format!("worker-{process:016x}"),
            domain: domain_of_process(),
            process,
            has: InitialReplica::FromJob,
            facts: RunFacts::default(),
            listen: None,
            patience: Duration::from_secs(30),
        }
    }
}
