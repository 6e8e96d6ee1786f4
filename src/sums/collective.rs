//! Sums made between workers by something faster than their connections, where their vectors lie:
//! NCCL between GPUs (`transport::nccl::NcclCollective`). The coordinator and its connections still
//! say who sums what, and carry what the collective does not: to those who are late, and
//! everything while there is no group.

use super::ledger::Ledger;
use super::lock;
use crate::gpu::{Gradient, SumCheck, Vector, WireBuffer};
use crate::ids::{Job, Step, Summand, Task, Worker};
use crate::sums::SumId;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// A sum, as every member that takes part is told of it: each of them sums a part of all terms and
/// sends it to the others.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveSum {
    /// The worker that is told.
    pub me: Worker,
    /// Which sum.
    pub sum: SumId,
    /// Numbers in a vector.
    pub length: usize,
    /// What is summed, in this order, by the tree of [`crate::gpu::Combine`].
    pub terms: Vec<Summand>,
    /// Who takes part, and which elements each sums.
    pub parts: Vec<(Worker, Range<usize>)>,
    /// Nodes outside the group to which the sum goes too, part by part, by their connections.
    pub shown: Vec<u32>,
}

/// What a collective is told. It does one after the other, but for [`CollectiveCommand::Leave`].
#[derive(Clone, Debug, PartialEq)]
pub enum CollectiveCommand {
    /// Name a group, by which its members find each other.
    Name {
        /// Number of the group.
        group: u64,
    },
    /// Be a member of a group; it takes the place of the last one.
    Join {
        /// Number of the group.
        group: u64,
        /// Its name.
        id: String,
        /// Who is in it, in order of rank.
        members: Vec<Worker>,
        /// Which of them this is.
        rank: usize,
    },
    /// Make a sum with others of the group.
    Sum {
        /// Number of the group.
        group: u64,
        /// Which sum.
        collective: CollectiveSum,
    },
    /// Send a sum that is kept to a node that lacks it, as [`CollectiveEvent::Part`].
    Give {
        /// Which sum.
        sum: SumId,
        /// To whom.
        to: u32,
    },
    /// Give a group up, and older ones, with what is under way.
    Leave {
        /// Number of the group.
        group: u64,
    },
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq)]
pub enum CollectiveEvent {
    /// A group has a name.
    Named {
        /// Number of the group.
        group: u64,
        /// The name.
        id: String,
    },
    /// All members have found each other.
    Joined {
        /// Number of the group.
        group: u64,
    },
    /// A part of a sum, for those outside the group.
    Part {
        /// Which sum.
        sum: SumId,
        /// The first element.
        start: usize,
        /// The numbers from there on.
        numbers: Arc<Vec<f32>>,
        /// To whom they go.
        to: Vec<u32>,
    },
    /// A sum is whole, and kept.
    Summed {
        /// Which sum.
        sum: SumId,
        /// Its [`crate::gpu::digest_of_bits`], and whether it is finite.
        folded: SumCheck,
    },
    /// A group was left: nothing more is said of it, or of older ones.
    Left {
        /// Number of the group.
        group: u64,
    },
    /// A group cannot be joined, or something went wrong in it.
    Failed {
        /// Number of the group.
        group: u64,
        /// Why.
        reason: String,
    },
}

/// Where a collective's reports go.
pub type ReportSink = Box<dyn Fn(CollectiveEvent) + Send>;

/// A worker's end of something that sums vectors between workers.
pub trait Collective: Send {
    /// From now on, reports go there.
    fn begin(&mut self, report: ReportSink);
    /// Does as told, without waiting for it.
    fn tell(&mut self, told: CollectiveCommand);
}

/// What a collective's worker holds, as its connections see it: vectors come to the host's memory
/// when they are asked for.
pub trait ResultStore: Send {
    /// See [`Ledger::result`]; for the host.
    fn read(&self, task: Task) -> Option<Arc<Vec<f32>>>;
    /// See [`Ledger::discard`].
    fn discard(&self, task: Task);
    /// See [`Ledger::release`].
    fn release(&self, end: Job);
    /// Forgets all results; sums that were made are kept.
    fn clear(&self);
}

#[derive(Debug)]
struct KeptVectors<V> {
    ledger: Ledger<V>,
    /// Sums that were made, the last ones.
    sums: VecDeque<(SumId, Arc<V>)>,
    /// How many of them are kept, and the first step that the trainer has not been given: whatever
    /// it has not is kept.
    most: usize,
    next: Step,
    /// What the host asked for.
    copies: Vec<(Task, Arc<Vec<f32>>)>,
    spare: Vec<V>,
}

/// Results and sums of a worker that stay where they are computed, for its trainer, its connections
/// and its collective alike.
#[derive(Debug)]
pub struct DeviceResults<V>(Arc<Mutex<KeptVectors<V>>>);

impl<V> Clone for DeviceResults<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V: Vector + Gradient> DeviceResults<V> {
    /// Of a worker that keeps so many sums for those who may still ask for them.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let kept = KeptVectors {
            ledger: Ledger::default(),
            sums: VecDeque::new(),
            most,
            next: Step(0),
            copies: Vec::new(),
            spare: Vec::new(),
        };
        Self(Arc::new(Mutex::new(kept)))
    }

    fn kept(&self) -> MutexGuard<'_, KeptVectors<V>> {
        lock(&self.0)
    }

    /// Results that are held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept().ledger.len()
    }

    /// Keeps the result of a task.
    pub fn keep(&self, task: Task, result: V) {
        self.kept().ledger.keep(task, result);
    }

    /// The result of a task, where it lies.
    #[must_use]
    pub fn result(&self, task: Task) -> Option<Arc<V>> {
        self.kept().ledger.result(task).cloned()
    }

    /// Keeps a sum in place of one of the same name; gives back the memory of those that are no
    /// longer kept.
    pub fn keep_sum(&self, id: SumId, sum: V) -> Vec<V> {
        let kept = &mut *self.kept();
        let same = kept.sums.iter().position(|(of, _)| *of == id);
        let mut spent: Vec<_> = same.and_then(|at| kept.sums.remove(at)).into_iter().collect();
        kept.sums.push_back((id, Arc::new(sum)));
        while kept.sums.len() > kept.most
            && let Some(at) = kept.sums.iter().position(|(of, _)| of.step < kept.next)
        {
            spent.extend(kept.sums.remove(at));
        }
        spent.into_iter().filter_map(|(_, sum)| Arc::into_inner(sum)).collect()
    }

    /// The trainer has been given all steps before this one.
    pub(crate) fn passed(&self, next: Step) {
        self.kept().next = next;
    }

    /// A sum that was made, where it lies.
    #[must_use]
    pub fn sum(&self, id: SumId) -> Option<Arc<V>> {
        self.kept().sums.iter().find(|(of, _)| *of == id).map(|(_, sum)| Arc::clone(sum))
    }

    /// The memory of a result that is no longer held.
    pub(crate) fn spare(&self, place: &V::Place, length: usize) -> Option<V> {
        let kept = &mut *self.kept();
        let found = kept.spare.iter().rposition(|vector| vector.fits(place, length));
        found.map(|at| kept.spare.swap_remove(at))
    }
}

impl<V> KeptVectors<V> {
    fn spend(&mut self, spent: impl IntoIterator<Item = Arc<V>>) {
        self.spare.extend(spent.into_iter().filter_map(Arc::into_inner));
    }
}

/// A copy for the host; a vector that has failed cannot be had.
fn to_host<V: Vector + Gradient>(vector: &V) -> Option<Arc<Vec<f32>>> {
    let mut numbers = vec![0.0; Vector::length(vector)];
    let read = vector.read(0, 1.0, WireBuffer::F32(&mut numbers));
    read.inspect_err(|error| tracing::error!("a vector cannot be had: {error}"))
        .ok()
        .map(|()| Arc::new(numbers))
}

impl<V: Vector + Gradient> ResultStore for DeviceResults<V> {
    fn read(&self, task: Task) -> Option<Arc<Vec<f32>>> {
        let vector = {
            let kept = self.kept();
            if let Some((_, copy)) = kept.copies.iter().find(|(of, _)| *of == task) {
                return Some(Arc::clone(copy));
            }
            Arc::clone(kept.ledger.result(task)?)
        };
        let copy = to_host(&*vector)?;
        self.kept().copies.push((task, Arc::clone(&copy)));
        Some(copy)
    }

    fn discard(&self, task: Task) {
        let kept = &mut *self.kept();
        kept.copies.retain(|(of, _)| *of != task);
        let spent = kept.ledger.discard(task);
        kept.spend(spent);
    }

    fn release(&self, end: Job) {
        let kept = &mut *self.kept();
        kept.copies.retain(|(of, _)| of.job >= end);
        let spent = kept.ledger.release(end);
        kept.spend(spent);
    }

    fn clear(&self) {
        let kept = &mut *self.kept();
        (kept.ledger, kept.copies) = (Ledger::default(), Vec::new());
    }
}

#[cfg(test)]
mod tests;
