//! The nouns everything else is said in: workers, the ranks they are made of, shares, jobs, rounds,
//! tasks, and the cut of a batch.
//!
//! An index is never a count: each kind has its own type, so that a worker cannot be passed where a
//! share is meant.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// One model replica that computes gradients (it may itself be many GPUs); `i` of `n` in the
/// papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Worker(pub u32);

/// One process of a training job, usually one GPU, as launchers number them. Where models are
/// parallel inside a worker, several ranks are one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// The place of a rank within its worker, from 0 in the order of their ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seat(pub u32);

/// A part of one step's batch whose gradient is a sum over its samples; `j` of `k` in the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Share(pub u32);

/// One gradient to be decoded; `g(t)` in the papers. Counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Job(pub u64);

/// One optimizer step of one model: the sum of one or more jobs. Counted from 0, over all models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Step(pub u64);

/// One compute phase. Counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Round(pub u64);

/// What a worker computes: a piece of a job, never when. A repeat of it is the same task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    /// The gradient this task is a part of.
    pub job: Job,
    /// Which part of it; what the number means is the scheme's own affair.
    pub piece: u32,
    /// Which plan of the run it belongs to: 0, unless the run was planned again for other workers
    /// since. A result of one plan is never taken for one of another.
    #[serde(default, skip_serializing_if = "is_first_plan")]
    pub plan: u32,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a task of batch {}", self.job.0)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_first_plan(plan: &u32) -> bool {
    *plan == 0
}

/// Tasks of one job with consecutive pieces, done one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Who does them.
    pub worker: Worker,
    /// The task that is done first.
    pub first: Task,
    /// How many tasks there are.
    pub count: u32,
    /// Units of the batch in all of them.
    pub units: u32,
}

impl Run {
    /// One task of so many units.
    #[must_use]
    pub fn one(worker: Worker, task: Task, units: u32) -> Self {
        Self { worker, first: task, count: 1, units }
    }

    /// The tasks in their order.
    ///
    /// ```
    /// use codedgrad::ids::{Job, Run, Task, Worker};
    /// let run = Run {
    ///     worker: Worker(0),
    ///     first: Task { job: Job(7), piece: 4, plan: 0 },
    ///     count: 2,
    ///     units: 6,
    /// };
    /// assert!(run.tasks().eq([4, 5].map(|piece| Task { job: Job(7), piece, plan: 0 })));
    /// ```
    pub fn tasks(self) -> impl Iterator<Item = Task> {
        (self.first.piece..self.first.piece + self.count)
            .map(move |piece| Task { piece, ..self.first })
    }
}

impl Worker {
    /// The position of this worker in a vector with one entry per worker.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Workers by their numbers, as people read them.
    ///
    /// ```
    /// use codedgrad::ids::Worker;
    /// assert_eq!(Worker::listed(&[0, 2, 3, 4].map(Worker)), "0, 2-4");
    /// ```
    #[must_use]
    pub fn listed(workers: &[Worker]) -> String {
        let runs = workers.chunk_by(|one, next| one.0 + 1 == next.0);
        let listed: Vec<String> = runs
            .map(|run| match run {
                [first, .., last] => format!("{}-{}", first.0, last.0),
                one => one[0].0.to_string(),
            })
            .collect();
        listed.join(", ")
    }

    /// All workers of a run of `count`.
    pub fn all(count: usize) -> impl DoubleEndedIterator<Item = Worker> + Clone {
        (0..count as u32).map(Worker)
    }
}

impl Rank {
    /// The position of this rank in a vector with one entry per rank.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Seat {
    /// The position of this seat in a vector with one entry per rank of a worker.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Share {
    /// The share at a position in a vector with one entry per share.
    ///
    /// # Panics
    /// When there cannot be so many shares.
    ///
    /// ```
    /// use codedgrad::ids::Share;
    /// let row: Vec<(Share, f64)> = (3..5).map(|j| (Share::at(j), 1.0)).collect();
    /// assert_eq!(row, [(Share(3), 1.0), (Share(4), 1.0)]);
    /// ```
    #[must_use]
    pub fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("at most 2^32 shares"))
    }

    /// The position of this share in a vector with one entry per share.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Job {
    /// The job after this one.
    #[must_use]
    pub fn next(self) -> Job {
        Job(self.0 + 1)
    }

    /// The step this job is a part of where each step has `micro_steps` jobs.
    #[must_use]
    pub fn step(self, micro_steps: u64) -> Step {
        Step(self.0 / micro_steps)
    }
}

impl Step {
    /// The step after this one.
    #[must_use]
    pub fn next(self) -> Step {
        Step(self.0 + 1)
    }

    /// The jobs of this step where each step has `micro_steps` of them.
    #[must_use]
    pub fn jobs(self, micro_steps: u64) -> std::ops::Range<Job> {
        Job(self.0 * micro_steps)..Job((self.0 + 1) * micro_steps)
    }
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seat {}", self.0)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.0)
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

/// A half-open interval `[start, end)` of a batch's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Units {
    /// First unit.
    pub start: u32,
    /// One past the last unit.
    pub end: u32,
}

impl Units {
    /// How many units the interval holds.
    #[must_use]
    pub fn count(self) -> u32 {
        self.end - self.start
    }
}

/// A part of a task: units of the batch and the coefficient their summed loss is weighted with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Which units of the batch.
    pub units: Units,
    /// The entry of the code matrix, `B_ij`.
    pub coefficient: f64,
}

/// An order of tasks to a worker. Whomever they are for, later orders of a run have higher numbers;
/// 0 is none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct OrderId(pub u64);

impl OrderId {
    /// What comes before all orders of a coordinator that was started so many times before, and
    /// after all orders of those.
    #[must_use]
    pub const fn before_all_of(incarnation: u32) -> Self {
        Self((incarnation as u64) << 32)
    }

    /// The order after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

/// A result and its weight in a sum, such as its decode weight in the gradient of its job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedResult {
    /// Whose result.
    pub worker: Worker,
    /// The task it answers.
    pub task: Task,
    /// Its weight.
    pub weight: f64,
}

/// A result that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Whose.
    pub worker: Worker,
    /// Of which task.
    pub task: Task,
}

/// One term of a sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summand {
    /// Its weight, applied in f32 by the node that sums.
    pub weight: f64,
    /// Vectors made of the same samples with the same coefficients, any of which will do; at least
    /// one.
    pub holders: Vec<Piece>,
}

impl Summand {
    /// The result of the first of its holders.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    pub fn first_result(&self) -> WeightedResult {
        let Piece { worker, task } = self.holders[0];
        WeightedResult { worker, task, weight: self.weight }
    }

    /// The vector that a worker takes which is number `place` of those that sum: its own, or else
    /// its turn's.
    #[must_use]
    pub fn source(&self, owner: Worker, place: usize) -> Option<Piece> {
        let turn = || self.holders.get(place % self.holders.len().max(1)).copied();
        self.piece_of(owner).or_else(turn)
    }

    /// What a worker has of it.
    pub(crate) fn piece_of(&self, worker: Worker) -> Option<Piece> {
        self.holders.iter().find(|piece| piece.worker == worker).copied()
    }
}

/// Why a batch cannot be cut as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CutError {
    /// Fewer units than shares: some share would be empty.
    #[error(
        "a batch of {units} units cannot be cut into {shares} shares: each share needs at least \
         one unit"
    )]
    TooFewUnits {
        /// Units of the batch.
        units: u32,
        /// Shares asked for.
        shares: u32,
    },
}

/// A batch of `units` equal units (micro-batches), cut into shares that differ by at most one unit.
///
/// # Formula
/// ```text
/// share j = [ floor(u j / k), floor(u (j+1) / k) )
/// ```
/// where `u` is the number of units and `k` the number of shares.
///
/// ```
/// use codedgrad::ids::{Cut, Share, Units};
/// let cut = Cut::new(8, 3)?;
/// assert_eq!(cut.share(Share(0)), Units { start: 0, end: 2 });
/// assert_eq!(cut.share(Share(2)), Units { start: 5, end: 8 });
/// # Ok::<(), codedgrad::ids::CutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    units: u32,
    shares: u32,
}

impl Cut {
    /// A cut of `units` into `shares`.
    ///
    /// # Errors
    /// [`CutError::TooFewUnits`] when some share would be empty, or there is no share at all.
    pub fn new(units: u32, shares: u32) -> Result<Self, CutError> {
        if shares == 0 || units < shares {
            return Err(CutError::TooFewUnits { units, shares });
        }
        Ok(Self { units, shares })
    }

    /// Units of the whole batch.
    #[must_use]
    pub fn units(self) -> u32 {
        self.units
    }

    /// Number of shares.
    #[must_use]
    pub fn shares(self) -> u32 {
        self.shares
    }

    /// The units of one share.
    #[must_use]
    pub fn share(self, share: Share) -> Units {
        let edge = |j: u32| (u64::from(self.units) * u64::from(j) / u64::from(self.shares)) as u32;
        Units { start: edge(share.0), end: edge(share.0 + 1) }
    }
}

/// A set of workers, one bit each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct WorkerSet {
    bits: Vec<u64>,
    workers: usize,
}

impl WorkerSet {
    /// No worker of a run of `workers`.
    #[must_use]
    pub fn empty(workers: usize) -> Self {
        Self { bits: vec![0; workers.div_ceil(64)], workers }
    }

    /// Every worker of a run of `workers`.
    #[must_use]
    pub fn full(workers: usize) -> Self {
        Self::of(workers, Worker::all(workers))
    }

    /// The given workers of a run of `workers`.
    ///
    /// # Panics
    /// When a member is not below `workers`.
    #[must_use]
    pub fn of(workers: usize, members: impl IntoIterator<Item = Worker>) -> Self {
        let mut set = Self::empty(workers);
        for worker in members {
            set.insert(worker);
        }
        set
    }

    /// How many workers the run has, in the set or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.workers
    }

    /// Adds a worker; true if it was not there.
    ///
    /// # Panics
    /// When the worker is not below [`WorkerSet::capacity`].
    pub fn insert(&mut self, worker: Worker) -> bool {
        assert!(worker.index() < self.workers, "{worker} of a set over {} workers", self.workers);
        let (word, bit) = (worker.index() / 64, 1u64 << (worker.index() % 64));
        let new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        new
    }

    /// Takes a worker out; true if it was there.
    pub fn remove(&mut self, worker: Worker) -> bool {
        let had = self.contains(worker);
        if had {
            self.bits[worker.index() / 64] &= !(1u64 << (worker.index() % 64));
        }
        had
    }

    /// Whether a worker is in the set.
    #[must_use]
    pub fn contains(&self, worker: Worker) -> bool {
        self.bits
            .get(worker.index() / 64)
            .is_some_and(|word| word >> (worker.index() % 64) & 1 == 1)
    }

    /// How many workers are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| *word == 0)
    }

    /// The members, lowest number first.
    pub fn iter(&self) -> impl Iterator<Item = Worker> + '_ {
        self.bits.iter().enumerate().flat_map(|(place, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then(|| Worker(place as u32 * 64 + bit))
            })
        })
    }

    /// Takes all workers out.
    pub fn clear(&mut self) {
        self.bits.fill(0);
    }

    /// Adds the members of another set over as many workers.
    ///
    /// # Panics
    /// When the capacities differ.
    pub fn unite(&mut self, other: &Self) {
        assert_eq!(self.workers, other.workers, "sets over the same workers");
        self.bits.iter_mut().zip(&other.bits).for_each(|(mine, theirs)| *mine |= theirs);
    }

    /// Whether some worker is in both sets.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.bits.iter().zip(&other.bits).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// All workers that are not in the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self::of(self.workers, Worker::all(self.workers).filter(|worker| !self.contains(*worker)))
    }
}

impl fmt::Display for WorkerSet {
    /// Ranges as the command line takes them: `0,2,5-11`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut members = self.iter().map(|worker| worker.0).peekable();
        let mut first = true;
        while let Some(start) = members.next() {
            let mut end = start;
            while members.next_if_eq(&(end + 1)).is_some() {
                end += 1;
            }
            if !first {
                write!(f, ",")?;
            }
            first = false;
            match end - start {
                0 => write!(f, "{start}")?,
                1 => write!(f, "{start},{end}")?,
                _ => write!(f, "{start}-{end}")?,
            }
        }
        Ok(())
    }
}

/// Workers that are named at most.
const NAMED_MOST: usize = 8;

/// "worker 3", or "workers 1 (lost), 2": the numbers of workers, with what is known of them.
pub(crate) fn named(workers: &[Worker], known: impl Fn(Worker) -> Option<String>) -> String {
    let name = |worker: &Worker| match known(*worker) {
        Some(known) => format!("{} ({known})", worker.0),
        None => worker.0.to_string(),
    };
    let mut names: Vec<String> = workers.iter().take(NAMED_MOST).map(name).collect();
    if workers.len() > NAMED_MOST {
        names.push(format!("{} more", workers.len() - NAMED_MOST));
    }
    let plural = if workers.len() == 1 { "" } else { "s" };
    format!("worker{plural} {}", names.join(", "))
}

#[cfg(test)]
mod tests;
