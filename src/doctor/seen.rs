//! What the times and reports of workers show: who is slow, since when, and what that costs.

use super::changes::{Rise, lasting_rise};
use super::findings::WorkerEvents;
use super::rows::{Reports, Times};
use super::what_if::Replay;
use super::workers::ReportMedians;
use super::{
    Examination, ExaminedWorker, Finding, Moment, Problem, Record, RecordedRound, WARM_UP_MOST,
    numbers,
};
use crate::delays::Growth;
use crate::sim::planner::{Cause, CauseKind, lasting_causes};

/// Workers that take more than so many times as long as their units would have it are slow.
const SLOW_FOR_ITS_UNITS: f64 = 1.15;
/// A worker that was slow at times is worth a word if its cure alone saves so much, and half of the
/// waiting.
const ALONE_LEAST: f64 = 0.10;
/// It was so in rounds in which it took so many times as long as the quickest quarter.
const SLOW_AT_TIMES: f64 = 1.5;
/// Nothing is known of a worker that is seen in a smaller part of the rounds, of so many at least.
const SEEN_MOST: f64 = 0.1;
const UNSEEN_ROUNDS_LEAST: usize = 10;

/// Workers that are there, and of whose answers and work almost no round shows anything.
pub(super) fn unseen(record: &Record, reports: &Reports<'_>, lost: &[usize]) -> Vec<usize> {
    let rounds = record.closed.len();
    if record.is_trace() || rounds < UNSEEN_ROUNDS_LEAST {
        return Vec::new();
    }
    let seen = |worker: usize| {
        let is_seen = |(place, round): &(usize, &RecordedRound)| {
            // With injected delays the record tells when an answer would have come.
            round.arrivals[worker].is_some()
                || round.delays.get(worker).is_some_and(|delay| *delay > 0.0)
                || reports.has_whole(*place, worker)
        };
        record.closed.iter().enumerate().filter(is_seen).count()
    };
    let most = rounds as f64 * SEEN_MOST;
    let unseen = |worker: &usize| !lost.contains(worker) && (seen(*worker) as f64) < most;
    (0..record.workers()).filter(unseen).collect()
}

/// What events alone say of workers, the dead ones and what they cost, if that is known, given.
pub(super) fn of_events(dead: &[usize], costs: Option<f64>, events: &WorkerEvents) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !dead.is_empty() {
        let workers = dead.to_vec();
        let problem = Problem::DeadWorkers { workers, since: None, answered: false };
        findings.push(Finding { problem, costs });
    }
    if !events.came_back.is_empty() {
        let problem = Problem::CameBack { workers: events.came_back.clone() };
        findings.push(Finding { problem, costs: None });
    }
    findings.extend(events.flapping.iter().map(|(worker, times)| Finding {
        problem: Problem::Flapping { worker: *worker, times: *times },
        costs: Some(0.0),
    }));
    findings
}

/// All that findings about workers are made of.
pub(super) struct Observations<'a> {
    pub(super) record: &'a Record,
    pub(super) reports: &'a Reports<'a>,
    pub(super) times: &'a Times,
    pub(super) replay: Option<Replay<'a>>,
    pub(super) equal_loads: bool,
}

impl Observations<'_> {
    pub(super) fn findings(
        &self,
        found: &Examination,
        events: &WorkerEvents,
        coded: bool,
    ) -> Vec<Finding> {
        let load = found.planned_on.as_ref().map_or(1.0, |(_, load)| *load);
        let causes = lasting_causes(&self.times.rows, Growth::Proportional { base: load });
        let of = |kind| causes.iter().find(|cause: &&Cause| cause.kind == kind);
        let dead = self.dead(of(CauseKind::DeadWorkers), events);
        // Of who came back it is still said whether they are slow.
        let is_dead = |it: &&Finding| matches!(it.problem, Problem::DeadWorkers { .. });
        let gone = dead.iter().filter(is_dead).flat_map(Finding::workers).collect::<Vec<_>>();
        let constant = of(CauseKind::ConstantlySlowWorkers);
        let mut findings = dead;
        findings.extend(constant.map(|cause| self.constantly_slow(cause, coded)));
        let constant: Vec<usize> = constant.map_or(Vec::new(), |cause| cause.workers.clone());
        let slow_rounds = of(CauseKind::SlowRounds).filter(|_| !self.is_warm_up());
        findings.extend(slow_rounds.map(|_| self.slow_rounds(found)));
        let slower: Vec<Finding> = found
            .of_workers
            .iter()
            .filter(|worker| !gone.contains(&worker.worker))
            .filter_map(|worker| self.slower(worker))
            .collect();
        let named: Vec<usize> = slower.iter().flat_map(Finding::workers).collect();
        findings.extend(slower);
        let other = |worker: &&ExaminedWorker| {
            let known = [&named, &gone, &constant];
            worker.slow == Some(true) && !known.iter().any(|known| known.contains(&worker.worker))
        };
        let slightly: Vec<&ExaminedWorker> = found.of_workers.iter().filter(other).collect();
        findings.extend(self.slightly_slow(&slightly));
        findings.extend(self.everybody());
        let known = findings.iter().chain(&found.findings).flat_map(Finding::workers);
        let known: Vec<usize> = known.collect();
        let others = found.of_workers.iter().filter(|it| !known.contains(&it.worker));
        let waiting = found.time.share(found.time.waiting);
        let at_times: Vec<Finding> =
            others.filter_map(|worker| self.slow_at_times(worker, waiting)).collect();
        findings.extend(at_times);
        findings
    }

    /// Whether nothing but the first rounds was slow.
    fn is_warm_up(&self) -> bool {
        let slow = self.times.quickest.slow_rounds();
        slow.len() <= WARM_UP_MOST && slow.iter().enumerate().all(|(at, round)| at == *round)
    }

    /// Workers of whom a trace has received nothing to its end, and since which row the first of
    /// them.
    fn silent(&self) -> Option<(Vec<usize>, usize)> {
        let rows = self.times.places.len();
        let silence = |worker: usize| {
            let silent = |place: &&usize| self.record.not_received(**place, worker);
            let rounds = self.times.places.iter().rev().take_while(silent).count();
            (rounds >= (rows / 10).max(3)).then_some((worker, rows - rounds))
        };
        let found: Vec<(usize, usize)> = (0..self.times.workers()).filter_map(silence).collect();
        let since = found.iter().map(|(_, since)| *since).min()?;
        Some((found.into_iter().map(|(worker, _)| worker).collect(), since))
    }

    /// Workers that answer no more, and those that are lost again and again.
    fn dead(&self, cause: Option<&Cause>, events: &WorkerEvents) -> Vec<Finding> {
        let Some(cause) = cause else {
            // What the run takes longer than with all of them at the median: once they are lost,
            // others are waited for in their place.
            let replay = self.replay.as_ref().filter(|_| !events.lost.is_empty());
            let saved = replay.and_then(|it| it.saved_by(&events.lost, 0));
            let mut findings = of_events(&events.lost, saved, events);
            if let Some((workers, since)) = self.silent() {
                let since = self.moment(since);
                let problem = Problem::DeadWorkers { workers, since, answered: false };
                findings.push(Finding { problem, costs: None });
            }
            return findings;
        };
        let mut workers = [&cause.workers[..], &events.lost].concat();
        workers.sort_unstable();
        workers.dedup();
        let since = cause.since.and_then(|row| self.moment(row));
        let answered = events.lost.is_empty() && self.all_answered(cause);
        let problem = Problem::DeadWorkers { workers, since, answered };
        let mut findings = vec![Finding { problem, costs: Some(cause.costs) }];
        findings.extend(of_events(&[], None, events));
        findings
    }

    /// Whether the times of workers that are as good as dead are those of answers that came.
    fn all_answered(&self, cause: &Cause) -> bool {
        let mut places = self.times.places.iter().skip(cause.since.unwrap_or(0));
        let arrivals = |place: &usize| &self.record.closed[*place].arrivals;
        places.all(|place| cause.workers.iter().all(|it| arrivals(place)[*it].is_some()))
    }

    /// Workers that take longer in almost every round, since they are slow or have more to do.
    fn constantly_slow(&self, cause: &Cause, coded: bool) -> Finding {
        let workers = cause.workers.clone();
        let times = cause.times.unwrap_or(1.0);
        let problem = self.more_units(&workers, times);
        let problem = problem.unwrap_or(Problem::ConstantlySlow { workers, times, coded });
        Finding { problem, costs: Some(cause.costs) }
    }

    /// That these compute more units than the others, if that is why they take so many times as
    /// long.
    fn more_units(&self, workers: &[usize], times: f64) -> Option<Problem> {
        let units = |worker: usize| {
            let told = self.reports.of_worker(worker, 0).filter(|it| it.progress >= 1.0);
            let units: Vec<f64> = told.filter_map(|it| Some(it.units? as f64)).collect();
            (!units.is_empty()).then(|| numbers::median(units))
        };
        // The least that one of these has, and the most that one of the others has.
        let (mut least, mut others) = (f64::INFINITY, 0.0f64);
        for worker in 0..self.times.workers() {
            let units = units(worker)?;
            match workers.contains(&worker) {
                true => least = least.min(units),
                false => others = others.max(units),
            }
        }
        let explained =
            least >= others + 1.0 && times <= SLOW_FOR_ITS_UNITS * numbers::times(least, others);
        explained.then(|| Problem::MoreUnits {
            workers: workers.to_vec(),
            units: least.round() as u64,
            others: others.round() as u64,
        })
    }

    /// A worker that was not slow all the time, nor since some time, and that most of the waiting
    /// was for.
    fn slow_at_times(&self, worker: &ExaminedWorker, waiting: f64) -> Option<Finding> {
        let saves = worker.saves.filter(|saves| *saves >= ALONE_LEAST.max(waiting / 2.0))?;
        let quick = &self.times.quickest.times;
        let is_slow =
            |row: &usize| self.times.rows[*row][worker.worker] > SLOW_AT_TIMES * quick[*row];
        let slow: Vec<usize> = (0..self.times.rows.len()).filter(is_slow).collect();
        let step = |row: Option<&usize>| Some(self.moment(*row?)?.step);
        let problem = Problem::SlowAtTimes {
            worker: worker.worker,
            rounds: slow.len(),
            of: self.times.rows.len(),
            steps: (step(slow.first())?, step(slow.last())?),
        };
        Some(Finding { problem, costs: Some(saves) })
    }

    /// The point of the run at which a row's round opened.
    fn moment(&self, row: usize) -> Option<Moment> {
        let place = *self.times.places.get(row)?;
        let round = &self.record.closed[place];
        let step = self.record.step_of(place)?.step;
        Some(Moment { round: round.round, step, seconds: round.opened })
    }

    fn slow_rounds(&self, found: &Examination) -> Finding {
        let slow = self.times.quickest.slow_rounds();
        let spans = slow.chunk_by(|a, b| a + 1 == *b);
        // Of spans that are equally long the first.
        let longest = spans.reduce(|most, next| if next.len() > most.len() { next } else { most });
        let step =
            |row: Option<&usize>| row.and_then(|row| self.moment(*row)).map_or(0, |at| at.step);
        let longest = longest.unwrap_or_default();
        let problem = Problem::SlowRounds {
            rounds: slow.len(),
            of: self.times.rows.len(),
            steps: (step(longest.first()), step(longest.last())),
        };
        Finding { problem, costs: found.what_if.slow_rounds.and_then(|slow| slow.saves) }
    }

    fn slower(&self, worker: &ExaminedWorker) -> Option<Finding> {
        let series = &self.times.ratios[worker.worker];
        let Rise { at: row, times } = lasting_rise(series)?;
        let spent = ReportMedians::since(self.record, self.reports, self.times.places[row]);
        let problem = Problem::SlowerSince {
            worker: worker.worker,
            since: self.moment(row)?,
            times,
            because: spent.because(worker.worker).filter(|_| self.equal_loads),
        };
        let saves = self.replay.as_ref().and_then(|it| it.saved_by(&[worker.worker], row));
        Some(Finding { problem, costs: saves })
    }

    fn slightly_slow(&self, workers: &[&ExaminedWorker]) -> Option<Finding> {
        let all: Vec<usize> = workers.iter().map(|worker| worker.worker).collect();
        let told =
            |worker: &&ExaminedWorker| (worker.worker, worker.ratio.unwrap_or(1.0), worker.because);
        let most = workers.iter().filter_map(|worker| worker.ratio).reduce(f64::max)?;
        let slow = || Problem::SlightlySlow { workers: workers.iter().map(told).collect() };
        let problem = self.more_units(&all, most).unwrap_or_else(slow);
        let saves = self.replay.as_ref().and_then(|it| it.saved_by(&all, 0));
        Some(Finding { problem, costs: saves })
    }

    fn everybody(&self) -> Option<Finding> {
        let Rise { at: row, times } = lasting_rise(&self.times.quickest.times)?;
        let saves = self.replay.as_ref().and_then(|it| {
            it.saves(|round, cells| {
                if round >= row {
                    cells.iter_mut().for_each(|time| *time /= times);
                }
            })
        });
        let problem = Problem::EverybodySlowerSince { since: self.moment(row)?, times };
        Some(Finding { problem, costs: saves })
    }
}

#[cfg(test)]
mod tests;
