//! Schemes replayed on a trace: the simulator, round after round or step after step.

use super::super::{Close, RoundView, Rules, SimulationOutcome, simulate};
use super::ClosingRules;
use crate::codes::SchemeSpec;
use crate::codes::sequential::{Accept, Horizon, Scheme};
use crate::delays::Growth;
use crate::ids::Job;
use std::convert::Infallible;

/// Deadline tolerance where the close does not ask for one.
const MU: f64 = 1.0;

/// A scheme and how its rounds close.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(super) scheme: SchemeSpec,
    /// When rounds close.
    pub(super) close: Close,
    /// Deadline tolerance, where the close asks for one.
    pub(super) mu: Option<f64>,
}

impl Setting {
    pub(crate) fn new(scheme: SchemeSpec) -> Self {
        Self { scheme, close: Close::Decodable, mu: None }
    }

    /// The same, closed as these rules have it.
    pub(super) fn under(self, rules: ClosingRules) -> Self {
        match rules {
            ClosingRules::Usual => self,
            ClosingRules::Paper => {
                Self { close: Close::All, mu: Some(ClosingRules::PAPER_MU), ..self }
            }
        }
    }
}

/// What a scheme came to on a trace.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) setting: Setting,
    pub(super) delay: usize,
    pub(super) load: f64,
    pub(super) work: f64,
    pub(super) coverage: f64,
    /// Whether every gradient is the whole batch's.
    pub(super) exact: bool,
    /// Whether all workers have the same load.
    pub(super) alike: bool,
    pub(super) time_per_job: f64,
    /// Seconds of each job's own round: where a job ends rounds later, those count for others.
    pub(super) seconds: Vec<f64>,
}

impl Run {
    /// Seconds per whole batch of samples: what drops a part of the batch needs more steps.
    pub(super) fn cost(&self) -> f64 {
        self.time_per_job / self.coverage.max(f64::MIN_POSITIVE)
    }
}

/// A trace, and how delays depend on load. A job is a round, or a step of `accumulate` rounds.
pub(crate) struct Replay {
    rounds: Vec<Vec<f64>>,
    /// Sums of rounds, one per step, where a step has several.
    steps: Option<Vec<Vec<f64>>>,
    growth: Growth,
    /// Seconds of a pull.
    dispatch: f64,
    accumulate: usize,
}

impl Replay {
    pub(crate) fn new(
        rounds: Vec<Vec<f64>>,
        growth: Growth,
        dispatch: f64,
        accumulate: usize,
    ) -> Self {
        let sum = |step: &[Vec<f64>]| {
            let mut total = vec![0.0; step[0].len()];
            step.iter().for_each(|row| {
                total.iter_mut().zip(row).for_each(|(total, delay)| *total += delay);
            });
            total
        };
        let steps = (accumulate > 1).then(|| rounds.chunks_exact(accumulate).map(sum).collect());
        Self { rounds, steps, growth, dispatch, accumulate }
    }

    /// The same rounds, with the workers in this order.
    pub(super) fn in_order(&self, workers: &[usize]) -> Self {
        let row = |round: &Vec<f64>| workers.iter().map(|worker| round[*worker]).collect();
        let rounds = self.rounds.iter().map(row).collect();
        Self::new(rounds, self.growth, self.dispatch, self.accumulate)
    }

    /// The delays of the jobs, one row each.
    pub(super) fn rows(&self) -> &[Vec<f64>] {
        self.steps.as_deref().unwrap_or(&self.rounds)
    }

    pub(super) fn jobs(&self) -> usize {
        self.rows().len()
    }

    pub(super) fn workers(&self) -> usize {
        self.rounds.first().map_or(0, Vec::len)
    }

    /// How the delays of [`Replay::rows`] grow.
    pub(super) fn growth(&self) -> Growth {
        match self.growth {
            Growth::Additive { base, slope } => {
                Growth::Additive { base, slope: slope * self.accumulate as f64 }
            }
            proportional => proportional,
        }
    }

    /// The scheme over the first `jobs` jobs of the trace; none where its parameters do not go
    /// together.
    pub(super) fn run(&self, setting: &Setting, jobs: usize) -> Option<Run> {
        let mut scheme = setting.scheme.over(self.horizon(jobs)).ok()?;
        let facts = scheme.facts().clone();
        let mut run = Run {
            setting: setting.clone(),
            delay: facts.delay,
            load: 0.0,
            work: 0.0,
            coverage: 0.0,
            exact: facts.error_max == 0.0,
            alike: facts.loads.is_empty(),
            time_per_job: 0.0,
            seconds: Vec::new(),
        };
        if facts.delay > 0 && self.accumulate > 1 {
            self.steps_of_rounds(&setting.scheme, jobs, &mut run)?;
        } else {
            let rows = if facts.delay > 0 { &self.rounds } else { self.rows() };
            let growth = if facts.delay > 0 { self.growth } else { self.growth() };
            let (outcome, seconds) =
                self.play(&mut *scheme, setting, jobs, growth, &mut rows.iter().cycle())?;
            run.load = outcome.load;
            run.work = outcome.work;
            run.coverage = outcome.coverage;
            run.time_per_job = outcome.total_time / jobs as f64;
            run.seconds = seconds.into_iter().take(jobs).collect();
        }
        Some(run)
    }

    /// Seconds of all jobs, each of a round of its own; none where the scheme cannot finish them.
    pub(crate) fn total(&self, setting: &Setting) -> Option<f64> {
        let jobs = self.jobs();
        let mut scheme = setting.scheme.over(self.horizon(jobs)).ok()?;
        let rows = &mut self.rounds.iter().cycle();
        let (outcome, _) = self.play(&mut *scheme, setting, jobs, self.growth, rows)?;
        Some(outcome.total_time)
    }

    /// A scheme over rounds within steps: what is open at the end of a step is finished before
    /// the next.
    fn steps_of_rounds(&self, spec: &SchemeSpec, steps: usize, run: &mut Run) -> Option<()> {
        let mut seconds = Vec::with_capacity(steps);
        for step in 0..steps {
            let mut rows = self.rounds.iter().cycle().skip(step * self.accumulate);
            let mut scheme = spec.over(self.horizon(self.accumulate)).ok()?;
            let (outcome, _) =
                self.play(&mut *scheme, &run.setting, self.accumulate, self.growth, &mut rows)?;
            run.load += outcome.load / steps as f64;
            run.work += outcome.work / steps as f64;
            run.coverage += outcome.coverage / steps as f64;
            seconds.push(outcome.total_time);
        }
        run.time_per_job = seconds.iter().sum::<f64>() / steps as f64;
        run.seconds = seconds;
        Some(())
    }

    fn horizon(&self, jobs: usize) -> Horizon {
        Horizon {
            workers: self.workers(),
            units: None,
            jobs: Job(0)..Job(jobs as u64),
            accept: Accept::Lookahead,
        }
    }

    /// What comes of it, and the seconds of each round; none where the scheme cannot finish all
    /// its jobs.
    fn play(
        &self,
        scheme: &mut dyn Scheme,
        setting: &Setting,
        jobs: usize,
        growth: Growth,
        rows: &mut dyn Iterator<Item = &Vec<f64>>,
    ) -> Option<(SimulationOutcome, Vec<f64>)> {
        let rules = Rules {
            close: setting.close,
            mu: setting.mu.unwrap_or(MU),
            growth: Some(growth),
            dispatch: self.dispatch,
        };
        let mut next = || Ok::<_, Infallible>(rows.next().cloned().unwrap_or_default());
        let mut seconds = Vec::with_capacity(jobs);
        let mut watch = |seen: RoundView<'_>| seconds.push(seen.seconds);
        let outcome = simulate(scheme, jobs as u64, &mut next, &rules, &mut watch).ok()?;
        (outcome.jobs_decoded == jobs).then_some((outcome, seconds))
    }
}

#[cfg(test)]
mod tests;
