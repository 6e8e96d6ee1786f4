//! The bodies of control frames.

use super::framed_format;
use crate::ids::{OrderId, Part, Step, Task, Units, Worker};
use crate::run::NumberFormat;
use crate::sums::{SumCommand, SumId, SumReport};
use crate::transport::{ExitReason, RunFacts, StepNews, is_zero};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Tasks a worker is to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskOrder {
    /// Which.
    pub task: Task,
    /// What it consists of.
    pub parts: Vec<Part>,
}

/// A worker that others can connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Which.
    pub worker: u32,
    /// How many times it had joined.
    pub epoch: u32,
    /// Where it listens.
    pub address: String,
}

/// What a worker still has of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The run.
    pub run: u64,
    /// How many times it had joined.
    pub epoch: u32,
    /// First step that is not applied in its parameters. What it says of the steps before it, one
    /// per model, it says again ([`FromWorker::Applied`]), since that may have been lost.
    pub next: Step,
}

/// Which replica a process has that was not in the run before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialReplica {
    /// The one that the job of the welcome tells how to make.
    #[default]
    FromJob,
    /// None: it must take over a state before it does anything else.
    Nothing,
    /// One of its own, in which everything below this step is applied.
    Below(Step),
}

impl InitialReplica {
    /// Whether the job tells.
    #[must_use]
    pub fn is_from_job(&self) -> bool {
        *self == Self::FromJob
    }

    /// First step not applied in the replica, if there is one; the job's is at `first`.
    #[must_use]
    pub fn next(self, first: Option<Step>) -> Option<Step> {
        match self {
            Self::FromJob => first,
            Self::Nothing => None,
            Self::Below(next) => Some(next),
        }
    }
}

/// On the wire the field is absent, `null` or a number.
impl Serialize for InitialReplica {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.next(None).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for InitialReplica {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Step>::deserialize(deserializer)?.map_or(Self::Nothing, Self::Below))
    }
}

/// What a worker is told when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its number.
    pub worker: Worker,
    /// How many there are.
    pub workers: usize,
    /// The run.
    pub run: u64,
    /// How many times it has joined now.
    pub epoch: u32,
    /// Numbers in a gradient.
    pub length: usize,
    /// Hash of what both sides must agree on: [`super::layout`].
    pub layout: u64,
    /// First step that a replica made again from the job has not applied.
    pub first: Step,
    /// Jobs whose sum is one step.
    pub micro_steps: u64,
    /// Decoded vectors a worker keeps for others.
    pub log_steps: u64,
    /// Format of vectors on the wire.
    #[serde(deserialize_with = "framed_format")]
    pub format: NumberFormat,
    /// Whether workers send every finite result to the coordinator as soon as it is done.
    #[serde(default)]
    pub eager: bool,
    /// Whether workers may sum among themselves by something else than their connections: then
    /// digests of sums are [`crate::gpu::digest_of_bits`].
    #[serde(default)]
    pub collective: bool,
    /// A side that has said nothing for so long counts as gone; the coordinator pings more often.
    /// On the wire it is a number of seconds.
    #[serde(with = "seconds")]
    pub silence: Duration,
    /// What is trained, in words that the coordinator's program and the worker's understand.
    pub job: String,
    /// What is known so far of what the run trains.
    #[serde(default)]
    pub facts: RunFacts,
}

/// Times as numbers of seconds; one that no clock can hold is for ever.
mod seconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        time.as_secs_f64().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Ok(Duration::try_from_secs_f64(f64::deserialize(from)?).unwrap_or(Duration::MAX))
    }
}

/// From the coordinator to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWorker {
    /// The worker is one of the run.
    Welcome(Box<Welcome>),
    /// The worker is not one of the run; first, or in answer to [`FromWorker::Facts`].
    Refused {
        /// Why.
        reason: String,
        /// Whether it is worth calling again in a while.
        #[serde(default)]
        again: bool,
        /// After how many seconds, for as long as that is said; 0: as long as its patience lasts.
        #[serde(default, skip_serializing_if = "is_zero")]
        wait: u32,
    },
    /// Another process has the worker's number now: first, or at any time. The receiver must not
    /// call again.
    Replaced {},
    /// Where the others are.
    Peers {
        /// All that are there, the receiver too.
        peers: Vec<Peer>,
    },
    /// Compute tasks in this order.
    Compute {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// Which order.
        order: OrderId,
        /// The last step of each model that is trained, which must be applied before: at other
        /// parameters nothing is computed. None of a model that has none yet.
        after: Vec<Step>,
        /// Which.
        tasks: Vec<TaskOrder>,
    },
    /// The run wants the rest of an order no more.
    Abandon {
        /// Which order.
        order: OrderId,
    },
    /// Do something for the sum of a step.
    Sum(SumCommand),
    /// A step is decided: apply its sum.
    Apply {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// Digest of the sum.
        digest: u64,
        /// Decoded scalars; null: one that is not finite.
        #[serde(with = "crate::scalars")]
        aux: Vec<f64>,
        /// What else is known now.
        #[serde(flatten)]
        news: StepNews,
    },
    /// A step is refused.
    Skip {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// Which step.
        step: Step,
        /// What else is known now.
        #[serde(flatten)]
        news: StepNews,
        /// Units without a finite gradient.
        units: Vec<Units>,
    },
    /// Send the state of the replica.
    SendState {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// For whom.
        needy: u32,
    },
    /// Take over a state; its vectors follow as chunks.
    LoadState {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// Number of the transfer.
        transfer: u64,
        /// First step not applied in it.
        next: Step,
        /// Lengths of its vectors.
        lengths: Vec<usize>,
    },
    /// Answer with [`FromWorker::Pong`].
    Ping {
        /// Repeated in the answer.
        number: u64,
        /// The last order of tasks that was sent over this connection.
        #[serde(default)]
        order: OrderId,
        /// The last transfer of a state to the worker, if it has not said what came of it.
        #[serde(default, skip_serializing_if = "is_zero")]
        transfer: u64,
        /// The last step that was sent over it and is not reported as applied, if one is not.
        #[serde(default)]
        after: Vec<Step>,
    },
    /// The run is over.
    Stop {
        /// Why, in words.
        #[serde(default)]
        why: String,
        /// The same as in [`ToWorker::Ping`]: it must be applied before.
        #[serde(default)]
        after: Vec<Step>,
    },
}

impl ToWorker {
    /// Tells a worker that it is not one of the run and need not call again.
    #[must_use]
    pub fn refused(reason: String) -> Self {
        Self::Refused { reason, again: false, wait: 0 }
    }
}

/// What a worker says first on a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The number it wants, or whichever is free.
    pub worker: Option<u32>,
    /// A name that stays the same when it comes back.
    pub identity: String,
    /// A number of the process, drawn at random when it began: tells it from others of the same
    /// name.
    pub process: u64,
    /// Where other workers can connect to it, if they can.
    pub address: Option<String>,
    /// What it still has of a run.
    pub offer: Option<Offer>,
    /// Which replica it has without having been in the run.
    #[serde(default, skip_serializing_if = "InitialReplica::is_from_job")]
    pub has: InitialReplica,
    /// What it trains, as far as it knows that already.
    #[serde(default)]
    pub facts: RunFacts,
    /// Whether it knows of groups, and may be told of them: where vectors are summed in groups,
    /// others are refused.
    #[serde(default)]
    pub supports_collectives: bool,
    /// With which others it may fail at once, such as those of its host or rack; absent: not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// From a worker to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromWorker {
    /// First on a connection.
    Hello(Box<Hello>),
    /// What the worker trains, if it did not know that when it said hello.
    Facts {
        /// What.
        facts: Box<RunFacts>,
    },
    /// A task is done.
    Done {
        /// The order it was in.
        order: OrderId,
        /// Which.
        task: Task,
        /// Scalars beside a result that is kept; null: one that is not finite.
        #[serde(with = "crate::scalars")]
        aux: Vec<f64>,
        /// Whether all entries of the result are finite; if not, it is not kept.
        finite: bool,
        /// Seconds that it took to compute, by the worker's own clock; absent: not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        computed: Option<f64>,
        /// Units of it that are finished: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        units: Option<u32>,
    },
    /// Numbers of a result are others now than were said to be
    /// [final](crate::sums::PeerMessage::Ready), and the task will not be done; others may have
    /// summed them as they were.
    Changed {
        /// The order it was in.
        order: OrderId,
        /// Which.
        task: Task,
    },
    /// The tasks of an order were dropped.
    Idle {
        /// Which order.
        order: OrderId,
        /// Seconds that were spent on the task that was begun; absent: none was, or not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        computed: Option<f64>,
        /// Units of it that are finished.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        units: Option<u32>,
    },
    /// Something has come of the sum of a step.
    Sum(SumReport),
    /// A step is applied.
    Applied {
        /// Which.
        step: Step,
        /// Digest of the parameters afterwards, if one was taken.
        digest: Option<u64>,
    },
    /// The state of the replica; its vectors follow as chunks.
    State {
        /// For whom.
        needy: u32,
        /// Number of the transfer.
        transfer: u64,
        /// First step not applied in it.
        next: Step,
        /// Lengths of its vectors.
        lengths: Vec<usize>,
    },
    /// A state was taken over, or cannot be.
    StateLoaded {
        /// Number of the transfer, as in [`ToWorker::LoadState`].
        transfer: u64,
        /// Digests of the parameters after the last steps before the state's `next`, one per model,
        /// that of `next - 1` last; none if none are taken.
        digests: Vec<u64>,
        /// Why the worker cannot go on from that state; absent: it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unfit: Option<String>,
    },
    /// The run is to end, for all workers, after a step, or after the next that is decided if that
    /// is later.
    Finish {
        /// Which step.
        after: Step,
    },
    /// A step is to be applied whose sum never came, or which was left out.
    StepUnavailable {
        /// Which step.
        step: Step,
    },
    /// The worker leaves as soon as it is not needed any more, and is told so by
    /// [`ToWorker::Stop`]; said once.
    Leave {
        /// After so many seconds it ends in any case.
        seconds: f64,
    },
    /// Last on a connection: the worker ends its part in a run that goes on.
    Parting(ExitReason),
    /// Answer to [`ToWorker::Ping`].
    Pong {
        /// Its number.
        number: u64,
    },
}

/// The bytes of a control body.
///
/// # Panics
/// Where a message cannot be written as JSON, which is so of none of this program.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::with_capacity(512);
    serde_json::to_writer(&mut body, message).expect("control messages are plain data");
    body
}

/// Reads a control body.
///
/// # Errors
/// What is wrong with it, in words.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("not a message of this protocol: {error}"))
}

#[cfg(test)]
mod tests;
