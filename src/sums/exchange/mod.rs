//! Sums that the nodes of a run make together: who sums what, which chunk is where, who waits for
//! whom.
//!
//! A node is the coordinator ([`CoordinatorSums`]) or a worker ([`WorkerSums`]): a state machine
//! without sockets, clocks and threads. The driver of one, over TCP or in a simulation, does this:
//!
//! 1. It tells the machine what happened, in the order in which it happened:
//!    `handle(now, event, &mut effects)`. `now` never goes back.
//! 2. It carries out the effects, in their order: chunks and messages for other nodes, what is to
//!    be reported, who is to be given up. What that leads to is told as any other event.
//! 3. When nothing else is to be done it calls `work(&mut effects)`, which sums one chunk, until
//!    that has nothing left, and then `finish(&mut effects)`. Chunks of a sum are on their way
//!    while the next ones are summed.
//! 4. Every [`TICK`] it tells the machine so: nothing is found to stand still otherwise.
//!
//! Chunks may come in any order, more than once, and before the plan that they belong to; messages
//! of one node to another come in the order in which they were sent. A sum is told by its step and
//! attempt; a newer attempt makes older ones void, and what still comes for them is dropped.
//!
//! Inside, `events` has what the machines are told and want done; the other files own a part of the
//! state each: `plan` who sums which chunks, `owners` how much each, `hosts` who is there and can,
//! `excluded` who owns nothing for a while, `part` one node's part in one exchange, `assembly` its
//! sum until that is whole, `told` what workers were told of one and how others go on with it,
//! `announced` what of it is final, `gathering` how an owner comes by it, `adder` how it adds that
//! up, `early` what comes before its plan, `node` all exchanges of a node, `context` what they
//! share with connections, `store` results and the sums that are made, `copies` who has which sum
//! and sends it to whom, `reassembly` vectors that connections read into, `eager` results that are
//! sent before their weights are known, `monitor` what the coordinator knows of one exchange and
//! `monitors` of all, `waits` who waits for whom in one, `blame` who holds it up, `doubts` who says
//! that a sum is not finite, `disputes` sums of which nodes hold different bytes, `suspects` who
//! must have lied then, `warnings` what is told of wrong words, `groups` workers that sum by a
//! collective, `counts` what came of all sums.

mod adder;
mod announced;
mod assembly;
mod blame;
mod block;
mod choices;
mod context;
mod coordinator;
mod copies;
mod counts;
mod disputes;
mod doubts;
mod eager;
mod early;
mod events;
mod excluded;
mod frame;
mod gathering;
mod groups;
mod hosts;
mod monitor;
mod monitors;
mod node;
mod owners;
mod part;
mod plan;
mod reassembly;
mod store;
mod suspects;
mod told;
mod waits;
mod warnings;
mod worker;

pub(crate) use block::{Block, Blocks, Vectors};
pub use choices::Exchange;
pub(crate) use context::NodeContext;
pub(crate) use coordinator::CoordinatorSums;
pub use counts::SumCounts;
pub(crate) use eager::{Answer, EagerReceiver};
pub(crate) use events::{
    CoordinatorEffect, CoordinatorEvent, SumSettings, WorkerEffect, WorkerEvent,
};
pub(crate) use frame::{Body, Frame};
pub use monitor::StalledSum;
pub(crate) use reassembly::{ReassemblyBuffers, WriteSlot};
pub(crate) use store::{HostResults, SharedSums};
pub(crate) use warnings::Warnings;
pub(crate) use worker::WorkerSums;

use super::COORDINATOR;
use crate::gpu::nonfinite_mask;
use crate::ids::Worker;
use std::time::Duration;

/// What a node is called in words.
pub(crate) fn name_of(node: u32) -> String {
    if node == COORDINATOR { "the coordinator".into() } else { Worker(node).to_string() }
}

/// Whether all numbers of a chunk of a sum are finite, as they lie in their place.
pub(crate) fn is_finite(place: &[u8]) -> bool {
    nonfinite_mask(bytemuck::cast_slice(place)) == 0.0
}

/// How often it is looked whether something does not go on.
pub(crate) const TICK: Duration = Duration::from_millis(25);
/// How long nothing may come of a sum before the coordinator is told who is waited for, tick by
/// tick.
pub(crate) const QUIET: Duration = Duration::from_millis(125);
/// Within what time it is said again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long that word holds.
const WORD: Duration = Duration::from_millis(300);
/// Bytes of sums that may wait for a node that does not read; what is beyond is fetched later.
const DATA_WAITING_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests;
