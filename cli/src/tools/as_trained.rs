//! `codedgrad simulate --rules trainer`: the trainer's engine on its virtual clock.

use super::source::Source;
use clap::Args;
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::sequential::SchemeFacts;
use codedgrad::ids::{Job, Step};
use codedgrad::run::{Jobs, Limits, RunConfig, Shape};
use codedgrad::schedulers::VirtualClock;
use codedgrad::sim::{EngineOutcome, EngineRound, OverEngineError, RoundView, over_engine};
use codedgrad::train::{Builder, Coordinator};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::families;
use codedgrad_shell::limits::refused;
use codedgrad_shell::output::Output;
use codedgrad_shell::units::{count, seconds, several};
use serde_json::json;
use std::fmt::Write as _;

/// What `codedgrad-lab train` would be told, by the names of its flags.
#[derive(Debug, Args)]
pub(crate) struct TrainerArgs {
    /// Interleaved models, whose steps are the jobs: schemes over T+1 rounds need T+1 of them
    /// [default: 1]
    #[arg(
        long,
        value_name = "M",
        value_parser = count::<u64>(1..=1 << 20),
        help_heading = "By the trainer's rules",
        hide_short_help = true
    )]
    models: Option<u64>,
    /// Jobs whose gradients are accumulated to one step of one model [default: 1]
    #[arg(
        long = "accumulate",
        value_name = "A",
        value_parser = count::<u64>(1..=1 << 20),
        help_heading = "By the trainer's rules",
        hide_short_help = true
    )]
    micro_steps: Option<u64>,
    /// Micro-batches per batch, the units in which batches are cut [default: two per worker]
    #[arg(
        long,
        value_name = "N",
        value_parser = count::<u32>(Shape::UNITS),
        help_heading = "By the trainer's rules",
        hide_short_help = true
    )]
    micro_batches: Option<u32>,
    /// Extra seconds an approximate scheme waits for more results [default: 0]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        help_heading = "By the trainer's rules",
        hide_short_help = true
    )]
    grace: Option<f64>,
    /// Fail when a round stays open for this many seconds [default: 60]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        help_heading = "By the trainer's rules",
        hide_short_help = true
    )]
    max_wait: Option<f64>,
}

/// What `simulate` is told beside that.
pub(crate) struct PredictionRequest<'a> {
    pub(crate) scheme: &'a str,
    pub(crate) spec: &'a SchemeSpec,
    pub(crate) jobs: u64,
    pub(crate) mu: f64,
    /// Seconds that a whole batch costs one worker, if that was said.
    pub(crate) slope: Option<f64>,
    /// Rounds of the delays to use.
    pub(crate) rounds: Option<usize>,
}

/// Refuses options of the simulator's own rules, each with whether it was given.
pub(crate) fn refuse_own_rules(given: &[(&str, bool)]) -> Result<(), Failure> {
    let Some((flag, _)) = given.iter().find(|(_, given)| *given) else { return Ok(()) };
    let why = match *flag {
        "--close" => {
            "the engine closes a round as soon as it can decode, under schemes over several rounds \
             not before (1+mu) times the first answer (--mu)"
        }
        "--accept" => "training always closes a round by look-ahead",
        "--dispatch" => "on the trainer's virtual clock a pull costs nothing",
        _ => {
            "the trainer computes a load L in L x --slope, and a worker's delay beyond the least \
             one comes on top under any load"
        }
    };
    Err(refused(format!("{flag} is not for --rules trainer: {why}")))
}

/// A run that was predicted.
pub(crate) struct Prediction {
    config: RunConfig,
    clock: VirtualClock,
    facts: SchemeFacts,
    pub(crate) outcome: EngineOutcome,
}

impl TrainerArgs {
    /// Refuses what no other rules have.
    pub(crate) fn refuse(&self) -> Result<(), Failure> {
        let given = [
            ("--models", self.models.is_some()),
            ("--accumulate", self.micro_steps.is_some()),
            ("--micro-batches", self.micro_batches.is_some()),
            ("--grace", self.grace.is_some()),
            ("--max-wait", self.max_wait.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(refused(format!("{flag} is for --rules trainer alone"))),
            None => Ok(()),
        }
    }

    fn jobs(&self) -> Jobs {
        Jobs { models: self.models.unwrap_or(1), micro_steps: self.micro_steps.unwrap_or(1) }
    }

    fn shape(&self, workers: usize) -> Shape {
        Shape::new(workers, self.micro_batches.unwrap_or(2 * workers as u32))
    }

    /// The run that `train` would make, but for its model: a gradient of one number.
    fn builder(&self, asked: &PredictionRequest<'_>, workers: usize) -> Result<Builder, Failure> {
        let (jobs, usual) = (self.jobs(), Limits::default());
        for (flag, number) in [("--models", jobs.models), ("--accumulate", jobs.micro_steps)] {
            if !asked.jobs.is_multiple_of(number) {
                return Err(refused(format!(
                    "--jobs {} is no multiple of {flag} {number}: train ends with whole steps of \
                     every model",
                    asked.jobs
                )));
            }
        }
        let run = Coordinator::builder(asked.spec.clone()).workers(workers).length(1);
        let run = run.units(self.shape(workers).units);
        let run = run.models(jobs.models).micro_steps(jobs.micro_steps);
        Ok(run.steps(asked.jobs / jobs.micro_steps).limits(Limits {
            max_wait_seconds: self.max_wait.unwrap_or(usual.max_wait_seconds),
            grace_seconds: self.grace.unwrap_or(usual.grace_seconds),
            mu: asked.mu,
            ..usual
        }))
    }

    /// Drives the engine; `watch` sees the rounds as they are drawn.
    pub(crate) fn predict(
        &self,
        asked: &PredictionRequest<'_>,
        delays: Source,
        output: &mut Output<'_>,
        watch: &mut dyn FnMut(&RoundView<'_>),
    ) -> Result<Prediction, Failure> {
        let PredictionRequest { scheme: text, spec, jobs, slope, rounds, .. } = *asked;
        let workers = delays.workers();
        let natural = spec.natural(workers).or_input()?;
        let run = self.builder(asked, workers)?;
        let shape = self.shape(workers);
        let engine = run.engine().or_else(|error| {
            // Says more of a scheme that does not fit.
            families::shaped(text, spec, shape, &self.jobs(), 0..jobs)?;
            Err(error).or_input()
        })?;
        let uneven = families::uneven(text, natural.units, shape.units);
        uneven.into_iter().for_each(|warning| output.note(format_args!("{warning}")));
        let (config, facts) = (*engine.config(), engine.plan().facts().clone());
        let step_seconds = slope.map_or(1.0, |slope| slope / workers as f64);
        let clock = VirtualClock { step_seconds };
        let mut rows = delays.lateness(rounds, clock.step_seconds)?;
        let mut lateness = || rows.next().unwrap_or_else(|| unreachable!("delays do not end"));
        // Steps of several jobs end one after the other.
        let stretches = if config.jobs.micro_steps > 1 { config.end.0 } else { 1 };
        let bar = output.progress_bar(jobs + stretches * facts.delay as u64, text);
        let mut drawn = DrawnRounds::new(config.jobs);
        let outcome = over_engine(engine, clock, &mut lateness, &mut |round| {
            drawn.draw(round, &mut *watch);
            bar.inc(1);
        });
        bar.finish_and_clear();
        let outcome = match outcome {
            Err(OverEngineError::Engine(error)) => return Err(error).or_work(),
            outcome => outcome.or_input()?,
        };
        Ok(Prediction { config, clock, facts, outcome })
    }
}

/// Rounds of the engine as those of the simulator are drawn.
struct DrawnRounds {
    jobs: Jobs,
    /// The first round of the current step and its first job, where steps of several jobs begin
    /// one after the other.
    step: (u64, Job),
}

impl DrawnRounds {
    fn new(jobs: Jobs) -> Self {
        Self { jobs, step: (0, Job(0)) }
    }

    fn draw(&mut self, round: &EngineRound, draw: impl FnOnce(&RoundView<'_>)) {
        let EngineRound { report, runs, missing, decoded, committed, .. } = round;
        let micro_steps = self.jobs.micro_steps;
        let complete: Vec<Job> = decoded
            .iter()
            .flat_map(|decoded| {
                decoded.step.jobs(micro_steps).start.0..decoded.step.jobs(micro_steps).end.0
            })
            .map(Job)
            .collect();
        let (first_round, first_job) = self.step;
        draw(&RoundView {
            // A job's age tells what its tasks are called; jobs begin one a round.
            round: (report.round.0 - first_round + first_job.0) as usize + 1,
            seconds: report.closed_at - report.opened_at,
            runs,
            missing,
            decoded: &complete,
            free: runs.is_empty(),
        });
        if let Some(Step(last)) = committed.last().filter(|_| micro_steps > 1) {
            self.step = (report.round.0 + 1, Step(last + 1).jobs(micro_steps).start);
        }
    }
}

impl Prediction {
    fn jobs(&self) -> u64 {
        self.outcome.step_finish_time.len() as u64 * self.config.jobs.micro_steps
    }

    /// When each job's step was committed.
    pub(crate) fn job_finish_time(&self) -> Vec<f64> {
        let jobs = self.config.jobs.micro_steps as usize;
        let finish = &self.outcome.step_finish_time;
        finish.iter().flat_map(|at| std::iter::repeat_n(*at, jobs)).collect()
    }

    pub(crate) fn shown(&self, scheme: &str) -> serde_json::Value {
        let Self { config, clock, facts, outcome } = self;
        let (time, jobs) = (outcome.round_time, self.jobs());
        json!({
            "scheme": scheme,
            "rules": "trainer",
            "workers": facts.workers,
            "jobs": jobs,
            "models": config.jobs.models,
            "micro_steps": config.jobs.micro_steps,
            "micro_batches": config.shape.units,
            "step_seconds": clock.step_seconds,
            "mu": config.limits.mu,
            "grace_seconds": config.limits.grace_seconds,
            "delay": facts.delay,
            "load": outcome.load,
            "work": outcome.work,
            "total_time": outcome.total_time,
            "time_per_job": outcome.total_time / jobs as f64,
            "rounds": outcome.rounds,
            "round_time": {"mean": time.mean, "p50": time.p50, "p95": time.p95, "p99": time.p99,
            "max": time.max},
            "jobs_decoded": jobs,
            "coverage": outcome.coverage,
            "job_finish_time": self.job_finish_time(),
            "late_counted": outcome.late_counted,
            "dropped_fraction": outcome.dropped_fraction,
        })
    }

    pub(crate) fn words(&self, scheme: &str) -> String {
        let Self { config, clock, facts, outcome } = self;
        let time = outcome.round_time;
        let jobs = self.jobs();
        let total = outcome.total_time;
        let mut text = format!(
            "{scheme}: {} of {} in {total:.3} s, {:.4} s per job, as trained on the virtual \
             clock.\n",
            several(jobs, "job"),
            several(facts.workers, "worker"),
            total / jobs as f64
        );
        let Jobs { models, micro_steps } = config.jobs;
        if models > 1 {
            let _ = writeln!(text, "The jobs are the steps of {models} interleaved models.");
        }
        if micro_steps > 1 {
            let _ = writeln!(text, "Every {micro_steps} jobs add up to one step.");
        }
        let _ = writeln!(
            text,
            "Rounds: {}, mean {:.4} s, median {:.4}, 95 % {:.4}, 99 % {:.4}, longest {:.4}.",
            outcome.rounds, time.mean, time.p50, time.p95, time.p99, time.max
        );
        let _ = writeln!(
            text,
            "Load {:.6} of a batch per worker and round, {:.3} times the uncoded work.",
            outcome.load, outcome.work
        );
        let _ = write!(
            text,
            "{:.2} % of the workers were told to drop their tasks when a round closed; {} counted \
             though later than the close.",
            100.0 * outcome.dropped_fraction,
            several(outcome.late_counted, "answer")
        );
        if outcome.coverage < 1.0 {
            let _ = write!(
                text,
                " The gradients lack {:.2} % of their batches: they are BIASED.",
                100.0 * (1.0 - outcome.coverage)
            );
        }
        let _ = writeln!(
            text,
            "\nA load L takes L x {} x {} s to compute; a worker's delay beyond the least one \
             comes on top.",
            facts.workers, clock.step_seconds
        );
        text
    }
}

#[cfg(test)]
mod tests;
