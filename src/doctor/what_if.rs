//! How long the run would have taken if some answers had come when the median did.

use super::rows::Times;
use crate::codes::SchemeSpec;
use crate::delays::Growth;
use crate::ids::Worker;
use crate::sim::planner;
use rayon::prelude::*;
use serde::Serialize;

/// A replay that is further from the record says nothing.
pub const REPLAY_ERROR_MAX: f64 = 0.05;
/// The worst workers are this share of all, at least one.
const WORST_SHARE: f64 = 0.03;
/// Values that differ by less are ties.
const TIE: f64 = 1e-12;

/// The slowest workers and how much of the time lost is theirs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstWorkers {
    /// The 3 % of the workers that cost most, at least one.
    pub workers: Vec<usize>,
    /// Share of the time lost to stragglers that is saved if they answer with the median.
    pub explain: f64,
}

/// Rounds in which all workers are slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SlowRounds {
    /// How many.
    pub rounds: usize,
    /// Share of the time that is saved if they are as long as others; none where unknown.
    pub saves: Option<f64>,
}

/// What-ifs of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct OfWorker {
    /// How many times the median rounds take if it alone is as slow as it was.
    pub(super) only: f64,
    /// Share of the time that is saved if it is never slower than the median.
    pub(super) saves: f64,
}

/// When rounds of a scheme close.
enum Rule {
    /// Once one worker of every group has answered.
    Groups { of_worker: Vec<usize>, count: usize },
    /// As the planner's replays find out.
    Simulated(planner::Setting),
}

/// The rounds of a run under its scheme, with other times.
pub(super) struct Replay<'a> {
    rule: Rule,
    times: &'a Times,
    /// Seconds of all rounds as they were.
    pub(super) total: f64,
    medians: f64,
}

impl<'a> Replay<'a> {
    /// None if the scheme cannot be replayed.
    pub(super) fn new(scheme: &SchemeSpec, times: &'a Times) -> Option<Self> {
        let medians = times.medians.iter().sum();
        let rule = Rule::of(scheme, times.workers());
        let mut replay = Self { rule, times, total: 0.0, medians };
        replay.total = replay.seconds(|_, _| ())?;
        Some(replay)
    }

    /// Seconds of all rounds if each row is changed so.
    ///
    /// # Formula
    /// ```text
    /// T(X) = sum_r (length of round r when the scheme meets row X_r)
    /// ```
    pub(super) fn seconds(&self, change: impl Fn(usize, &mut Vec<f64>) + Sync) -> Option<f64> {
        let rows = (0..).zip(&self.times.rows).map(|(round, row)| {
            let mut row = row.clone();
            change(round, &mut row);
            row
        });
        match &self.rule {
            Rule::Groups { of_worker, count } => {
                let mut firsts = vec![0.0; *count];
                Some(rows.map(|row| closes_at(&row, of_worker, &mut firsts)).sum())
            }
            Rule::Simulated(setting) => {
                planner::Replay::new(rows.collect(), Growth::AS_RECORDED, 0.0, 1).total(setting)
            }
        }
    }

    /// Share of the time that a change saves.
    pub(super) fn saves(&self, change: impl Fn(usize, &mut Vec<f64>) + Sync) -> Option<f64> {
        (self.total > 0.0)
            .then(|| self.seconds(change).map(|seconds| 1.0 - seconds / self.total))?
    }

    /// Share that is saved if these workers, from a round on, are never slower than the median.
    pub(super) fn saved_by(&self, workers: &[usize], since: usize) -> Option<f64> {
        self.saves(|round, row| {
            if round >= since {
                workers.iter().for_each(|worker| {
                    row[*worker] = row[*worker].min(self.times.medians[round]);
                });
            }
        })
    }

    /// How many times as long the run took as its medians.
    ///
    /// # Source
    /// `S` of "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025
    /// (arXiv 2505.05713), with the median in the place of the mean.
    pub(super) fn slowdown(&self) -> Option<f64> {
        (self.medians > 0.0).then(|| self.total / self.medians)
    }

    /// The what-ifs of every worker.
    ///
    /// # Cost
    /// O(rounds x workers) in all for groups and uncoded runs; else two replays per worker.
    pub(super) fn of_workers(&self) -> Option<Vec<OfWorker>> {
        let (only, saves) = match &self.rule {
            Rule::Groups { of_worker, count } => self.in_groups(of_worker, *count),
            Rule::Simulated(_) => {
                let one = |worker: usize| -> Option<(f64, f64)> {
                    let medians = &self.times.medians;
                    let only = self.seconds(|round, row| {
                        let time = row[worker];
                        row.fill(medians[round]);
                        row[worker] = time;
                    })?;
                    let saved = self.seconds(|round, row| {
                        row[worker] = row[worker].min(medians[round]);
                    })?;
                    Some((only, saved))
                };
                let found: Option<Vec<_>> =
                    (0..self.times.workers()).into_par_iter().map(one).collect();
                found?.into_iter().unzip()
            }
        };
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 1.0 };
        let of = |(only, saved): (&f64, &f64)| OfWorker {
            only: share(*only, self.medians),
            saves: 1.0 - share(*saved, self.total),
        };
        Some(only.iter().zip(&saves).map(of).collect())
    }

    /// Seconds of all rounds if each worker alone is as it was, and if it is never slower than the
    /// median. A round's length follows from the two first answers of each group and the two
    /// groups that answer last.
    fn in_groups(&self, of_worker: &[usize], count: usize) -> (Vec<f64>, Vec<f64>) {
        let mut sizes = vec![0usize; count];
        of_worker.iter().for_each(|group| sizes[*group] += 1);
        let workers = of_worker.len();
        let (mut only, mut saved) = (vec![0.0; workers], vec![0.0; workers]);
        let mut firsts = vec![[f64::INFINITY; 2]; count];
        for (row, &median) in self.times.rows.iter().zip(&self.times.medians) {
            firsts.fill([f64::INFINITY; 2]);
            for (time, group) in row.iter().zip(of_worker) {
                let [first, second] = &mut firsts[*group];
                if time < first {
                    (*second, *first) = (*first, *time);
                } else {
                    *second = second.min(*time);
                }
            }
            // The last group, and the last of all the others.
            let (mut last, mut other) = ((0, f64::NEG_INFINITY), f64::NEG_INFINITY);
            for (group, [first, _]) in firsts.iter().enumerate() {
                if *first > last.1 {
                    other = last.1;
                    last = (group, *first);
                } else {
                    other = other.max(*first);
                }
            }
            for (worker, (&time, &group)) in row.iter().zip(of_worker).enumerate() {
                let alone = match (sizes[group], count) {
                    (1, _) => time,
                    (..) => time.min(median),
                };
                only[worker] += if count > 1 { alone.max(median) } else { alone };
                let [first, second] = firsts[group];
                let rest = if time == first { second } else { first };
                let others = if group == last.0 { other } else { last.1 };
                saved[worker] += rest.min(time.min(median)).max(others);
            }
        }
        (only, saved)
    }

    /// Who costs most.
    pub(super) fn worst(&self, found: &[OfWorker], ratios: &[f64]) -> Option<WorstWorkers> {
        let count = (WORST_SHARE * found.len() as f64).ceil() as usize;
        let uncoded = matches!(&self.rule, Rule::Groups { count, .. } if *count == found.len());
        let value = |worker: usize| if uncoded { found[worker].only } else { found[worker].saves };
        let mut left: Vec<usize> = (0..found.len()).collect();
        let mut workers = Vec::with_capacity(count);
        while workers.len() < count {
            let most = left.iter().map(|worker| value(*worker)).fold(f64::NEG_INFINITY, f64::max);
            let tied = left.iter().copied().filter(|worker| value(*worker) >= most - TIE);
            // Of equal ratios the smallest number is the first, and the last that `max_by` keeps.
            let next = tied.rev().max_by(|a, b| ratios[*a].total_cmp(&ratios[*b]))?;
            left.retain(|worker| *worker != next);
            workers.push(next);
        }
        let all = &workers;
        let without = self.seconds(|round, row| {
            all.iter().for_each(|worker| {
                row[*worker] = row[*worker].min(self.times.medians[round]);
            });
        })?;
        let lost = self.total - self.medians;
        let explain = if lost > 0.0 { (self.total - without) / lost } else { 0.0 };
        Some(WorstWorkers { workers, explain })
    }

    /// What slow rounds cost.
    pub(super) fn slow_rounds(&self) -> Option<f64> {
        let quickest = &self.times.quickest;
        let slow = quickest.slow_rounds();
        self.saves(|round, row| {
            if slow.binary_search(&round).is_ok() {
                let part = quickest.usual / quickest.times[round];
                row.iter_mut().for_each(|time| *time *= part);
            }
        })
    }
}

impl Rule {
    fn of(scheme: &SchemeSpec, workers: usize) -> Self {
        let plain = ["uncoded", "groups"].contains(&scheme.family());
        // With `rescale` a group may be left out.
        let exact = scheme.closed_form(workers).is_some_and(|form| form.coverage == 1.0);
        match scheme.code(workers) {
            Ok(code) if plain && exact => {
                let group = |worker: Worker| code.row(worker).first().map(|(share, _)| share.0);
                let of_worker: Option<Vec<usize>> =
                    Worker::all(workers).map(|worker| Some(group(worker)? as usize)).collect();
                let count = code.facts().shares();
                match of_worker {
                    Some(of_worker) => Self::Groups { of_worker, count },
                    None => Self::Simulated(planner::Setting::new(scheme.clone())),
                }
            }
            _ => Self::Simulated(planner::Setting::new(scheme.clone())),
        }
    }
}

/// When one worker of every group has answered.
fn closes_at(row: &[f64], of_worker: &[usize], firsts: &mut [f64]) -> f64 {
    firsts.fill(f64::INFINITY);
    for (time, group) in row.iter().zip(of_worker) {
        firsts[*group] = firsts[*group].min(*time);
    }
    firsts.iter().copied().fold(0.0, f64::max)
}
