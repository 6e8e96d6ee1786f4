//! Whose parameters are right after each step.

use crate::ids::{Step, Worker, WorkerSet};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Steps whose digests are remembered.
const WINDOW: u64 = 256;

/// What is known of the parameters that a worker had after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They are the right ones.
    Right,
    /// They are not.
    Wrong,
    /// Others have different ones, and it is not known yet who is right.
    Disputed,
    /// Nothing is known of them, or nobody else has reported.
    Unknown,
}

/// What a worker reported.
#[derive(Clone, Copy, Debug)]
struct Word {
    worker: Worker,
    digest: u64,
    /// Whose state it has, until somebody else vouches for it: its own, another worker's, or the
    /// driver's (none).
    lineage: Option<Worker>,
    /// Which takeover of a state in the run its last one was, from 1; 0: it has taken over none.
    copied: u64,
}

/// Who says that a digest is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The driver, whose replica has it.
    Driver,
    /// Two workers, or all.
    Workers,
    /// Nobody: as many say so as say otherwise. It is that of the replica that has gone on for the
    /// longest time without taking over a state.
    Seniority,
}

/// The digests that were reported after one step.
#[derive(Clone, Debug)]
struct Tally {
    /// Who was sent the step, is alive, and takes digests as far as is known.
    expected: WorkerSet,
    reports: Vec<Word>,
    /// The right digest, once it is known, and who says so.
    right: Option<(u64, By)>,
    /// The step was refused: it changed nothing, and nobody has a digest of it.
    refused: bool,
}

impl Tally {
    /// How many have a digest, not counting copies; who has it from the driver speaks for two.
    fn votes(&self, digest: u64) -> usize {
        let drivers =
            self.reports.iter().any(|word| word.digest == digest && word.lineage.is_none());
        // The driver's replica has applied every step itself and was never handed a state, which is
        // worth a second opinion.
        self.lineages(digest) + if drivers { 2 } else { 0 }
    }

    /// How many workers have come to a digest by themselves.
    fn lineages(&self, digest: u64) -> usize {
        let alike = self.reports.iter().filter(|word| word.digest == digest);
        alike.filter_map(|word| word.lineage).collect::<BTreeSet<Worker>>().len()
    }

    fn of(&self, worker: Worker) -> Option<u64> {
        self.reports.iter().find(|word| word.worker == worker).map(|word| word.digest)
    }

    /// The takeover after which some worker that has a digest went on alone: the earliest of them.
    fn alone_since(&self, digest: u64) -> Option<u64> {
        let alike = self.reports.iter().filter(|word| word.digest == digest);
        alike.map(|word| word.copied).min()
    }

    /// Settles what is right, if that can be told now: what two workers have, or what most have
    /// once all have reported, and of several the one that [`By::Seniority`] tells. What only
    /// workers have said may turn out to be what fewer have.
    fn settle(&mut self) {
        if matches!(self.right, Some((_, By::Driver))) {
            return;
        }
        // There are few of them, however many workers.
        let digests: BTreeSet<u64> = self.reports.iter().map(|word| word.digest).collect();
        let are_alike = digests.len() == 1;
        let most = digests.into_iter().max_by_key(|&digest| {
            (self.votes(digest), Reverse(self.alone_since(digest)), Reverse(digest))
        });
        let Some((digest, votes)) = most.map(|digest| (digest, self.votes(digest))) else { return };
        let all = self.expected.iter().all(|worker| self.of(worker).is_some());
        // What only workers have said is replaced by what more of them say; a majority cannot be
        // outvoted by who reported first.
        let told = match self.right {
            Some((_, By::Seniority)) => votes >= 2,
            Some((right, _)) => votes >= 2 && votes > self.votes(right),
            // A single worker cannot vouch for itself.
            None => votes >= 2 || all && self.reports.len() > 1,
        };
        if told {
            let by = if votes >= 2 || are_alike { By::Workers } else { By::Seniority };
            self.right = Some((digest, by));
        }
    }

    fn wrong(&self) -> impl Iterator<Item = Worker> {
        let right = self.right.map(|(digest, _)| digest);
        self.reports
            .iter()
            .filter(move |word| right.is_some_and(|right| right != word.digest))
            .map(|word| word.worker)
    }
}

/// What is known of a worker's replica.
#[derive(Clone, Debug)]
struct Replica {
    /// Whose state it has; none: the driver's.
    lineage: Option<Worker>,
    /// As in [`Word`].
    copied: u64,
    /// After which step it was found to be wrong, if it has taken over no state since.
    astray: Option<Step>,
    /// How often it was found to be wrong since it last stayed right by itself.
    running: u32,
}

/// The digests of parameters that workers report after each step, compared with each other and with
/// the driver's own.
///
/// Feed it, in any order: [`Agreement::sent`] when a step is committed, [`Agreement::reported`] for
/// every worker's report, [`Agreement::own`] where the driver has a replica, [`Agreement::excuse`]
/// for who is lost. After each of them [`Agreement::found`] gives back who turned out to be wrong.
///
/// What two workers have alike, neither as a copy of the other's, is right, or what most have once
/// everybody has reported. Where each says something else, it is what the worker has that has taken
/// over no state for the longest time, so that who was started again cannot undo what the others
/// have; its verdict is [`Verdict::Unknown`] all the same. What the driver has is right by itself,
/// unless two workers have alike what it has not and nobody ever had what it had: then its replica
/// is not one of theirs.
#[derive(Clone, Debug, Default)]
pub(super) struct Agreement {
    /// By worker.
    replicas: Vec<Replica>,
    tallies: BTreeMap<Step, Tally>,
    /// Whether any worker takes digests.
    taken: bool,
    /// Whether the driver's replica has turned out to be as the workers', or not to be.
    confirmed: bool,
    refuted: bool,
    /// How many states have been taken over.
    takeovers: u64,
    found: Vec<(Worker, Step)>,
}

impl Agreement {
    pub(super) fn new(workers: usize) -> Self {
        let replica =
            |worker| Replica { lineage: Some(worker), copied: 0, astray: None, running: 0 };
        Self { replicas: Worker::all(workers).map(replica).collect(), ..Self::default() }
    }

    fn tally(&mut self, step: Step) -> &mut Tally {
        let workers = self.replicas.len();
        let fresh = || Tally {
            expected: WorkerSet::empty(workers),
            reports: Vec::new(),
            right: None,
            refused: false,
        };
        self.tallies.entry(step).or_insert_with(fresh)
    }

    /// A step is sent to these workers.
    pub(super) fn sent(&mut self, step: Step, receivers: &[Worker]) {
        let tally = self.tally(step);
        for worker in receivers {
            tally.expected.insert(*worker);
        }
        // A worker that reports later than that is stale and will take over a state anyway.
        let oldest = Step(step.0.saturating_sub(WINDOW));
        while let Some(tally) = self.tallies.first_entry().filter(|tally| *tally.key() < oldest) {
            tally.remove();
        }
    }

    /// A step is refused by everybody alike.
    pub(super) fn refused(&mut self, step: Step) {
        self.tally(step).refused = true;
    }

    /// Whether the parameters after a step are those before it.
    pub(super) fn is_refused(&self, step: Step) -> bool {
        self.tallies.get(&step).is_some_and(|tally| tally.refused)
    }

    /// A worker has applied a step; it has no digest to report if none is taken.
    pub(super) fn reported(&mut self, worker: Worker, step: Step, digest: Option<u64>) {
        self.taken |= digest.is_some();
        let Replica { lineage, copied, .. } = self.replicas[worker.index()];
        let confirmed = self.confirmed;
        let tally = self.tally(step);
        if let (Some(digest), Some((right, by))) = (digest, tally.right)
            && digest == right
            && (by == By::Workers || by == By::Driver && confirmed)
            && tally.of(worker).is_none()
        {
            // As most do: there is nothing to be settled.
            tally.reports.push(Word { worker, digest, lineage, copied });
            self.found_right(worker);
            return;
        }
        let before: Vec<Worker> = tally.wrong().filter(|other| *other != worker).collect();
        // A worker that took over a state reports the same step again.
        tally.reports.retain(|word| word.worker != worker);
        match digest {
            Some(digest) => tally.reports.push(Word { worker, digest, lineage, copied }),
            None => {
                tally.expected.remove(worker);
            }
        }
        tally.settle();
        self.try_own(step);
        let wrong: Vec<Worker> =
            self.tally(step).wrong().filter(|wrong| !before.contains(wrong)).collect();
        self.are_wrong(step, wrong);
        if self.verdict(worker, step) == Verdict::Right {
            self.found_right(worker);
        }
    }

    fn found_right(&mut self, worker: Worker) {
        // What it had of another says nothing of what it computes itself.
        let replica = &mut self.replicas[worker.index()];
        if replica.lineage == Some(worker) {
            replica.running = 0;
        }
        (replica.lineage, replica.astray) = (Some(worker), None);
    }

    /// How often a worker was found to be wrong running: each time after it had taken over a state.
    pub(super) fn wrong_running(&self, worker: Worker) -> u32 {
        self.replicas[worker.index()].running
    }

    /// A worker has taken over a state: another's, or the driver's.
    pub(super) fn copied(&mut self, worker: Worker, from: Option<Worker>) {
        if from.is_some() && self.tallies.is_empty() {
            // It begins with that: there is no step yet of which the other's word would be needed.
            return;
        }
        let lineage = from.and_then(|from| self.replicas[from.index()].lineage);
        self.takeovers += 1;
        let replica = &mut self.replicas[worker.index()];
        (replica.lineage, replica.copied) = (lineage, self.takeovers);
    }

    /// Looks whether the driver's own digest of a step is that of any worker.
    fn try_own(&mut self, step: Step) {
        let confirmed = self.confirmed;
        let tally = self.tally(step);
        let Some((own, By::Driver)) = tally.right else { return };
        if tally.votes(own) > 0 {
            self.confirmed = true;
        } else if !confirmed && tally.reports.iter().any(|word| tally.lineages(word.digest) >= 2) {
            tally.right = None;
            tally.settle();
            self.refuted = true;
        }
    }

    /// The digest of the driver's own replica after a step: what differs from it is wrong.
    pub(super) fn own(&mut self, step: Step, digest: u64) {
        if self.refuted {
            return;
        }
        let tally = self.tally(step);
        tally.right = Some((digest, By::Driver));
        self.try_own(step);
        let wrong: Vec<Worker> = self.tally(step).wrong().collect();
        self.are_wrong(step, wrong);
    }

    fn are_wrong(&mut self, step: Step, wrong: Vec<Worker>) {
        for worker in wrong {
            self.found.push((worker, step));
            let replica = &mut self.replicas[worker.index()];
            if replica.astray.is_none() {
                replica.astray = Some(step);
                replica.running += 1;
            }
        }
    }

    /// What a worker reported is void: it is lost, or is to take over a state in which everything
    /// below `next` is applied. Nobody waits any more for its reports on those steps.
    pub(super) fn excuse(&mut self, worker: Worker, next: Option<Step>) {
        let mut found = Vec::new();
        let replica = &mut self.replicas[worker.index()];
        replica.astray = None;
        if next.is_none() {
            // Another process, perhaps on another machine, comes in its place.
            replica.running = 0;
        }
        for (step, tally) in &mut self.tallies {
            let before: Vec<Worker> = tally.wrong().collect();
            if next.is_none_or(|next| *step < next) {
                tally.expected.remove(worker);
            }
            tally.reports.retain(|word| word.worker != worker);
            tally.settle();
            let wrong = tally.wrong().filter(|worker| !before.contains(worker)).collect();
            found.push((*step, wrong));
        }
        found.into_iter().for_each(|(step, wrong)| self.are_wrong(step, wrong));
    }

    /// Who turned out to be wrong since this was asked last, and after which step.
    pub(super) fn found(&mut self) -> Vec<(Worker, Step)> {
        std::mem::take(&mut self.found)
    }

    /// What is known of a worker's parameters after a step.
    pub(super) fn verdict(&self, worker: Worker, step: Step) -> Verdict {
        let told = self.tallies.get(&step).and_then(|tally| Some((tally, tally.of(worker)?)));
        let Some((tally, digest)) = told else {
            // Steps that are applied to wrong parameters leave them wrong.
            let astray = self.replicas[worker.index()].astray;
            let astray = astray.is_some_and(|since| since <= step);
            return if astray { Verdict::Wrong } else { Verdict::Unknown };
        };
        match tally.right {
            Some((right, _)) if right != digest => Verdict::Wrong,
            Some((_, By::Seniority)) => Verdict::Unknown,
            Some(_) => Verdict::Right,
            None if tally.reports.iter().any(|word| word.digest != digest) => Verdict::Disputed,
            None => Verdict::Unknown,
        }
    }

    /// Whether digests are taken, so that a result of unknown parameters is worth a word.
    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }
}

#[cfg(test)]
mod tests;
