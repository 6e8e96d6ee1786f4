//! The state machine of a run: rounds, decodes, commits.
//!
//! A driver feeds [`Input`]s with the time at which they happened and carries out the [`Action`]s that
//! come back, in order. One round goes `Assign* .. Abandon* Fold .. Commit Apply*`: the results are
//! collected until the scheme admits whoever is missing, folded, and applied only after the decoded
//! vector is held by a live worker (two where there are two).

use super::events::{Action, EngineError, Input, RoundReport};
use super::roster::{Doing, Roster};
use crate::codes::sequential::Scheme;
use crate::codes::{Facts, Gate, Report, Wire};
use crate::ids::{Job, Round, Task, Units, Worker, WorkerSet};

/// What the engine is told about a run beside its scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Seconds a round may stay open before the run gives up on whoever never came.
    pub max_wait_seconds: f64,
    /// Seconds an approximate scheme waits for more arrivals after it could close; exact schemes never do.
    pub grace_seconds: f64,
    /// Number format of messages, for the gate.
    pub wire: Wire,
    /// Decoded steps kept for those who missed some; whoever misses more takes over a peer's state.
    pub log_steps: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    NotBegun,
    Collecting,
    Folding { job: Job, holders: Vec<(Worker, u64)> },
    Finished,
}

/// The state machine of one run.
///
/// ```
/// use codedgrad::codes::{SchemeSpec, Wire};
/// use codedgrad::ids::{Job, Worker};
/// use codedgrad::schedulers::{Action, Config, Engine, Input};
/// let scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(2, 2, 0..1)?;
/// let config = Config { max_wait_seconds: 60.0, grace_seconds: 0.0, wire: Wire::F32, log_steps: 8 };
/// let mut engine = Engine::new(scheme, config, Job(0)..Job(1));
/// let mut actions = Vec::new();
/// engine.handle(0.0, Input::Begin, &mut actions).unwrap();
/// let Action::Assign { worker, task, .. } = actions[0].clone() else { panic!() };
/// actions.clear();
/// engine.handle(1.0, Input::Done { worker, task, finite: true }, &mut actions).unwrap();
/// assert_eq!(actions[0], Action::Abandon { worker: Worker(1) });
/// assert!(matches!(&actions[1], Action::Fold { folds, .. } if folds.len() == 1));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub struct Engine {
    scheme: Box<dyn Scheme>,
    config: Config,
    gate: Gate,
    roster: Roster,
    phase: Phase,
    job: Job,
    end: Job,
    round: u64,
    attempt: u32,
    opened_at: f64,
    closes_at: Option<f64>,
    arrivals: Vec<Option<f64>>,
    erased: WorkerSet,
    assigned_units: u64,
}

impl Engine {
    /// An engine for a range of jobs; the first round opens with [`Input::Begin`].
    #[must_use]
    pub fn new(scheme: Box<dyn Scheme>, config: Config, jobs: std::ops::Range<Job>) -> Self {
        let facts = scheme.facts();
        let (workers, units) = (facts.workers, facts.units);
        let gate_facts = Facts {
            workers,
            share_weights: vec![1.0 / f64::from(units); units as usize],
            tolerance: facts.tolerance,
            load: facts.load,
            error_max: facts.error_max,
        };
        Self {
            gate: Gate::new(config.wire, &gate_facts),
            roster: Roster::new(workers, jobs.start),
            phase: Phase::NotBegun,
            job: jobs.start,
            end: jobs.end,
            round: jobs.start.0,
            attempt: 0,
            opened_at: 0.0,
            closes_at: None,
            arrivals: vec![None; workers],
            erased: WorkerSet::empty(workers),
            assigned_units: 0,
            scheme,
            config,
        }
    }

    /// When the driver should send a [`Input::Tick`] if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<f64> {
        let patience = self.opened_at + self.config.max_wait_seconds;
        (self.phase == Phase::Collecting).then(|| self.closes_at.unwrap_or(patience).min(patience))
    }

    /// Takes in one event and appends what has to be done.
    ///
    /// # Errors
    /// [`EngineError`] when the run cannot go on; the engine must not be used afterwards.
    ///
    /// # Panics
    /// When a run is begun twice.
    pub fn handle(&mut self, now: f64, input: Input, out: &mut Vec<Action>) -> Result<(), EngineError> {
        match input {
            Input::Begin => {
                assert_eq!(self.phase, Phase::NotBegun, "a run begins once");
                self.open_round(now, out)
            }
            Input::Done { worker, task, finite } => self.done(now, worker, task, finite, out),
            Input::Freed { worker } => self.freed(now, worker, out),
            Input::Lost { worker, kept } => self.lost(now, worker, kept, out),
            Input::Overflowed { job, attempt } => match self.phase {
                Phase::Folding { job: open, .. } if (open, self.attempt) == (job, attempt) => {
                    let everything = Units { start: 0, end: self.scheme.facts().units };
                    self.skip(now, vec![everything], out)
                }
                _ => Ok(()),
            },
            Input::Held { worker, job, attempt, digest } => self.held(now, worker, (job, attempt, digest), out),
            Input::Applied { worker, job, digest } => self.applied(worker, job, digest, out),
            Input::Synced { worker, next } => {
                self.roster.synced(worker, next);
                let jobs = self.roster.unsent(worker, self.job);
                out.extend(jobs.into_iter().map(|job| Action::Apply { worker, job }));
                self.give(worker, out);
                Ok(())
            }
            Input::Tick => self.tick(now, out),
        }
    }

    fn open_round(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.job == self.end {
            self.phase = Phase::Finished;
            out.push(Action::Finish);
            return Ok(());
        }
        self.phase = Phase::Collecting;
        self.attempt = 0;
        self.opened_at = now;
        self.closes_at = None;
        self.arrivals.fill(None);
        self.erased = WorkerSet::empty(self.arrivals.len());
        self.assigned_units = 0;
        self.offer(out);
        for worker in self.roster.dead().iter() {
            self.scheme.gone(worker);
        }
        self.offer(out);
        self.check_hope(now, out)
    }

    /// Gives an idle worker its tasks of this round, if there are any.
    fn give(&mut self, worker: Worker, out: &mut Vec<Action>) {
        if self.phase != Phase::Collecting || *self.roster.doing(worker) != Doing::Nothing || self.erased.contains(worker) {
            return;
        }
        let mut tasks = Vec::new();
        self.scheme.assign(worker, &mut tasks);
        for &task in &tasks {
            let parts = self.scheme.parts(worker, task).to_vec();
            self.assigned_units += parts.iter().map(|part| u64::from(part.units.count())).sum::<u64>();
            out.push(Action::Assign { worker, task, parts });
        }
        if !tasks.is_empty() {
            *self.roster.doing(worker) = Doing::Tasks(tasks);
        }
    }

    fn done(&mut self, now: f64, worker: Worker, task: Task, finite: bool, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let finished = match self.roster.doing(worker) {
            Doing::Tasks(tasks) => {
                tasks.retain(|open| *open != task);
                tasks.is_empty()
            }
            Doing::Leaving => return self.freed(now, worker, out),
            _ => return Ok(()),
        };
        if finite {
            self.scheme.returned(worker, task);
        }
        if finished {
            *self.roster.doing(worker) = Doing::Nothing;
        }
        if !finite {
            return self.erase(now, worker, out);
        }
        if finished {
            self.arrivals[worker.index()] = Some(now - self.opened_at);
            self.give(worker, out);
        }
        self.try_close(now, out)
    }

    /// A worker counts for nothing more in this round.
    fn erase(&mut self, now: f64, worker: Worker, out: &mut Vec<Action>) -> Result<(), EngineError> {
        self.erased.insert(worker);
        self.without(now, worker, out)
    }

    /// Goes on without a worker: what it held goes to whoever is idle.
    fn without(&mut self, now: f64, worker: Worker, out: &mut Vec<Action>) -> Result<(), EngineError> {
        self.scheme.gone(worker);
        self.offer(out);
        self.check_hope(now, out)?;
        self.try_close(now, out)
    }

    fn offer(&mut self, out: &mut Vec<Action>) {
        for worker in self.roster.ready() {
            self.give(worker, out);
        }
    }

    fn freed(&mut self, now: f64, worker: Worker, out: &mut Vec<Action>) -> Result<(), EngineError> {
        match self.roster.doing(worker) {
            doing @ Doing::Leaving => *doing = Doing::Nothing,
            doing @ Doing::Tasks(_) => {
                *doing = Doing::Nothing;
                return self.erase(now, worker, out);
            }
            _ => return Ok(()),
        }
        if self.roster.is_stale(worker) {
            return self.resync(worker, out);
        }
        self.give(worker, out);
        Ok(())
    }

    fn resync(&mut self, worker: Worker, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let from = self.roster.provider(worker).ok_or(EngineError::NoState { worker })?;
        *self.roster.doing(worker) = Doing::Syncing { from };
        out.push(Action::Resync { worker, from });
        Ok(())
    }

    fn lost(&mut self, now: f64, worker: Worker, kept: bool, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if *self.roster.doing(worker) == Doing::Dead {
            return Ok(());
        }
        *self.roster.doing(worker) = Doing::Dead;
        for needy in self.roster.waiting_for(worker) {
            self.resync(needy, out)?;
        }
        let answered = self.arrivals[worker.index()].is_some();
        if kept && self.scheme.facts().partial && self.phase == Phase::Collecting {
            return self.without(now, worker, out);
        }
        if kept && answered {
            return self.check_held(now, out);
        }
        self.arrivals[worker.index()] = None;
        let mut reopened = Vec::new();
        match &self.phase {
            Phase::Folding { job, holders } => {
                if holders.iter().any(|holder| holder.0 != worker) || !answered {
                    return self.check_held(now, out);
                }
                let job = *job;
                self.attempt += 1;
                self.scheme.lost(worker, &mut reopened);
                if reopened.is_empty() {
                    return self.fold(now, job, out);
                }
                self.phase = Phase::Collecting;
            }
            _ => self.scheme.lost(worker, &mut reopened),
        }
        if self.phase == Phase::Collecting {
            self.offer(out);
            self.check_hope(now, out)?;
            self.try_close(now, out)?;
        }
        Ok(())
    }

    /// Whoever has not answered: still computing, erased or dead.
    fn missing(&self) -> WorkerSet {
        let all = Worker::all(self.arrivals.len());
        WorkerSet::of(self.arrivals.len(), all.filter(|worker| self.arrivals[worker.index()].is_none()))
    }

    /// Gives up at once when even the best outcome of this round cannot be decoded.
    fn check_hope(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let dead = self.roster.dead();
        let mut hopeless = dead.clone();
        for worker in self.erased.iter() {
            hopeless.insert(worker);
        }
        if self.scheme.hopes(&hopeless) || self.scheme.salvages(&hopeless) {
            return Ok(());
        }
        if self.scheme.hopes(&dead) || self.scheme.salvages(&dead) {
            return self.refuse(now, &hopeless, out);
        }
        Err(EngineError::TooManyLost { job: self.job, dead, tolerance: self.scheme.facts().tolerance })
    }

    fn try_close(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.phase != Phase::Collecting {
            return Ok(());
        }
        let missing = self.missing();
        let somebody_out = self.roster.somebody_out();
        if self.scheme.admits(&missing) {
            if somebody_out && self.gate.check(&self.scheme.quality()).is_err() {
                return Ok(());
            }
            let changeable = self.scheme.facts().error_max > 0.0 && somebody_out;
            if changeable && self.config.grace_seconds > 0.0 {
                let closes_at = *self.closes_at.get_or_insert(now + self.config.grace_seconds);
                if now < closes_at {
                    return Ok(());
                }
            }
            return self.close(now, &missing, out);
        }
        if !somebody_out && self.scheme.salvages(&missing) {
            return self.close(now, &missing, out);
        }
        Ok(())
    }

    fn tick(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let missing = self.missing();
        if self.closes_at.is_some() || self.scheme.admits(&missing) || self.scheme.salvages(&missing) {
            return self.close(now, &missing, out);
        }
        Err(EngineError::MaxWait { job: self.job, waited_seconds: now - self.opened_at, silent: missing })
    }

    fn close(&mut self, now: f64, missing: &WorkerSet, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let mut decoded = Vec::new();
        self.scheme.close(missing, &mut decoded);
        assert_eq!(decoded, [self.job], "one job per round");
        self.fold(now, self.job, out)
    }

    fn fold(&mut self, now: f64, job: Job, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let mut folds = Vec::new();
        let decode = self.scheme.settle(job, &mut folds);
        self.gate.check(&decode).map_err(|source| EngineError::Gate { job, source })?;
        self.abandon_all(out);
        let report = self.round_report(now, decode);
        self.phase = Phase::Folding { job, holders: Vec::new() };
        out.push(Action::Fold { job, attempt: self.attempt, folds, report });
        Ok(())
    }

    fn abandon_all(&mut self, out: &mut Vec<Action>) {
        out.extend(self.roster.send_home().into_iter().map(|worker| Action::Abandon { worker }));
    }

    fn round_report(&self, now: f64, decode: Report) -> RoundReport {
        RoundReport {
            round: Round(self.round),
            opened_at: self.opened_at,
            closed_at: now,
            arrivals: self.arrivals.clone(),
            erased: self.erased.iter().collect(),
            work: self.assigned_units as f64 / f64::from(self.scheme.facts().units),
            decode,
        }
    }

    fn refuse(&mut self, now: f64, hopeless: &WorkerSet, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let units = self.scheme.uncovered(hopeless);
        self.scheme.close(&self.missing(), &mut Vec::new());
        self.abandon_all(out);
        self.skip(now, units, out)
    }

    /// Decides that the step at hand is not taken.
    fn skip(&mut self, now: f64, units: Vec<Units>, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let nothing = Report { decodable: false, residual: 1.0, amplification: 0.0, coverage: 0.0, error: 1.0 };
        let report = self.round_report(now, nothing);
        out.push(Action::Refuse { job: self.job, units, report });
        self.decided(now, out)
    }

    fn held(&mut self, now: f64, worker: Worker, held: (Job, u32, u64), out: &mut Vec<Action>) -> Result<(), EngineError> {
        let Phase::Folding { job, holders } = &mut self.phase else { return Ok(()) };
        let (of_job, of_attempt, digest) = held;
        if (of_job, of_attempt) != (*job, self.attempt) {
            return Ok(());
        }
        if holders.first().is_some_and(|first| first.1 != digest) {
            return Err(EngineError::DifferentBytes { job: *job, worker });
        }
        holders.push((worker, digest));
        self.check_held(now, out)
    }

    /// Commits once enough live workers hold the decoded vector.
    fn check_held(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let alive = self.roster.alive();
        let Phase::Folding { job, holders } = &self.phase else { return Ok(()) };
        let job = *job;
        if alive.is_empty() {
            return Err(EngineError::TooManyLost { job, dead: alive.complement(), tolerance: self.scheme.facts().tolerance });
        }
        let holding: Vec<u64> = holders.iter().filter(|holder| alive.contains(holder.0)).map(|holder| holder.1).collect();
        if holding.len() >= alive.len().min(2) {
            out.push(Action::Commit { job, attempt: self.attempt, digest: holding[0] });
            self.decided(now, out)?;
        }
        Ok(())
    }

    /// The job at hand is committed or refused: everybody is told, and the next round opens.
    fn decided(&mut self, now: f64, out: &mut Vec<Action>) -> Result<(), EngineError> {
        let job = self.job;
        let receivers = self.roster.send(job, self.config.log_steps);
        out.extend(receivers.into_iter().map(|worker| Action::Apply { worker, job }));
        self.job = job.next();
        self.round += 1;
        for worker in self.roster.stale_idle() {
            self.resync(worker, out)?;
        }
        self.open_round(now, out)
    }

    fn applied(&mut self, worker: Worker, job: Job, digest: Option<u64>, out: &mut Vec<Action>) -> Result<(), EngineError> {
        for diverged in self.roster.applied(worker, job, digest) {
            self.roster.mark_stale(diverged);
            out.push(Action::Diverged { worker: diverged, job });
            if let doing @ Doing::Tasks(_) = self.roster.doing(diverged) {
                *doing = Doing::Leaving;
                out.push(Action::Abandon { worker: diverged });
            }
        }
        for worker in self.roster.stale_idle() {
            self.resync(worker, out)?;
        }
        Ok(())
    }
}
