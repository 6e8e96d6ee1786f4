//! Results on their way to a coordinator that holds them before it knows what happens to them.

use super::block::{Block, Blocks, Vectors};
use super::frame::{Body, Frame};
use crate::gpu::nonfinite_mask;
use crate::ids::{Job, OrderId, Task, Worker};
use crate::run::NumberFormat;
use crate::sums::ledger::Ledgers;
use crate::sums::{Header, Kind, TaskSpent, chunk_range, chunks};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The frames of a result that answers an order.
pub(super) fn frames(
    vector: &Arc<Vec<f32>>,
    task: Task,
    order: OrderId,
) -> impl Iterator<Item = Frame> + use<> {
    let (vector, length) = (Arc::clone(vector), vector.len());
    (0..chunks(length)).map(move |chunk| {
        let range = chunk_range(chunk, length);
        let header =
            Header::chunk(Kind::Result, NumberFormat::F32, range.start, range.len()).of_task(task);
        Frame {
            header: Header { attempt: order.0 as u32, ..header },
            body: Body::Slice(Arc::clone(&vector), range),
        }
    })
}

/// A result of which something has come.
#[derive(Debug)]
struct Partial {
    vector: Vec<f32>,
    missing: Vec<bool>,
    left: usize,
    finite: bool,
}

/// A task that was ordered and not answered.
#[derive(Debug, Default)]
struct OrderedTask {
    partial: Option<Partial>,
    /// Whether the worker has said that it is done.
    done: bool,
}

/// What a worker answers to an order.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A task is done, and its result is here, if it is finite.
    Done { order: OrderId, task: Task, aux: Vec<f64>, finite: bool, spent: Option<TaskSpent> },
    /// The rest of the order was dropped.
    Dropped { order: OrderId, spent: Option<TaskSpent> },
}

/// The results that are due: nothing else is taken in, and what workers can make the coordinator
/// keep is bounded by what they were told to compute.
#[derive(Debug)]
pub(crate) struct EagerReceiver {
    length: usize,
    ledgers: Ledgers,
    vectors: Vectors,
    blocks: Blocks,
    /// Jobs below it are over: the coordinator does not want their results.
    end: Job,
    /// By worker, order and task.
    ordered: BTreeMap<(u32, u32, Task), OrderedTask>,
    /// What each worker has said that cannot be reported yet: words overtake chunks.
    waiting: BTreeMap<u32, VecDeque<Answer>>,
}

impl EagerReceiver {
    pub(crate) fn new(length: usize, ledgers: Ledgers, vectors: Vectors, blocks: Blocks) -> Self {
        let (ordered, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { length, ledgers, vectors, blocks, end: Job(0), ordered, waiting }
    }

    pub(super) fn ordered(
        &mut self,
        worker: u32,
        order: OrderId,
        tasks: impl Iterator<Item = Task>,
    ) {
        self.ordered
            .extend(tasks.map(|task| ((worker, order.0 as u32, task), OrderedTask::default())));
    }

    /// The jobs below `end` are over. A worker that has heard of that has forgotten its results of
    /// them, and sends none that it says now to be done. Gives back what there is to report, by
    /// worker.
    pub(super) fn release(&mut self, end: Job) -> Vec<(u32, Vec<Answer>)> {
        self.end = self.end.max(end);
        let workers: Vec<u32> = self.waiting.keys().copied().collect();
        workers.into_iter().map(|worker| (worker, self.ready(worker))).collect()
    }

    /// A worker is lost.
    pub(super) fn forget(&mut self, worker: u32) {
        self.ordered.retain(|key, _| key.0 != worker);
        self.waiting.remove(&worker);
    }

    /// Takes in a chunk; gives back what there is to report once it has come.
    pub(super) fn chunk(
        &mut self,
        worker: u32,
        header: &Header,
        block: Block,
    ) -> Result<Vec<Answer>, String> {
        let (length, vectors) = (self.length, &self.vectors);
        let task = header.task();
        // A header has no room for the number of a plan; with its order a task is the only one.
        let of_plan = |plan| (worker, header.attempt, Task { plan, ..task });
        let Some((_, ordered)) = self.ordered.range_mut(of_plan(0)..=of_plan(u32::MAX)).next()
        else {
            self.blocks.give(block);
            return Ok(Vec::new());
        };
        let partial = ordered.partial.get_or_insert_with(|| {
            let missing = vec![true; chunks(length)];
            Partial { vector: vectors.take(length), left: missing.len(), missing, finite: true }
        });
        let chunk = header.chunk_of(length)?;
        let range = chunk_range(chunk, length);
        // A chunk that comes twice, after a connection broke, counts once.
        if std::mem::take(&mut partial.missing[chunk]) {
            block.unpack(&mut partial.vector[range.clone()]);
            // The worker says so too; what it says is not taken for what came.
            partial.finite &= nonfinite_mask(&partial.vector[range]) == 0.0;
            partial.left -= 1;
        }
        self.blocks.give(block);
        Ok(self.ready(worker))
    }

    /// A worker answers an order. The chunks of a finite result may still be on their way, another
    /// is not sent; gives back what there is to report.
    pub(super) fn answered(&mut self, worker: u32, answer: Answer) -> Vec<Answer> {
        match answer {
            Answer::Done { order, task, finite: true, .. } => {
                let ordered = self.ordered.get_mut(&(worker, order.0 as u32, task));
                let Some(ordered) = ordered.filter(|ordered| !ordered.done) else {
                    return Vec::new();
                };
                ordered.done = true;
            }
            Answer::Done { order, task, .. } => {
                self.ordered.remove(&(worker, order.0 as u32, task));
            }
            // Chunks of what is done may still be on their way.
            Answer::Dropped { order, .. } => self
                .ordered
                .retain(|key, ordered| (key.0, key.1) != (worker, order.0 as u32) || ordered.done),
        }
        self.waiting.entry(worker).or_default().push_back(answer);
        self.ready(worker)
    }

    /// What a worker has said, as far as all of it has come, in the order in which it was said.
    fn ready(&mut self, worker: u32) -> Vec<Answer> {
        let Some(mut waiting) = self.waiting.remove(&worker) else { return Vec::new() };
        let mut ready = Vec::new();
        while let Some(mut answer) = waiting.pop_front() {
            if let Answer::Done { order, task, finite: finite @ true, .. } = &mut answer {
                let Some(came_finite) = self.taken_in((worker, order.0 as u32, *task)) else {
                    waiting.push_front(answer);
                    break;
                };
                *finite = came_finite;
            }
            ready.push(answer);
        }
        self.waiting.insert(worker, waiting);
        ready
    }

    /// Whether what has come of a result is finite, which is kept then; of a job that is over,
    /// nothing is. None while some of it is still to come.
    fn taken_in(&mut self, key: (u32, u32, Task)) -> Option<bool> {
        let is_over = key.2.job < self.end;
        let whole = |ordered: &OrderedTask| {
            ordered.partial.as_ref().is_some_and(|partial| partial.left == 0)
        };
        self.ordered.get(&key).filter(|ordered| is_over || whole(ordered))?;
        let Some(partial) = self.ordered.remove(&key)?.partial else { return Some(true) };
        if partial.finite && !is_over {
            self.ledgers.of(Worker(key.0)).keep(key.2, partial.vector);
        } else {
            self.vectors.give(Arc::new(partial.vector));
        }
        Some(partial.finite)
    }
}

#[cfg(test)]
mod tests;
