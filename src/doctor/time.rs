//! Where the time of a run went.

use super::WARM_UP_MOST;
use super::numbers::median;
use super::record::{Record, RecordedRound, RunEvent, Step};
use super::workers::closed_by;
use serde::Serialize;
use std::collections::BTreeMap;

/// Rounds of one run begin a little before the step before them is decided. With a larger share of
/// the time in which they overlap, its parts say little.
const OVERLAP_MOST: f64 = 0.05;
/// A step stands still that takes so many times as long as steps usually do.
const STALL: f64 = 10.0;
/// Where several steps, and more than one in so many, stand still, that is how the run is.
const STALLS_APART: usize = 50;
/// With fewer steps nothing is usual.
const STEPS_LEAST: usize = 20;

/// Seconds of a run, by what was waited for. Rounds do not overlap.
///
/// # Formula
/// ```text
/// total     = committed of the last step - opened of the first round
/// computing = sum_r (first answer of round r; its length where no worker answered)
/// waiting   = sum_r seconds_r - computing
/// deciding  = sum_k max(0, committed_k - end of the last round of step k)
/// between   = total - computing - waiting - deciding
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeSpent {
    /// From the opening of the first round to the last commit.
    pub total: f64,
    /// Until the first worker had answered: no round could be shorter.
    pub computing: f64,
    /// For further answers.
    pub waiting: f64,
    /// From the last answer to the commit: exchange, sum, and until two workers hold it.
    pub deciding: f64,
    /// From a commit to the next round; 0 where jobs overlap.
    pub between: f64,
    /// Whether rounds began so long before the step before them was decided that the parts do not
    /// add up.
    #[serde(skip)]
    pub overlapped: bool,
}

/// Seconds until the first worker has answered; the length of the round where none has.
fn computing(round: &RecordedRound) -> f64 {
    let answers = round.arrivals.iter().flatten().copied();
    answers.reduce(f64::min).unwrap_or(round.seconds)
}

/// Seconds from the end of a step's last round to its commit.
fn deciding(record: &Record, step: &Step) -> f64 {
    let last = record.closed.get(step.rounds.clone()).and_then(<[_]>::last);
    last.map_or(0.0, |last| (step.committed - (last.opened + last.seconds)).max(0.0))
}

impl TimeSpent {
    pub(super) fn of(record: &Record) -> Self {
        let rounds = &record.closed;
        let computing: f64 = rounds.iter().map(computing).sum();
        let waiting = rounds.iter().map(|round| round.seconds).sum::<f64>() - computing;
        let deciding = record.steps.iter().map(|step| deciding(record, step)).sum();
        let ends = rounds.first().zip(record.steps.last());
        let total = ends.map_or(0.0, |(first, last)| last.committed - first.opened);
        let between = total - computing - waiting - deciding;
        Self {
            total,
            computing,
            waiting,
            deciding,
            between: between.max(0.0),
            overlapped: between < -OVERLAP_MOST * total,
        }
    }

    /// A part of the whole.
    #[must_use]
    pub fn share(&self, part: f64) -> f64 {
        if self.total > 0.0 { part / self.total } else { 0.0 }
    }
}

/// Steps that stood still: one in 50 or fewer, or a single one, of 20 or more.
///
/// # Formula
/// ```text
/// stood_k = waiting_k + deciding_k > 10 median_j(seconds of the rounds of step j + deciding_j)
/// ```
/// Where these are among the first three steps alone that is the run's warm-up: none is named.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stalls {
    /// How many.
    pub(super) steps: usize,
    /// Seconds of them that were spent waiting for answers, and for the decision.
    pub(super) waiting: f64,
    pub(super) deciding: f64,
    /// The one that stood still for longest, if one is worth naming.
    pub(super) longest: Option<Stall>,
}

/// A step that stood still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Number of the step.
    pub step: u64,
    /// For how many seconds it stood still.
    pub seconds: f64,
    /// Whether most of that was spent waiting for answers; else for its sum.
    pub for_answers: bool,
    /// Whose answer closed the longest round, or is the only one that did not come.
    pub worker: Option<usize>,
}

impl Stalls {
    /// None where the steps are few, or so many stood still that it is no exception.
    pub(super) fn of(record: &Record) -> Self {
        let of_step = |step: &Step| {
            let rounds = &record.closed[step.rounds.clone()];
            let open: f64 = rounds.iter().map(|round| round.seconds).sum();
            let waiting = open - rounds.iter().map(computing).sum::<f64>();
            (open, waiting, deciding(record, step))
        };
        let of_steps: Vec<(f64, f64, f64)> = record.steps.iter().map(of_step).collect();
        let usual = median(of_steps.iter().map(|(open, _, deciding)| open + deciding).collect());
        // What is no number is no stall either.
        let stood = |(_, (_, waiting, deciding)): &(usize, (f64, f64, f64))| {
            waiting + deciding > STALL * usual
        };
        let stalled: Vec<_> = of_steps.into_iter().enumerate().filter(stood).collect();
        let few = stalled.len() <= (record.steps.len() / STALLS_APART).max(1);
        if !few || record.steps.len() < STEPS_LEAST {
            return Self::default();
        }
        let is_warm_up = stalled.iter().all(|(at, _)| *at < WARM_UP_MOST);
        let stalls = stalled.iter().map(|&(at, (_, waiting, deciding))| {
            let step = &record.steps[at];
            let for_answers = waiting > deciding;
            let rounds = &record.closed[step.rounds.clone()];
            let worker = if for_answers { waited_for(rounds) } else { None };
            Stall { step: step.step, seconds: waiting + deciding, for_answers, worker }
        });
        let longest =
            stalls.reduce(|most, next| if next.seconds > most.seconds { next } else { most });
        Self {
            steps: stalled.len(),
            waiting: stalled.iter().map(|(_, (_, waiting, _))| waiting).sum(),
            deciding: stalled.iter().map(|(_, (.., deciding))| deciding).sum(),
            longest: longest.filter(|_| !is_warm_up),
        }
    }

    /// Seconds that the steps stood still.
    pub(super) fn seconds(&self) -> f64 {
        self.waiting + self.deciding
    }
}

/// Whose answer closed the longest of some rounds, or else is the only one that did not come.
fn waited_for(rounds: &[RecordedRound]) -> Option<usize> {
    let longest = rounds.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    closed_by(longest).or_else(|| {
        let arrivals = longest.arrivals.iter().enumerate();
        let mut missing = arrivals.filter(|(_, arrival)| arrival.is_none());
        let only = missing.next()?.0;
        missing.next().is_none().then_some(only)
    })
}

/// Time on the wall's clock that is in no step.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeGap {
    /// The step before whose commit it is.
    pub step: u64,
    /// How long it is.
    pub seconds: f64,
    /// What happened in it, and how often.
    pub events: BTreeMap<String, usize>,
}

/// What the wall's clock says of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WallClock {
    /// Share of the time that went into steps that count.
    pub(super) effective: Option<f64>,
    /// Seconds that went into none.
    pub(super) lost_seconds: f64,
    /// The longest time that went into none.
    pub(super) gap: Option<TimeGap>,
    /// The first step whose time stamp is before that of the step before it.
    pub(super) went_back: Option<u64>,
}

impl WallClock {
    /// # Formula
    /// ```text
    /// effective = sum_k seconds_k / ((at_last - at_first) + seconds_first)
    /// ```
    /// with the difference in whole microseconds, where every step has a time stamp.
    pub(super) fn of(record: &Record, events: &[&RunEvent]) -> Self {
        let stamps: Option<Vec<f64>> = record.steps.iter().map(|step| step.at).collect();
        let Some(stamps) = stamps.filter(|stamps| stamps.len() > 1) else { return Self::default() };
        let steps = &record.steps;
        let pairs = || stamps.windows(2).zip(&steps[1..]);
        if let Some((_, step)) = pairs().find(|(pair, _)| pair[1] < pair[0]) {
            return Self { went_back: Some(step.step), ..Self::default() };
        }
        let elapsed = ((stamps[stamps.len() - 1] - stamps[0]) * 1e6).round() / 1e6;
        let whole = elapsed + steps[0].seconds;
        let useful: f64 = steps.iter().map(|step| step.seconds).sum();
        let gaps = pairs().map(|(pair, step)| (pair[1] - pair[0] - step.seconds, pair, step));
        let longest = gaps.max_by(|a, b| a.0.total_cmp(&b.0));
        let gap = longest.map(|(seconds, pair, step)| {
            let within =
                |event: &&&RunEvent| event.at.is_some_and(|at| at > pair[0] && at <= pair[1]);
            let events = counted(events.iter().filter(within).copied());
            TimeGap { step: step.step, seconds, events }
        });
        Self {
            effective: (whole > 0.0).then(|| useful / whole),
            lost_seconds: whole - useful,
            gap,
            went_back: None,
        }
    }
}

/// How many events of each kind there are.
pub(super) fn counted<'a>(events: impl Iterator<Item = &'a RunEvent>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    events.for_each(|event| *counts.entry(event.kind.clone()).or_insert(0) += 1);
    counts
}

#[cfg(test)]
mod tests;
