//! `--scheme auto`: uncoded steps are recorded, the planner is asked, the run goes on with what it
//! recommends.
//!
//! A run is cut into blocks of equal length. Each begins with some uncoded steps; from their
//! answers the planner tells which scheme would be fastest, and the block goes on with it if that
//! is a gain that matters, else with the scheme of the block before.

use super::observer::Line;
use super::plan::Plan;
use crate::{Failure, OrInput, OrWork};
use anyhow::anyhow;
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::{Growth, recorded_row};
use codedgrad::ids::Job;
use codedgrad::sim::planner::{Candidate, Question, plan as ask};
use codedgrad::sim::{Close, Rules, simulate};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

/// The text that asks for this.
pub(crate) const AUTO: &str = "auto";
/// A scheme is left for another only if that saves more than this share of its time.
const GAIN_MIN: f64 = 0.05;

/// What a step was trained with, and what was expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Using {
    pub(crate) scheme: String,
    pub(crate) mu: f64,
    /// Seconds per step that the planner foresaw; none for uncoded steps that are recorded.
    pub(crate) predicted: Option<f64>,
    /// Why, with the first step only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl Using {
    fn recording(plan: &Plan) -> Self {
        Self { scheme: SchemeSpec::uncoded().to_string(), mu: plan.mu, predicted: None, why: None }
    }

    pub(crate) fn spec(&self) -> Result<SchemeSpec, Failure> {
        self.scheme.parse().or_input()
    }
}

/// A stretch of a run under one scheme.
pub(crate) struct Leg {
    pub(crate) using: Using,
    /// One past its last step.
    pub(crate) until: u64,
}

/// What comes after the steps of a run so far.
pub(crate) fn next_leg(plan: &Plan, lines: &[Line], bar: &ProgressBar) -> Result<Leg, Failure> {
    let (step, end) = (lines.len() as u64, plan.all_steps());
    let block = step / plan.replan_every * plan.replan_every;
    let recorded = block + plan.probe;
    if step < recorded {
        return Ok(Leg { using: Using::recording(plan), until: recorded.min(end) });
    }
    let until = (block + plan.replan_every).min(end);
    if let Some(using) =
        lines.last().filter(|_| step > recorded).and_then(|line| line.using.clone())
    {
        return Ok(Leg { using: Using { why: None, ..using }, until });
    }
    let before = block.checked_sub(1).and_then(|last| lines.get(last as usize)?.using.clone());
    bar.set_message("asking the planner");
    let using =
        choose(plan, &lines[block as usize..], before.unwrap_or_else(|| Using::recording(plan)))?;
    let why = using.why.as_deref().unwrap_or_default();
    bar.suspend(|| eprintln!("{AUTO}: step {step}: {why}"));
    Ok(Leg { using, until })
}

/// Compares what is in use with what the planner finds best for a few recorded steps.
fn choose(plan: &Plan, recorded: &[Line], current: Using) -> Result<Using, Failure> {
    let rounds = recorded.iter().flat_map(|line| &line.record.rounds);
    let rows: Vec<Vec<f64>> =
        rounds.map(|round| recorded_row(&round.arrivals, &round.delays, round.seconds).0).collect();
    // What the fastest answer took is computing time; whatever is more does not grow with the load.
    let fastest = rows.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let growth =
        Growth::Additive { base: 1.0 / plan.workers as f64, slope: fastest * plan.workers as f64 };
    let question = Question {
        max_delay: plan.models as usize - 1,
        cut: (plan.micro_batches as usize / plan.workers).max(1),
        seed: plan.seed,
        ..Question::new(&rows, growth)
    };
    let answer = ask(&question, &|_| ()).or_work()?;
    let best = answer.candidates.iter().find(|candidate| candidate.exact && fits(plan, candidate));
    let best =
        best.ok_or_else(|| Failure::Work(anyhow!("no scheme fits {} workers", plan.workers)))?;
    let now = predicted(plan, &current, &rows, growth)?;
    let gain = 1.0 - best.time_per_job / now;
    let (recorded, name) = (rows.len(), &best.scheme);
    if gain > GAIN_MIN && *name != current.scheme {
        let why = format!(
            "from {recorded} recorded rounds, {name} should take {:.3} s per step instead of \
             {now:.3} s with {}: switching",
            best.time_per_job, current.scheme
        );
        let mu = best.mu.unwrap_or(plan.mu);
        return Ok(Using {
            scheme: name.clone(),
            mu,
            predicted: Some(best.time_per_job),
            why: Some(why),
        });
    }
    let why = format!(
        "from {recorded} recorded rounds, {name} would save {:.1} % of the time of {}: staying \
         with {}",
        100.0 * gain.max(0.0),
        current.scheme,
        current.scheme
    );
    Ok(Using { predicted: Some(now), why: Some(why), ..current })
}

/// Whether the run's batches can be cut as a scheme needs.
fn fits(plan: &Plan, candidate: &Candidate) -> bool {
    let fits = |spec: SchemeSpec| {
        let natural = plan.natural(&spec).ok()?;
        spec.scheme(plan.workers, plan.micro_batches, 0..1).ok()?;
        Some(natural.units <= plan.micro_batches)
    };
    candidate.delay < plan.models as usize
        && candidate.scheme.parse().ok().and_then(fits).unwrap_or(false)
}

/// Seconds per step that a scheme would have taken in recorded rounds.
fn predicted(
    plan: &Plan,
    using: &Using,
    rows: &[Vec<f64>],
    growth: Growth,
) -> Result<f64, Failure> {
    let jobs = rows.len() as u64;
    let mut scheme = using.spec()?.scheme(plan.workers, plan.micro_batches, 0..jobs).or_input()?;
    scheme.restart(Job(0)..Job(jobs));
    let close = if scheme.facts().delay > 0 { Close::Incremental } else { Close::Decodable };
    let rules = Rules { close, mu: using.mu, growth: Some(growth), dispatch: 0.0 };
    let mut next = rows.iter().cycle().cloned().map(Ok::<_, Infallible>);
    let mut row = || next.next().unwrap_or_else(|| Ok(Vec::new()));
    Ok(simulate(&mut *scheme, jobs, &mut row, &rules, &mut |_| ()).or_work()?.total_time
        / jobs as f64)
}

/// What was foreseen of a leg and what came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LegSummary {
    pub(crate) first_step: u64,
    pub(crate) steps: usize,
    pub(crate) scheme: String,
    pub(crate) predicted_seconds: Option<f64>,
    pub(crate) measured_seconds: f64,
    pub(crate) why: Option<String>,
}

/// The legs of a run, as far as it has any.
pub(crate) fn legs(lines: &[Line]) -> Vec<LegSummary> {
    let key = |line: &Line| {
        line.using.as_ref().map(|using| (using.scheme.clone(), using.predicted.map(f64::to_bits)))
    };
    let legs = lines.chunk_by(|a, b| key(a) == key(b));
    let summary = |leg: &[Line]| {
        let using = leg[0].using.clone()?;
        Some(LegSummary {
            first_step: leg[0].record.step,
            steps: leg.len(),
            scheme: using.scheme,
            predicted_seconds: using.predicted,
            measured_seconds: leg.iter().map(|line| line.record.seconds).sum::<f64>()
                / leg.len() as f64,
            why: using.why,
        })
    };
    legs.filter_map(summary).collect()
}
