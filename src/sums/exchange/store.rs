//! What a node holds: results that are to be summed, and sums that are made.

use super::Key;
use super::block::Vectors;
use super::frame::{Body, Frame};
use crate::gpu::CombineError;
use crate::ids::{Job, Step, Task};
use crate::run::NumberFormat;
use crate::sums::collective::ResultStore;
use crate::sums::ledger::Ledger;
use crate::sums::{Header, Kind, NotFinite, What, chunk_range, chunks, lock};
use std::collections::{BTreeSet, VecDeque};
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
    fn read(&self, step: Step, what: What) -> Option<Arc<Vec<f32>>> {
        lock(&self.ledger).get(step, what).cloned()
    }

    fn discard(&self, task: Task) {
        let spent = lock(&self.ledger).discard(task);
        self.spend(spent);
    }

    fn reduce(&self, step: Step, task: Task, weight: f64) -> Result<(), CombineError> {
        let spent = lock(&self.ledger).reduce(step, task, weight)?;
        self.spend(spent);
        Ok(())
    }

    fn release(&self, step: Step, end: Job) {
        let spent = lock(&self.ledger).release(step, end);
        self.spend(spent);
    }

    fn clear(&self) {
        *lock(&self.ledger) = Ledger::default();
    }
}

/// Whether the numbers of a sum are finite, and whose are not.
#[derive(Debug)]
pub(super) struct Finiteness {
    pub(super) finite: bool,
    pub(super) of: NotFinite,
    /// Of those, whom nobody has been told of.
    untold: NotFinite,
}

impl Default for Finiteness {
    fn default() -> Self {
        Self { finite: true, of: NotFinite::default(), untold: NotFinite::default() }
    }
}

impl Finiteness {
    /// Sums of this node are not finite.
    pub(super) fn note_sums_of(&mut self, owner: u32) {
        if self.of.sums_of.insert(owner) {
            self.untold.sums_of.insert(owner);
        }
    }

    /// Terms of these are not finite.
    pub(super) fn note_terms_of(&mut self, holders: impl IntoIterator<Item = u32>) {
        for holder in holders {
            if self.of.terms_of.insert(holder) {
                self.untold.terms_of.insert(holder);
            }
        }
    }

    /// Those of whom nobody has been told, if there are some.
    pub(super) fn untold(&mut self) -> Option<NotFinite> {
        let untold = std::mem::take(&mut self.untold);
        (untold != NotFinite::default()).then_some(untold)
    }
}

/// A sum that is whole.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    pub(super) step: Step,
    pub(super) attempt: u32,
    /// None where a collective made it and has it.
    pub(super) vector: Option<Arc<Vec<f32>>>,
    pub(super) digest: u64,
    pub(super) finite: bool,
    /// Whose chunks are not.
    pub(super) nonfinite: NotFinite,
    /// Whether its step is known to be made of it, and not only expected to.
    pub(super) confirmed: bool,
}

impl Sum {
    /// A finite sum that its step is made of, of this digest; no vector where a collective has it.
    pub(super) fn made((step, attempt): Key, vector: Option<Arc<Vec<f32>>>, digest: u64) -> Self {
        let nonfinite = NotFinite::default();
        Self { step, attempt, vector, digest, finite: true, nonfinite, confirmed: true }
    }

    fn key(&self) -> Key {
        (self.step, self.attempt)
    }
}

/// The last sums that a node made or received.
#[derive(Debug)]
pub(crate) struct SumStore {
    sums: VecDeque<Sum>,
    most: usize,
    /// Which of them are from before the present connection to the coordinator.
    before: BTreeSet<Key>,
}

/// The sums of a node, for its transport too.
pub(crate) type SharedSums = Arc<Mutex<SumStore>>;

impl SumStore {
    /// A store that keeps so many.
    pub(super) fn new(most: usize) -> Self {
        Self { sums: VecDeque::new(), most, before: BTreeSet::new() }
    }

    /// A step is made of this sum, which was expected.
    pub(super) fn confirm(&mut self, key: Key) {
        let of_key = self.sums.iter_mut().filter(|sum| sum.key() == key);
        of_key.for_each(|sum| sum.confirmed = true);
    }

    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Sum> {
        self.sums.iter().find(|sum| sum.key() == key)
    }

    /// The vector of an attempt's sum that is finite, if it is here and its step is made of it.
    pub(crate) fn vector(&self, step: Step, attempt: u32) -> Option<Arc<Vec<f32>>> {
        self.get((step, attempt)).filter(|sum| sum.finite && sum.confirmed)?.vector.clone()
    }

    /// Keeps a sum; gives back the memory of those that are no longer kept.
    pub(super) fn insert(&mut self, sum: Sum) -> Vec<Arc<Vec<f32>>> {
        self.sums.push_back(sum);
        let mut spent = Vec::new();
        // The oldest first; who lacks that one is sent a state instead.
        while self.sums.len() > self.most {
            let Some(oldest) = self.sums.pop_front() else { break };
            self.before.remove(&oldest.key());
            spent.extend(oldest.vector);
        }
        spent
    }

    /// Whether a sum with these bytes is kept; one with other bytes is thrown away.
    pub(super) fn has(&mut self, key: Key, digest: u64) -> bool {
        self.sums.retain(|sum| sum.key() != key || sum.digest == digest);
        self.get(key).is_some()
    }

    /// Takes out a sum.
    pub(super) fn take(&mut self, key: Key) -> Option<Sum> {
        self.before.remove(&key);
        let at = self.sums.iter().position(|sum| sum.key() == key)?;
        self.sums.remove(at)
    }

    /// Forgets a sum, and gives back its memory.
    pub(super) fn remove(&mut self, key: Key) -> Option<Arc<Vec<f32>>> {
        self.take(key)?.vector
    }

    /// The connection to the coordinator is lost: a restarted one may make these sums again.
    pub(super) fn connection_lost(&mut self) {
        self.before = self.sums.iter().map(Sum::key).collect();
    }

    /// Whether a sum is from before the present connection.
    pub(super) fn is_from_before(&self, key: Key) -> bool {
        self.before.contains(&key)
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
                .of_step(sum.step, sum.attempt, 0);
            let range = chunk.start - start..chunk.end - start;
            Frame {
                header: Header { finite: sum.finite, ..header },
                body: Body::Slice(Arc::clone(part), range),
            }
        })
}
