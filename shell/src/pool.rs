//! Workers that come and go: `--workers MIN..MAX`, and with how much notice they leave.

use crate::failure::Failure;
use crate::limits::WORKERS;
use crate::units::{count, seconds};
use anyhow::anyhow;
use codedgrad::codes::SchemeSpec;
use codedgrad::ids::Worker;
use codedgrad::train::StepRecord;
use serde::{Deserialize, Serialize};
use std::env;
use std::fmt;
use std::time::Duration;

/// Says with how many seconds of notice a worker leaves.
pub const NOTICE: &str = "CODEDGRAD_NOTICE";
/// The default.
const NOTICE_SECONDS: f64 = 20.0;
/// No longer one can be given.
const NOTICE_MAX: f64 = 1e6;

/// With how much notice workers leave: what they are told, or what the environment says.
pub fn notice(told: Option<f64>) -> Result<Duration, Failure> {
    let (name, notice) = match (told, env::var(NOTICE)) {
        (Some(told), _) => ("--notice", told),
        (None, Ok(text)) => {
            (NOTICE, seconds(&text).map_err(|why| Failure::Input(anyhow!("{NOTICE}: {why}")))?)
        }
        (None, Err(_)) => (NOTICE, NOTICE_SECONDS),
    };
    if notice > NOTICE_MAX {
        return Err(Failure::Input(anyhow!(
            "{name} is {notice} s: at most {NOTICE_MAX:e} s of notice can be given"
        )));
    }
    Ok(Duration::from_secs_f64(notice))
}

/// Seconds for which a run waits for all of its workers before it begins with some.
const JOIN_WAIT: f64 = 600.0;
/// The same where fewer are enough.
const SHORT_JOIN_WAIT: f64 = 30.0;

/// Of how many workers it is tried at most, when a run begins, whether a scheme fits fewer.
const WARNED_OF: usize = 256;

/// How many workers a run has seats for, and with how few it is made if that was said with it:
/// `12` or `4..12`.
#[derive(Clone, Copy, Debug)]
pub struct Seats {
    least: Option<u32>,
    /// How many there are.
    pub most: u32,
}

impl Seats {
    /// Seats of a run that always needs all of them.
    pub const fn all(most: u32) -> Self {
        Self { least: None, most }
    }

    /// Seats of a run that fewer may make.
    pub const fn between(least: u32, most: u32) -> Self {
        Self { least: Some(least), most }
    }

    /// With how few workers the run is made, if not always with all.
    pub fn min_workers(self) -> Option<usize> {
        self.least.map(|least| least as usize)
    }

    /// Refuses seats with which a run that has made these steps cannot go on: of another number
    /// than before where it always needs all of them, or of fewer than it has used.
    pub fn again<'a>(
        self,
        before: usize,
        steps: impl Iterator<Item = &'a StepRecord>,
    ) -> Result<(), Failure> {
        let most = self.most as usize;
        if self.least.is_none() && most != before {
            return Err(Failure::Input(anyhow!(
                "--workers {most}: the run has {before} workers; say MIN..{most}, such as \
                 --workers {}..{most}, for it to go on with others",
                most.min(before)
            )));
        }
        let used = steps
            .flat_map(|step| &step.rounds)
            .filter_map(|round| round.arrivals.iter().rposition(Option::is_some));
        match used.max().filter(|used| *used >= most) {
            Some(used) => Err(Failure::Input(anyhow!(
                "--workers {self}: worker {used} has taken part: MAX is {} or more",
                used + 1
            ))),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least {
            Some(least) => write!(f, "{least}..{}", self.most),
            None => self.most.fmt(f),
        }
    }
}

/// Reads them.
pub fn seats(text: &str) -> Result<Seats, String> {
    let count = count::<u32>(WORKERS);
    let Some((least, most)) = text.split_once("..") else {
        return Ok(Seats::all(count(text)?));
    };
    let least = count(least).map_err(|why| format!("MIN of MIN..MAX: {why}"))?;
    let most = count(most).map_err(|why| format!("MAX of MIN..MAX: {why}"))?;
    if least > most {
        return Err(format!("MIN is {least}, more than MAX, which is {most}"));
    }
    Ok(Seats::between(least, most))
}

/// With how few workers a run may be made and with how many, where these are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    least: usize,
    most: usize,
}

impl Bounds {
    /// The bounds, where these are not the same.
    pub fn of(least: Option<usize>, most: usize) -> Option<Self> {
        let least = least?.max(1);
        (least < most).then_some(Self { least, most })
    }

    /// Says how many of them a scheme for all does not fit, before it comes to that.
    pub fn warning(self, spec: &SchemeSpec, units: u32) -> Option<String> {
        let Self { least, most } = self;
        let fits = |workers: usize| spec.scheme(workers, units, 0..1).is_ok();
        if most > WARNED_OF || !fits(most) {
            return None;
        }
        let misfits = (least..most).filter(|workers| !fits(*workers));
        let misfits: Vec<Worker> = misfits.map(|workers| Worker(workers as u32)).collect();
        // What holds Byzantine workers off is not given up for who is lost.
        let then = if spec.byzantine() > 0 { "the run waits" } else { "uncoded" };
        let those = Worker::listed(&misfits);
        (!misfits.is_empty()).then(|| {
            format!("warning: {spec} does not fit {those} workers: {then} until others are back")
        })
    }
}

/// How often workers have come and gone in a run, since the command was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Workers that have joined.
    pub joined: u64,
    /// Workers that have left.
    pub left: u64,
    /// Workers that were lost.
    pub lost: u64,
    /// Rounds that were begun again for others.
    pub rounds_begun_again: u64,
}

/// What workers that come and go have made of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolSummary {
    #[serde(flatten)]
    bounds: Bounds,
    plans: u64,
    joined: u64,
    left: u64,
    lost: u64,
    /// Workers that a step was planned for; null without a step.
    members_mean: Option<f64>,
    rounds_begun_again: u64,
}

impl PoolSummary {
    /// Of the steps of a run, and of who has come and gone.
    pub fn of<'a>(
        bounds: Bounds,
        steps: impl Iterator<Item = &'a StepRecord>,
        changed: ChangeCounts,
    ) -> Self {
        let ChangeCounts { joined, left, lost, rounds_begun_again } = changed;
        let (mut plans, mut last) = (0, None);
        let (mut planned, mut members) = (0_u64, 0);
        for step in steps {
            // A run that goes on writes its plan down again.
            if let Some(plan) = step.under.plan.as_ref().filter(|plan| last != Some(*plan)) {
                (plans, last) = (plans + 1, Some(plan));
            }
            planned += u64::from(last.is_some());
            members += last.map_or(0, |plan| plan.members.len());
        }
        let members_mean = (planned > 0).then(|| members as f64 / planned as f64);
        Self { bounds, plans, joined, left, lost, members_mean, rounds_begun_again }
    }
}

/// How long all workers are waited for before a run begins with those that are there.
pub fn join_wait(told: Option<f64>, least: Option<usize>, most: usize) -> f64 {
    let fewer = least.is_some_and(|least| least < most);
    told.unwrap_or(if fewer { SHORT_JOIN_WAIT } else { JOIN_WAIT })
}

#[cfg(test)]
mod tests;
