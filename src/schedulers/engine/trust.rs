//! Which results count, given what is known of the parameters they were computed with.
//!
//! After every step each replica reports a digest of its parameters. `agreement` says which of them
//! is right; results count by that, and a worker whose parameters are wrong takes over another's
//! state.

use super::super::agreement::{Agreement, Verdict};
use super::super::events::{Action, EngineError, Unfit};
use super::super::roster::WorkerState;
use super::{Answer, Engine, Phase};
use crate::ids::{Step, Task, Worker};
use std::collections::BTreeSet;

/// A replica that was found to be wrong so often running is no accident: states do not help it.
const WRONG_RUNNING_MOST: u32 = 3;

/// What is known of workers' parameters, and which results depend on what is not.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) agreement: Agreement,
    /// Results of workers whose parameters are in dispute: they wait until it is settled.
    disputed: Vec<(Worker, Answer)>,
    /// Results that count although nobody could say that they were computed with the right
    /// parameters.
    unsure: BTreeSet<(Worker, Task)>,
    /// Workers that do nothing until a step is decided, since their results of it were not finite
    /// and they said so.
    barred: BTreeSet<(Step, Worker)>,
}

impl Trust {
    pub(super) fn new(workers: usize) -> Self {
        let agreement = Agreement::new(workers);
        Self { agreement, disputed: Vec::new(), unsure: BTreeSet::new(), barred: BTreeSet::new() }
    }

    /// A result is not counted before its worker's parameters are known to be right.
    pub(super) fn wait_with(&mut self, worker: Worker, answer: Answer) {
        self.disputed.push((worker, answer));
    }

    /// A worker does nothing until a step is decided.
    pub(super) fn bar(&mut self, step: Step, worker: Worker) {
        self.barred.insert((step, worker));
    }

    /// A step is decided.
    pub(super) fn unbar(&mut self, step: Step) {
        self.barred.retain(|(until, _)| *until > step);
    }

    pub(super) fn is_barred(&self, worker: Worker) -> bool {
        self.barred.iter().any(|(_, barred)| *barred == worker)
    }

    /// Who is barred, once for every step that it is barred for.
    pub(super) fn barred(&self) -> impl Iterator<Item = Worker> {
        self.barred.iter().map(|(_, worker)| *worker)
    }
}

impl Engine {
    /// The step after which a step's parameters are those that its tasks are computed with; none at
    /// the run's start.
    fn basis(&self, step: Step) -> Option<Step> {
        let before = |step: &Step| self.steps.before(*step, self.config.jobs.models);
        // A refused step changed nothing: the parameters are those of the step before it.
        std::iter::successors(before(&step), before)
            .find(|basis| !self.trust.agreement.is_refused(*basis))
    }

    fn verdict(&self, worker: Worker, task: Task) -> Verdict {
        let basis = self.basis(task.job.step(self.config.jobs.micro_steps));
        basis.map_or(Verdict::Right, |basis| self.trust.agreement.verdict(worker, basis))
    }

    pub(super) fn is_disputed(&self, worker: Worker, task: Task) -> bool {
        self.verdict(worker, task) == Verdict::Disputed
    }

    /// Whether a result may count; notes that it counts although nobody knows its worker's
    /// parameters.
    pub(super) fn is_trusted(&mut self, worker: Worker, task: Task) -> bool {
        let verdict = self.verdict(worker, task);
        if verdict == Verdict::Unknown && self.trust.agreement.is_taken() {
            self.trust.unsure.insert((worker, task));
        }
        matches!(verdict, Verdict::Right | Verdict::Unknown)
    }

    /// Whose results counted for a step though nobody knows whether they were computed with the
    /// right parameters; asked once.
    pub(super) fn unverified(&mut self, step: Step) -> Vec<Worker> {
        let micro_steps = self.config.jobs.micro_steps;
        let unsure = std::mem::take(&mut self.trust.unsure);
        let (of_step, later): (BTreeSet<_>, _) =
            unsure.into_iter().partition(|(_, task)| task.job.step(micro_steps) <= step);
        self.trust.unsure = later;
        let is_unsure =
            |(worker, task): &(Worker, Task)| self.verdict(*worker, *task) != Verdict::Right;
        of_step.into_iter().filter(is_unsure).map(|(worker, _)| worker).collect()
    }

    /// Nobody waits any more for what is in dispute.
    pub(super) fn drop_disputed(&mut self, out: &mut Vec<Action>) {
        let dropped = self
            .trust
            .disputed
            .drain(..)
            .map(|(worker, (task, ..))| Action::Discard { worker, task });
        out.extend(dropped);
    }

    /// Carries out what has become known of workers' parameters: who is wrong takes over a state,
    /// and what it computed does not count.
    pub(super) fn settle_trust(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let mut counted = false;
        let found = self.trust.agreement.found();
        for (worker, step) in found {
            if *self.roster.doing(worker) == WorkerState::Dead {
                continue;
            }
            out.push(Action::Diverged { worker, step });
            let (next, micro_steps) = (self.steps.next, self.config.jobs.micro_steps);
            let of_it =
                |(of, task): &(Worker, Task)| *of == worker && task.job.step(micro_steps) >= next;
            // Its results were counted before anybody could tell: what they are in is not decided
            // yet, and begins again.
            counted |= self.trust.unsure.iter().any(of_it);
            self.recall(worker, out);
            if self.trust.agreement.wrong_running(worker) >= WRONG_RUNNING_MOST {
                out.push(Action::Dismiss { worker, why: Unfit::Differs });
            }
            // A worker that is about to take over its state must not.
            for needy in self.roster.waiting_for(worker) {
                self.resync(now, needy, out)?;
            }
        }
        if counted && matches!(self.phase, Phase::Collecting | Phase::Folding) {
            self.trust.unsure.clear();
            self.begin_again(now, out)?;
        }
        self.resync_idle(now, out)?;
        if self.trust.disputed.is_empty() {
            return Ok(());
        }
        for (worker, answer) in std::mem::take(&mut self.trust.disputed) {
            let dead = *self.roster.doing(worker) == WorkerState::Dead;
            if !dead {
                self.done(now, worker, answer, out)?;
            }
        }
        Ok(())
    }

    /// A worker says that it goes on from a state, and which parameters those are.
    pub(super) fn taken(
        &mut self,
        now: f64,
        worker: Worker,
        step: Step,
        digest: Option<u64>,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let donor = self.recovery.went_on(worker);
        self.trust.agreement.reported(worker, step, digest);
        if self.trust.agreement.verdict(worker, step) == Verdict::Wrong {
            donor.into_iter().for_each(|donor| self.roster.distrust(donor));
        }
        self.settle_trust(now, out)
    }

    /// A state was of no use to a worker: it is another's turn to hand one over. A worker that
    /// refuses the driver's own state, or several, is sent away.
    pub(super) fn bad_state(
        &mut self,
        now: f64,
        (worker, from): (Worker, Option<Worker>),
        refused: bool,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if *self.roster.doing(worker) == WorkerState::Dead {
            return Ok(());
        }
        if refused && self.recovery.refused(worker, from) {
            out.push(Action::Dismiss { worker, why: Unfit::RefusesStates });
            return Ok(());
        }
        from.into_iter().for_each(|donor| self.roster.distrust(donor));
        if let WorkerState::Syncing { .. } = self.roster.doing(worker) {
            return self.resync(now, worker, out);
        }
        self.recall(worker, out);
        self.resync_idle(now, out)
    }

    /// First step that a worker has not applied, as far as it has said.
    #[must_use]
    pub fn next_of(&self, worker: Worker) -> Step {
        self.roster.next_of(worker)
    }
}
