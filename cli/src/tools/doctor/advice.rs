//! What to try first about a finding.

use super::{DoctorArgs, STDIN};
use codedgrad::doctor::{Examination, Finding, Problem};
use codedgrad::sim::planner::Plan;
use codedgrad_shell::folder::DRAIN;
use codedgrad_shell::itself::{self, quoted};
use std::fmt::Write as _;
use std::path::Path;

/// What commands are made of: how the run was asked about, and what was found.
pub(super) struct Advice<'a> {
    pub(super) args: &'a DoctorArgs,
    pub(super) number: Option<usize>,
    pub(super) found: &'a Examination,
    pub(super) plan: Option<&'a Plan>,
    /// What workers are called, if they have more than numbers.
    pub(super) names: &'a [String],
    /// What the trace does not show of what it was made of.
    pub(super) not_seen: &'a [String],
    /// The folder of a run that is under way.
    pub(super) under_way: Option<&'a Path>,
}

impl Advice<'_> {
    /// What a worker is called.
    pub(super) fn name(&self, worker: usize) -> String {
        self.names.get(worker).cloned().unwrap_or_else(|| worker.to_string())
    }
}

impl Advice<'_> {
    /// The command to try first, where there is one.
    pub(super) fn command(&self, finding: &Finding) -> Option<String> {
        match &finding.problem {
            // A run under way can do without them; else it is asked whether a code is worth it as
            // long as they are as slow.
            Problem::ConstantlySlow { workers, .. } => {
                self.drain(workers).or_else(|| self.would_code(self.args.from))
            }
            Problem::DeadWorkers { .. }
            | Problem::SlightlySlow { .. }
            | Problem::SlowAtTimes { .. }
            | Problem::Waiting => self.would_code(self.args.from),
            Problem::SlowerSince { worker, since, .. } => {
                self.drain(&[*worker]).or_else(|| self.would_code(Some(since.step)))
            }
            Problem::EverybodySlowerSince { since, .. } => {
                self.again(Some(since.step), self.args.to)
            }
            Problem::SlowRounds { steps: (first, last), .. } if first < last => {
                self.again(Some(*first), Some(*last))
            }
            Problem::OtherScheme { scheme, .. } => self.simulated(scheme),
            _ => None,
        }
    }

    /// Has a run that is under way done without some workers.
    fn drain(&self, workers: &[usize]) -> Option<String> {
        let file = quoted(&self.under_way?.join(DRAIN).display().to_string());
        match workers {
            [worker] => Some(format!("echo {worker} >> {file}")),
            workers => {
                let numbers: Vec<String> = workers.iter().map(usize::to_string).collect();
                Some(format!("printf '%s\\n' {} >> {file}", numbers.join(" ")))
            }
        }
    }

    /// The same question about some of the steps.
    fn again(&self, from: Option<u64>, to: Option<u64>) -> Option<String> {
        // Standard input cannot be read twice.
        if self.args.input == STDIN {
            return None;
        }
        let inputs: Vec<String> = self.args.inputs().map(|input| quoted(input)).collect();
        let mut command = format!("{} doctor {}", itself::name(), inputs.join(" "));
        let number = self.args.number.map(|number| number as u64);
        for (flag, value) in [("run", number), ("from", from), ("to", to)] {
            if let Some(value) = value {
                let _ = write!(command, " --{flag} {value}");
            }
        }
        Some(command)
    }

    /// Whether another scheme would do better, if that was not asked yet and can be told.
    fn would_code(&self, from: Option<u64>) -> Option<String> {
        let can_plan = self.plan.is_none() && self.found.planned_on.is_some();
        let command = self.again(from, self.args.to).filter(|_| can_plan)?;
        Some(command + " --plan")
    }

    /// A scheme over the recorded times; `simulate` takes a folder's first run, and all of it.
    fn simulated(&self, scheme: &str) -> Option<String> {
        self.found.planned_on.as_ref()?;
        let DoctorArgs { input, more, number, from, to, .. } = self.args;
        if input == STDIN
            || !more.is_empty()
            || number.is_some_and(|number| number > 0)
            || from.or(*to).is_some()
        {
            return None;
        }
        let workers = self.found.workers;
        Some(format!(
            "{} simulate {} --delays {} --workers {workers} --jobs {}",
            itself::name(),
            quoted(scheme),
            quoted(input),
            self.found.rounds
        ))
    }
}
