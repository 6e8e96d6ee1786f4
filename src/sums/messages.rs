//! What coordinator and workers tell each other of sums.

use super::{CHUNK, SumId};
use crate::ids::{Job, Summand, Task};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

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

/// What the coordinator tells all nodes of a sum: which of them sum what, and which get it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SumPlan {
    /// Which sum.
    #[serde(flatten)]
    pub sum: SumId,
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
    /// A worker, or [`COORDINATOR`](super::COORDINATOR).
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
    /// Forget one result of a task.
    Discard {
        /// Which.
        task: Task,
    },
    /// Forget all results of jobs below a number.
    Release {
        /// Which jobs.
        end: Job,
    },
    /// Sum a step together with others, and hold the sum: of results that are there, or of those
    /// that are to be computed, as they come.
    Exchange(SumPlan),
    /// A step is made of what was expected: what its sum lacks is waited for from now on.
    Confirm {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
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
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// To whom.
        to: u32,
    },
    /// The chunks of a sum come of these nodes, though they may not have summed them.
    TakeSum {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// Who sends which chunks.
        owners: Vec<Owner>,
    },
    /// Say what came of a sum, chunk by chunk; answered with [`SumReport::ChunkDigests`].
    TellDigests {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
    },
}

/// From a worker to the coordinator: what has come of the sums of steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumReport {
    /// A sum is held.
    Held {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// Digest of the sum; none if the worker takes none, and has only those of the chunks.
        digest: Option<u64>,
    },
    /// Numbers that came of a sum, or of its terms, are not finite.
    NotFinite {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// Whose.
        #[serde(flatten)]
        of: NotFinite,
    },
    /// What a worker has of the chunks of a sum.
    ChunkDigests {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// The digest of every chunk, as f32; none of one that is not there.
        digests: Vec<Option<u64>>,
    },
    /// An exchange does not go on.
    Waiting {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
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

/// From one worker to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerMessage {
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
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// Which term.
        term: u32,
        /// First chunk.
        start: usize,
        /// One past the last chunk.
        end: usize,
    },
    /// Send a chunk of a term to the one who sums it.
    Ask {
        /// Which sum.
        #[serde(flatten)]
        sum: SumId,
        /// Which term.
        term: u32,
        /// Which chunk.
        chunk: usize,
    },
}
