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
    /// Nothing is known of them, or no other worker has reported.
    Unknown,
}

/// What a worker reported.
#[derive(Clone, Copy, Debug)]
struct Word {
    worker: Worker,
    digest: u64,
    /// Whose state it has, until another vouches for it: its own, another worker's, or the driver's
    /// (none).
    lineage: Option<Worker>,
    /// Which takeover of a state in the run its last one was, from 1; 0: it has taken over none.
    copied: u64,
    /// The worker has been lost, or has taken over a state, since. What it came to by itself stays
    /// one side of a dispute: else whoever is lost or overwritten first would be wrong.
    is_past: bool,
}

/// Who says that a digest is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Authority {
    /// The driver, whose replica has it.
    Driver,
    /// Two workers and more of them than any other, or all.
    Workers,
    /// As many say so as say otherwise. It is that of the replica that has gone on for the longest
    /// time without taking over a state.
    Seniority,
}

/// The digests that were reported after one step.
#[derive(Clone, Debug)]
struct Tally {
    /// Who was sent the step, is alive, and takes digests as far as is known.
    expected: WorkerSet,
    /// Whether that is known: not of a step from before this coordinator's first.
    is_sent: bool,
    reports: Vec<Word>,
    /// The right digest, once it is known, and who says so.
    right: Option<(u64, Authority)>,
    /// The reports that are missing are not waited for any more.
    is_closed: bool,
    /// All reports are in, and no digest is the right one.
    is_tied: bool,
    /// The step was refused: it changed nothing, and no worker has a digest of it.
    refused: bool,
}

impl Tally {
    /// How many have a digest, not counting copies; who has it from the driver speaks for two.
    fn votes(&self, digest: u64) -> usize {
        let drivers =
            self.reports.iter().any(|word| word.digest == digest && word.lineage.is_none());
        // The driver's replica has applied every step itself and was never handed a state, which is
        // worth a second opinion.
        self.lineages(digest).len() + if drivers { 2 } else { 0 }
    }

    /// The workers that have come to a digest by themselves.
    fn lineages(&self, digest: u64) -> BTreeSet<Worker> {
        let alike = self.reports.iter().filter(|word| word.digest == digest);
        alike.filter_map(|word| word.lineage).collect()
    }

    /// What was reported. There are few of them, however many workers.
    fn digests(&self) -> BTreeSet<u64> {
        self.reports.iter().map(|word| word.digest).collect()
    }

    fn of(&self, worker: Worker) -> Option<u64> {
        let its = self.reports.iter().find(|word| word.worker == worker && !word.is_past);
        its.map(|word| word.digest)
    }

    /// The takeover after which some worker that has a digest went on alone: the earliest of them.
    fn alone_since(&self, digest: u64) -> Option<u64> {
        let alike = self.reports.iter().filter(|word| word.digest == digest);
        alike.map(|word| word.copied).min()
    }

    /// Takes in a worker's word.
    fn take(&mut self, word: Word) {
        self.forget(word.worker);
        // It may be said again over another connection.
        self.reports.retain(|before| (before.worker, before.copied) != (word.worker, word.copied));
        self.reports.push(word);
    }

    /// What a worker has said holds for it no more.
    fn forget(&mut self, worker: Worker) {
        let its = self.reports.iter_mut().filter(|word| word.worker == worker);
        its.for_each(|word| word.is_past = true);
    }

    /// Settles what is right, if that can be told by now: what two workers have and more of them
    /// than have anything else; or, once all have reported, what all have, or of several that as
    /// many have the one that [`Authority::Seniority`] tells. It depends on what was reported, and
    /// neither on the order nor on the digests' values.
    fn settle(&mut self) {
        if matches!(self.right, Some((_, Authority::Driver))) {
            return;
        }
        let digests = self.digests();
        let only = |rank: &dyn Fn(u64) -> (usize, Reverse<Option<u64>>)| {
            let most = digests.iter().map(|digest| rank(*digest)).max()?;
            let mut first = digests.iter().copied().filter(|digest| rank(*digest) == most);
            Some((first.next()?, most.0)).filter(|_| first.next().is_none())
        };
        let most = only(&|digest| (self.votes(digest), Reverse(None)));
        let mut expected = self.expected.iter();
        let all =
            self.is_closed || self.is_sent && expected.all(|worker| self.of(worker).is_some());
        // A single worker cannot vouch for itself.
        let is_alone = self.reports.iter().all(|word| word.worker == self.reports[0].worker);
        // Counted again from the words each time: what was right once must not win by that.
        self.right = match most {
            Some((digest, 2..)) => Some((digest, Authority::Workers)),
            Some((digest, _)) if all && digests.len() == 1 && !is_alone => {
                Some((digest, Authority::Workers))
            }
            _ if all && digests.len() > 1 => {
                only(&|digest| (self.votes(digest), Reverse(self.alone_since(digest))))
                    .map(|(digest, _)| (digest, Authority::Seniority))
            }
            _ => None,
        };
        self.is_tied = all && self.right.is_none() && digests.len() > 1;
    }

    /// Whether more reports may tell which of several digests is right.
    fn is_open(&self) -> bool {
        self.right.is_none() && !self.is_tied && self.digests().len() > 1
    }

    /// Whether all who have reported have the right digest.
    fn is_agreed(&self) -> bool {
        self.right.is_some_and(|(_, by)| by != Authority::Seniority) && self.digests().len() == 1
    }

    fn wrong(&self) -> impl Iterator<Item = Worker> {
        let right = self.right.map(|(digest, _)| digest);
        self.reports
            .iter()
            .filter(move |word| !word.is_past && right.is_some_and(|right| right != word.digest))
            .map(|word| word.worker)
    }
}

/// A step after which parameters differ, and it cannot be told who is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tie {
    pub(super) step: Step,
    /// Who has come to each of the digests by itself, the larger side first.
    pub(super) sides: Vec<WorkerSet>,
    /// The last step before it after which all had the same.
    pub(super) agreed: Option<Step>,
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
/// Feed it, in any order: [`Agreement::sent`] when a worker is sent a step,
/// [`Agreement::reported`] for every worker's report, [`Agreement::own`] where the driver has a
/// replica, [`Agreement::excuse`] for who is lost. After each of them [`Agreement::found`] gives
/// back who turned out to be wrong, [`Agreement::tie`] that it cannot be told, and
/// [`Agreement::is_open`] that it may be told by reports that are missing, until these are given up
/// by [`Agreement::close`].
///
/// What two workers have alike, neither as a copy of the other's, is right while fewer have
/// anything else; as soon as as many have, it is in dispute. Once all have reported, what most have
/// is right, and where as many have each, what the worker has that has taken over no state for the
/// longest time, so that who was started again cannot undo what the others have; its verdict is
/// [`Verdict::Unknown`] all the same. Where that does not tell either, it is a [`Tie`]. What the
/// driver has is right by itself. But if two workers have alike what it has not, and no worker ever
/// had what it had, its replica is not one of theirs.
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
            is_sent: false,
            reports: Vec::new(),
            right: None,
            is_closed: false,
            is_tied: false,
            refused: false,
        };
        self.tallies.entry(step).or_insert_with(fresh)
    }

    /// A step is sent to these workers: when it is decided, or to one that has missed it.
    pub(super) fn sent(&mut self, step: Step, receivers: &[Worker]) {
        let tally = self.tally(step);
        tally.is_sent = true;
        for worker in receivers {
            tally.expected.insert(*worker);
        }
        // A worker that reports later than that is stale and will take over a state anyway.
        let oldest = Step(step.0.saturating_sub(WINDOW));
        while let Some(tally) = self.tallies.first_entry().filter(|tally| *tally.key() < oldest) {
            tally.remove();
        }
    }

    /// All workers refuse a step alike.
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
            && (by == Authority::Workers || by == Authority::Driver && confirmed)
            && tally.of(worker).is_none()
        {
            // As most do: there is nothing to be settled.
            tally.take(Word { worker, digest, lineage, copied, is_past: false });
            self.found_right(worker);
            return;
        }
        let before: Vec<Worker> = tally.wrong().filter(|other| *other != worker).collect();
        // A worker that took over a state reports the same step again.
        match digest {
            Some(digest) => tally.take(Word { worker, digest, lineage, copied, is_past: false }),
            None => {
                tally.forget(worker);
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
        let Some((own, Authority::Driver)) = tally.right else { return };
        if tally.votes(own) > 0 {
            self.confirmed = true;
        } else if !confirmed
            && tally.reports.iter().any(|word| tally.lineages(word.digest).len() >= 2)
        {
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
        tally.right = Some((digest, Authority::Driver));
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

    /// What a worker reported holds for it no more: it is lost, or is to take over a state in which
    /// everything below `next` is applied. Its reports on those steps are not waited for any more.
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
            // It came to them by itself: others may be late that have come to the same.
            tally.forget(worker);
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
            Some((_, Authority::Seniority)) => Verdict::Unknown,
            Some(_) => Verdict::Right,
            None if tally.reports.iter().any(|word| word.digest != digest) => Verdict::Disputed,
            None => Verdict::Unknown,
        }
    }

    /// Whether reports that are missing may tell who is right after some step.
    pub(super) fn is_open(&self) -> bool {
        self.tallies.values().any(Tally::is_open)
    }

    /// Those reports are not waited for any more.
    pub(super) fn close(&mut self) {
        let mut found = Vec::new();
        for (step, tally) in self.tallies.iter_mut().filter(|(_, tally)| tally.is_open()) {
            tally.is_closed = true;
            tally.settle();
            found.push((*step, tally.wrong().collect()));
        }
        found.into_iter().for_each(|(step, wrong)| self.are_wrong(step, wrong));
    }

    /// The first step after which it cannot be told who is right, if there is one.
    pub(super) fn tie(&self) -> Option<Tie> {
        let (step, tally) = self.tallies.iter().find(|(_, tally)| tally.is_tied)?;
        let of = |digest| WorkerSet::of(self.replicas.len(), tally.lineages(digest));
        // A digest must not tell who is named first either.
        let mut sides: Vec<WorkerSet> = tally.digests().into_iter().map(of).collect();
        sides.sort_by_key(|side| (Reverse(side.len()), side.iter().next()));
        // Steps in between may have been compared by no two workers: drift may be as old as that.
        let mut before = self.tallies.range(..step).rev();
        let agreed = before.find(|(_, tally)| tally.is_agreed()).map(|(step, _)| *step);
        Some(Tie { step: *step, sides, agreed })
    }

    /// Whether digests are taken, so that a result of unknown parameters is worth a word.
    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }
}

#[cfg(test)]
mod tests;
