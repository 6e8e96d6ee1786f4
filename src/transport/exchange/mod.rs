//! Sums that the nodes of a run make together: who sums what, which chunk is where, who waits for
//! whom.
//!
//! A node is the coordinator ([`CoordinatorSums`]) or a worker ([`WorkerSums`]): a state machine
//! without sockets, clocks and threads. Whoever drives one, over TCP or in a simulation, does this:
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
//! attempt; a newer attempt makes older ones void, and whatever still comes for them is dropped.
//!
//! Inside, each file owns its state: `plan` who sums which chunks, `part` one node's part in one
//! exchange, `node` all exchanges of a node, `store` results and the sums that are made,
//! `reassembly` vectors that connections read into, `eager` results that are sent before their
//! weights are known, `monitor` what the coordinator knows of one exchange and `monitors` of all,
//! `doubts` who says that a sum is not finite, `groups` workers that sum by a collective, `states`
//! replicas' states on their way.

mod block;
mod coordinator;
mod doubts;
mod eager;
mod frame;
mod groups;
mod monitor;
mod monitors;
mod node;
mod part;
mod plan;
mod reassembly;
mod states;
mod store;
mod worker;

pub(super) use block::{Block, Blocks, Vectors};
pub(super) use coordinator::{CoordinatorEffect, CoordinatorEvent, CoordinatorSums, SumSettings};
pub(super) use eager::EagerReceiver;
pub(super) use frame::{Body, Frame};
pub(super) use node::NodeContext;
pub(super) use plan::Plan;
pub(super) use reassembly::{ReassemblyBuffers, WriteSlot};
pub(super) use states::{Arriving, frames as state_frames};
pub(super) use store::{HostResults, SharedSums};
pub(super) use worker::{WorkerEffect, WorkerEvent, WorkerSums};

use crate::ids::Step;
use std::time::Duration;

/// A sum: its step, and which attempt at it.
type Key = (Step, u32);

/// How often it is looked whether something does not go on.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How long nothing may come of a sum before the coordinator is told who is waited for, tick by
/// tick.
pub(super) const QUIET: Duration = Duration::from_millis(200);
/// How long that word holds.
const WORD: Duration = Duration::from_millis(300);
/// Bytes of sums that may wait for a node that does not read; what is beyond is fetched later.
const DATA_WAITING_MAX: usize = 1 << 30;
