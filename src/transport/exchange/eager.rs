//! Results on their way to a coordinator that holds them before it knows what happens to them.

use super::block::{Block, Blocks, Vectors};
use super::frame::{Body, Frame};
use crate::gpu::nonfinite_mask;
use crate::ids::{Task, Worker};
use crate::run::NumberFormat;
use crate::transport::ledger::Ledgers;
use crate::transport::wire::{Header, Kind, chunk_range, chunks};
use crate::transport::{Notice, TaskSpent};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The frames of a result that answers an order.
pub(super) fn frames(
    vector: &Arc<Vec<f32>>,
    task: Task,
    order: u64,
) -> impl Iterator<Item = Frame> + use<> {
    let (vector, length) = (Arc::clone(vector), vector.len());
    (0..chunks(length)).map(move |chunk| {
        let range = chunk_range(chunk, length);
        let header =
            Header::chunk(Kind::Result, NumberFormat::F32, range.start, range.len()).of_task(task);
        Frame {
            header: Header { attempt: order as u32, ..header },
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
struct Ordered {
    partial: Option<Partial>,
    /// The worker's word that it is done.
    done: Option<DoneWord>,
}

/// What a worker says of a task that is done, beside its result.
#[derive(Debug)]
pub(in crate::transport) struct DoneWord {
    pub(in crate::transport) aux: Vec<f64>,
    pub(in crate::transport) spent: Option<TaskSpent>,
}

impl DoneWord {
    pub(super) fn notice(self, task: Task, finite: bool) -> Notice {
        Notice::Done { task, aux: self.aux, finite, spent: self.spent }
    }
}

/// The results that are due: nothing else is taken in, and what workers can make the coordinator
/// keep is bounded by what they were told to compute.
#[derive(Debug)]
pub(in crate::transport) struct EagerReceiver {
    length: usize,
    ledgers: Ledgers,
    vectors: Vectors,
    blocks: Blocks,
    /// By worker, order and task.
    ordered: BTreeMap<(u32, u32, Task), Ordered>,
}

impl EagerReceiver {
    pub(in crate::transport) fn new(
        length: usize,
        ledgers: Ledgers,
        vectors: Vectors,
        blocks: Blocks,
    ) -> Self {
        Self { length, ledgers, vectors, blocks, ordered: BTreeMap::new() }
    }

    pub(super) fn ordered(&mut self, worker: u32, order: u64, tasks: impl Iterator<Item = Task>) {
        self.ordered.extend(tasks.map(|task| ((worker, order as u32, task), Ordered::default())));
    }

    /// The rest of an order will not be answered.
    pub(super) fn freed(&mut self, worker: u32, order: u64) {
        self.ordered.retain(|key, _| (key.0, key.1) != (worker, order as u32));
    }

    /// A worker is lost.
    pub(super) fn forget(&mut self, worker: u32) {
        self.ordered.retain(|key, _| key.0 != worker);
    }

    /// Takes in a chunk; gives back what there is to report if it was the last thing to come of a
    /// result.
    pub(super) fn chunk(
        &mut self,
        worker: u32,
        header: &Header,
        block: Block,
    ) -> Result<Option<Notice>, String> {
        let (length, vectors) = (self.length, &self.vectors);
        let task = header.task();
        // A header has no room for the number of a plan; with its order a task is the only one.
        let of_plan = |plan| (worker, header.attempt, Task { plan, ..task });
        let Some((&key, ordered)) = self.ordered.range_mut(of_plan(0)..=of_plan(u32::MAX)).next()
        else {
            self.blocks.give(block);
            return Ok(None);
        };
        let partial = ordered.partial.get_or_insert_with(|| {
            let missing = vec![true; chunks(length)];
            Partial { vector: vectors.take(length), left: missing.len(), missing, finite: true }
        });
        let chunk = header.chunk_of(length)?;
        let range = chunk_range(chunk, length);
        // A chunk that comes twice, after a connection broke, counts once.
        if std::mem::take(&mut partial.missing[chunk]) {
            block.copy_to(&mut partial.vector[range.clone()]);
            // The worker says so too; what it says is not taken for what came.
            partial.finite &= nonfinite_mask(&partial.vector[range]) == 0.0;
            partial.left -= 1;
        }
        self.blocks.give(block);
        Ok(self.taken_in(key))
    }

    /// A worker says that it is done with a task and that its result is finite, of which the chunks
    /// may still be on their way; gives back what there is to report.
    pub(super) fn done(
        &mut self,
        worker: u32,
        order: u64,
        task: Task,
        word: DoneWord,
    ) -> Option<Notice> {
        let key = (worker, order as u32, task);
        self.ordered.get_mut(&key)?.done = Some(word);
        self.taken_in(key)
    }

    /// A worker says that a result is not finite: it is not sent.
    pub(super) fn refused(&mut self, worker: u32, order: u64, task: Task) {
        self.ordered.remove(&(worker, order as u32, task));
    }

    fn taken_in(&mut self, key: (u32, u32, Task)) -> Option<Notice> {
        let whole = |ordered: &Ordered| {
            ordered.done.is_some()
                && ordered.partial.as_ref().is_some_and(|partial| partial.left == 0)
        };
        self.ordered.get(&key).filter(|ordered| whole(ordered))?;
        let Ordered { partial, done } = self.ordered.remove(&key)?;
        let (Partial { vector, finite, .. }, word) = (partial?, done?);
        if finite {
            self.ledgers.of(Worker(key.0)).keep(key.2, vector);
        } else {
            self.vectors.give(Arc::new(vector));
        }
        Some(word.notice(key.2, finite))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Job;
    use crate::transport::wire::CHUNK;

    const LENGTH: usize = CHUNK + 3;
    const TASK: Task = Task { job: Job(4), piece: 1, plan: 0 };

    fn receiver() -> EagerReceiver {
        EagerReceiver::new(LENGTH, Ledgers::new(2), Vectors::default(), Blocks::new(LENGTH))
    }

    fn word(aux: Vec<f64>) -> DoneWord {
        DoneWord { aux, spent: None }
    }

    fn take_in(
        eager: &mut EagerReceiver,
        worker: u32,
        frame: &Frame,
    ) -> Result<Option<Notice>, String> {
        let mut block = eager.blocks.take(frame.header.count(), NumberFormat::F32);
        block.fill(frame.body.floats().unwrap());
        eager.chunk(worker, &frame.header, block)
    }

    #[test]
    fn a_result_counts_when_all_of_it_and_its_word_have_come() {
        let vector = Arc::new((0..LENGTH).map(|at| at as f32).collect::<Vec<f32>>());
        let frames: Vec<Frame> = frames(&vector, TASK, 7).collect();
        let mut eager = receiver();
        eager.ordered(1, 7, [TASK].into_iter());
        assert!(take_in(&mut eager, 1, &frames[1]).unwrap().is_none());
        assert!(take_in(&mut eager, 1, &frames[1]).unwrap().is_none(), "the same chunk again");
        assert!(eager.done(1, 7, TASK, word(vec![2.0])).is_none());
        let notice = take_in(&mut eager, 1, &frames[0]).unwrap();
        assert!(matches!(notice, Some(Notice::Done { task: TASK, finite: true, .. })));
        assert!(eager.ledgers.of(Worker(1)).result(TASK).is_some_and(|held| **held == *vector));
        assert!(
            eager.done(1, 7, TASK, word(vec![2.0])).is_none() && eager.ordered.is_empty(),
            "once"
        );
    }

    #[test]
    fn what_nobody_ordered_is_not_kept() {
        let vector = Arc::new(vec![1.0; LENGTH]);
        let mut eager = receiver();
        eager.ordered(0, 1, [TASK].into_iter());
        for frame in frames(&vector, TASK, 2).chain(frames(&vector, Task { piece: 9, ..TASK }, 1)) {
            assert!(take_in(&mut eager, 0, &frame).unwrap().is_none());
        }
        assert!(
            frames(&vector, TASK, 1).all(|frame| take_in(&mut eager, 1, &frame).unwrap().is_none()),
            "another worker's"
        );
        assert!(eager.ordered.values().all(|ordered| ordered.partial.is_none()));
        eager.freed(0, 1);
        assert!(eager.ordered.is_empty());
    }

    #[test]
    fn what_is_judged_is_what_came() {
        let mut vector = vec![1.0; LENGTH];
        vector[LENGTH - 1] = f32::NAN;
        let mut eager = receiver();
        eager.ordered(0, 1, [TASK].into_iter());
        assert!(eager.done(0, 1, TASK, word(Vec::new())).is_none());
        let notices: Vec<_> = frames(&Arc::new(vector), TASK, 1)
            .filter_map(|frame| take_in(&mut eager, 0, &frame).unwrap())
            .collect();
        assert!(
            matches!(notices[..], [Notice::Done { finite: false, .. }]),
            "it said it was finite, and it is not"
        );
        assert!(eager.ledgers.of(Worker(0)).is_empty());
        eager.ordered(0, 2, [TASK].into_iter());
        let beyond = Header {
            attempt: 2,
            ..Header::chunk(Kind::Result, NumberFormat::F32, 2 * CHUNK, 3).of_task(TASK)
        };
        let block = eager.blocks.take(3, NumberFormat::F32);
        assert!(eager.chunk(0, &beyond, block).is_err());
    }
}
