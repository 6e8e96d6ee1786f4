//! Bundles: what is left is cut, dealt to the workers with the best scores, and dealt again where
//! they fail.

use super::scores::Scores;
use super::{Defer, OpenJob};
use crate::ids::{Job, Task, Worker, WorkerSet};
use std::ops::Range;

/// Units that were left of a job, for one worker.
pub(super) struct Bundle {
    pub(super) task: Task,
    /// The place of its job among the open ones, and which of the units dealt.
    pub(super) open: usize,
    pub(super) range: Range<usize>,
    /// Batch units of all its parts.
    pub(super) units: u32,
    pub(super) due: bool,
    pub(super) finished: bool,
}

impl Bundle {
    /// A bundle of `range` of the units dealt from open job `at`.
    fn of(at: usize, open: &OpenJob, range: Range<usize>, piece: u32, due: bool) -> Self {
        let task = Task { job: open.job, piece, plan: 0 };
        let units = open.parts[range.clone()].iter().map(|part| part.units.count()).sum();
        Self { task, open: at, range, units, due, finished: false }
    }
}

/// The bundles of a round, and who has which.
pub(super) struct Bundles {
    all: Vec<Bundle>,
    /// The bundle of every worker, and who has not yet finished its own.
    of: Vec<Option<usize>>,
    at: WorkerSet,
    /// Due bundles whose holders are all gone.
    orphans: Vec<usize>,
    /// Due bundles that are not finished.
    due_open: usize,
}

impl Bundles {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            all: Vec::new(),
            of: vec![None; workers],
            at: WorkerSet::empty(workers),
            orphans: Vec::new(),
            due_open: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.orphans.clear();
    }

    pub(super) fn all(&self) -> &[Bundle] {
        &self.all
    }

    /// Which one a worker has.
    pub(super) fn number_of(&self, worker: Worker) -> Option<usize> {
        self.of[worker.index()]
    }

    /// The one that a worker has.
    pub(super) fn of(&self, worker: Worker) -> Option<&Bundle> {
        self.number_of(worker).map(|q| &self.all[q])
    }

    fn give(&mut self, worker: Worker, q: usize) {
        self.of[worker.index()] = Some(q);
        self.at.insert(worker);
    }

    /// Gives those that were just made to the workers with the best scores, the first ones, which
    /// are due, to so many each.
    fn hand_round(&mut self, scores: &mut Scores, copies: usize) {
        let due = self.all.iter().filter(|bundle| bundle.due).count();
        let again = (1..copies).flat_map(|_| 0..due);
        self.of.fill(None);
        self.at.clear();
        let helpers = self.all.len() + (copies - 1) * due;
        for (worker, q) in scores.best(helpers).zip((0..self.all.len()).chain(again)) {
            self.give(worker, q);
        }
        self.orphans.clear();
        self.orphans.extend(self.of.len()..self.all.len());
        self.due_open = due;
    }

    /// Gives a worker with nothing to do one that no worker is at; false if there is none.
    pub(super) fn adopt(&mut self, worker: Worker) -> bool {
        let orphan = self.orphans.pop();
        orphan.into_iter().for_each(|q| self.give(worker, q));
        orphan.is_some()
    }

    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// A worker has finished a task: the bundle, if that is its own and it counts.
    pub(super) fn finish(&mut self, worker: Worker, task: Task) -> Option<&Bundle> {
        let bundle = self.of[worker.index()].map(|q| &mut self.all[q])?;
        if bundle.task != task || !self.at.remove(worker) || bundle.finished {
            return None;
        }
        bundle.finished = true;
        self.due_open -= usize::from(bundle.due);
        Some(bundle)
    }

    /// A result is lost that had counted; false if its bundle is not of this round.
    pub(super) fn reopen(&mut self, task: Task) -> bool {
        let Some(bundle) = self.all.iter_mut().find(|bundle| bundle.task == task) else {
            return false;
        };
        bundle.finished = false;
        self.due_open += usize::from(bundle.due);
        true
    }

    /// A worker does nothing more.
    pub(super) fn leave(&mut self, worker: Worker) {
        self.at.remove(worker);
    }

    /// Nothing more is to be done for a job.
    pub(super) fn give_up(&mut self, job: Job) {
        let of_it = |bundle: &&mut Bundle| bundle.task.job == job && !bundle.finished;
        for bundle in self.all.iter_mut().filter(of_it) {
            bundle.finished = true;
            self.due_open -= usize::from(bundle.due);
        }
        self.orphans.retain(|q| !self.all[*q].finished);
    }

    /// Whether all that is due is finished.
    pub(super) fn are_done(&self) -> bool {
        self.due_open == 0
    }

    /// Those that are due and not finished.
    pub(super) fn due_open(&self) -> impl Iterator<Item = &Bundle> {
        self.all.iter().filter(|bundle| bundle.due && !bundle.finished)
    }

    /// Leaves unfinished due bundles that no worker is at to the next idle worker.
    pub(super) fn find_orphans(&mut self) {
        let mut held = vec![false; self.all.len()];
        for worker in self.at.iter() {
            self.of[worker.index()].into_iter().for_each(|q| held[q] = true);
        }
        let open = |q: &usize| {
            self.all[*q].due && !self.all[*q].finished && !held[*q] && !self.orphans.contains(q)
        };
        let found: Vec<usize> = (0..self.all.len()).filter(open).collect();
        self.orphans.extend(found);
    }
}

impl Defer {
    /// Cuts what is left into bundles and gives them to the workers with the best scores.
    pub(super) fn deal(&mut self) {
        let (counts, slots) = (self.bundle_counts(), self.slots());
        let round = self.stream.round;
        self.bundles.all.clear();
        for (at, (open, (count, due))) in self.stream.open.iter_mut().zip(counts).enumerate() {
            let age = (round.0 - open.job.0) as usize;
            let first_piece = self.own.len() + (age - 1) * slots;
            let (size, longer) = (open.left.len() / count, open.left.len() % count);
            let mut start = open.dealt.len();
            open.dealt.extend(&open.left);
            open.parts.extend(open.left.iter().map(|unit| self.own[*unit as usize][0]));
            for place in 0..count {
                let end = start + size + usize::from(place < longer);
                let piece = (first_piece + place) as u32;
                self.bundles.all.push(Bundle::of(at, open, start..end, piece, due));
                start = end;
            }
        }
        self.bundles.hand_round(&mut self.scores, self.parameters.copies);
    }

    /// How many bundles each open job's units go into, and whether it is due.
    fn bundle_counts(&self) -> Vec<(usize, bool)> {
        let total: usize = self.stream.open.iter().map(|open| open.left.len()).sum();
        let slots = self.slots();
        let due = |open: &OpenJob| {
            !self.stream.has_own()
                || self.is_last()
                || self.stream.round.0 - open.job.0 >= self.parameters.delay as u64
        };
        let copies = |due: bool| if due { self.parameters.copies } else { 1 };
        let count = |open: &OpenJob| {
            let (left, due) = (open.left.len(), due(open));
            (left.min((slots * left / total / copies(due)).max(1)), due)
        };
        let mut counts: Vec<(usize, bool)> = self.stream.open.iter().map(count).collect();
        while counts.iter().map(|&(count, due)| count * copies(due)).sum::<usize>() > slots {
            let most = counts.iter().map(|count| count.0).max().unwrap_or(0);
            // Only after losses is there more due than fits: then there are fewer copies.
            let Some(largest) = counts.iter_mut().find(|count| count.0 == most && most > 1) else {
                break;
            };
            largest.0 -= 1;
        }
        counts
    }

    /// Makes a bundle of units that a worker which is lost should have had in its own share of the
    /// last job.
    pub(super) fn pass_on(&mut self, units: Range<u32>) {
        let at = self.stream.open.len() - 1;
        let open = &mut self.stream.open[at];
        let start = open.dealt.len();
        open.dealt.extend(units);
        open.parts.extend(open.dealt[start..].iter().map(|unit| self.own[*unit as usize][0]));
        let range = start..open.dealt.len();
        if !range.is_empty() {
            let piece = u32::MAX - 1 - self.bundles.all.len() as u32;
            self.bundles.orphans.push(self.bundles.all.len());
            self.bundles.all.push(Bundle::of(at, open, range, piece, true));
            self.bundles.due_open += 1;
        }
    }
}
