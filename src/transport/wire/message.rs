//! The bodies of control frames.

use super::{CHUNK, framed_format};
use crate::ids::{Job, Part, Step, Task, Units, Worker};
use crate::run::NumberFormat;
use crate::transport::{Parting, RunFacts, Summand};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// Tasks a worker is to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskOrder {
    /// Which.
    pub task: Task,
    /// What it consists of.
    pub parts: Vec<Part>,
}

/// An exchange of the same step that another one carries on: what an owner of both has of its
/// chunks stays, sums and terms alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// Which attempt it was.
    pub attempt: u32,
    /// Who summed which chunks of every stripe.
    pub owners: Vec<Owner>,
    /// Chunks of a stripe.
    pub stripe: usize,
}

/// Who sums what of a step, and who gets the sum: what everybody who takes part is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SumPlan {
    /// Which step.
    pub step: Step,
    /// Which attempt.
    pub attempt: u32,
    /// Which terms of the sum are told of, to a worker that sums nothing; absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<u32>,
    /// What is summed, in this order, by the tree of [`crate::gpu::Combine`]; to a worker that sums
    /// nothing, what it has, or will have, of that.
    pub terms: Vec<Summand>,
    /// Who sums which chunks, of every stripe if there are some.
    pub owners: Vec<Owner>,
    /// Chunks of a stripe, of a step that is computed from now on: the vector is cut into stripes,
    /// the last of which may be shorter. Every term may come of any of its holders. Absent: all
    /// terms are there, and whose turn it is sends them unasked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripe: Option<usize>,
    /// The exchange of the same step that this one carries on without a worker that is lost, or
    /// does not answer; absent: it begins afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<Predecessor>,
    /// Who gets the sum, for those who sum.
    pub receivers: Vec<u32>,
    /// The group in which the sum is made, all owners by what connects them there; absent: by
    /// connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
}

/// Who sums which chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// A worker, or [`super::COORDINATOR`].
    pub node: u32,
    /// First chunk.
    pub start: usize,
    /// One past the last chunk.
    pub end: usize,
}

impl Owner {
    /// The elements of its chunks, of a vector of `length`.
    #[must_use]
    pub fn elements(&self, length: usize) -> Range<usize> {
        let edge = |chunk: usize| chunk.saturating_mul(CHUNK).min(length);
        edge(self.start)..edge(self.end)
    }
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
pub enum Has {
    /// The one that the job of the welcome tells how to make.
    #[default]
    FromJob,
    /// None: it must take over a state before it does anything else.
    Nothing,
    /// One of its own, in which everything below this step is applied.
    Below(Step),
}

impl Has {
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
impl Serialize for Has {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.next(None).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Has {
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

/// Whose numbers are not finite, as far as they came by a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFinite {
    /// Who sent such sums; the node itself, if those that it makes of finite terms are not.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sums_of: BTreeSet<u32>,
    /// Who sent such terms.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub terms_of: BTreeSet<u32>,
}

impl NotFinite {
    pub(crate) fn extend(&mut self, other: Self) {
        self.sums_of.extend(other.sums_of);
        self.terms_of.extend(other.terms_of);
    }
}

/// From the coordinator to a worker: what is to be done for the sums of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumCommand {
    /// Add a result to the sum of a step.
    Reduce {
        /// Which step.
        step: Step,
        /// Which result.
        task: Task,
        /// Its weight.
        weight: f64,
    },
    /// Forget one result of a task.
    Discard {
        /// Which.
        task: Task,
    },
    /// Forget the sum of a step and all results of jobs below a number.
    Release {
        /// Which step.
        step: Step,
        /// Which jobs.
        end: Job,
    },
    /// Sum a step together with others, and hold the sum: of results that are there, or of those
    /// that are to be computed, as they come.
    Exchange(SumPlan),
    /// A step is made of what was expected: what its sum lacks is waited for from now on.
    Confirm {
        /// Which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
    },
    /// Name a group, by which its members find each other elsewhere than here; answered with
    /// [`SumReport::GroupNamed`].
    NameGroup {
        /// Number of the group.
        group: u64,
    },
    /// Be a member of a group; answered with [`SumReport::GroupReady`].
    JoinGroup {
        /// Number of the group.
        group: u64,
        /// Its name.
        id: String,
        /// Who is in it, in order of rank.
        members: Vec<u32>,
    },
    /// Give a group up, and what is under way in it.
    LeaveGroup {
        /// Number of the group.
        group: u64,
    },
    /// Send the sum of a step to another node that lacks it.
    SendSum {
        /// Which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// To whom.
        to: u32,
    },
    /// The chunks of a sum come of these nodes, though they may not have summed them.
    TakeSum {
        /// Which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Who sends which chunks.
        owners: Vec<Owner>,
    },
    /// Say what came of a sum, chunk by chunk; answered with [`SumReport::ChunkDigests`].
    TellDigests {
        /// Which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
    },
}

/// From a worker to the coordinator: what has come of the sums of steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumReport {
    /// A sum is held.
    Held {
        /// Of which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Digest of the sum; none if the worker takes none, and has only those of the chunks.
        digest: Option<u64>,
    },
    /// Numbers that came of a sum, or of its terms, are not finite.
    NotFinite {
        /// Of which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Whose.
        #[serde(flatten)]
        of: NotFinite,
    },
    /// What a worker has of the chunks of a sum.
    ChunkDigests {
        /// Of which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// The digest of every chunk, as f32; none of one that is not there.
        digests: Vec<Option<u64>>,
    },
    /// An exchange does not go on.
    Waiting {
        /// Of which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Whose chunks are missing.
        on: Vec<u32>,
    },
    /// A group has a name.
    GroupNamed {
        /// Number of the group.
        group: u64,
        /// The name.
        id: String,
    },
    /// The members of a group have found each other.
    GroupReady {
        /// Number of the group.
        group: u64,
    },
    /// A group cannot be joined, or something went wrong in it.
    GroupFailed {
        /// Number of the group.
        group: u64,
        /// Why.
        reason: String,
    },
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
        /// Number of the order.
        order: u64,
        /// Which.
        tasks: Vec<TaskOrder>,
    },
    /// Nobody wants the current tasks any more.
    Abandon {},
    /// Do something for the sum of a step.
    Sum(SumCommand),
    /// A step is decided: apply its sum.
    Apply {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// Which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Digest of the sum.
        digest: u64,
        /// Decoded scalars; null: one that is not finite.
        #[serde(with = "crate::scalars")]
        aux: Vec<f64>,
        /// Who saves what is trained, now that this step is decided.
        #[serde(default)]
        saver: u32,
    },
    /// A step is refused.
    Skip {
        /// For which connection of the worker; on any other it is void.
        epoch: u32,
        /// Which step.
        step: Step,
        /// Who saves what is trained, now that this step is decided.
        #[serde(default)]
        saver: u32,
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
    },
    /// The run is over.
    Stop {
        /// Why, in words.
        #[serde(default)]
        why: String,
    },
}

/// From a worker to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromWorker {
    /// First on a connection.
    Hello {
        /// The number it wants, or whichever is free.
        worker: Option<u32>,
        /// A name that stays the same when it comes back.
        identity: String,
        /// A number of the process, drawn at random when it began: tells it from others of the same
        /// name.
        process: u64,
        /// Where other workers can connect to it, if they can.
        address: Option<String>,
        /// What it still has of a run.
        offer: Option<Offer>,
        /// Which replica it has without having been in the run.
        #[serde(default, skip_serializing_if = "Has::is_from_job")]
        has: Has,
        /// What it trains, as far as it knows that already.
        #[serde(default)]
        facts: Box<RunFacts>,
        /// Whether it knows of groups, and may be told of them: where vectors are summed in groups,
        /// others are refused.
        #[serde(default)]
        supports_collectives: bool,
        /// With which others it may fail at once, such as those of its host or rack; absent: not
        /// known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
    },
    /// What the worker trains, if it did not know that when it said hello.
    Facts {
        /// What.
        facts: Box<RunFacts>,
    },
    /// A task is done.
    Done {
        /// Number of the order it was in.
        order: u64,
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
    /// Numbers of a result are others now than were said to be [final](Across::Ready), and the task
    /// will not be done; others may have summed them as they were.
    Changed {
        /// Number of the order it was in.
        order: u64,
        /// Which.
        task: Task,
    },
    /// The tasks of an order were dropped.
    Idle {
        /// Number of the order.
        order: u64,
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
    /// The run is to end, for everybody, after a step, or after the next that is decided if that is
    /// later.
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
    Parting(Parting),
    /// Answer to [`ToWorker::Ping`].
    Pong {
        /// Its number.
        number: u64,
    },
}

/// From one worker to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Across {
    /// First on a connection: who connects.
    Peer {
        /// Which worker.
        worker: u32,
        /// Of which run.
        run: u64,
        /// How many times it had joined.
        epoch: u32,
    },
    /// These chunks of a term that is expected are final and finite, and can be asked for. A later
    /// word on a term includes what earlier ones said.
    Ready {
        /// Of which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Which term.
        term: u32,
        /// First chunk.
        start: usize,
        /// One past the last chunk.
        end: usize,
    },
    /// Send a chunk of a term to the one who sums it.
    Ask {
        /// Of which step.
        step: Step,
        /// Which attempt.
        attempt: u32,
        /// Which term.
        term: u32,
        /// Which chunk.
        chunk: usize,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_read_as_documented() {
        let task = Task { job: Job(7), piece: 2, plan: 0 };
        let parts = vec![Part { units: Units { start: 1, end: 3 }, coefficient: 0.1 }];
        let part = r#"{"units":{"start":1,"end":3},"coefficient":0.1}"#;
        let text = format!(
            r#"{{"compute":{{"epoch":1,"order":4,"tasks":[{{"task":{{"job":7,"piece":2}},"parts":[{part}]}}]}}}}"#
        );
        let message =
            ToWorker::Compute { epoch: 1, order: 4, tasks: vec![TaskOrder { task, parts }] };
        assert_eq!(String::from_utf8(encode(&message)).unwrap(), text);
        assert_eq!(decode::<ToWorker>(text.as_bytes()), Ok(message));
        assert_eq!(
            decode::<FromWorker>(br#"{"idle":{"order":1}}"#),
            Ok(FromWorker::Idle { order: 1, computed: None, units: None })
        );
        assert!(
            decode::<FromWorker>(b"{}").is_err()
                && decode::<FromWorker>(br#"{"idle":{}}"#).is_err()
        );
    }

    proptest! {
        /// Weights and digests come back to the last bit.
        #[test]
        fn numbers_come_back(
            weight in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
            digest: u64,
        ) {
            let task = Task { job: Job(digest), piece: 3, plan: 0 };
            let reduce = ToWorker::Sum(SumCommand::Reduce { step: Step(digest), task, weight });
            prop_assert_eq!(decode::<ToWorker>(&encode(&reduce)), Ok(reduce));
            let held = SumReport::Held { step: Step(1), attempt: 2, digest: Some(digest) };
            let held = FromWorker::Sum(held);
            prop_assert_eq!(decode::<FromWorker>(&encode(&held)), Ok(held));
        }

        #[test]
        fn garbage_is_no_message(bytes: Vec<u8>) {
            let _ = decode::<ToWorker>(&bytes);
            let _ = decode::<FromWorker>(&bytes);
            let _ = decode::<Across>(&bytes);
        }
    }
}
