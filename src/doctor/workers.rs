//! Which workers are slow, and whether computing or something else makes them so.

use super::changes::LevelShift;
use super::numbers::{median, times};
use super::record::{Record, RecordedRound, WorkReport};
use super::rows::{Reports, Times};
use super::what_if::OfWorker;
use crate::sim::planner::QuickestWorkers;
use rayon::prelude::*;
use serde::Serialize;

/// An answer later than so many times its round's median is late.
const LATE: f64 = 1.5;
/// A round is closed by its last answer if that came so close to the end.
const CLOSES: f64 = 0.999;
/// A slow worker takes so many times as long as workers usually do,
const SLOW: f64 = 1.05;
/// and is so many deviations away.
const DEVIATIONS: f64 = 5.0;
/// Standard deviation of a normal distribution over its median absolute deviation.
const DEVIATION_OF_MAD: f64 = 1.4826;
/// Workers never agree better than that, relative to the usual.
const DEVIATION_LEAST: f64 = 0.003;
/// A worker that takes so many times as long per unit as the quickest quarter is slow,
const SLOW_PER_UNIT: f64 = 1.15;
/// if it is so in this part of its rounds.
const CONSTANTLY: f64 = 0.9;
/// Fewer workers show none to be slow.
const WORKERS_LEAST: usize = 3;

/// What makes a worker slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SlowCause {
    /// It computes for longer than others.
    Computing,
    /// Its time passes outside computation: network, queues, the host.
    Elsewhere,
}

/// What there is to say of one worker. What a record does not show is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExaminedWorker {
    /// Which.
    pub worker: usize,
    /// How many times as long it takes as the median of its round, on average.
    pub ratio: Option<f64>,
    /// Rounds in which it took more than 1.5 times the median.
    pub late_rounds: Option<usize>,
    /// Rounds that ended with its answer.
    pub closed_rounds: usize,
    /// Rounds that ended without its answer.
    pub unanswered: usize,
    /// How many times the median rounds would take with this worker alone as slow as it was.
    pub only: Option<f64>,
    /// Share of the time that is saved if it is never slower than the median.
    pub saves: Option<f64>,
    /// Whether it is slow, be it by 5 %.
    pub slow: Option<bool>,
    /// Why, if it is.
    pub because: Option<SlowCause>,
    /// Seconds that it computes, by its reports: their median.
    pub computing: Option<f64>,
    /// Seconds that its answers take besides: their median.
    pub elsewhere: Option<f64>,
    /// When its ratio changed.
    pub changes: Vec<LevelShift>,
}

/// Medians of workers' reports.
pub(super) struct ReportMedians {
    /// Seconds of computation and elsewhere, of workers with reports.
    of_workers: Vec<Option<(f64, f64)>>,
    /// Their medians over these workers.
    usual: (f64, f64),
}

impl ReportMedians {
    /// Of the rounds from a place on.
    pub(super) fn since(record: &Record, reports: &Reports<'_>, from: usize) -> Self {
        let of = |worker: usize| {
            let (computing, elsewhere): (Vec<f64>, Vec<f64>) = reports
                .of_worker(worker, from)
                .filter_map(|report| Some((report.whole()?, report.elsewhere())))
                .unzip();
            (!computing.is_empty()).then(|| (median(computing), median(elsewhere)))
        };
        let of_workers: Vec<Option<(f64, f64)>> = (0..record.workers()).map(of).collect();
        let (computing, elsewhere) = of_workers.iter().flatten().copied().unzip();
        Self { of_workers, usual: (median(computing), median(elsewhere)) }
    }

    /// What makes a slow worker slow; none without its reports.
    pub(super) fn because(&self, worker: usize) -> Option<SlowCause> {
        let (computing, elsewhere) = self.of_workers[worker]?;
        let more = (computing - self.usual.0, elsewhere - self.usual.1);
        Some(if more.0 >= more.1 { SlowCause::Computing } else { SlowCause::Elsewhere })
    }
}

/// Who is slow: by how much workers' usual ratios differ from the middle of them.
///
/// # Formula
/// ```text
/// x_w > 1.05 c  and  x_w - c > 5 d
/// ```
/// where `x_w` is the median over rounds of the worker's time over the round's median, `c` the
/// median of all `x_w` and `d = max(1.4826 median |x_w - c|, 0.003 c)`. It finds no worker where
/// about half of them are slow.
pub(super) fn slow(times: &Times) -> Vec<bool> {
    let usual: Vec<f64> = times.ratios.par_iter().map(|ratios| median(ratios.clone())).collect();
    let middle = median(usual.clone());
    let deviations = usual.iter().map(|usual| (usual - middle).abs()).collect();
    let deviation = (DEVIATION_OF_MAD * median(deviations)).max(DEVIATION_LEAST * middle);
    let is_slow = |usual: &f64| {
        usual.is_finite() && *usual > SLOW * middle && usual - middle > DEVIATIONS * deviation
    };
    let enough = times.workers() >= WORKERS_LEAST;
    usual.iter().map(|usual| enough && is_slow(usual)).collect()
}

/// How long workers compute per unit, where they take tasks until none is left.
pub(super) struct PerUnit {
    /// How many times as long each takes as the quickest quarter of those that are known.
    pub(super) ratios: Vec<Option<f64>>,
    /// Who takes much longer in almost all rounds.
    pub(super) slow: Vec<Option<bool>>,
}

impl PerUnit {
    /// From workers' reports; none if fewer than two of them tell of units.
    pub(super) fn of(record: &Record, reports: &Reports<'_>) -> Option<Self> {
        let told = |worker: usize| -> Vec<f64> {
            reports.of_worker(worker, 0).filter_map(WorkReport::per_unit).collect()
        };
        let told: Vec<Vec<f64>> = (0..record.workers()).map(told).collect();
        let known = told.iter().filter(|told| !told.is_empty());
        let usual: Vec<f64> = known.map(|told| median(told.clone())).collect();
        if usual.len() < 2 {
            return None;
        }
        let quickest = QuickestWorkers::of(&[usual]).usual;
        let ratio =
            |told: &Vec<f64>| (!told.is_empty()).then(|| times(median(told.clone()), quickest));
        let slow = |told: &Vec<f64>| {
            let slow = told.iter().filter(|seconds| **seconds > SLOW_PER_UNIT * quickest);
            (!told.is_empty()).then(|| slow.count() as f64 >= CONSTANTLY * told.len() as f64)
        };
        Some(Self {
            ratios: told.iter().map(ratio).collect(),
            slow: told.iter().map(slow).collect(),
        })
    }
}

/// How many times as long a worker takes as the median, on average.
pub(super) fn mean_ratio(times: &Times, worker: usize) -> f64 {
    let ratios = &times.ratios[worker];
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

/// Whose answer ended a round.
pub(super) fn closed_by(round: &RecordedRound) -> Option<usize> {
    let answers = round.arrivals.iter().enumerate();
    let answers = answers.filter_map(|(worker, arrival)| Some((worker, (*arrival)?)));
    // Of equal ones the first: `max_by` would keep the last.
    let last = answers.reduce(|last, answer| if answer.1 > last.1 { answer } else { last });
    last.filter(|last| last.1 >= CLOSES * round.seconds).map(|(worker, _)| worker)
}

/// All workers, as far as the record shows them; `equal_loads` where all are assigned as much.
pub(super) fn examined(
    record: &Record,
    reports: &Reports<'_>,
    known: Option<&Times>,
    what_ifs: Option<&[OfWorker]>,
    equal_loads: bool,
) -> Vec<ExaminedWorker> {
    let spent = ReportMedians::since(record, reports, 0);
    let slow = known.map(slow);
    let mut closed = vec![0; record.workers()];
    record.closed.iter().filter_map(closed_by).for_each(|worker| closed[worker] += 1);
    let of = |worker: usize| {
        let unanswered = |round: &&super::RecordedRound| round.arrivals[worker].is_none();
        let slow = slow.as_ref().map(|slow| slow[worker]);
        let what_if = what_ifs.map(|found| found[worker]);
        let late = |times: &Times| {
            let rounds = times.ratios[worker].iter().zip(&times.places);
            let late = rounds
                .filter(|(ratio, place)| **ratio > LATE || record.not_received(**place, worker));
            late.count()
        };
        ExaminedWorker {
            worker,
            ratio: known.map(|times| mean_ratio(times, worker)),
            late_rounds: known.map(late),
            closed_rounds: closed[worker],
            unanswered: record.closed.iter().filter(unanswered).count(),
            only: what_if.map(|found| found.only),
            saves: what_if.map(|found| found.saves),
            slow,
            because: spent.because(worker).filter(|_| slow == Some(true) && equal_loads),
            computing: spent.of_workers[worker].map(|(computing, _)| computing),
            elsewhere: spent.of_workers[worker].map(|(_, elsewhere)| elsewhere),
            changes: known.map_or(Vec::new(), |times| times.changes(&times.ratios[worker], record)),
        }
    };
    (0..record.workers()).into_par_iter().map(of).collect()
}
