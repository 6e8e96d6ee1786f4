//! The state machine of a run: rounds, decodes, commits.
//!
//! A driver feeds [`Input`]s with the time at which they happened and carries out the [`Action`]s
//! that come back, in order. One round goes
//! `Assign* .. Reduce* .. Abandon* Close Fold* .. Commit Apply*`: the results are collected until
//! the scheme admits whoever is missing; the steps that are complete then are folded, and applied,
//! in order, only after the decoded vector is held by a live worker (two where there are two). The
//! next round opens when all that was decoded is held.

mod blame;
mod folding;
mod hope;
mod losses;
mod overdue;
mod replan;
mod returns;
mod trust;

pub use replan::Replan;
use replan::{Replanning, gate_of};
use trust::Trust;

use super::book::{Book, Fate};
use super::config::{Config, ConfigError, Reduce};
use super::events::{Action, EngineError, Input, RoundReport};
use super::roster::{Doing, Roster};
use crate::codes::Gate;
use crate::codes::sequential::{Fold, Scheme, SchemeFacts};
use crate::ids::{Job, Round, Step, Task, Worker, WorkerSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Which task is done, whether its result is finite, and its digest where one was taken.
type Answer = (Task, bool, Option<u128>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    NotBegun,
    Collecting,
    Folding,
    Finished,
}

/// The state machine of one run.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::ids::{Step, Worker};
/// use codedgrad::schedulers::{Action, Config, Engine, Input};
/// let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(2, 2, 0..1)?;
/// let mut engine = Engine::new(scheme, Config::default(), Step(0)..Step(1), 0)?;
/// let mut actions = Vec::new();
/// engine.handle(0.0, Input::Begin, &mut actions).unwrap();
/// let Action::Assign { worker, tasks, .. } = actions[0].clone() else { panic!() };
/// actions.clear();
/// engine
///     .handle(
///         1.0,
///         Input::Done { worker, task: tasks[0].0, finite: true, digest: None },
///         &mut actions,
///     )
///     .unwrap();
/// assert_eq!(actions[0], Action::Abandon { worker: Worker(1), late_counts: false });
/// assert!(matches!(&actions[2], Action::Fold { folds, .. } if folds.len() == 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    scheme: Box<dyn Scheme>,
    config: Config,
    gate: Gate,
    roster: Roster,
    book: Book,
    phase: Phase,
    first: Step,
    /// First step that is not decided.
    next: Step,
    end: Step,
    /// End of the jobs the scheme knows of.
    known: Job,
    /// Number of the next round.
    round: u64,
    opened_at: f64,
    /// Since when patience is tried: the same, or when the round was opened again.
    waits_since: f64,
    /// Until when somebody must have come back for the run to go on.
    returns_by: Option<f64>,
    /// When the first answer of the round was in.
    first_answer: Option<f64>,
    /// When the round could have closed first, where grace is given.
    closes_at: Option<f64>,
    /// When a round that is held open should be looked at again.
    wake_at: Option<f64>,
    arrivals: Vec<Option<f64>>,
    /// Workers that have had tasks in this round.
    worked: WorkerSet,
    erased: WorkerSet,
    /// Workers that dropped their tasks unasked, since it was last waited for somebody to come
    /// back.
    dropped: WorkerSet,
    /// Workers that came back in this round and can do nothing before the next one.
    resting: WorkerSet,
    /// Workers with a result that was not finite among the tasks they are at.
    failed: WorkerSet,
    assigned_units: u64,
    /// The first unit of every task that was given, and whether its result is already in a sum.
    given: BTreeMap<(Worker, Task), (u32, bool)>,
    replanning: Replanning,
    /// Workers that died since the round was closed.
    bereft: WorkerSet,
    /// Whose parameters are known to be right.
    trust: Trust,
    /// Workers that do nothing until a step is decided, since their results of it were not finite
    /// and they said so.
    barred: BTreeSet<(Step, Worker)>,
    /// Since when it is waited for holders.
    folds_since: f64,
    /// The step that nobody held in time once, and since when it was waited then.
    overdue: Option<(Step, f64)>,
}

impl Engine {
    /// An engine for a range of steps, the first of which opens with [`Input::Begin`] in the round
    /// of the given number.
    ///
    /// # Errors
    /// [`ConfigError`] when the scheme's jobs overlap and there are fewer models than that takes,
    /// or a step has no jobs.
    pub fn new(
        mut scheme: Box<dyn Scheme>,
        config: Config,
        steps: Range<Step>,
        round: u64,
    ) -> Result<Self, ConfigError> {
        config.check(scheme.facts())?;
        let stretch = stretch(&steps, config.micro_steps);
        scheme.restart(stretch.clone());
        let workers = scheme.facts().workers;
        Ok(Self {
            gate: gate_of(config.wire, scheme.facts()),
            roster: Roster::new(workers, steps.start),
            book: Book::new(config.micro_steps),
            phase: Phase::NotBegun,
            first: steps.start,
            next: steps.start,
            end: steps.end,
            known: stretch.end,
            round,
            opened_at: 0.0,
            waits_since: 0.0,
            returns_by: None,
            first_answer: None,
            closes_at: None,
            wake_at: None,
            arrivals: vec![None; workers],
            worked: WorkerSet::empty(workers),
            erased: WorkerSet::empty(workers),
            dropped: WorkerSet::empty(workers),
            resting: WorkerSet::empty(workers),
            failed: WorkerSet::empty(workers),
            assigned_units: 0,
            given: BTreeMap::new(),
            replanning: Replanning::default(),
            bereft: WorkerSet::empty(workers),
            trust: Trust::new(workers),
            barred: BTreeSet::new(),
            folds_since: 0.0,
            overdue: None,
            scheme,
            config,
        })
    }

    /// When the driver should send a [`Input::Tick`] if nothing else happens before: there is such
    /// a time from [`Input::Begin`] to [`Action::Finish`], and a run in which nothing happens but
    /// ticks comes to its end.
    #[must_use]
    pub fn deadline(&self) -> Option<f64> {
        let earliest =
            |times: &[Option<f64>]| times.iter().flatten().copied().min_by(f64::total_cmp);
        match self.phase {
            Phase::Collecting => earliest(&[
                Some(self.waits_since + self.config.max_wait_seconds),
                self.wake_at,
                self.returns_by,
            ]),
            Phase::Folding => {
                Some(self.returns_by.unwrap_or(self.folds_since + self.config.max_wait_seconds))
            }
            Phase::NotBegun | Phase::Finished => None,
        }
    }

    /// What is fixed about the scheme.
    #[must_use]
    pub fn facts(&self) -> &SchemeFacts {
        self.scheme.facts()
    }

    /// Whether decoded vectors wait for their holders, and nothing else is waited for.
    #[must_use]
    pub fn is_folding(&self) -> bool {
        self.phase == Phase::Folding && self.returns_by.is_none()
    }

    /// Whether any one worker more may be lost and the steps still be decoded.
    #[must_use]
    pub fn spares_one(&self) -> bool {
        self.roster.dead().len() < self.scheme.facts().tolerance
    }

    /// The worker of the lowest number that is there.
    #[must_use]
    pub fn first_alive(&self) -> Option<Worker> {
        self.roster.first_alive()
    }

    /// Whether everybody who is there has applied all that is decided. What it takes is done also
    /// after the last step.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.roster.is_settled()
    }

    /// Takes in one event and appends what has to be done.
    ///
    /// # Errors
    /// [`EngineError`] when the run cannot go on; the engine must not be used afterwards.
    ///
    /// # Panics
    /// When a run is begun twice.
    pub fn handle(
        &mut self,
        now: f64,
        input: Input,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        match input {
            Input::Begin => {
                assert_eq!(self.phase, Phase::NotBegun, "a run begins once");
                self.go_on(now, out)
            }
            Input::Done { worker, task, finite, digest } => {
                self.done(now, worker, (task, finite, digest), out)
            }
            Input::Late { worker, task, finite } => {
                self.take(worker, (task, finite, None), out);
                self.try_close(now, out)
            }
            Input::Freed { worker } => self.freed(now, worker, out),
            Input::Lost { worker, kept } => {
                self.trust.agreement.excuse(worker, None);
                self.lost(now, worker, kept, out)?;
                self.settle_trust(now, out)
            }
            Input::Spoilt { worker, step, attempt } => {
                self.spoilt(now, worker, (step, attempt), out)
            }
            Input::Overflowed { step, attempt } => self.overflowed(now, (step, attempt), out),
            Input::Unmade { step, attempt } => {
                let anew = self.book.fold_anew(step, attempt, &self.roster.alive(), &self.bereft);
                self.folds_since = if anew.is_some() { now } else { self.folds_since };
                out.extend(anew);
                Ok(())
            }
            Input::Held { worker, step, attempt, digest } => {
                self.held(now, worker, (step, attempt, digest), out)
            }
            Input::Applied { worker, step, digest } => {
                self.roster.applied(worker, step);
                self.trust.agreement.reported(worker, step, digest);
                self.settle_trust(now, out)
            }
            Input::Own { step, digest } => {
                self.trust.agreement.own(step, digest);
                self.settle_trust(now, out)
            }
            Input::Synced { worker, next } => {
                self.trust.agreement.excuse(worker, Some(next));
                self.synced(now, worker, next, out)?;
                self.settle_trust(now, out)
            }
            Input::Taken { worker, step, digest } => self.taken(now, worker, step, digest, out),
            Input::BadState { worker, from, refused } => {
                self.bad_state(now, (worker, from), refused, out)
            }
            Input::Finish { after } => {
                // What is being decided is decided first.
                self.end = self.end.min(after.max(self.next).next());
                Ok(())
            }
            Input::Joined { worker, next } => self.joined(now, worker, next, out),
            Input::Missed { worker } => self.missed(now, worker, out),
            Input::Tick => self.tick(now, out),
        }
    }

    /// Commits what is held, in order, and opens the next round once everything decoded is held.
    fn go_on(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if !self.book.waiting().is_empty() {
            return Ok(());
        }
        while let Some(fate) = self.book.close(self.next) {
            let step = self.next;
            if let Fate::Refused(..) = fate {
                self.trust.agreement.refused(step);
            }
            out.push(match fate {
                Fate::Held { attempt, digest } => {
                    Action::Commit { step, attempt, digest, verified: self.is_verified(step) }
                }
                Fate::Refused(units, because) => Action::Refuse { step, units, because },
            });
            let receivers = self.roster.send(step, self.config.log_steps);
            self.trust.agreement.sent(step, &receivers);
            out.extend(receivers.into_iter().map(|worker| Action::Apply { worker, step }));
            self.given.retain(|(_, task), _| task.job.step(self.config.micro_steps) > step);
            self.next = step.next();
            self.barred.retain(|(until, _)| *until > step);
        }
        self.resync_idle(now, out)?;
        if self.next >= self.end {
            self.phase = Phase::Finished;
            out.push(Action::Finish);
            return Ok(());
        }
        let begins = self.next.jobs(self.config.micro_steps).start >= self.known;
        if begins {
            self.restart();
        }
        // No job is under way where each takes one round.
        if begins || self.config.micro_steps == 1 && self.scheme.facts().delay == 0 {
            self.change(out);
        }
        self.widen(out);
        self.open_round(now, out)
    }

    /// Begins the jobs of the next steps.
    fn restart(&mut self) {
        let stretch = stretch(&(self.next..self.end), self.config.micro_steps);
        self.known = stretch.end;
        self.scheme.restart(stretch);
    }

    fn open_round(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        self.phase = Phase::Collecting;
        self.round += 1;
        (self.opened_at, self.waits_since, self.returns_by) = (now, now, None);
        (self.first_answer, self.closes_at, self.wake_at) = (None, None, None);
        self.arrivals.fill(None);
        self.worked.clear();
        self.erased.clear();
        self.dropped.clear();
        self.resting.clear();
        self.failed.clear();
        self.assigned_units = 0;
        self.resync_idle(now, out)?;
        self.scheme.open();
        for worker in self.roster.dead().iter() {
            self.scheme.gone(worker);
        }
        self.leave_out_barred();
        self.offer(out);
        // What the dead would have done goes to whoever has nothing of its own.
        self.offer(out);
        self.check_hope(now, out)?;
        if self.phase == Phase::Collecting
            && self.assigned_units == 0
            && !self.roster.ready().is_empty()
        {
            self.try_close(now, out)?;
        }
        Ok(())
    }

    /// Gives an idle worker its tasks of this round, if there are any.
    fn give(&mut self, worker: Worker, out: &mut Vec<Action>) {
        let sits_out = self.erased.contains(worker)
            || self.resting.contains(worker)
            || self.roster.is_stale(worker);
        if self.phase != Phase::Collecting
            || *self.roster.doing(worker) != Doing::Nothing
            || sits_out
        {
            return;
        }
        let mut tasks = Vec::new();
        self.scheme.assign(worker, &mut tasks);
        if tasks.is_empty() {
            return;
        }
        let with_parts: Vec<_> =
            tasks.iter().map(|&task| (task, self.scheme.parts(worker, task).to_vec())).collect();
        self.assigned_units += with_parts
            .iter()
            .map(|(task, _)| u64::from(self.scheme.units(worker, *task)))
            .sum::<u64>();
        self.worked.insert(worker);
        if !self.scheme.facts().partial {
            self.arrivals[worker.index()] = None;
        }
        for (task, parts) in &with_parts {
            let start = parts.first().map_or(u32::MAX, |part| part.units.start);
            self.given.entry((worker, *task)).or_insert((start, false)).0 = start;
        }
        *self.roster.doing(worker) = Doing::Tasks(tasks);
        out.push(Action::Assign { worker, round: Round(self.round - 1), tasks: with_parts });
    }

    /// Offers a result to the scheme; one that is not wanted is thrown away.
    fn take(&mut self, worker: Worker, (task, finite, digest): Answer, out: &mut Vec<Action>) {
        let counts = finite
            && *self.roster.doing(worker) != Doing::Dead
            && self.phase == Phase::Collecting
            && !self.is_barred(worker);
        let wanted = counts
            && self.is_trusted(worker, task)
            && match digest {
                Some(digest) => self.scheme.returned_as(worker, task, digest),
                None => self.scheme.returned(worker, task),
            };
        if finite && !wanted {
            out.push(Action::Discard { worker, task });
        } else if wanted && self.config.reduce == Reduce::Worker && self.scheme.is_final(task) {
            self.sum_up(Fold { worker, task, weight: 1.0 }, out);
        }
    }

    /// Lets a worker add a result to what it holds of its step.
    fn sum_up(&mut self, fold: Fold, out: &mut Vec<Action>) {
        let Fold { worker, task, weight } = fold;
        if let Some((_, summed)) = self.given.get_mut(&(worker, task)) {
            *summed = true;
        }
        if weight == 0.0 {
            return out.push(Action::Discard { worker, task });
        }
        let step = task.job.step(self.config.micro_steps);
        self.book.summed(step, worker);
        out.push(Action::Reduce { step, fold });
    }

    fn done(
        &mut self,
        now: f64,
        worker: Worker,
        answer: Answer,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let (task, finite, _) = answer;
        let disputed = finite && self.is_disputed(worker, task);
        let Doing::Tasks(tasks) = self.roster.doing(worker) else {
            if finite {
                out.push(Action::Discard { worker, task });
            }
            return Ok(());
        };
        if disputed && tasks.contains(&task) {
            self.trust.wait_with(worker, answer);
            return Ok(());
        }
        tasks.retain(|open| *open != task);
        let finished = tasks.is_empty();
        self.take(worker, answer, out);
        if let Some(dispute) = self.scheme.dispute() {
            return Err(EngineError::Disputed { step: self.next, dispute });
        }
        if !finite {
            self.failed.insert(worker);
        }
        if finished {
            *self.roster.doing(worker) = Doing::Nothing;
            if self.failed.remove(worker) {
                return self.erase(now, worker, out);
            }
            self.arrivals[worker.index()] = Some(now - self.opened_at);
            self.first_answer.get_or_insert(now - self.opened_at);
            self.give(worker, out);
        }
        self.try_close(now, out)
    }

    /// A worker counts for nothing more in this round.
    fn erase(
        &mut self,
        now: f64,
        worker: Worker,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        self.erased.insert(worker);
        self.scheme.gone(worker);
        self.carry_on(now, out)
    }

    /// What somebody will not do any more goes to whoever is idle.
    fn carry_on(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        self.offer(out);
        self.check_hope(now, out)?;
        self.try_close(now, out)
    }

    fn offer(&mut self, out: &mut Vec<Action>) {
        for worker in self.roster.ready() {
            self.give(worker, out);
        }
    }

    fn freed(
        &mut self,
        now: f64,
        worker: Worker,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        match self.roster.doing(worker) {
            doing @ Doing::Leaving => *doing = Doing::Nothing,
            doing @ Doing::Tasks(_) => {
                *doing = Doing::Nothing;
                self.dropped.insert(worker);
                return self.erase(now, worker, out);
            }
            _ => return Ok(()),
        }
        if self.roster.is_stale(worker) {
            return self.resync(now, worker, out);
        }
        self.give(worker, out);
        self.try_close(now, out)
    }

    /// Whoever has not answered: still computing, erased or dead. Who has nothing to do is not
    /// missing.
    fn missing(&self) -> WorkerSet {
        let owes = |worker: Worker| {
            [&self.worked, &self.erased, &self.resting].iter().any(|set| set.contains(worker))
        };
        let answered = |worker: Worker| {
            self.arrivals[worker.index()].is_some() || !owes(worker) && self.roster.is_ready(worker)
        };
        let all = Worker::all(self.arrivals.len());
        WorkerSet::of(self.arrivals.len(), all.filter(|worker| !answered(*worker)))
    }

    fn try_close(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.phase != Phase::Collecting {
            return Ok(());
        }
        let missing = self.missing();
        let somebody_out = self.roster.somebody_out();
        if !self.scheme.admits(&missing) {
            return if !somebody_out && self.scheme.salvages(&missing) {
                self.close(now, &missing, out)
            } else {
                Ok(())
            };
        }
        if somebody_out {
            if self.gate.check(&self.scheme.quality()).is_err() {
                return Ok(());
            }
            if let Some(at) = self.holds_open(now) {
                self.wake_at = Some(at).filter(|at| at.is_finite());
                return Ok(());
            }
        }
        self.close(now, &missing, out)
    }

    /// Until when a round that could close is held open for those who are still out.
    fn holds_open(&mut self, now: f64) -> Option<f64> {
        let facts = self.scheme.facts();
        let at = if facts.takes_late() && self.assigned_units > 0 {
            self.first_answer
                .map_or(f64::INFINITY, |first| self.opened_at + (1.0 + self.config.mu) * first)
        } else if facts.error_max > 0.0 && self.config.grace_seconds > 0.0 {
            *self.closes_at.get_or_insert(now + self.config.grace_seconds)
        } else {
            return None;
        };
        (now < at).then_some(at)
    }

    fn tick(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        if self.returns_by.is_some_and(|by| now >= by) {
            return self.nobody_returned(now, out);
        }
        if self.phase == Phase::Folding {
            return self.unheld(now, out);
        }
        self.wake_at = None;
        if now < self.waits_since + self.config.max_wait_seconds {
            return self.try_close(now, out);
        }
        let mut missing = self.missing();
        if self.scheme.admits(&missing) || self.scheme.salvages(&missing) {
            return self.close(now, &missing, out);
        }
        // Whoever has answered once may be at its next task.
        missing.unite(&self.roster.out());
        Err(EngineError::MaxWait {
            step: self.next,
            waited_seconds: now - self.waits_since,
            silent: missing,
        })
    }

    fn close(
        &mut self,
        now: f64,
        missing: &WorkerSet,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        (self.phase, self.folds_since) = (Phase::Folding, now);
        self.bereft.clear();
        let lasted = now - self.opened_at;
        for worker in Worker::all(self.arrivals.len()) {
            match self.arrivals[worker.index()] {
                Some(arrival) => self
                    .scheme
                    .observe(worker, Some(if lasted > 0.0 { arrival / lasted } else { 1.0 })),
                None if missing.contains(worker) => self.scheme.observe(worker, None),
                None => {}
            }
        }
        let (mut decoded, mut finals) = (Vec::new(), Vec::new());
        self.scheme.close(missing, &mut decoded);
        if self.config.reduce == Reduce::Worker {
            let quality = self.scheme.finals(&mut finals);
            self.check(self.next, &quality)?;
            finals.into_iter().for_each(|fold| self.sum_up(fold, out));
        }
        self.abandon_all(out);
        out.push(Action::Close(self.report(now)));
        for job in decoded {
            self.settle(job)?;
            self.fold(job.step(self.config.micro_steps), out);
        }
        self.go_on(now, out)
    }

    fn abandon_all(&mut self, out: &mut Vec<Action>) {
        let late_counts = self.scheme.facts().takes_late();
        self.drop_disputed(out);
        out.extend(
            self.roster
                .send_home()
                .into_iter()
                .map(|worker| Action::Abandon { worker, late_counts }),
        );
    }

    fn report(&self, now: f64) -> RoundReport {
        RoundReport {
            round: Round(self.round - 1),
            opened_at: self.opened_at,
            closed_at: now,
            arrivals: self.arrivals.clone(),
            erased: self.erased.iter().collect(),
            work: self.assigned_units as f64 / f64::from(self.scheme.facts().units),
            wrong: self.scheme.wrong(),
        }
    }
}

/// The jobs a scheme is given at once: those of all steps, or of one step of several.
fn stretch(steps: &Range<Step>, micro_steps: u64) -> Range<Job> {
    let first = steps.start.jobs(micro_steps);
    if micro_steps > 1 { first } else { first.start..Job(steps.end.0) }
}
