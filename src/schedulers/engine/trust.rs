//! Which results count, given what is known of the parameters they were computed with.
//!
//! After every step each replica reports a digest of its parameters. `agreement` says which of them
//! is right; results count by that, and a worker whose parameters are wrong takes over another's
//! state. Where it cannot tell, the run ends.

use super::super::agreement::{Agreement, Tie, Verdict};
use super::super::events::{Action, EngineError, UnfitReason};
use super::super::roster::Roster;
use super::round::Moment;
use super::states::recall;
use super::steps::Steps;
use super::{Answer, Engine};
use crate::ids::{OrderId, Step, Task, Worker};
use crate::run::{Jobs, RunConfig};
use std::collections::BTreeSet;

/// A replica that was found to be wrong so often running is no accident: states do not help it.
const WRONG_RUNNING_MOST: u32 = 3;

/// A worker whose parameters are wrong.
#[derive(Debug)]
struct AstrayWorker {
    worker: Worker,
    /// After which step.
    step: Step,
    /// Results of it were counted for steps that are not decided.
    counted: bool,
    /// States do not help it.
    is_hopeless: bool,
}

/// What is known of workers' parameters, and which results depend on what is not. It is told what
/// workers report, by its `agreement`; it is asked of each result whether it counts
/// ([`Trust::verdict`], [`Trust::trusts`]), of each step that is decided who in it was not known
/// to be right ([`Trust::unverified`]), and after each report who is found to be wrong
/// ([`Trust::found`]).
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) agreement: Agreement,
    jobs: Jobs,
    /// The run's first step: all begin with one state.
    first: Step,
    /// Until when it is waited for reports that may tell who is right, where that is in dispute.
    pub(super) decides_by: Option<f64>,
    /// Results of workers whose parameters are in dispute: they wait until it is settled.
    disputed: Vec<(Worker, OrderId, Answer)>,
    /// Results that count although no report shows that they were computed with the right
    /// parameters.
    unsure: BTreeSet<(Worker, Task)>,
}

impl Trust {
    pub(super) fn new(workers: usize, run: &RunConfig) -> Self {
        Self {
            agreement: Agreement::new(workers),
            jobs: run.jobs,
            first: run.first,
            decides_by: None,
            disputed: Vec::new(),
            unsure: BTreeSet::new(),
        }
    }

    fn step_of(&self, task: Task) -> Step {
        task.job.step(self.jobs.micro_steps)
    }

    /// What is known of the parameters that a worker computes a task with.
    pub(super) fn verdict(&self, worker: Worker, task: Task, steps: &Steps) -> Verdict {
        // Those after the last step of the task's model; a refused one changed nothing.
        let before = |step: &Step| steps.before(*step, self.jobs.models);
        let basis = std::iter::successors(before(&self.step_of(task)), before)
            .find(|basis| !self.agreement.is_refused(*basis));
        basis.map_or(Verdict::Right, |basis| self.agreement.verdict(worker, basis))
    }

    /// Whether a result may count; notes that it counts although its worker's parameters are
    /// unknown.
    pub(super) fn trusts(&mut self, worker: Worker, task: Task, steps: &Steps) -> bool {
        let verdict = self.verdict(worker, task, steps);
        if verdict == Verdict::Unknown && self.agreement.is_taken() {
            self.unsure.insert((worker, task));
        }
        matches!(verdict, Verdict::Right | Verdict::Unknown)
    }

    /// A result is not counted before its worker's parameters are known to be right.
    pub(super) fn wait_with(&mut self, worker: Worker, order: OrderId, answer: Answer) {
        self.disputed.push((worker, order, answer));
    }

    /// Gives back what is in dispute: the run does not wait for it any more.
    pub(super) fn drop_disputed(&mut self) -> Vec<(Worker, OrderId, Task)> {
        let dropped =
            |(worker, order, answer): (Worker, OrderId, Answer)| (worker, order, answer.0);
        self.disputed.drain(..).map(dropped).collect()
    }

    /// Workers whose results counted for a step though no report says that they had the right
    /// parameters; asked once.
    pub(super) fn unverified(&mut self, step: Step, steps: &Steps) -> Vec<Worker> {
        let unsure = std::mem::take(&mut self.unsure);
        let (of_step, later): (BTreeSet<_>, _) =
            unsure.into_iter().partition(|(_, task)| self.step_of(*task) <= step);
        self.unsure = later;
        let is_unsure =
            |(worker, task): &(Worker, Task)| self.verdict(*worker, *task, steps) != Verdict::Right;
        of_step.into_iter().filter(is_unsure).map(|(worker, _)| worker).collect()
    }

    /// A worker says that it goes on from a state with these parameters; whether they are wrong.
    pub(super) fn goes_on_wrong(
        &mut self,
        worker: Worker,
        step: Step,
        digest: Option<u64>,
    ) -> bool {
        self.agreement.reported(worker, step, digest);
        self.agreement.verdict(worker, step) == Verdict::Wrong
    }

    /// Looks whether it can be told who is right, or waited for that as long as for an answer.
    pub(super) fn look(
        &mut self,
        Moment { now, patience_ends }: Moment,
    ) -> Result<(), EngineError> {
        if self.decides_by.is_some_and(|by| now >= by) {
            self.agreement.close();
        }
        if let Some(Tie { step, sides, agreed }) = self.agreement.tie() {
            let next = agreed.map_or(self.first, Step::next);
            return Err(EngineError::Tied { step, sides, agreed, next });
        }
        // Not longer for every dispute that comes up meanwhile.
        let by = self.decides_by.unwrap_or(patience_ends);
        self.decides_by = self.agreement.is_open().then_some(by);
        Ok(())
    }

    /// Whether results counted for steps that are not decided before it came to a dispute of their
    /// workers' parameters.
    fn any_counted_before(&self, steps: &Steps) -> bool {
        self.unsure.iter().any(|(worker, task)| {
            self.step_of(*task) >= steps.next
                && self.verdict(*worker, *task, steps) == Verdict::Disputed
        })
    }

    /// Who has been found to be wrong since this was asked last, of those that are there.
    fn found(&mut self, roster: &Roster, steps: &Steps) -> Vec<AstrayWorker> {
        let found = self.agreement.found().into_iter();
        let astray = |(worker, step): (Worker, Step)| {
            let is_undecided =
                |(of, task): &(Worker, Task)| *of == worker && self.step_of(*task) >= steps.next;
            AstrayWorker {
                worker,
                step,
                counted: self.unsure.iter().any(is_undecided),
                is_hopeless: self.agreement.wrong_running(worker) >= WRONG_RUNNING_MOST,
            }
        };
        found.filter(|(worker, _)| !roster.is_lost(*worker)).map(astray).collect()
    }
}

impl Engine {
    /// Carries out what has become known of workers' parameters: who is wrong takes over a state,
    /// and what it computed does not count. Ends the run where that cannot be told.
    pub(super) fn settle_trust(
        &mut self,
        now: f64,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        self.trust.look(self.round.at(now))?;
        // A sum that is under way would be decided before the dispute is.
        let mut any_counted =
            self.round.phase().is_summing() && self.trust.any_counted_before(&self.steps);
        for AstrayWorker { worker, step, counted, is_hopeless } in
            self.trust.found(&self.roster, &self.steps)
        {
            out.push(Action::Diverged { worker, step });
            // Its results were counted before the engine could tell: what they are in is not
            // decided yet, and begins again.
            any_counted |= counted;
            out.extend(recall(worker, &mut self.roster, &mut self.plan.scheme));
            if is_hopeless {
                out.push(Action::Dismiss { worker, why: UnfitReason::Differs });
            }
            // A worker that is about to take over its state must not.
            self.states.resync_those_waiting_for(
                worker,
                self.round.at(now),
                &mut self.roster,
                &self.leaving,
                out,
            )?;
        }
        if any_counted && self.round.phase().has_begun() && !self.round.phase().is_over() {
            self.trust.unsure.clear();
            self.begin_again(now, out)?;
        }
        self.states.resync_idle(self.round.at(now), &mut self.roster, &self.leaving, out)?;
        for (worker, order, answer) in std::mem::take(&mut self.trust.disputed) {
            if !self.roster.is_lost(worker) {
                self.done(now, worker, order, answer, out)?;
            }
        }
        Ok(())
    }
}
