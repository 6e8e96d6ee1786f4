//! What a coordinator is told about its workers and their run.

use super::security::Security;
use super::{Exchange, random};
use crate::ids::Step;
use crate::run::RunConfig;
use crate::transport::RunFacts;
use std::net::SocketAddr;
use std::time::Duration;

/// What a coordinator is told about its workers and their run.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Where to listen.
    pub address: SocketAddr,
    /// How peers know each other.
    pub security: Security,
    /// The run: a number that no other run has.
    pub run: u64,
    /// What the run is, as its engine is told.
    pub config: RunConfig,
    /// Who sums.
    pub exchange: Exchange,
    /// Whether workers that sum among themselves begin while a step is computed, where it is known
    /// what it will be made of.
    pub overlap: bool,
    /// Whether every sum is sent to the coordinator too, if it does not sum itself.
    pub keeps: bool,
    /// First step that a replica made again from the job has not applied; none if the job does not
    /// tell how to make one.
    pub first: Option<Step>,
    /// What is trained, in words that this program and the worker's understand.
    pub job: String,
    /// What workers are told of what is trained beside the length, units and batches per step of
    /// `config`; [`RunFacts::of`] is all of that. Each worker's own word is compared with it, and
    /// what only a worker knows holds for those that come after it.
    pub facts: RunFacts,
    /// What of that is sure, where workers that come before the run begins are to be compared with
    /// each other ([`GatheredWorkers::told`](super::GatheredWorkers::told)): the first of them need
    /// not be right. None: it is, and who differs from it is refused.
    pub sure: Option<RunFacts>,
    /// A worker that has said nothing for so long is given up.
    pub silence: Duration,
    /// An exchange in which a receiver gets nothing for this long is made again without the worker
    /// that holds it up.
    pub stall: Duration,
    /// Where the scheme can spare a worker, 20 times as long as exchanges take is enough, and at
    /// least so long.
    pub spare: Duration,
}

impl Listen {
    /// A run begun with fresh replicas, everything else as is usual, to be changed field by field.
    #[must_use]
    pub fn new(address: SocketAddr, security: Security, config: RunConfig) -> Self {
        Self {
            address,
            security,
            run: random(),
            config,
            exchange: Exchange::default(),
            overlap: true,
            keeps: false,
            first: Some(Step(0)),
            job: String::new(),
            facts: RunFacts::default(),
            sure: None,
            silence: Duration::from_secs(15),
            stall: Duration::from_secs(5),
            spare: Duration::from_millis(500),
        }
    }

    /// What is known of what is trained.
    pub(crate) fn all_facts(&self) -> RunFacts {
        let RunFacts { length, units, micro_steps, .. } = RunFacts::of(&self.config);
        RunFacts { length, units, micro_steps, ..self.facts.clone() }
    }
}
