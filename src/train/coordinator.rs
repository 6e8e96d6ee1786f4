//! Carries out what the round engine decides: orders to workers, the fold, commit before apply.
//!
//! Each part of its state is in a module of its own: `inbox` what the engine is still to be told,
//! `results` what came with results, `gradients` what is made of them, `spent` what workers report
//! of their work, `waiting` what is waited for, `replicas` how far each worker is, `judging` whose
//! results are wrong, `record` what the next record is made of, `due` how long nothing has come.

mod blame;
mod choosing;
mod coming;
mod departing;
mod due;
mod ending;
mod failures;
mod gradients;
mod happened;
mod inbox;
mod judging;
mod record;
mod replicas;
mod results;
mod spent;
mod states;
mod stopper;
mod waiting;

use choosing::PolicyState;
use due::Patience;
use ending::EndState;
use gradients::{Gradients, PendingSum, StepGradient};
pub use happened::{Erasure, Incident, IncidentKind};
use inbox::Inbox;
use judging::JudgeState;
pub use judging::{Judge, JudgedGradient};
use record::Journal;
pub use record::{
    DecodeRecord, DoubtRecord, Flow, Observer, Outcome, PlanRecord, Progress, RoundRecord,
    RunError, StepRecord, UnderRecord,
};
use replicas::Replicas;
use results::Results;
use spent::Accounts;
pub use spent::SpentRecord;
pub(super) use stopper::LOOK;
pub use stopper::Stopper;
use waiting::Watchdog;
pub(super) use waiting::median;
pub use waiting::{MissingWorker, WaitingRound};

use super::run_clock::{Arrival, Cancellation, ClockMove, RunClock};
use crate::codes::Report;
use crate::gpu::Vector;
use crate::ids::{Step, Summand, Task, WeightedResult, Worker, WorkerSet};
use crate::run::RunConfig;
use crate::schedulers::{Action, Engine, EngineError, Input, OrderState};
use crate::sums::{DecodedSum, SumNotice};
use crate::transport::{
    Cancel, CheckedSum, Notice, Order, Stage, StepNews, SumRequest, Transport, UnneededItem,
};
use std::sync::Arc;
use std::time::Duration;
use tracing::info_span;

/// Drives one run over a transport.
pub struct Coordinator<T: Transport> {
    transport: T,
    engine: Engine,
    run_clock: RunClock,
    results: Results,
    spending: Accounts,
    watchdog: Watchdog,
    gradients: Gradients,
    inbox: Inbox,
    patience: Patience,
    replicas: Replicas,
    journal: Journal,
    judging: JudgeState,
    choosing: Option<PolicyState>,
    ending: EndState,
}

impl<T: Transport> Coordinator<T> {
    /// A coordinator that carries out what an engine decides, of the run that the engine makes.
    pub fn new(transport: T, engine: Engine, run_clock: RunClock) -> Self {
        let RunConfig { shape, limits, first, .. } = *engine.config();
        Self {
            transport,
            engine,
            results: Results::default(),
            spending: Accounts::new(shape.workers),
            watchdog: Watchdog::new(shape.workers),
            gradients: Gradients::new(limits.max_wait_seconds),
            inbox: Inbox::default(),
            patience: Patience::new(limits.max_wait_seconds),
            replicas: Replicas::new(shape.workers),
            journal: Journal::new(first, run_clock.now()),
            judging: JudgeState::new(shape.workers),
            run_clock,
            choosing: None,
            ending: EndState::default(),
        }
    }

    /// The run, as its engine has it.
    pub(super) fn config(&self) -> &RunConfig {
        self.engine.config()
    }

    /// Ends the run from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.ending.stopper.clone()
    }

    #[cfg(feature = "tcp")]
    pub(super) fn stopped_by(mut self, stopper: Stopper) -> Self {
        self.ending.stopper = stopper;
        self
    }

    /// Runs until all steps are decided and applied by all workers there, or until the observer or
    /// a [`Stopper`] stops it. Then it tells every worker.
    ///
    /// # Errors
    /// [`RunError`] when the run cannot go on.
    pub fn run(mut self, observer: &mut dyn Observer<T::Vector>) -> Result<Outcome, RunError> {
        let _span = info_span!("run", workers = self.config().shape.workers).entered();
        let mut came = None;
        let outcome = loop {
            if self.ending.stopper.is_stopped() {
                break Ok(Outcome::Stopped);
            }
            match self.advance(came.take(), observer) {
                Ok(Progress::Done(outcome)) => break Ok(outcome),
                Ok(Progress::Wait(patience)) => {
                    let patience = patience.map(|patience| patience.min(LOOK));
                    came = self.transport.receive(patience);
                    match patience {
                        None if came.is_none() => break Err(RunError::NobodyLeft),
                        Some(patience) if came.is_none() => {
                            self.patience.nothing_came(patience);
                        }
                        _ => self.patience.something_came(),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.note_end(outcome.as_ref().copied());
        self.stop();
        outcome
    }

    /// Does all that can be done without waiting, for those who wait themselves: until notices
    /// come, or at most so long. At the end, [`Coordinator::stop`] is to be called.
    ///
    /// # Errors
    /// [`RunError`] when the run cannot go on.
    pub fn pump(&mut self, observer: &mut dyn Observer<T::Vector>) -> Result<Progress, RunError> {
        let progress = self.pump_on(observer);
        match &progress {
            Ok(Progress::Wait(_)) => {}
            Ok(Progress::Done(outcome)) => self.note_end(Ok(*outcome)),
            Err(error) => self.note_end(Err(error)),
        }
        progress
    }

    fn pump_on(&mut self, observer: &mut dyn Observer<T::Vector>) -> Result<Progress, RunError> {
        loop {
            if self.ending.stopper.is_stopped() {
                return Ok(Progress::Done(Outcome::Stopped));
            }
            let came = self.transport.receive(Some(Duration::ZERO));
            let all = came.is_none();
            match self.advance(came, observer)? {
                Progress::Wait(_) if !all => {}
                progress => {
                    self.transport.flush();
                    return Ok(progress);
                }
            }
        }
    }

    /// What is kept of steps that are not decided, and of orders that are not answered.
    #[must_use]
    pub fn open_entries(&self) -> usize {
        self.results.len()
            + self.spending.len()
            + self.gradients.len()
            + self.journal.len()
            + self.replicas.open_entries()
            + self.inbox.len()
            + self.ending.failures.len()
            + self.run_clock.open_entries()
    }

    fn advance(
        &mut self,
        came: Option<(Worker, Notice)>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<Progress, RunError> {
        let mut progress = self.carry_on(came, observer);
        let mut now = self.run_clock.now();
        while matches!(progress, Ok(Progress::Wait(_))) {
            let lost = self.look_for_hangs(now, observer);
            // What is overdue is told the engine now: nothing else may come for long.
            if lost.is_none() && !self.inbox.has_inputs() {
                break;
            }
            progress = self.carry_on(lost, observer);
            now = self.run_clock.now();
        }
        let progress = match progress {
            // No worker has come in their place.
            Err(RunError::Engine(error))
                if self.engine.leaving().are_preempted()
                    && !matches!(error, EngineError::Tied { .. }) =>
            {
                return Ok(Progress::Done(Outcome::Preempted));
            }
            progress => progress.map_err(|error| self.stalled(error)),
        };
        let Some(left) = self.patience.left_to_settle(now) else {
            return progress;
        };
        match progress {
            // Nothing that was decided is to be relied on until it is known who is right.
            Err(RunError::Engine(EngineError::Tied { .. })) => return progress,
            Ok(Progress::Wait(_)) if self.engine.deadline().is_some() => return progress,
            Ok(Progress::Wait(patience))
                if left > 0.0 && !self.engine.states().are_settled(self.engine.roster()) =>
            {
                let left = Duration::from_secs_f64(left.min(1e9));
                return Ok(Progress::Wait(Some(
                    patience.map_or(left, |patience| patience.min(left)),
                )));
            }
            Ok(_) if self.engine.states().are_settled(self.engine.roster()) => {}
            Ok(_) => tracing::warn!(
                "all steps are committed, but some workers did not apply the last one within {} s",
                self.config().limits.max_wait_seconds
            ),
            Err(error @ RunError::Misuse { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(
                    "all steps are committed, but not every worker can apply them: {error}"
                );
            }
        }
        Ok(Progress::Done(match self.engine.leaving() {
            leaving if !leaving.ended_the_run() => Outcome::Finished,
            leaving if leaving.are_preempted() => Outcome::Preempted,
            _ => Outcome::Left,
        }))
    }

    /// An error, with what was waited for where that is why the run cannot go on.
    fn stalled(&self, error: RunError) -> RunError {
        match error {
            RunError::Engine(error @ EngineError::MaxWait { .. }) => match self.waiting() {
                Some(waiting) => RunError::Stalled { error, waiting: Box::new(waiting) },
                None => error.into(),
            },
            RunError::Engine(error) => {
                let is_lost = |worker| self.engine.roster().is_lost(worker);
                self.ending.failures.caused(error, self.journal.step, is_lost)
            }
            error => error,
        }
    }

    fn carry_on(
        &mut self,
        mut came: Option<(Worker, Notice)>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<Progress, RunError> {
        if !self.inbox.has_begun() {
            self.begin(came.take(), observer)?;
        }
        let mut actions = Vec::new();
        let mut first = came.and_then(|(worker, notice)| self.arrived(worker, notice, observer));
        loop {
            let input = match first.take().or_else(|| self.inbox.next_input()) {
                Some(input) => input,
                None => match self.inbox.next_notice() {
                    Some((worker, notice)) => self.input(worker, notice, observer),
                    None => match self.due()? {
                        ClockMove::Arrived { worker, notice } => {
                            self.input(worker, notice, observer)
                        }
                        ClockMove::Changed(change) => self.changed_by_pool(change, observer),
                        ClockMove::Deadline => Input::Tick,
                        ClockMove::Wait(patience) => return Ok(Progress::Wait(patience)),
                    },
                },
            };
            if let Some(error) = self.ending.failures.take_fatal() {
                return Err(error);
            }
            let _span = info_span!("round", round = self.journal.round.0).entered();
            let before = self.engine.roster().first_alive();
            let now = self.run_clock.now();
            self.gradients.sums.handle(&mut self.engine, now, input, &mut actions)?;
            // If that lets all of them go, one of them saves what is decided now.
            self.journal.saver = self.engine.roster().first_alive().or(before);
            let mut left = actions.drain(..);
            while let Some(action) = left.next() {
                let Some(outcome) = self.act(action, observer)? else { continue };
                // The step that it is over with is decided, so replicas apply it: those of scripts
                // are what is saved.
                for action in left {
                    if let Action::Apply { worker, step } = action {
                        self.apply(worker, step);
                    }
                }
                return Ok(Progress::Done(outcome));
            }
        }
    }

    /// What counts now of what came from a worker.
    fn arrived(
        &mut self,
        worker: Worker,
        notice: Notice,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Option<Input> {
        let came_at = self.run_clock.now();
        self.account(worker, &notice, came_at);
        if matches!(notice, Notice::Lost { .. }) {
            self.replicas.lost(worker);
        }
        let Arrival { now, unwanted } = self.run_clock.arrived(came_at, worker, notice);
        self.hold(worker);
        self.discard_all(worker, unwanted);
        let mut notice = now?;
        // A worker that is back was lost before.
        if matches!(notice, Notice::Joined { .. })
            && let Some(lost) = self.run_clock.withheld_loss(worker)
        {
            self.inbox.postpone(worker, std::mem::replace(&mut notice, lost));
        }
        Some(self.input(worker, notice, observer))
    }

    fn input(
        &mut self,
        worker: Worker,
        notice: Notice,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Input {
        let _span = info_span!("worker", worker = worker.0, round = self.journal.round.0).entered();
        self.watch(&notice);
        match notice {
            Notice::Done { order, task, aux, mut finite, .. } => {
                self.ending.failures.gets_through(worker, None);
                let mut digest = None;
                // What is void is thrown away, whatever is in it.
                let state = self.engine.roster().orders.state(worker, order, task);
                let is_void = state == OrderState::Void;
                if finite {
                    if !is_void {
                        (finite, digest) = self.look_at(worker, task, &aux, observer);
                    }
                    self.results.came(worker, task, aux);
                } else if !is_void {
                    self.tell(IncidentKind::Erased { worker, why: Erasure::NotFinite }, observer);
                }
                Input::Done { worker, order, task, finite, digest }
            }
            Notice::Idle { order, .. } if self.engine.roster().is_at(worker, order) => {
                self.give_up(worker, observer)
            }
            Notice::Idle { order, .. } => Input::Idle { worker, order },
            // These are for the worker's own end of a transport.
            Notice::Facts(_) | Notice::Announced { .. } => Input::Tick,
            Notice::Sum(SumNotice::Changed { task, .. }) => self.changed(worker, task, observer),
            Notice::Sum(notice) => {
                self.gradients.said(&self.engine, worker, notice);
                Input::Tick
            }
            // Of the state that it is about to give up.
            Notice::Applied { .. } | Notice::AppliedBefore { .. }
                if self.replicas.is_taking(worker) =>
            {
                Input::Tick
            }
            Notice::Applied { step, digest } => {
                self.replicas.applied(worker);
                self.ending.failures.gets_through(worker, Some(step));
                Input::Applied { worker, step, digest }
            }
            Notice::AppliedBefore { step, digest } => Input::Applied { worker, step, digest },
            Notice::State { needy, state } => self.handed_over(worker, needy, state, observer),
            Notice::StateLoaded { next, digests, unfit } => {
                self.taken((worker, next), &digests, unfit, observer)
            }
            Notice::Finish { after } => {
                if let Some(last) = self.engine.shortened_to(after) {
                    self.tell_of(last, IncidentKind::Ended { by: worker }, observer);
                }
                Input::Finish { after }
            }
            Notice::Joined { next } => {
                let again = !self.journal.absent.remove(&worker);
                if !again {
                    self.journal.new.insert(worker);
                }
                self.tell(IncidentKind::Joined { worker, again }, observer);
                self.back(worker, next)
            }
            Notice::StepUnavailable => {
                self.tell(IncidentKind::Missed { worker }, observer);
                Input::StepUnavailable { worker }
            }
            // It was given up before its connection was.
            Notice::Lost { .. } if self.engine.roster().is_lost(worker) => Input::Tick,
            Notice::Leaving { seconds } => self.leaves(worker, seconds, observer),
            Notice::Parting(word) => self.parts(worker, word),
            Notice::Lost { reason } => self.lost(worker, reason, observer),
        }
    }

    fn act(
        &mut self,
        action: Action,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<Option<Outcome>, RunError> {
        match action {
            Action::Compute { worker, order, round, tasks } => {
                self.journal.round = round;
                let facts = self.engine.plan().facts();
                let shares = tasks.iter().map(|(task, parts)| (*task, facts.load_of(parts)));
                let now = self.run_clock.now();
                self.run_clock.assigned(now, worker, (order, round), shares);
                self.ending.failures.gave(worker);
                self.journal.new.remove(&worker);
                // A modelled clock knows nothing of what it took in truth.
                if !self.run_clock.is_virtual() {
                    self.spending.assigned(worker, (order, round), &tasks, now);
                }
                let after = self.config().jobs.before(tasks.iter().map(|(task, _)| task.job));
                let cancel = Cancel::default();
                let order = Order::Compute { order, after, tasks, cancel, in_parts: false };
                self.transport.send(worker, order);
            }
            Action::Abandon { worker, order, late_counts } => {
                let Cancellation { now, cancel, unwanted } =
                    self.run_clock.abandoned(worker, order, late_counts);
                self.discard_all(worker, unwanted);
                if cancel {
                    self.transport.send(worker, Order::Abandon { order });
                    if self.spending.since(worker).is_some() {
                        self.watchdog.abandoned(worker, self.run_clock.now());
                    }
                }
                now.into_iter().for_each(|notice| self.inbox.postpone(worker, notice));
            }
            Action::Discard { worker, task } => {
                self.transport.forget(UnneededItem::Result { worker, task });
                self.results.take_aux(worker, task);
            }
            Action::Close(report) => {
                self.judging.found(&report.wrong);
                self.spending.closed(report.round, report.opened_at);
                let record = self.round_record(report);
                // Nothing hangs under a modelled clock.
                if !self.run_clock.is_virtual() {
                    self.watchdog.closed(&record);
                }
                self.journal.closed(record);
            }
            Action::Expect { step, terms } => {
                let nobody = self.nobody();
                self.make_sum(step, &terms, &nobody, Stage::Expected)?;
            }
            Action::Sum { step, terms, decode, counted } => {
                self.sum(step, &terms, decode, &counted)?;
            }
            Action::Erase { worker, step } => self.erase(worker, step, observer),
            Action::Restart { step } => self.begin_again(step),
            Action::Switched { .. } => {
                self.choosing.iter_mut().for_each(PolicyState::switched);
                self.journal.planned(self.engine.plan().current());
            }
            Action::Replanned { members, scheme, misfit, again } => {
                self.journal.planned(Some((members.clone(), &scheme)));
                let of = members.capacity();
                let members = members.iter().collect();
                self.tell(IncidentKind::Planned { members, of, scheme, misfit, again }, observer);
            }
            Action::Commit { step, digest, unverified, .. } => {
                return self.commit(step, digest, unverified, observer);
            }
            Action::Skip { step, units, because } => {
                self.gradients.take(step);
                let refused_because = Some(because);
                let record =
                    StepRecord { refused_because, ..self.record(step, None, units.clone()) };
                self.remember(step, StepGradient::Refused(units.into()));
                return self.show(&record, None, observer);
            }
            Action::Apply { worker, step } => self.apply(worker, step),
            Action::Diverged { worker, step } => {
                self.tell_of(step, IncidentKind::Diverged { worker }, observer);
            }
            Action::Resync { worker, from } => self.ask_for_state(worker, from, observer),
            Action::Restore { worker } => self.restore(worker, observer)?,
            Action::Dismiss { worker, why } => self.dismiss(worker, why, observer),
            Action::LetGo { worker, leaves } => self.let_go(worker, leaves, observer),
            Action::Finish => {
                self.run_clock.no_more_changes();
                self.patience.all_decided(self.run_clock.now());
            }
        }
        Ok(None)
    }

    fn nobody(&self) -> WorkerSet {
        WorkerSet::empty(self.config().shape.workers)
    }

    /// Has the decoded vector made and held; if it is known not to be finite, nothing is done with
    /// it but to find out why.
    fn sum(
        &mut self,
        step: Step,
        terms: &[Summand],
        mut decode: Report,
        counted: &WorkerSet,
    ) -> Result<(), RunError> {
        let sum = self.gradients.sums.of(step);
        let mut results: Vec<WeightedResult> = terms.iter().map(Summand::first_result).collect();
        let summed = if self.engine.plan().facts().mixture {
            let received = |piece| self.transport.received(piece);
            let (summed, report) = self.judging.decode(&mut results, received)?;
            decode = report;
            Some(summed)
        } else {
            self.make_sum(step, terms, counted, Stage::Decided)?
        };
        if let Some(summed) = summed.as_ref().filter(|summed| !summed.folded.finite) {
            tracing::debug!(
                "{sum}: digest {:016x} of a sum that is not finite",
                summed.folded.digest
            );
            self.blame(sum, &results);
            return Ok(());
        }
        let aux = self.results.decoded(&results);
        let sent = self.nobody();
        let decoded = summed.map(|CheckedSum { gradient, folded }| {
            Arc::new(DecodedSum {
                gradient: Arc::new(gradient),
                aux: aux.clone(),
                digest: folded.digest,
            })
        });
        self.gradients.made(step, PendingSum { sum, decoded, aux, parts: results, decode, sent });
        for worker in Worker::all(self.config().shape.workers) {
            self.hold(worker);
        }
        Ok(())
    }

    fn make_sum(
        &mut self,
        step: Step,
        terms: &[Summand],
        counted: &WorkerSet,
        stage: Stage,
    ) -> Result<Option<CheckedSum>, RunError> {
        let sum = self.gradients.sums.of(step);
        let (length, spares_one) =
            (self.config().length, self.engine.plan().spares_one(self.engine.roster()));
        let request = SumRequest { sum, terms, length, spares_one, counted, stage };
        Ok(self.transport.make_sum(request)?)
    }

    /// Sends the vectors that were made here to a worker that can take them now.
    fn hold(&mut self, worker: Worker) {
        if !self.run_clock.is_leaving(worker) {
            self.gradients.send(worker, |order| self.transport.send(worker, order));
        }
    }

    fn commit(
        &mut self,
        step: Step,
        digest: u64,
        unverified: Vec<Worker>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<Option<Outcome>, RunError> {
        let Some(mut pending) = self.gradients.take(step) else { return Ok(None) };
        let (sum, aux) = (pending.sum, pending.aux.clone());
        let made = pending.decoded.take();
        let vector = match &made {
            Some(decoded) => T::Vector::of_host(Arc::clone(&decoded.gradient)),
            None => self.transport.sum(sum),
        };
        let elsewhere = || {
            let gradient = vector.as_ref().and_then(T::Vector::host).cloned().unwrap_or_default();
            Arc::new(DecodedSum { gradient, aux: aux.clone(), digest })
        };
        let decoded = made.unwrap_or_else(elsewhere);
        self.name_wrong(observer);
        assert_eq!(decoded.digest, digest, "what is committed is what was folded");
        let mut record = self.record(step, Some((&pending, digest)), Vec::new());
        record.doubts.unverified.extend(unverified);
        self.remember(step, StepGradient::Decided { sum, decoded });
        let shown = vector.map(|gradient| DecodedSum { gradient, aux, digest });
        let outcome = self.show(&record, shown.as_ref(), observer)?;
        self.inbox.add(observer.parameters().map(|digest| Input::Own { step, digest }));
        Ok(outcome)
    }

    /// Writes what a worker has spent into its account, as its word comes.
    fn account(&mut self, worker: Worker, notice: &Notice, now: f64) {
        if matches!(notice, Notice::Done { .. } | Notice::Idle { .. } | Notice::Lost { .. }) {
            self.watchdog.heard(worker);
        }
        match notice {
            Notice::Done { order, spent, .. } => {
                self.spending.answered(worker, (*order, false), *spent, now);
            }
            Notice::Idle { order, spent } => {
                self.spending.answered(worker, (*order, true), *spent, now);
            }
            Notice::Lost { .. } => self.spending.lost(worker),
            _ => {}
        }
    }

    /// Tells the observer what happened during the current step.
    fn tell(&self, what: IncidentKind, observer: &mut dyn Observer<T::Vector>) {
        self.tell_of(self.journal.step, what, observer);
    }

    /// The same of another step.
    fn tell_of(&self, step: Step, what: IncidentKind, observer: &mut dyn Observer<T::Vector>) {
        observer.event(&Incident { step, round: self.journal.round, what });
    }

    /// Forgets the results of a step that are known; those that are not are unwanted when they
    /// come.
    fn begin_again(&mut self, step: Step) {
        self.gradients.take(step);
        for (worker, task) in self.results.begin_again() {
            self.transport.forget(UnneededItem::Result { worker, task });
        }
        let end = self.journal.step.jobs(self.config().jobs.micro_steps).start;
        self.transport.forget(UnneededItem::Step { step, end });
    }

    /// Has a worker forget unwanted results.
    fn discard_all(&mut self, worker: Worker, tasks: impl IntoIterator<Item = Task>) {
        for task in tasks {
            self.transport.forget(UnneededItem::Result { worker, task });
        }
    }

    /// Forgets what was collected for a step.
    fn release(&mut self, step: Step) {
        let end = step.jobs(self.config().jobs.micro_steps).end;
        self.transport.forget(UnneededItem::Step { step, end });
        self.results.release(end);
        self.ending.failures.release(end);
    }

    fn remember(&mut self, step: Step, decision: StepGradient) {
        self.release(step);
        let log_steps = self.config().log_steps;
        for vector in self.gradients.remember(step, decision, log_steps) {
            self.transport.forget(UnneededItem::Vector(vector));
        }
        self.journal.step = step.next();
    }

    fn show(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum<T::Vector>>,
        observer: &mut dyn Observer<T::Vector>,
    ) -> Result<Option<Outcome>, RunError> {
        if let Some(seconds) = self.watchdog.goes_on(self.run_clock.now()) {
            self.tell(IncidentKind::Unstuck { seconds }, observer);
        }
        let flow =
            self.run_clock.pause(|| observer.step(record, decoded)).map_err(RunError::Observer)?;
        self.choose(record);
        self.look_at_drain(observer);
        Ok((flow == Flow::Stop).then_some(Outcome::Stopped))
    }

    fn apply(&mut self, worker: Worker, step: Step) {
        let saver = self.journal.saver.unwrap_or(worker);
        let news = StepNews { saver, late: self.journal.late };
        let order = self.gradients.order(step, news);
        self.replicas.sent_step(worker);
        self.transport.send(worker, order);
    }
}
