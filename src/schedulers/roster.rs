//! What the engine knows of each worker: what it is doing and how far it has applied.

use crate::ids::{Step, Task, Worker, WorkerSet};

/// What a worker is doing, as far as the coordinator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Waiting for orders.
    Nothing,
    /// Computing these tasks, in order.
    Tasks(Vec<Task>),
    /// Told to drop its tasks, not yet heard of since.
    Leaving,
    /// Being brought up to date from a state.
    Syncing {
        /// Who provides it; none = the driver.
        from: Option<Worker>,
    },
    /// Gone, unless it comes back.
    Dead,
}

#[derive(Clone, Debug)]
struct Member {
    doing: WorkerState,
    /// Steps below this one are applied or on their way to it.
    sent: Step,
    /// Steps below this one are applied.
    applied: Step,
}

/// All workers of a run, as their [engine](super::Engine) knows them; others read it.
// What a worker is doing is written by the engine (`doing`); which steps it has follows from what
// it was sent, reports, and takes over (`send`, `applied`, `synced`, `joined`).
#[derive(Clone, Debug)]
pub struct Roster {
    members: Vec<Member>,
    /// Workers that must take over another's state before they compute again.
    stale: WorkerSet,
    /// Workers whose state turned out to be wrong or useless when somebody took it over.
    bad_donors: WorkerSet,
    /// Workers that said that they do not come back.
    left: WorkerSet,
    /// Workers that are there and said that they are about to leave.
    departing: WorkerSet,
    /// Workers that are to be done without, whether they are there or not.
    drained: WorkerSet,
}

impl Roster {
    pub(super) fn new(workers: usize, first: Step) -> Self {
        let member = Member { doing: WorkerState::Nothing, sent: first, applied: first };
        let nobody = WorkerSet::empty(workers);
        Self {
            members: vec![member; workers],
            stale: nobody.clone(),
            bad_donors: nobody.clone(),
            left: nobody.clone(),
            departing: nobody.clone(),
            drained: nobody,
        }
    }

    pub(super) fn doing(&mut self, worker: Worker) -> &mut WorkerState {
        &mut self.members[worker.index()].doing
    }

    /// Workers of whom something is true, lowest number first.
    fn those(&self, keep: impl Fn(&Member) -> bool) -> impl Iterator<Item = Worker> {
        Worker::all(self.members.len())
            .zip(&self.members)
            .filter(move |(_, member)| keep(member))
            .map(|(worker, _)| worker)
    }

    pub(super) fn dead(&self) -> WorkerSet {
        WorkerSet::of(self.members.len(), self.those(|member| member.doing == WorkerState::Dead))
    }

    /// Whether a worker is known to be gone.
    #[must_use]
    pub fn is_lost(&self, worker: Worker) -> bool {
        self.members[worker.index()].doing == WorkerState::Dead
    }

    pub(super) fn alive(&self) -> WorkerSet {
        self.dead().complement()
    }

    /// The worker of the lowest number that is there.
    #[must_use]
    pub fn first_alive(&self) -> Option<Worker> {
        self.those(|member| member.doing != WorkerState::Dead).next()
    }

    /// Whether nobody is there.
    pub(super) fn is_deserted(&self) -> bool {
        self.first_alive().is_none()
    }

    /// Whether everybody who is there has applied all that is decided, and is behind in nothing.
    /// What that takes is done also after the last step.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        Worker::all(self.members.len()).zip(&self.members).all(|(worker, member)| {
            match member.doing {
                WorkerState::Dead => true,
                WorkerState::Syncing { .. } => false,
                _ => !self.is_stale(worker) && member.applied >= member.sent,
            }
        })
    }

    /// Those who may still send a result in this round.
    pub(super) fn out(&self) -> WorkerSet {
        WorkerSet::of(
            self.members.len(),
            self.those(|member| !matches!(member.doing, WorkerState::Dead | WorkerState::Nothing)),
        )
    }

    /// Whether anybody may still send a result in this round.
    pub(super) fn any_busy(&self) -> bool {
        self.members
            .iter()
            .any(|member| !matches!(member.doing, WorkerState::Dead | WorkerState::Nothing))
    }

    /// Workers that were told to drop their tasks and have not been heard of since.
    pub(super) fn leaving(&self) -> impl Iterator<Item = Worker> {
        self.those(|member| member.doing == WorkerState::Leaving)
    }

    /// Workers who could be given a task.
    pub(super) fn ready(&self) -> Vec<Worker> {
        self.those(|member| member.doing == WorkerState::Nothing)
            .filter(|worker| !self.is_stale(*worker))
            .collect()
    }

    /// Whether a worker could be given a task.
    pub(super) fn is_ready(&self, worker: Worker) -> bool {
        self.members[worker.index()].doing == WorkerState::Nothing && !self.is_stale(worker)
    }

    /// Workers whose state is one of this run's last.
    fn fit(&self) -> impl Iterator<Item = Worker> {
        let here = self.those(|member| {
            !matches!(member.doing, WorkerState::Dead | WorkerState::Syncing { .. })
        });
        here.filter(|worker| !self.is_stale(*worker))
    }

    /// Workers that can come to hold a sum: those that are there and take over no state. Who does
    /// was told nothing of the sum, and would have nothing to apply it to.
    #[must_use]
    pub fn able_to_hold(&self) -> WorkerSet {
        WorkerSet::of(self.members.len(), self.fit())
    }

    /// Workers with tasks, now told to drop them.
    pub(super) fn abandon_all(&mut self) -> Vec<Worker> {
        let busy: Vec<Worker> =
            self.those(|member| matches!(member.doing, WorkerState::Tasks(_))).collect();
        for worker in &busy {
            *self.doing(*worker) = WorkerState::Leaving;
        }
        busy
    }

    /// Who gets a committed step now; a worker that would have more than `log_steps` steps on their
    /// way to it is stale instead, unless that is everybody: then the one that is farthest can hand
    /// over its state.
    pub(super) fn send(&mut self, step: Step, log_steps: u64) -> Vec<Worker> {
        let fit: Vec<Worker> = self.fit().collect();
        let applied = |worker: &Worker| self.members[worker.index()].applied;
        let farthest =
            fit.iter().copied().max_by_key(|worker| (applied(worker), std::cmp::Reverse(*worker)));
        // Measured against the worker that is farthest: if all are behind, nobody could hand over a
        // state, so the farthest stays.
        let enough = farthest
            .map_or(0, |worker| applied(&worker).0.min((step.0 + 1).saturating_sub(log_steps)));
        let mut receivers = Vec::new();
        for worker in fit {
            let member = &mut self.members[worker.index()];
            if member.applied.0 < enough {
                self.stale.insert(worker);
                continue;
            }
            member.sent = step.next();
            receivers.push(worker);
        }
        receivers
    }

    /// Notes that a step is applied.
    pub(super) fn applied(&mut self, worker: Worker, step: Step) {
        let member = &mut self.members[worker.index()];
        // Reports of a connection and of the one before it may come in either order.
        member.applied = member.applied.max(step.next());
    }

    /// First step that a worker has not applied, as far as it has said.
    #[must_use]
    pub fn next_of(&self, worker: Worker) -> Step {
        self.members[worker.index()].applied
    }

    /// Nobody takes over a worker's state any more.
    pub(super) fn distrust(&mut self, donor: Worker) {
        self.bad_donors.insert(donor);
    }

    pub(super) fn mark_stale(&mut self, worker: Worker) {
        self.stale.insert(worker);
    }

    /// Workers that have nothing to do until they have taken over another's state.
    pub(super) fn stale_idle(&self) -> Vec<Worker> {
        self.stale
            .iter()
            .filter(|worker| self.members[worker.index()].doing == WorkerState::Nothing)
            .collect()
    }

    /// Whether the worker must take over another's state.
    pub(super) fn is_stale(&self, worker: Worker) -> bool {
        self.stale.contains(worker)
    }

    /// A worker that can hand over its state: alive, up to date, not the one in need.
    pub(super) fn provider(&self, needy: Worker) -> Option<Worker> {
        self.most_recent(|worker, _| worker != needy)
    }

    /// A worker waits long for the state of one that may hang: it takes over that of another, if
    /// one that waits for orders has a state that steps can be sent after. Gives whose.
    pub(super) fn takes_over_from_another(
        &mut self,
        needy: Worker,
        asked: Worker,
        is_recent: impl Fn(Step) -> bool,
    ) -> Option<Worker> {
        if *self.doing(needy) != (WorkerState::Syncing { from: Some(asked) }) {
            return None;
        }
        let other = self.most_recent(|worker, member| {
            ![needy, asked].contains(&worker) && member.doing == WorkerState::Nothing
        })?;
        if !is_recent(self.next_of(other)) {
            return None;
        }
        *self.doing(needy) = WorkerState::Syncing { from: Some(other) };
        Some(other)
    }

    fn most_recent(&self, keep: impl Fn(Worker, &Member) -> bool) -> Option<Worker> {
        let member = |worker: Worker| &self.members[worker.index()];
        let mut fit: Vec<Worker> = self
            .fit()
            .filter(|worker| !self.bad_donors.contains(*worker) && keep(*worker, member(*worker)))
            .collect();
        // Who goes is not kept by it, if it can be helped. The most recent state leaves the fewest
        // steps to be sent after it.
        fit.sort_by_key(|worker| (self.goes(*worker), std::cmp::Reverse(member(*worker).applied)));
        fit.first().copied()
    }

    /// The state of a provider is in: the worker has now applied everything below `next`.
    pub(super) fn synced(&mut self, worker: Worker, next: Step) {
        // What was sent before the state is part of it.
        let member = &mut self.members[worker.index()];
        *member = Member { doing: WorkerState::Nothing, sent: next, applied: next };
        self.stale.remove(worker);
    }

    /// A worker is lost.
    pub(super) fn lost(&mut self, worker: Worker) {
        *self.doing(worker) = WorkerState::Dead;
        self.departing.remove(worker);
    }

    /// A worker is about to leave.
    pub(super) fn departs(&mut self, worker: Worker) {
        if *self.doing(worker) != WorkerState::Dead {
            self.departing.insert(worker);
        }
    }

    /// Whether a worker that is there has said that it leaves.
    #[must_use]
    pub fn is_leaving(&self, worker: Worker) -> bool {
        self.departing.contains(worker)
    }

    /// These workers alone are to be done without.
    pub(super) fn drain(&mut self, workers: WorkerSet) {
        self.drained = workers;
    }

    /// Who is done without, whether it is there or not.
    #[must_use]
    pub fn drained(&self) -> &WorkerSet {
        &self.drained
    }

    fn goes(&self, worker: Worker) -> bool {
        self.departing.contains(worker) || self.drained.contains(worker)
    }

    /// Workers that are there and about to leave, or are to be done without.
    pub(super) fn going(&self) -> WorkerSet {
        let mut going = self.departing.clone();
        going.unite(&self.drained);
        let there = |worker: &Worker| self.members[worker.index()].doing != WorkerState::Dead;
        WorkerSet::of(self.members.len(), going.iter().filter(there))
    }

    /// Whether anybody goes, or may.
    pub(super) fn any_goes(&self) -> bool {
        !self.departing.is_empty() || !self.drained.is_empty()
    }

    /// Who can come to hold a decoded vector, and stays.
    pub(super) fn staying(&self) -> WorkerSet {
        let stays = self.fit().filter(|worker| !self.goes(*worker));
        WorkerSet::of(self.members.len(), stays)
    }

    /// A worker does not come back, once it is lost.
    pub(super) fn left(&mut self, worker: Worker) {
        self.left.insert(worker);
    }

    /// Whether a worker has said that it does not come back.
    #[must_use]
    pub fn has_left(&self, worker: Worker) -> bool {
        self.left.contains(worker)
    }

    /// Whether a worker has tasks that are waited for.
    pub(crate) fn is_at_tasks(&self, worker: Worker) -> bool {
        matches!(self.members[worker.index()].doing, WorkerState::Tasks(_))
    }

    /// Workers that have left for good.
    pub(super) fn gone_for_good(&self) -> WorkerSet {
        let dead = self.dead();
        WorkerSet::of(self.members.len(), self.left.iter().filter(|worker| dead.contains(*worker)))
    }

    /// Whether somebody is lost who may come back.
    pub(super) fn may_return(&self) -> bool {
        self.dead().iter().any(|worker| !self.left.contains(worker))
    }

    /// Workers that were sent all that is decided, whether they are there or not.
    pub(super) fn sent_all(&self, decided: Step) -> WorkerSet {
        WorkerSet::of(self.members.len(), self.those(|member| member.sent == decided))
    }

    /// Whether somebody who is there has gone on where others have left: it has applied more than
    /// those who left last, or has nothing left to apply or to compute.
    pub(super) fn any_goes_on(&self, decided: Step) -> bool {
        let left = self.left.iter().map(|worker| &self.members[worker.index()]);
        let last = left.filter(|member| member.sent == decided).map(|member| member.applied);
        let last = last.min();
        self.members.iter().any(|member| match member.doing {
            WorkerState::Dead | WorkerState::Syncing { .. } => false,
            // It waits for what comes next, as one that is about to leave does not.
            WorkerState::Nothing if member.applied == member.sent => true,
            _ => last.is_none_or(|last| member.applied > last),
        })
    }

    /// A worker that was gone is back, with a state in which everything below `next` is applied, or
    /// with none.
    pub(super) fn joined(&mut self, worker: Worker, next: Option<Step>) {
        let step = next.unwrap_or(Step(0));
        // Who is there again has changed its mind, or is another process under its number.
        self.left.remove(worker);
        self.members[worker.index()] =
            Member { doing: WorkerState::Nothing, sent: step, applied: step };
        match next {
            // Without a state of this run it must take one over before it computes.
            Some(_) => self.stale.remove(worker),
            None => self.stale.insert(worker),
        };
    }

    /// The steps a worker is still to be sent, given that all below `committed` are decided.
    pub(super) fn unsent(&mut self, worker: Worker, committed: Step) -> Vec<Step> {
        let member = &mut self.members[worker.index()];
        // Marked as sent at once: a second call must not send them again.
        let steps = (member.sent.0..committed.0).map(Step).collect();
        member.sent = committed;
        steps
    }

    /// Whether a worker waits for orders.
    pub(super) fn is_idle(&self, worker: Worker) -> bool {
        self.members[worker.index()].doing == WorkerState::Nothing
    }

    /// Whether a worker is to take over a state.
    pub(super) fn is_syncing(&self, worker: Worker) -> bool {
        matches!(self.members[worker.index()].doing, WorkerState::Syncing { .. })
    }

    /// Workers waiting for a state that `provider` was to hand over.
    pub(super) fn waiting_for(&self, provider: Worker) -> Vec<Worker> {
        self.those(|member| member.doing == WorkerState::Syncing { from: Some(provider) }).collect()
    }
}
