//! The simulator: schemes on virtual time, against recorded or drawn delays.
//!
//! The same [`Scheme`]s that train are driven here by a row of delays per round. Schemes whose
//! workers answer once per round are closed by one of three rules ([`Close`]); feedback schemes are
//! followed task by task, or by runs of tasks where a scheme says that nothing depends on those in
//! between. [`simulate`] discards late answers: every worker starts each round afresh. By the rules
//! of training, where some of them count, [`over_engine`] drives the engine that trains. [`replay`]
//! asks something else: what it costs that workers come and go.

mod barrier;
mod outcome;
mod over_engine;
pub mod planner;
mod pool;
mod stepwise;

pub use outcome::{RoundTime, SimulationOutcome, percentile};
pub use over_engine::{DecodedStep, EngineOutcome, EngineRound, OverEngineError, over_engine};
pub use pool::{Pool, PoolChange, PoolError, PoolOutcome, PoolRules, replay};

use crate::codes::Verifier;
use crate::codes::sequential::{RoundEvent, Scheme};
use crate::delays::{Growth, in_few_digits};
use crate::ids::{Job, Run, Task, Worker, WorkerSet};
use serde::Serialize;
use thiserror::Error;

/// When a round of a scheme whose workers answer once per round is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Close {
    /// At the deadline `(1+mu) x fastest` if all later workers may be missing, else when all have
    /// answered.
    All,
    /// As `All`, but late workers are waited for one by one, fastest first, until the rest may be
    /// missing.
    Incremental,
    /// At the first arrival after which those who are still out may be missing.
    Decodable,
}

/// The rules of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// When rounds close.
    pub close: Close,
    /// Deadline tolerance: later than `(1+mu) x fastest` is late.
    pub mu: f64,
    /// How delays depend on load; they stay as they are if not given.
    pub growth: Option<Growth>,
    /// Seconds that a pull costs, for schemes whose workers ask for their tasks one at a time
    /// ([`SchemeFacts::pulls`]). The order that opens a round is in every delay and costs nothing
    /// more.
    ///
    /// [`SchemeFacts::pulls`]: crate::codes::sequential::SchemeFacts::pulls
    pub dispatch: f64,
}

impl Rules {
    /// The first of these numbers that cannot be.
    fn wrong(&self) -> Option<(&'static str, f64)> {
        let (base, slope, divides) = match self.growth {
            None => (0.0, 0.0, false),
            Some(Growth::Additive { base, slope }) => (base, slope, false),
            Some(Growth::Proportional { base }) => (base, 0.0, true),
        };
        let all = [("mu", self.mu), ("dispatch", self.dispatch), ("slope", slope)];
        let is_wrong = |value: f64| !value.is_finite() || value < 0.0;
        let wrong = all.into_iter().find(|(_, value)| is_wrong(*value));
        let base = ("base load", base);
        wrong.or((is_wrong(base.1) || divides && base.1 == 0.0).then_some(base))
    }

    /// Seconds that a worker recorded with `delay` needs for `load`.
    fn time(&self, delay: f64, load: f64) -> f64 {
        self.growth.map_or(delay, |growth| growth.time(delay, load))
    }
}

/// A simulation that cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimError<E: std::error::Error + 'static> {
    /// The delays cannot be had.
    #[error(transparent)]
    Delays(E),
    /// A rule that is no number, or negative.
    #[error("{name} = {}: must be a number of 0 or more", in_few_digits(*value))]
    Rule {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
    },
    /// A row for fewer workers.
    #[error("round {round} has {found} delays, and there are {workers} workers")]
    Short {
        /// Row of delays, from 1.
        round: usize,
        /// Its numbers.
        found: usize,
        /// How many are needed.
        workers: usize,
    },
    /// A delay that is no time.
    #[error("round {round}, worker {worker}: {delay} is no delay, a finite number of 0 or more")]
    Delay {
        /// Row of delays, from 1.
        round: usize,
        /// Whose, from 0.
        worker: usize,
        /// What stands there.
        delay: f64,
    },
    /// A delay that the load model would turn negative.
    #[error(
        "round {round}, worker {worker}: a delay of {} s is less than base load x slope = {} s; a \
         smaller slope or base load fits this trace",
        in_few_digits(*delay),
        in_few_digits(*least)
    )]
    Negative {
        /// Row of delays, from 1.
        round: usize,
        /// Whose, from 0.
        worker: usize,
        /// Which delay.
        delay: f64,
        /// What the load alone would cost.
        least: f64,
    },
    /// A scheme that loses a job even if the round waits for all workers.
    #[error("round {round}: the scheme cannot complete its jobs even if all workers answer")]
    Stuck {
        /// Row of delays, from 1.
        round: usize,
    },
}

/// What happened in one round, for those who draw it.
#[derive(Clone, Copy, Debug)]
pub struct RoundView<'a> {
    /// Number of the round, from 1.
    pub round: usize,
    /// How long it took.
    pub seconds: f64,
    /// All workers' tasks.
    pub runs: &'a [Run],
    /// Whose answers were not waited for.
    pub missing: &'a WorkerSet,
    /// Jobs that were complete at its end.
    pub decoded: &'a [Job],
    /// Whether no worker had a task.
    pub free: bool,
}

/// The deadline `(1+mu) x fastest` of some answers, and how many come later.
fn deadline(times: impl Iterator<Item = f64> + Clone, mu: f64) -> (f64, usize) {
    let deadline = (1.0 + mu) * times.clone().fold(f64::INFINITY, f64::min);
    (deadline, times.filter(|time| *time > deadline).count())
}

/// How one round went; by default no worker has a task.
#[derive(Default)]
struct PlayedRound {
    seconds: f64,
    missing: WorkerSet,
    /// Workers later than the deadline, whether or not it mattered.
    candidates: usize,
    waited_out: bool,
    /// Workers that had work and did not finish it.
    unfinished: usize,
    /// Units of everything that was handed out.
    units: u64,
    /// How late every worker was, by the length of the round, where it had work and finished it.
    late: Vec<Option<f64>>,
}

/// Hands workers what they should do now.
fn hand_out(
    scheme: &mut dyn Scheme,
    workers: impl Iterator<Item = Worker>,
    own: &mut Vec<Task>,
    runs: &mut Vec<Run>,
) {
    if let Some(fast) = scheme.fast_forward() {
        return workers.for_each(|worker| fast.runs(worker, runs));
    }
    for worker in workers {
        scheme.assign(worker, own);
        for task in own.drain(..) {
            let units = scheme.facts().units_of(scheme.parts(worker, task));
            runs.push(Run::one(worker, task, units));
        }
    }
}

/// Reports the results of whole runs.
fn report(scheme: &mut dyn Scheme, runs: impl Iterator<Item = Run>) {
    if let Some(fast) = scheme.fast_forward() {
        return runs.for_each(|run| fast.returned_run(run));
    }
    for run in runs {
        for task in run.tasks() {
            scheme.returned(run.worker, task);
        }
    }
}

/// Drives a scheme over its jobs `0..jobs`; `rows` gives one delay in seconds per worker and round,
/// at least as many as there are workers. It ends in any case.
///
/// # Errors
/// [`SimError`] when a row cannot be had or used, or a rule is no number of 0 or more.
///
/// ```
/// use codedgrad::codes::SchemeSpec;
/// use codedgrad::sim::{simulate, Close, Rules};
/// let mut scheme = "groups:s=1".parse::<SchemeSpec>()?.scheme(4, 2, 0..3)?;
/// let rules = Rules { close: Close::Decodable, mu: 1.0, growth: None, dispatch: 0.0 };
/// let mut rows = || Ok::<_, std::io::Error>(vec![1.0, 9.0, 2.0, 2.5]);
/// let outcome = simulate(&mut *scheme, 3, &mut rows, &rules, &mut |_| ()).unwrap();
/// assert_eq!((outcome.total_time, outcome.job_finish_time[2]), (6.0, 6.0));
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
pub fn simulate<E: std::error::Error + 'static>(
    scheme: &mut dyn Scheme,
    jobs: u64,
    rows: &mut dyn FnMut() -> Result<Vec<f64>, E>,
    rules: &Rules,
    watch: &mut dyn FnMut(RoundView<'_>),
) -> Result<SimulationOutcome, SimError<E>> {
    if let Some((name, value)) = rules.wrong() {
        return Err(SimError::Rule { name, value });
    }
    let facts = scheme.facts().clone();
    let mut tally = outcome::Tally::new(jobs, facts.workers);
    let mut player = stepwise::Player::default();
    let verifier = Verifier::of(&facts);
    let nobody = WorkerSet::empty(facts.workers);
    let mut runs = Vec::new();
    let mut decoded = Vec::new();
    let mut own = Vec::new();
    for round in 1..=jobs as usize + facts.delay {
        let mut row = rows().map_err(SimError::Delays)?;
        let workers = facts.workers;
        if row.len() < workers {
            return Err(SimError::Short { round, found: row.len(), workers });
        }
        row.truncate(workers);
        let least = rules.growth.map_or(0.0, |growth| growth.least());
        let allowed = |delay| rules.growth.map_or(delay >= 0.0, |growth| growth.allows(delay));
        let legal = |delay: f64| allowed(delay) && delay < f64::INFINITY;
        if let Some(worker) = row.iter().position(|delay| !legal(*delay)) {
            let delay = row[worker];
            let error = match delay.is_finite() && delay >= 0.0 {
                true => SimError::Negative { round, worker, delay, least },
                false => SimError::Delay { round, worker, delay },
            };
            return Err(error);
        }
        runs.clear();
        decoded.clear();
        scheme.on(RoundEvent::Opened { dead: &nobody });
        hand_out(scheme, Worker::all(facts.workers), &mut own, &mut runs);
        let free = runs.is_empty();
        let played = if free {
            PlayedRound {
                missing: nobody.clone(),
                late: vec![None; facts.workers],
                ..PlayedRound::default()
            }
        } else if facts.partial {
            player.play(scheme, &mut runs, &row, rules).ok_or(SimError::Stuck { round })?
        } else {
            let admits = |scheme: &dyn Scheme, missing: &WorkerSet| match &verifier {
                Some(verifier) => scheme.admits(&verifier.lacking(missing)),
                None => scheme.admits(missing),
            };
            barrier::play(scheme, &runs, &row, rules, &admits).ok_or(SimError::Stuck { round })?
        };
        if facts.error_max > 0.0 {
            tally.covered(scheme.quality().coverage);
        }
        scheme.close(&played.missing, &played.late, &mut decoded);
        let PlayedRound { seconds, missing, .. } = &played;
        watch(RoundView {
            round,
            seconds: *seconds,
            runs: &runs,
            missing,
            decoded: &decoded,
            free,
        });
        tally.round(&played, free, round <= jobs as usize, &decoded);
    }
    Ok(tally.finish(&facts, jobs))
}

#[cfg(test)]
mod tests;
