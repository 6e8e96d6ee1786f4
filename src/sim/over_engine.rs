//! The trainer's engine on its virtual clock, without a trainer: what `train --clock virtual` will
//! do.
//!
//! [`simulate`](super::simulate) has rules of its own; here the rules are the engine's
//! ([`schedulers::Engine`](crate::schedulers::Engine)) and the times those of
//! [`VirtualClock`]. Nothing is computed: every answer is there in time, no gradient is bad, and
//! what is decoded is held and applied at once, as under a modelled clock, which stands still
//! meanwhile.

use super::outcome::Tally;
use super::{PlayedRound, RoundTime};
use crate::codes::Report;
use crate::codes::sequential::by_worker;
use crate::ids::{
    OrderId, Part, Round, Run, Step, Summand, Task, WeightedResult, Worker, WorkerSet,
};
use crate::schedulers::orders::{Cancellation, NextMove, Orders, TaskOutcome};
use crate::schedulers::{Action, Engine, EngineError, Input, RoundReport, VirtualClock};
use std::collections::VecDeque;
use thiserror::Error;

/// A run that cannot be predicted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OverEngineError<E: std::error::Error + 'static> {
    /// The delays cannot be had.
    #[error(transparent)]
    Delays(E),
    /// A worker's number is missing in its row, or is no lateness.
    #[error(
        "round {round}: {worker} is late by {}; it must be a finite number of seconds, 0 or more \
         (delays::Unit::lateness)",
        .lateness.map_or_else(|| "no number".into(), |lateness| lateness.to_string())
    )]
    Lateness {
        /// Which round, from 0.
        round: u64,
        /// Whose.
        worker: Worker,
        /// What was given.
        lateness: Option<f64>,
    },
    /// A step that takes no time that could be.
    #[error(
        "an uncoded step of {step_seconds} s: it must be a finite number of seconds, 0 or more"
    )]
    StepSeconds {
        /// What was given.
        step_seconds: f64,
    },
    /// More steps may be decided at once than are kept for those who have not applied them.
    #[error("log_steps is {log_steps}: a scheme of delay {delay} needs {} or more", delay + 1)]
    LogSteps {
        /// What was given.
        log_steps: u64,
        /// The scheme's delay.
        delay: usize,
    },
    /// The run would end here, as training would.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A step whose gradient is decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedStep {
    /// Which step.
    pub step: Step,
    /// The results in it, with their weights. Of a scheme of mixtures, those that a judge is given.
    pub results: Vec<WeightedResult>,
    /// How good the decode is.
    pub decode: Report,
}

impl DecodedStep {
    /// Workers whose results are in the gradient.
    #[must_use]
    pub fn survivors(&self, workers: usize) -> WorkerSet {
        self.by_worker(workers).0
    }

    /// Decode weights, one per worker; empty where workers have more than one result in the
    /// gradient, as in the trainer's record.
    #[must_use]
    pub fn weights(&self, workers: usize) -> Vec<f64> {
        self.by_worker(workers).1
    }

    fn by_worker(&self, workers: usize) -> (WorkerSet, Vec<f64>) {
        by_worker(workers, self.results.iter().map(|result| (result.worker, result.weight)))
    }
}

/// What happened in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineRound {
    /// Its number, when it was opened and closed, and who had answered by then, in seconds.
    pub report: RoundReport,
    /// All tasks that were given in it, each a run of one, in the order in which they were given.
    pub runs: Vec<Run>,
    /// Workers that were told at its close to drop tasks.
    pub missing: WorkerSet,
    /// Answers to tasks of earlier rounds that came in this one and counted.
    pub late: Vec<(Worker, Task)>,
    /// Steps all jobs of which were decoded at its close.
    pub decoded: Vec<DecodedStep>,
    /// Steps that were committed at its close: in order, so that one may wait for those before it.
    pub committed: Vec<Step>,
}

/// What a run comes to; times in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOutcome {
    /// Largest fraction of a batch that one worker touches in a round; for feedback schemes the
    /// mean.
    pub load: f64,
    /// Load given to all workers over the run, in batches per job; uncoded = 1.
    pub work: f64,
    /// When the last step was committed.
    pub total_time: f64,
    /// Rounds, free ones included. None is opened once all steps are decided.
    pub rounds: usize,
    /// Lengths of the rounds in which any worker had a task.
    pub round_time: RoundTime,
    /// Mean fraction of a batch in the gradients of the steps; 1 for exact schemes.
    pub coverage: f64,
    /// When each step was committed, the run's first step first.
    pub step_finish_time: Vec<f64>,
    /// Answers that counted though they came after the close of their round.
    pub late_counted: usize,
    /// Workers told to drop tasks at a close, by workers and rounds in which any worker had a task.
    pub dropped_fraction: f64,
}

/// Drives an engine over its run on the virtual clock of the trainer. `lateness` gives how much
/// later than the fastest each worker is in a round, in seconds, one row per round from round 0 on
/// ([`Unit::lateness`](crate::delays::Unit::lateness)); `watch` sees every round.
///
/// # Formula
/// ```text
/// arrival = assigned + c n load + lateness_i
/// ```
/// in seconds, with `c`, `n` and `load` as in [`VirtualClock`]; the lateness of a round is charged
/// once, to the first order. Answers at one instant come one after the other, lowest worker first.
/// A worker that is told to drop its tasks is free at once; where late answers count, it delivers
/// all the same what it has computed by then, when it is due.
///
/// For equal delays, survivors, closes, decoded jobs and weights are those of
/// `codedgrad-lab train --clock virtual` in every round. That holds while no worker dies or returns
/// wrong results, no gradient is refused and no policy chooses the schemes. The engine must be told
/// all that training's is: the number format
/// ([`RunConfig::format`](crate::run::RunConfig::format)), by which a decode may be refused, and,
/// where late units count for the next step, a scheme of that kind
/// ([`deferring_to_next_step`](crate::codes::SchemeSpec::deferring_to_next_step)). Of mixtures
/// ([`SchemeFacts::mixture`](crate::codes::sequential::SchemeFacts::mixture)) only the times and
/// who was waited for are told: a judge finds the weights in the results.
///
/// # Errors
/// [`OverEngineError`] when a row of lateness cannot be had or used, or the run would end with an
/// error, such as that of a round that stays open for longer than
/// [`Limits::max_wait_seconds`](crate::run::Limits::max_wait_seconds).
///
/// # Panics
/// When the engine has begun before.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::delays::Unit;
/// use codedgrad::run::{RunConfig, Shape};
/// use codedgrad::schedulers::{Engine, VirtualClock, Settings};
/// use codedgrad::sim::over_engine;
///
/// // Two workers hold each half of the batch. Worker 1 is 9 s later than the others.
/// let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(4, 8, 0..3)?;
/// let engine = Engine::new(scheme, RunConfig::new(Shape::new(4, 8), 1, 3), Settings::default())?;
/// let mut lateness =
///     || Ok::<_, std::io::Error>(Unit::Seconds.lateness(vec![1.0, 10.0, 1.5, 2.0], 4, 1.0));
/// let mut survivors = Vec::new();
/// let clock = VirtualClock { step_seconds: 1.0 };
/// let outcome = over_engine(engine, clock, &mut lateness, &mut |round| {
///     survivors.push(round.decoded[0].survivors(4).to_string());
/// })?;
/// // Half a batch takes one worker 1 s x 4 x 1/2.
/// assert_eq!((outcome.total_time, outcome.step_finish_time), (7.5, vec![2.5, 5.0, 7.5]));
/// assert_eq!(survivors[0], "0,2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn over_engine<E: std::error::Error + 'static>(
    engine: Engine,
    clock: VirtualClock,
    lateness: &mut dyn FnMut() -> Result<Vec<f64>, E>,
    watch: &mut dyn FnMut(&EngineRound),
) -> Result<EngineOutcome, OverEngineError<E>> {
    let step_seconds = clock.step_seconds;
    if !step_seconds.is_finite() || step_seconds < 0.0 {
        return Err(OverEngineError::StepSeconds { step_seconds });
    }
    check_log(&engine)?;
    let workers = engine.config().shape.workers;
    let mut driver = Driver {
        orders: Orders::new(workers, Some(clock)),
        now: 0.0,
        rows: Rows { next: lateness, row: Vec::new(), read: 0 },
        first: VecDeque::from([Input::Begin]),
        then: VecDeque::new(),
        journal: Journal::new(workers, watch),
        engine,
    };
    while !driver.go_on()? {}
    Ok(driver.outcome())
}

/// Whether all steps that may be decided at once are kept.
fn check_log<E: std::error::Error>(engine: &Engine) -> Result<(), OverEngineError<E>> {
    let (delay, log_steps) = (engine.plan().facts().delay, engine.config().log_steps);
    if log_steps <= delay as u64 {
        return Err(OverEngineError::LogSteps { log_steps, delay });
    }
    Ok(())
}

/// How late each worker is, round by round.
struct Rows<'a, E> {
    next: &'a mut dyn FnMut() -> Result<Vec<f64>, E>,
    /// The row that was read last.
    row: Vec<f64>,
    /// Rows that were read.
    read: u64,
}

impl<E: std::error::Error + 'static> Rows<'_, E> {
    fn lateness(&mut self, round: Round, worker: Worker) -> Result<f64, OverEngineError<E>> {
        while self.read <= round.0 {
            self.row = (self.next)().map_err(OverEngineError::Delays)?;
            self.read += 1;
        }
        let lateness = self.row.get(worker.index()).copied();
        lateness
            .filter(|late| late.is_finite() && *late >= 0.0)
            .ok_or_else(|| OverEngineError::Lateness { round: self.read - 1, worker, lateness })
    }
}

struct Driver<'a, E> {
    engine: Engine,
    orders: Orders<TaskOutcome>,
    now: f64,
    rows: Rows<'a, E>,
    /// What the engine is told once all that was decided before is carried out: that workers have
    /// dropped their tasks, and that the run begins.
    first: VecDeque<Input>,
    /// What workers hold and have applied: it comes after that, and the clock stands still until
    /// then.
    then: VecDeque<Input>,
    journal: Journal<'a>,
}

impl<E: std::error::Error + 'static> Driver<'_, E> {
    /// Tells the engine what comes next and carries out what it decides; whether the run is over.
    fn go_on(&mut self) -> Result<bool, OverEngineError<E>> {
        let told = self.first.pop_front().or_else(|| self.then.pop_front());
        let (input, late) = told.map_or_else(|| self.arrives(), |input| (input, None));
        let mut actions = Vec::new();
        self.engine.handle(self.now, input, &mut actions)?;
        if let Some((worker, task)) = late
            && !actions.contains(&Action::Discard { worker, task })
        {
            self.journal.late.push((worker, task));
        }
        for action in actions {
            if action == Action::Finish {
                return Ok(true);
            }
            self.act(action)?;
        }
        Ok(false)
    }

    /// Time goes on to what comes next, and to whose result it is if that comes late.
    fn arrives(&mut self) -> (Input, Option<(Worker, Task)>) {
        let (now, next) = self.orders.next(self.now, self.engine.deadline());
        self.now = now;
        match next {
            NextMove::Arrived {
                worker,
                answer: TaskOutcome::Done { order, task, finite },
                late,
            } => {
                let done = Input::Done { worker, order, task, finite, digest: None };
                (done, late.then_some((worker, task)))
            }
            NextMove::Deadline => (Input::Tick, None),
            NextMove::Arrived { .. } | NextMove::Wait(_) => {
                unreachable!("all answers are results that are there, and a run has a deadline")
            }
        }
    }

    fn act(&mut self, action: Action) -> Result<(), OverEngineError<E>> {
        match action {
            Action::Compute { worker, order, round, tasks } => {
                self.assign(worker, (order, round), &tasks)?;
            }
            Action::Abandon { worker, order, late_counts } => {
                let Cancellation { now, .. } =
                    self.orders.abandoned(self.now, worker, order, late_counts);
                self.first.extend(now.iter().map(|_| Input::Idle { worker, order }));
                self.journal.missing.insert(worker);
            }
            Action::Switched { .. } => check_log(&self.engine)?,
            Action::Expect { .. } | Action::Restart { .. } | Action::Discard { .. } => {}
            Action::Close(report) => self.journal.close(report),
            Action::Sum { step, terms, decode, .. } => {
                let results = terms.iter().map(Summand::first_result).collect();
                self.journal.decoded(step, results, decode);
                self.then.push_back(Input::Summed { step, digest: step.0 });
            }
            Action::Commit { step, .. } => self.journal.commit(step),
            Action::Apply { worker, step } => {
                self.then.push_back(Input::Applied { worker, step, digest: None });
            }
            Action::Erase { .. }
            | Action::Replanned { .. }
            | Action::Skip { .. }
            | Action::Dismiss { .. }
            | Action::LetGo { .. }
            | Action::Diverged { .. }
            | Action::Resync { .. }
            | Action::Restore { .. }
            | Action::Finish => {
                unreachable!("{action:?} in a run in which no worker fails and which is not over")
            }
        }
        Ok(())
    }

    fn assign(
        &mut self,
        worker: Worker,
        (order, round): (OrderId, Round),
        tasks: &[(Task, Vec<Part>)],
    ) -> Result<(), OverEngineError<E>> {
        let late_by = self.rows.lateness(round, worker)?;
        let facts = self.engine.plan().facts();
        let loads = tasks.iter().map(|(task, parts)| (*task, facts.load_of(parts)));
        self.orders.assigned(self.now, worker, order, (round, late_by), loads);
        for (task, parts) in tasks {
            let done = TaskOutcome::Done { order, task: *task, finite: true };
            self.orders.arrived(self.now, worker, done);
            let units = self.engine.plan().facts().units_of(parts);
            self.journal.runs.push(Run::one(worker, *task, units));
        }
        Ok(())
    }

    fn outcome(mut self) -> EngineOutcome {
        self.journal.show();
        let Journal { tally, late_counted, finish, .. } = self.journal;
        let jobs = finish.len() as u64 * self.engine.config().jobs.micro_steps;
        let added_up = tally.finish(self.engine.plan().facts(), jobs);
        EngineOutcome {
            load: added_up.load,
            work: added_up.work,
            total_time: finish.last().copied().unwrap_or(0.0),
            rounds: added_up.rounds,
            round_time: added_up.round_time,
            coverage: added_up.coverage,
            step_finish_time: finish,
            late_counted,
            dropped_fraction: added_up.straggler_fraction,
        }
    }
}

/// What is known of the current round, and of the one that closed before it.
struct Journal<'a> {
    watch: &'a mut dyn FnMut(&EngineRound),
    workers: usize,
    runs: Vec<Run>,
    missing: WorkerSet,
    late: Vec<(Worker, Task)>,
    /// The round that was closed last, which is shown once all that followed is known.
    closed: Option<EngineRound>,
    tally: Tally,
    late_counted: usize,
    /// When each step was committed.
    finish: Vec<f64>,
}

impl<'a> Journal<'a> {
    fn new(workers: usize, watch: &'a mut dyn FnMut(&EngineRound)) -> Self {
        Self {
            watch,
            workers,
            runs: Vec::new(),
            missing: WorkerSet::empty(workers),
            late: Vec::new(),
            closed: None,
            tally: Tally::new(0, workers),
            late_counted: 0,
            finish: Vec::new(),
        }
    }

    fn close(&mut self, report: RoundReport) {
        self.show();
        let played = PlayedRound {
            seconds: report.closed_at - report.opened_at,
            candidates: self.missing.len(),
            units: self.runs.iter().map(|run| u64::from(run.units)).sum(),
            ..PlayedRound::default()
        };
        self.tally.round(&played, self.runs.is_empty(), false, &[]);
        self.late_counted += self.late.len();
        let nobody = WorkerSet::empty(self.workers);
        self.closed = Some(EngineRound {
            report,
            runs: std::mem::take(&mut self.runs),
            missing: std::mem::replace(&mut self.missing, nobody),
            late: std::mem::take(&mut self.late),
            decoded: Vec::new(),
            committed: Vec::new(),
        });
    }

    fn decoded(&mut self, step: Step, results: Vec<WeightedResult>, decode: Report) {
        self.tally.covered(decode.coverage);
        let closed = self.closed.as_mut().expect("what is decoded is so at a close");
        closed.decoded.push(DecodedStep { step, results, decode });
    }

    fn commit(&mut self, step: Step) {
        let closed = self.closed.as_mut().expect("what is committed is so after a close");
        closed.committed.push(step);
        self.finish.push(closed.report.closed_at);
    }

    /// Shows the round that was closed last.
    fn show(&mut self) {
        if let Some(round) = self.closed.take() {
            (self.watch)(&round);
        }
    }
}
