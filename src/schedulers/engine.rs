//! The state machine of a run: rounds, decodes, commits.
//!
//! A driver feeds [`Input`]s with the time at which they happened and carries out the [`Action`]s
//! that come back, in order. One round goes
//! `Expect? Compute* .. Abandon* Close Sum* .. Commit Apply*`: the results are collected until the
//! scheme can do without those who are missing; the steps that are complete then are summed, and
//! applied, in order, once [`StepSums`](crate::sums::StepSums) says that enough workers hold the
//! sum. The next round opens when all sums that were asked for are held.
//!
//! Its parts own what they decide upon. `steps` has how far the run is, `round` which workers have
//! answered, [`roster`](super::roster) which are there and what each does. `states` has each
//! worker's state, who takes over whose, and how long the run waits for a worker with one.
//! `leaving` has which workers go and whether that ends the run. [`open_steps`](super::open_steps)
//! has what is decoded and what was given out for it. `plan` has the current scheme (`active`), its
//! workers and the ones to spare, `trust` whose results count. The [`Engine`] alone sees all of
//! them: it asks, and carries out what they decide, in `returns`, `losses`, `again`, `summing`,
//! `departing` and `outlook` by what has happened.

mod active;
mod again;
mod departing;
mod expecting;
mod leaving;
mod losses;
mod membership;
mod outlook;
mod plan;
mod returns;
mod round;
mod settings;
mod states;
mod steps;
mod summing;
mod trust;
mod waiting;

use active::ActiveScheme;
pub use leaving::Departures;
pub use plan::{PlannedScheme, Replan, RunPlan};
use round::CurrentRound;
pub use settings::Settings;
pub use states::States;
use states::recall;
use steps::Steps;
use trust::Trust;
pub use waiting::OpenRound;

use super::agreement::Verdict;
use super::events::{Action, EngineError, Input, UnfitReason};
use super::open_steps::{Fate, OpenSteps};
use super::order_book::OrderState;
use super::roster::{Activity, Roster};
use crate::codes::sequential::{Outlook, ResultUse, RoundEvent, Scheme, SchemeFacts};
use crate::ids::{OrderId, Step, Task, Worker, WorkerSet};
use crate::run::{ConfigError, RunConfig};
use tracing::debug_span;

/// Which task is done, whether its result is finite, and its digest where one was taken.
type Answer = (Task, bool, Option<u128>);

/// The state machine of one run. Its driver, the coordinator of a trainer or a simulator, does
/// this:
///
/// 1. It makes one, with the scheme, the run and its [`Settings`], and sends [`Input::Begin`] once.
/// 2. It tells the engine everything that happens, in the order in which it happens, each with the
///    time: [`Engine::handle`]. Times never go back. What belongs to an order or a life of a worker
///    that is over is passed over, so the driver need not sort it out. Sums it has looked after by
///    [`StepSums`](crate::sums::StepSums), which stands between the two.
/// 3. It carries out the [`Action`]s that were added to the list, in their order, and before the
///    next event. What they lead to is told as any other event, never from within.
/// 4. If nothing happens until [`Engine::deadline`], it sends [`Input::Tick`].
/// 5. After [`Action::Finish`] it goes on until [`States::are_settled`], since workers may still
///    have steps to apply. After an error the engine must not be used any more.
///
/// Of a driver's choices only these reach the engine: [`Engine::switch`] for another scheme,
/// [`Input::Finish`] for an early end.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::ids::Worker;
/// use codedgrad::run::{RunConfig, Shape};
/// use codedgrad::schedulers::{Action, Engine, Input, Settings};
/// let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(2, 2, 0..1)?;
/// let run = RunConfig::new(Shape::new(2, 2), 1000, 1);
/// let mut engine = Engine::new(scheme, run, Settings::default())?;
/// let mut actions = Vec::new();
/// engine.handle(0.0, Input::Begin, &mut actions).unwrap();
/// let Action::Compute { worker, order, tasks, .. } = actions[1].clone() else { panic!() };
/// let Action::Compute { order: other, .. } = actions[2] else { panic!() };
/// actions.clear();
/// engine
///     .handle(
///         1.0,
///         Input::Done { worker, order, task: tasks[0].0, finite: true, digest: None },
///         &mut actions,
///     )
///     .unwrap();
/// let late_counts = false;
/// assert_eq!(actions[0], Action::Abandon { worker: Worker(1), order: other, late_counts });
/// assert!(matches!(&actions[2], Action::Sum { terms, .. } if terms.len() == 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    plan: RunPlan,
    config: RunConfig,
    roster: Roster,
    open_steps: OpenSteps,
    steps: Steps,
    round: CurrentRound,
    states: States,
    leaving: Departures,
    /// Whose parameters and results are known to be right.
    trust: Trust,
    /// Workers that died since the round was closed.
    died_since_close: WorkerSet,
}

impl Engine {
    /// An engine for the steps of a run, the first of which opens with [`Input::Begin`].
    ///
    /// # Errors
    /// [`ConfigError`] when the scheme is for other workers or units, or its jobs overlap and there
    /// are fewer models than that takes, or a step has no jobs.
    pub fn new(
        mut scheme: Box<dyn Scheme>,
        config: RunConfig,
        settings: Settings,
    ) -> Result<Self, ConfigError> {
        let SchemeFacts { workers, units, delay, .. } = *scheme.facts();
        config.check(workers, units, delay)?;
        let Settings { round, incarnation, restores, replan } = settings;
        let mut steps = Steps::new(&config);
        scheme.restart(steps.begin());
        Ok(Self {
            roster: Roster::new(workers, OrderId::before_all_of(incarnation)),
            open_steps: OpenSteps::new(config.jobs.micro_steps),
            steps,
            round: CurrentRound::new(workers, round, config.limits.max_wait_seconds),
            states: States::new(workers, &config, restores),
            trust: Trust::new(workers, &config),
            died_since_close: WorkerSet::empty(workers),
            leaving: Departures::new(workers),
            plan: RunPlan::new(scheme, config, replan),
            config,
        })
    }

    /// The run that it makes.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// When the driver should send a [`Input::Tick`] if nothing else happens before: there is such
    /// a time from [`Input::Begin`] to [`Action::Finish`] unless only [sums](Self::is_summing) are
    /// waited for, and after it where it cannot be told yet whose parameters are right. A run in
    /// which nothing happens but ticks comes to its end.
    #[must_use]
    pub fn deadline(&self) -> Option<f64> {
        let earliest =
            |times: &[Option<f64>]| times.iter().flatten().copied().min_by(f64::total_cmp);
        if self.round.phase().is_open() {
            earliest(&[
                Some(self.round.patience_ends()),
                self.round.wake_at(),
                self.states.returns_by,
                self.leaving.ends_at,
                self.trust.decides_by,
            ])
        } else {
            let returns_by = self.states.returns_by.filter(|_| self.round.phase().is_summing());
            earliest(&[returns_by, self.trust.decides_by])
        }
    }

    /// The scheme that the run goes by, and for whom it is made.
    #[must_use]
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Whether sums wait for their holders, and nothing else is waited for.
    #[must_use]
    pub fn is_summing(&self) -> bool {
        self.round.phase().is_summing() && self.states.returns_by.is_none()
    }

    /// The workers that are there, and what each does.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The state that each worker has.
    #[must_use]
    pub fn states(&self) -> &States {
        &self.states
    }

    /// Who goes.
    #[must_use]
    pub fn leaving(&self) -> &Departures {
        &self.leaving
    }

    /// The step after which the run would end by [`Input::Finish`], where that is sooner than it
    /// ends now.
    #[must_use]
    pub fn shortened_to(&self, after: Step) -> Option<Step> {
        self.steps.shortened_to(after)
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
        let _step = debug_span!("step", step = self.steps.next.0).entered();
        tracing::debug!(now, ?input, "engine");
        let before = out.len();
        if let Err(error) = self.take(now, input, out) {
            // What workers have in a tie is not to be relied on: that is told, and not what follows.
            self.trust.look(self.round.at(now))?;
            return Err(error);
        }
        self.let_go(now, out)?;
        if self.leaving.is_blocked() {
            // With one that takes over a state there may be enough to be planned for.
            let may_go_on = !self.plan.is_blocked_by_leaving(&self.roster, &self.leaving)
                || self.plan.gets_enough(&self.roster);
            if !self.round.phase().is_open() || may_go_on {
                self.leaving.unblock();
            } else {
                let next = self.steps.next;
                let goes_on = self.states.any_goes_on(&self.roster, &self.leaving, next);
                if self.leaving.ends_the_run(now, &self.roster, goes_on) {
                    return Err(self.plan.too_many_lost(next, &self.roster, &self.leaving));
                }
            }
        }
        for action in out.iter().skip(before) {
            tracing::debug!(?action, "engine");
        }
        Ok(())
    }

    fn take(&mut self, now: f64, input: Input, out: &mut Vec<Action>) -> Result<(), EngineError> {
        match input {
            Input::Begin => {
                assert!(!self.round.phase().has_begun(), "a run begins once");
                self.advance(now, out)
            }
            Input::Done { worker, order, task, finite, digest } => {
                self.done(now, worker, order, (task, finite, digest), out)
            }
            Input::Idle { worker, order } => {
                if self.roster.dropped(worker, order) {
                    self.freed(now, worker, out)
                } else {
                    Ok(())
                }
            }
            Input::Lost { worker, kept } => {
                self.trust.agreement.excuse(worker, None);
                self.lost(now, worker, kept, out)?;
                self.settle_trust(now, out)
            }
            Input::Summed { step, digest } => {
                // All may have begun again since.
                if !self.open_steps.is_summing(step) {
                    return Ok(());
                }
                self.open_steps.summed(step, digest);
                self.close_steps(now, out)
            }
            Input::SumFailed { step, why } => self.sum_failed(now, step, why, out),
            Input::Left { worker, told } => {
                self.leaving.left(worker, told, self.plan.least().is_some());
                Ok(())
            }
            Input::Leaving { worker } => {
                if !self.roster.is_lost(worker) {
                    self.leaving.departs(worker);
                }
                Ok(())
            }
            Input::Applied { worker, step, digest } => {
                self.states.applied(worker, step);
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
            Input::StateLoaded { worker, step, digest } => {
                let donor = self.states.went_on(worker);
                if self.trust.goes_on_wrong(worker, step, digest) {
                    donor.into_iter().for_each(|donor| self.states.distrust(donor));
                }
                self.settle_trust(now, out)
            }
            Input::BadState { worker, from, refused } => {
                if self.roster.is_lost(worker) {
                    return Ok(());
                }
                if refused && self.states.refused(worker, from) {
                    out.push(Action::Dismiss { worker, why: UnfitReason::RefusesStates });
                    return Ok(());
                }
                // It is another's turn to hand one over.
                from.into_iter().for_each(|donor| self.states.distrust(donor));
                let at = self.round.at(now);
                if self.roster.is_syncing(worker) {
                    return self.states.resync(worker, at, &mut self.roster, &self.leaving, out);
                }
                out.extend(recall(worker, &mut self.roster, &mut self.plan.scheme));
                self.states.resync_idle(at, &mut self.roster, &self.leaving, out)
            }
            Input::StateOverdue { worker, from } => {
                // Its donor may hang.
                let Self { steps, roster, leaving, .. } = self;
                out.extend(self.states.resync_from_another(worker, from, steps, roster, leaving));
                Ok(())
            }
            Input::Finish { after } => {
                self.steps.end_after(after);
                Ok(())
            }
            Input::Joined { worker, next } => self.joined(now, worker, next, out),
            Input::StepUnavailable { worker } => {
                if self.roster.is_lost(worker) || self.roster.is_syncing(worker) {
                    return Ok(());
                }
                // A gap in the steps cannot be filled in the middle of a task: it would be computed
                // with the wrong parameters.
                out.extend(recall(worker, &mut self.roster, &mut self.plan.scheme));
                self.states.resync_idle(
                    self.round.at(now),
                    &mut self.roster,
                    &self.leaving,
                    out,
                )?;
                self.give(self.roster.ready(), out);
                Ok(())
            }
            Input::Tick => self.tick(now, out),
        }
    }

    /// Commits what is held, in order, and opens the next round once everything decoded is held.
    fn advance(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        // Steps are committed in order: one that is not held yet holds back those after it, also if
        // these are held.
        if self.open_steps.summing().next().is_some() {
            return Ok(());
        }
        // A worker that is sent a step may apply it at once, so what is pushed here must be final:
        // nothing below takes a commit back.
        while let Some(fate) = self.open_steps.close(self.steps.next) {
            let step = self.steps.next;
            if let Fate::Refused(..) = fate {
                self.trust.agreement.refused(step);
            }
            out.push(match fate {
                Fate::Summed(digest) => Action::Commit {
                    step,
                    digest,
                    unverified: self.trust.unverified(step, &self.steps),
                },
                Fate::Refused(units, because) => Action::Skip { step, units, because },
            });
            let receivers = self.states.send(step, self.config.log_steps, &mut self.roster);
            self.trust.agreement.sent(step, &receivers);
            out.extend(receivers.into_iter().map(|worker| Action::Apply { worker, step }));
            self.steps.decided();
            self.roster.orders.release(step.jobs(self.config.jobs.micro_steps).end);
        }
        // Also after the last step: a run ends when all workers that are there have applied it.
        self.states.resync_idle(self.round.at(now), &mut self.roster, &self.leaving, out)?;
        if self.steps.are_over() {
            out.push(self.round.finish());
            return Ok(());
        }
        // Schemes change between steps only: in the middle of one, shares of two schemes would have
        // to be added up.
        let begins = self.steps.are_to_begin();
        if begins {
            self.plan.scheme.restart(self.steps.begin());
        }
        let between_steps = begins || self.config.jobs.micro_steps == 1;
        // No job is under way where each takes one round.
        let may_change = begins || between_steps && self.plan.facts().delay == 0;
        if may_change && self.plan.change(&self.steps, &self.roster) {
            out.extend(self.plan.restart(&mut self.steps, &mut self.open_steps));
            out.push(Action::Switched { step: self.steps.next });
        }
        if let Some(replanned) = self.plan.look_at_members(now, &self.roster, &self.leaving) {
            out.push(replanned);
            // Shares of two plans cannot be added up: what is under way begins again.
            out.extend(self.plan.restart(&mut self.steps, &mut self.open_steps));
        }
        if between_steps && self.part_between_steps(now, out) {
            return Ok(());
        }
        self.open_round(now, out)
    }

    fn open_round(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        self.round.open(now);
        self.states.returns_by = None;
        self.states.resync_idle(self.round.at(now), &mut self.roster, &self.leaving, out)?;
        self.plan.scheme.on(RoundEvent::Opened { dead: &self.roster.dead() });
        self.round.erase(self.open_steps.barred(), &mut self.plan.scheme);
        let first = out.len();
        self.give(self.roster.ready(), out);
        // Twice, since only the first pass shows the scheme who has no task of its own.
        // What the dead would have done goes to a worker that has nothing of its own.
        self.give(self.roster.ready(), out);
        if let Some(expect) = self.expected(&out[first..]) {
            out.insert(first, expect);
        }
        self.check_outlook(now, out)?;
        // Without a task no answer will come that could close this round.
        if self.round.phase().is_open() && self.round.is_idle() && !self.roster.ready().is_empty() {
            self.try_close(now, out)?;
        }
        Ok(())
    }

    /// Gives those of these workers that are idle their tasks of this round, if there are any.
    fn give(&mut self, workers: Vec<Worker>, out: &mut Vec<Action>) {
        for worker in workers {
            // A stale worker would compute with parameters that no other has.
            let sits_out = self.round.sits_out(worker) || self.roster.is_stale(worker);
            if !self.round.phase().is_open() || !self.roster.is_idle(worker) || sits_out {
                continue;
            }
            let tasks = self.plan.scheme.assign(worker);
            if tasks.is_empty() {
                continue;
            }
            let facts = self.plan.facts();
            let units = tasks.iter().map(|(_, parts)| u64::from(facts.units_of(parts))).sum();
            self.round.gave(worker, units, facts.partial);
            for (task, parts) in &tasks {
                self.open_steps.gave(worker, *task, parts);
            }
            let order = self.roster.give(worker, tasks.iter().map(|(task, _)| *task).collect());
            out.push(Action::Compute { worker, order, round: self.round.number(), tasks });
        }
    }

    /// Whether an answer is still wanted: the one place that asks the scheme, of what is worth
    /// something by its order. One that is not wanted is thrown away.
    fn judge(
        &mut self,
        worker: Worker,
        (task, finite, digest): Answer,
        state: OrderState,
        out: &mut Vec<Action>,
    ) {
        let counts = finite
            && state != OrderState::Void
            && !self.roster.is_lost(worker)
            && self.round.phase().is_open()
            && !self.open_steps.barred().any(|barred| barred == worker)
            && self.trust.trusts(worker, task, &self.steps);
        // The scheme is asked last: what it is told has returned, it counts on.
        let wanted = counts && self.plan.scheme.returned(worker, task, digest) == ResultUse::Wanted;
        if wanted {
            self.open_steps.returned(worker, task);
        } else if finite {
            out.push(Action::Discard { worker, task });
        }
    }

    fn done(
        &mut self,
        now: f64,
        worker: Worker,
        order: OrderId,
        answer: Answer,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        let (task, finite, _) = answer;
        let state = self.roster.orders.state(worker, order, task);
        let verdict = self.trust.verdict(worker, task, &self.steps);
        if finite && state == OrderState::Wanted && verdict == Verdict::Disputed {
            self.trust.wait_with(worker, order, answer);
            return Ok(());
        }
        // Workers answer their tasks one by one, and are free when the last is done.
        let finished = self.roster.answered(worker, order, task);
        self.judge(worker, answer, state, out);
        if state != OrderState::Wanted {
            // It crossed the word to drop it: there was nothing left to drop.
            if finished && self.roster.dropped(worker, order) {
                return self.freed(now, worker, out);
            }
            return if state == OrderState::Late { self.try_close(now, out) } else { Ok(()) };
        }
        if let Some(dispute) = self.plan.scheme.dispute() {
            return Err(EngineError::Disputed { step: self.steps.next, dispute });
        }
        if !finite {
            self.round.failed(worker);
        }
        if finished {
            *self.roster.doing(worker) = Activity::Nothing;
            // Only now: of several tasks of one worker those that were finite before count no more
            // either, as schemes know workers, not single results, as missing.
            if self.round.has_failed(worker) {
                self.round.erase([worker], &mut self.plan.scheme);
                return self.proceed(now, out);
            }
            self.round.answered(worker, now);
            self.give(vec![worker], out);
        }
        self.try_close(now, out)
    }

    /// Goes on without what a worker will not do any more: in an open round, idle workers get it;
    /// after that the sums go on.
    fn proceed(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.round.phase().is_open() {
            self.give(self.roster.ready(), out);
            self.check_outlook(now, out)?;
            self.try_close(now, out)
        } else if self.round.phase().is_summing() {
            self.close_steps(now, out)
        } else {
            Ok(())
        }
    }

    /// A worker was told to drop its tasks, and has: nothing is lost.
    fn freed(
        &mut self,
        now: f64,
        worker: Worker,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        if self.roster.is_stale(worker) {
            return self.states.resync(
                worker,
                self.round.at(now),
                &mut self.roster,
                &self.leaving,
                out,
            );
        }
        self.give(vec![worker], out);
        self.try_close(now, out)
    }

    fn try_close(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if !self.round.phase().is_open() {
            return Ok(());
        }
        let missing = self.round.missing(&self.roster);
        let any_busy = self.roster.any_busy();
        if !self.plan.scheme.admits(&missing) {
            // Less than the whole batch only when no worker is left that could complete it.
            return if !any_busy && self.plan.scheme.outlook(&missing) == Outlook::Degradable {
                self.close(now, &missing, out)
            } else {
                Ok(())
            };
        }
        if any_busy {
            // A decode that is possible but amplifies rounding errors beyond its gate gets better
            // with every answer, as long as some are to come.
            let step = self.steps.next;
            let sound = self.plan.scheme.is_sound();
            if !sound.map_err(|source| EngineError::Gate { step, source })? {
                return Ok(());
            }
            if self.round.held_open(now, self.plan.facts(), &self.config) {
                return Ok(());
            }
        }
        self.close(now, &missing, out)
    }

    fn tick(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        // Before the round's own patience ends: that no answer counts is no fault of who answered.
        if self.trust.decides_by.is_some_and(|by| now >= by) {
            return self.settle_trust(now, out);
        }
        if self.states.is_over(now) {
            return self.nobody_returned(now, out);
        }
        // It was held open for later answers, and the time is up: close with those that are there.
        self.round.awake();
        if now < self.round.patience_ends() {
            return self.try_close(now, out);
        }
        if self.plan.is_blocked_by_leaving(&self.roster, &self.leaving) {
            return Err(self.plan.too_many_lost(self.steps.next, &self.roster, &self.leaving));
        }
        let mut missing = self.round.missing(&self.roster);
        if self.plan.scheme.admits(&missing)
            || self.plan.scheme.outlook(&missing) == Outlook::Degradable
        {
            return self.close(now, &missing, out);
        }
        // A worker that has answered once may be at its next task.
        missing.unite(&self.roster.out());
        Err(EngineError::MaxWait {
            step: self.steps.next,
            waited_seconds: self.round.waited(now),
            silent: missing,
        })
    }

    fn close(
        &mut self,
        now: f64,
        missing: &WorkerSet,
        out: &mut Vec<Action>,
    ) -> Result<(), EngineError> {
        self.died_since_close.clear();
        let decoded = self.plan.scheme.close(missing, &self.round.lateness(now));
        self.end_round(now, out);
        self.round.close();
        for job in decoded {
            let (results, report) = self.plan.decode(job)?;
            let step = self.open_steps.decoded(job, report, results);
            self.sum(step, out);
        }
        self.advance(now, out)
    }

    /// Asks for the sum of a step, once it is decoded, or for it again.
    fn sum(&mut self, step: Step, out: &mut Vec<Action>) {
        let facts = self.plan.facts();
        let trusted = facts.byzantine == 0 && !facts.mixture;
        out.extend(self.open_steps.sum(step, self.roster.able_to_hold(), trusted));
    }

    /// Ends the round that is open: tells all workers to abandon its tasks.
    fn end_round(&mut self, now: f64, out: &mut Vec<Action>) {
        let late_counts = self.plan.facts().takes_late();
        for (worker, order, task) in self.trust.drop_disputed() {
            out.push(Action::Discard { worker, task });
            // Its worker has done it, and will not say that it has dropped it.
            if self.roster.answered(worker, order, task) {
                *self.roster.doing(worker) = Activity::Nothing;
            }
        }
        let busy = self.roster.abandon_all(late_counts).into_iter();
        out.extend(busy.map(|(worker, order)| Action::Abandon { worker, order, late_counts }));
        if self.round.phase().is_open() {
            let (units, wrong) = (self.plan.facts().units, self.plan.scheme.wrong());
            out.push(Action::Close(self.round.report(now, units, wrong)));
        }
    }
}
