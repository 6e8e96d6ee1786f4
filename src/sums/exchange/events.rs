//! What the machines of both ends are told, and what they want done.

use super::DATA_WAITING_MAX;
use super::block::Block;
use super::choices::Exchange;
use super::eager::Answer;
use super::frame::Frame;
use super::reassembly::WriteSlot;
use crate::ids::{Job, OrderId, Step, Summand, Task, Worker};
use crate::sums::collective::{CollectiveCommand, CollectiveEvent, ResultStore};
use crate::sums::{DecodedSum, Header, Kind, PeerMessage, SumCommand, SumId, SumNotice, SumReport};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How the sums of a run are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumSettings {
    /// Who sums, and by what.
    pub(crate) exchange: Exchange,
    /// Who gets every sum beside the workers: the coordinator, where it keeps them.
    pub(crate) beside: Option<u32>,
    /// Decoded steps that are kept for those who lack them.
    pub(crate) log_steps: u64,
    /// If nothing comes to a node for this long, the exchange is made again without the worker that
    /// holds it up.
    pub(crate) stall: Duration,
    /// The same, at least, where a worker can be spared.
    pub(crate) spare: Duration,
}

/// What the coordinator's end is told.
#[derive(Debug)]
pub(crate) enum CoordinatorEvent {
    /// The run begins with a step; these are there in another state than its.
    Begun { start: Step, behind: Vec<u32> },
    /// A worker is connected; `reachable` if other workers can connect to it.
    Connected { worker: u32, epoch: u32, reachable: bool },
    /// A worker's connection is over.
    Lost { worker: u32 },
    /// Workers have come or gone, and the others were told.
    MembersChanged,
    /// A worker has a state, or is sent one, in which everything below `next` is applied.
    HasState { worker: u32, next: Option<Step> },
    /// A worker was given tasks.
    Ordered { worker: u32, order: OrderId, tasks: Vec<Task> },
    /// A worker answers an order.
    Answered { worker: u32, answer: Answer },
    /// A worker has changed numbers of a result that it had said to be final.
    Changed { worker: Worker, order: OrderId, task: Task },
    /// A step that is computed will be made of these terms.
    Expect { sum: SumId, terms: Vec<Summand> },
    /// A sum is to be made; `spares_one` if any one worker may be lost without harm from now on. It
    /// can be decided when two of those that are counted hold it, or the one that there is.
    Sum { sum: SumId, terms: Vec<Summand>, spares_one: bool, counted: BTreeSet<u32> },
    /// A worker is to hold a sum that was made on this side.
    Store { worker: u32, sum: SumId, decoded: Arc<DecodedSum> },
    /// A worker is sent a step that is decided.
    Decided { worker: u32, sum: SumId, decoded: Arc<DecodedSum> },
    /// A step is decided and recorded: nothing of it, and of jobs below `end`, is needed any more.
    Released { step: Step, end: Job },
    /// A worker says what has come of a sum.
    Said { worker: u32, report: SumReport },
    /// A chunk has come.
    Chunk { from: u32, header: Header, block: Block },
    /// A chunk has come and was read into its place.
    Placed { from: u32, header: Header, slot: WriteSlot },
    /// Some time has passed.
    Tick,
}

/// What is to be done for it.
#[derive(Debug)]
pub(crate) enum CoordinatorEffect {
    /// A chunk goes to a worker, unless so many bytes wait for it already.
    Send { to: u32, frame: Frame, most: usize },
    /// These workers are told the same.
    Tell { to: Vec<u32>, command: Box<SumCommand> },
    /// Something was found out about a sum, of a worker.
    Report { worker: Worker, notice: SumNotice },
    /// A worker has answered an order.
    Answered { worker: Worker, answer: Answer },
    /// A worker is to be given up.
    GiveUp { worker: u32, reason: String },
}

/// These workers are told something, if there are some.
pub(super) fn tell(to: Vec<u32>, command: SumCommand, out: &mut Vec<CoordinatorEffect>) {
    if !to.is_empty() {
        out.push(CoordinatorEffect::Tell { to, command: Box::new(command) });
    }
}

/// Something was found out about a sum, of a worker.
pub(super) fn report(worker: u32, notice: SumNotice, out: &mut Vec<CoordinatorEffect>) {
    out.push(CoordinatorEffect::Report { worker: Worker(worker), notice });
}

/// A worker is to be given up.
pub(super) fn give_up(worker: u32, reason: String, out: &mut Vec<CoordinatorEffect>) {
    out.push(CoordinatorEffect::GiveUp { worker, reason });
}

/// A chunk for a node. No node asks again for a term or a result, so that none is dropped; nodes
/// ask again for sums.
pub(super) fn chunk_for(to: u32, frame: Frame) -> WorkerEffect {
    let once = matches!(frame.header.kind, Kind::Term | Kind::Result);
    let most = if once { usize::MAX } else { DATA_WAITING_MAX };
    WorkerEffect::Send { to, frame, most }
}

/// What a worker's end is told.
pub(crate) enum WorkerEvent {
    /// Its trainer has done a task, whose finite result goes to the coordinator at once.
    SendEagerly { task: Task, order: OrderId },
    /// The coordinator wants something done.
    Told(SumCommand),
    /// Some chunks of a result are final and finite, while the rest is computed.
    Announced { task: Task, chunks: Range<usize>, numbers: Arc<Vec<f32>> },
    /// Its trainer has done a task, whose result is finite.
    Computed { task: Task },
    /// Another worker says what it has of an expected term, or asks for it.
    Peer { from: u32, message: PeerMessage },
    /// A step is decided, by this sum if it is not refused.
    Decided { step: Step, sum: Option<SumId> },
    /// The trainer has been given everything below a step.
    Applied { next: Step },
    /// The worker goes on at a step, in a state that it has taken over.
    Moved { next: Step },
    /// A chunk has come.
    Chunk { from: u32, header: Header, block: Block },
    /// A chunk has come and was read into its place.
    Placed { from: u32, header: Header, slot: WriteSlot },
    /// The connection to a worker is over.
    Disconnected { worker: u32 },
    /// There is another connection to a worker: what went over the last one may be lost.
    ConnectedAgain { worker: u32 },
    /// The trainer has said whether it has a collective, and where its results lie then.
    Equipped(Result<Box<dyn ResultStore>, String>),
    /// The collective says something.
    Collective(CollectiveEvent),
    /// The connection to the coordinator is lost, and all that it had asked for.
    CoordinatorLost,
    /// Some time has passed.
    Tick,
}

/// What is to be done for it.
#[derive(Debug)]
pub(crate) enum WorkerEffect {
    /// A chunk goes to a node, unless so many bytes wait for it already.
    Send { to: u32, frame: Frame, most: usize },
    /// Other workers are told.
    TellPeers { to: Vec<u32>, message: PeerMessage },
    /// The coordinator is told what has come of a sum.
    Tell(SumReport),
    /// The collective is told.
    Collective(CollectiveCommand),
    /// These owe chunks: their connections may be dead.
    Owing(BTreeSet<u32>),
}
