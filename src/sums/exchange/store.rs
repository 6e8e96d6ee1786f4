//! What a node holds: results that are to be summed, and sums that are made.

use super::block::Vectors;
use super::frame::{Body, Frame};
use crate::ids::{Job, Step, Task};
use crate::run::NumberFormat;
use crate::sums::collective::ResultStore;
use crate::sums::ledger::Ledger;
use crate::sums::{Header, Kind, NotFinite, SumId, chunk_range, chunks, lock};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A worker's results in the host's memory, which its trainer writes there.
pub(crate) struct HostResults {
    ledger: Arc<Mutex<Ledger>>,
    vectors: Vectors,
}

impl HostResults {
    pub(crate) fn new(ledger: Arc<Mutex<Ledger>>, vectors: Vectors) -> Self {
        Self { ledger, vectors }
    }

    fn spend(&self, spent: impl IntoIterator<Item = Arc<Vec<f32>>>) {
        spent.into_iter().for_each(|vector| self.vectors.give(vector));
    }
}

impl ResultStore for HostResults {
    fn read(&self, task: Task) -> Option<Arc<Vec<f32>>> {
        lock(&self.ledger).result(task).cloned()
    }

    fn discard(&self, task: Task) {
        let spent = lock(&self.ledger).discard(task);
        self.spend(spent);
    }

    fn release(&self, end: Job) {
        let spent = lock(&self.ledger).release(end);
        self.spend(spent);
    }

    fn clear(&self) {
        *lock(&self.ledger) = Ledger::default();
    }
}

/// A sum that is whole.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    pub(super) id: SumId,
    /// None where a collective made it and has it.
    pub(super) vector: Option<Arc<Vec<f32>>>,
    pub(super) digest: u64,
    pub(super) finite: bool,
    /// Whose chunks are not.
    pub(super) nonfinite: NotFinite,
    /// Whether its step is known to be made of it, and not only expected to.
    pub(super) confirmed: bool,
    /// Whether it is from before the present connection to the coordinator.
    pub(super) is_from_before: bool,
}

impl Sum {
    /// A finite sum that its step is made of, of this digest; no vector where a collective has it.
    pub(super) fn made(id: SumId, vector: Option<Arc<Vec<f32>>>, digest: u64) -> Self {
        Self {
            id,
            vector,
            digest,
            finite: true,
            nonfinite: NotFinite::default(),
            confirmed: true,
            is_from_before: false,
        }
    }

    fn is_of(&self, id: SumId) -> bool {
        self.id == id
    }
}

/// The last sums that a node made or received, for its transport too: clones share them.
///
/// # How to drive it
/// A sum is kept under its step and attempt as soon as it is whole ([`SharedSums::push`],
/// [`SharedSums::keep`]); of more than may be kept the oldest is forgotten. What others lack is
/// [given](SharedSums::give) to them. After [`SharedSums::connection_lost`] those that are here are
/// not [current](SharedSums::is_current) any more: each is there until it is made again.
#[derive(Clone, Debug)]
pub(crate) struct SharedSums {
    /// The oldest first.
    sums: Arc<Mutex<VecDeque<Sum>>>,
    most: usize,
    length: usize,
    vectors: Vectors,
}

impl SharedSums {
    /// Keeps so many, of vectors of `length` numbers, whose memory goes back to `vectors`.
    pub(super) fn new(most: usize, length: usize, vectors: Vectors) -> Self {
        Self { sums: Arc::default(), most, length, vectors }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.sums).len()
    }

    /// A step is made of this sum, which was expected.
    pub(super) fn confirm(&self, id: SumId) {
        let sums = &mut *lock(&self.sums);
        sums.iter_mut().filter(|sum| sum.is_of(id)).for_each(|sum| sum.confirmed = true);
    }

    pub(super) fn sum(&self, id: SumId) -> Option<Sum> {
        lock(&self.sums).iter().find(|sum| sum.is_of(id)).cloned()
    }

    /// The vector of a sum that is finite, if it is here and its step is made of it.
    pub(crate) fn vector(&self, id: SumId) -> Option<Arc<Vec<f32>>> {
        self.sum(id).filter(|sum| sum.finite && sum.confirmed)?.vector
    }

    /// Whether a sum is whole here.
    pub(super) fn is_whole(&self, id: SumId) -> bool {
        lock(&self.sums).iter().any(|sum| sum.is_of(id))
    }

    /// Whether a sum is here, and from the present connection to the coordinator.
    pub(super) fn is_current(&self, id: SumId) -> bool {
        let sums = lock(&self.sums);
        sums.iter().find(|sum| sum.is_of(id)).is_some_and(|sum| !sum.is_from_before)
    }

    /// Whether a sum with these bytes is kept; one with other bytes is thrown away.
    pub(super) fn has(&self, id: SumId, digest: u64) -> bool {
        lock(&self.sums).retain(|sum| !sum.is_of(id) || sum.digest == digest);
        self.is_whole(id)
    }

    /// Keeps a sum, unless there is one already.
    pub(super) fn keep(&self, sum: Sum) {
        if !self.is_whole(sum.id) {
            self.push(sum);
        }
    }

    /// Keeps a sum that was made here.
    pub(super) fn push(&self, sum: Sum) {
        let mut sums = lock(&self.sums);
        sums.push_back(sum);
        // The oldest first; who lacks that one is sent a state instead.
        while sums.len() > self.most {
            let oldest = sums.pop_front().and_then(|sum| sum.vector);
            oldest.into_iter().for_each(|vector| self.vectors.give(vector));
        }
    }

    /// Takes out a sum.
    pub(super) fn take(&self, id: SumId) -> Option<Sum> {
        let mut sums = lock(&self.sums);
        let at = sums.iter().position(|sum| sum.is_of(id))?;
        sums.remove(at)
    }

    /// Forgets a sum that is to be made again.
    pub(super) fn forget(&self, id: SumId) {
        let spent = self.take(id).and_then(|sum| sum.vector);
        spent.into_iter().for_each(|vector| self.vectors.give(vector));
    }

    /// A step is decided: what it was summed to besides would take the room of other steps.
    pub(super) fn decided(&self, step: Step, made_of: Option<SumId>) {
        let of_step = |id: &SumId| id.step == step && Some(*id) != made_of;
        let spent: Vec<SumId> = lock(&self.sums).iter().map(|sum| sum.id).filter(of_step).collect();
        spent.into_iter().for_each(|id| self.forget(id));
    }

    /// The connection to the coordinator is lost: a restarted one may make these sums again.
    pub(super) fn connection_lost(&self) {
        lock(&self.sums).iter_mut().for_each(|sum| sum.is_from_before = true);
    }

    /// The chunks of a sum that is kept.
    pub(super) fn give(&self, id: SumId) -> Option<Vec<Frame>> {
        let sum = self.sum(id)?;
        let vector = sum.vector.as_ref()?;
        Some(chunks_of(&sum, vector, 0, self.length).collect())
    }
}

/// The chunks of a sum of `length` numbers, for a node that lacks it, as far as they are in a part
/// of it, which begins at `start`.
pub(super) fn chunks_of(
    sum: &Sum,
    part: &Arc<Vec<f32>>,
    start: usize,
    length: usize,
) -> impl Iterator<Item = Frame> {
    let end = start + part.len();
    (0..chunks(length))
        .map(move |chunk| chunk_range(chunk, length))
        .filter(move |chunk| start <= chunk.start && chunk.end <= end)
        .map(move |chunk| {
            let header = Header::chunk(Kind::Sum, NumberFormat::F32, chunk.start, chunk.len())
                .of_sum(sum.id, 0);
            let range = chunk.start - start..chunk.end - start;
            Frame {
                header: Header { finite: sum.finite, ..header },
                body: Body::Slice(Arc::clone(part), range),
            }
        })
}
