//! Results on their way to a coordinator that holds them before it knows what becomes of them.

use super::block::{Block, Blocks, Body, Vectors};
use super::pipe::Frame;
use crate::gpu::poison_of;
use crate::ids::{Task, Worker};
use crate::run::NumberFormat;
use crate::transport::Notice;
use crate::transport::ledger::Ledgers;
use crate::transport::wire::{Header, Kind, chunk_range, chunks};
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
struct Landing {
    vector: Vec<f32>,
    missing: Vec<bool>,
    left: usize,
    finite: bool,
}

/// A task that was ordered and not answered.
#[derive(Debug, Default)]
struct Ordered {
    landing: Option<Landing>,
    /// The worker's word that it is done, and the scalars that came with it.
    done: Option<Vec<f64>>,
}

/// The results that are due: nothing else is taken in, and what workers can make the coordinator
/// keep is bounded by what they were told to compute.
#[derive(Debug)]
pub(super) struct Landings {
    length: usize,
    ledgers: Ledgers,
    vectors: Vectors,
    blocks: Blocks,
    /// By worker, order and task.
    ordered: BTreeMap<(u32, u32, Task), Ordered>,
}

impl Landings {
    pub(super) fn new(length: usize, ledgers: Ledgers, vectors: Vectors, blocks: Blocks) -> Self {
        Self { length, ledgers, vectors, blocks, ordered: BTreeMap::new() }
    }

    pub(super) fn ordered(&mut self, worker: u32, order: u64, tasks: impl Iterator<Item = Task>) {
        self.ordered.extend(tasks.map(|task| ((worker, order as u32, task), Ordered::default())));
    }

    /// The rest of an order will not be answered.
    pub(super) fn freed(&mut self, worker: u32, order: u64) {
        self.ordered.retain(|key, _| (key.0, key.1) != (worker, order as u32));
    }

    /// A worker is gone.
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
        let of_plan = |plan| (worker, header.attempt, Task { plan, ..task });
        let Some((&key, ordered)) = self.ordered.range_mut(of_plan(0)..=of_plan(u32::MAX)).next()
        else {
            self.blocks.give(block);
            return Ok(None);
        };
        let landing = ordered.landing.get_or_insert_with(|| {
            let missing = vec![true; chunks(length)];
            Landing { vector: vectors.take(length), left: missing.len(), missing, finite: true }
        });
        let chunk = header.chunk_of(length)?;
        let range = chunk_range(chunk, length);
        if std::mem::take(&mut landing.missing[chunk]) {
            block.copy_to(&mut landing.vector[range.clone()]);
            landing.finite &= poison_of(&landing.vector[range]) == 0.0;
            landing.left -= 1;
        }
        self.blocks.give(block);
        Ok(self.landed(key))
    }

    /// A worker says that it is done with a task and that its result is finite, of which the chunks
    /// may still be on their way; gives back what there is to report.
    pub(super) fn done(
        &mut self,
        worker: u32,
        order: u64,
        task: Task,
        tail: Vec<f64>,
    ) -> Option<Notice> {
        let key = (worker, order as u32, task);
        self.ordered.get_mut(&key)?.done = Some(tail);
        self.landed(key)
    }

    /// A worker says that a result is not finite: it is not sent.
    pub(super) fn refused(&mut self, worker: u32, order: u64, task: Task) {
        self.ordered.remove(&(worker, order as u32, task));
    }

    fn landed(&mut self, key: (u32, u32, Task)) -> Option<Notice> {
        let whole = |ordered: &Ordered| {
            ordered.done.is_some()
                && ordered.landing.as_ref().is_some_and(|landing| landing.left == 0)
        };
        self.ordered.get(&key).filter(|ordered| whole(ordered))?;
        let Ordered { landing, done } = self.ordered.remove(&key)?;
        let (Landing { vector, finite, .. }, tail) = (landing?, done?);
        if finite {
            self.ledgers.of(Worker(key.0)).keep(key.2, vector);
        } else {
            self.vectors.give(Arc::new(vector));
        }
        Some(Notice::Done { task: key.2, tail, finite })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Job;
    use crate::transport::wire::CHUNK;

    const LENGTH: usize = CHUNK + 3;
    const TASK: Task = Task { job: Job(4), piece: 1, plan: 0 };

    fn landings() -> Landings {
        Landings::new(LENGTH, Ledgers::new(2), Vectors::default(), Blocks::new(LENGTH))
    }

    fn land(landings: &mut Landings, worker: u32, frame: &Frame) -> Result<Option<Notice>, String> {
        let mut block = landings.blocks.take(frame.header.count(), NumberFormat::F32);
        block.fill(frame.body.floats().unwrap());
        landings.chunk(worker, &frame.header, block)
    }

    #[test]
    fn a_result_counts_when_all_of_it_and_its_word_have_come() {
        let vector = Arc::new((0..LENGTH).map(|at| at as f32).collect::<Vec<f32>>());
        let frames: Vec<Frame> = frames(&vector, TASK, 7).collect();
        let mut landings = landings();
        landings.ordered(1, 7, [TASK].into_iter());
        assert!(land(&mut landings, 1, &frames[1]).unwrap().is_none());
        assert!(land(&mut landings, 1, &frames[1]).unwrap().is_none(), "the same chunk again");
        assert!(landings.done(1, 7, TASK, vec![2.0]).is_none());
        let notice = land(&mut landings, 1, &frames[0]).unwrap();
        assert!(matches!(notice, Some(Notice::Done { task: TASK, finite: true, .. })));
        assert!(landings.ledgers.of(Worker(1)).result(TASK).is_some_and(|held| **held == *vector));
        assert!(
            landings.done(1, 7, TASK, vec![2.0]).is_none() && landings.ordered.is_empty(),
            "once"
        );
    }

    #[test]
    fn what_nobody_ordered_is_not_kept() {
        let vector = Arc::new(vec![1.0; LENGTH]);
        let mut landings = landings();
        landings.ordered(0, 1, [TASK].into_iter());
        for frame in frames(&vector, TASK, 2).chain(frames(&vector, Task { piece: 9, ..TASK }, 1)) {
            assert!(land(&mut landings, 0, &frame).unwrap().is_none());
        }
        assert!(
            frames(&vector, TASK, 1).all(|frame| land(&mut landings, 1, &frame).unwrap().is_none()),
            "another worker's"
        );
        assert!(landings.ordered.values().all(|ordered| ordered.landing.is_none()));
        landings.freed(0, 1);
        assert!(landings.ordered.is_empty());
    }

    #[test]
    fn what_is_judged_is_what_came() {
        let mut vector = vec![1.0; LENGTH];
        vector[LENGTH - 1] = f32::NAN;
        let mut landings = landings();
        landings.ordered(0, 1, [TASK].into_iter());
        assert!(landings.done(0, 1, TASK, Vec::new()).is_none());
        let notices: Vec<_> = frames(&Arc::new(vector), TASK, 1)
            .filter_map(|frame| land(&mut landings, 0, &frame).unwrap())
            .collect();
        assert!(
            matches!(notices[..], [Notice::Done { finite: false, .. }]),
            "it said it was finite, and it is not"
        );
        assert!(landings.ledgers.of(Worker(0)).is_empty());
        landings.ordered(0, 2, [TASK].into_iter());
        let beyond = Header {
            attempt: 2,
            ..Header::chunk(Kind::Result, NumberFormat::F32, 2 * CHUNK, 3).of_task(TASK)
        };
        let block = landings.blocks.take(3, NumberFormat::F32);
        assert!(landings.chunk(0, &beyond, block).is_err());
    }
}
