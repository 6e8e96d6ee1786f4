//! How long each worker took in each round, also in those that did not wait for it.

use super::changes::{LevelShift, LevelShifts};
use super::numbers::{Scratch, times};
use super::record::{Record, WorkReport};
use crate::delays::recorded_row;
use crate::sim::planner::QuickestWorkers;

/// The times of all workers in the rounds of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerRows {
    /// Seconds of each worker's answer since its round opened, one row per round.
    pub rows: Vec<Vec<f64>>,
    /// Numbers in them that are estimates of answers that neither came in time nor were reported.
    pub estimated: usize,
}

impl AnswerRows {
    /// The rows of a record.
    ///
    /// # Formula
    /// ```text
    /// A[r][w] = the arrival, where it came by the close; else, where work was reported,
    ///         = max(seconds_r, came + computed/progress - computed + delays[r][w]); else
    ///         = that of recorded_row(..)
    /// ```
    /// where `seconds_r` is how long round `r` was open; reports know nothing of injected lateness.
    ///
    /// ```
    /// use codedgrad::doctor::{AnswerRows, Record};
    /// let line = r#"{"step": 0, "committed": 1.5, "seconds": 1.5, "rounds": [
    ///     {"round": 0, "opened": 0.0, "seconds": 1.0, "arrivals": [1.0, null, null]}
    /// ], "spent": [[0, 1, 0.5, 0.25, 1.0]]}"#;
    /// let mut record = Record::default();
    /// record.push(serde_json::from_str(line)?)?;
    /// let found = AnswerRows::of(&record);
    /// assert_eq!((&found.rows[0][..], found.estimated), (&[1.0, 2.5, 1.0][..], 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let reports = Reports::of(record);
        let mut estimated = 0;
        let rows = record.closed.iter().enumerate().map(|(place, round)| {
            let (mut row, _) = recorded_row(&round.arrivals, &round.delays, round.seconds);
            for worker in (0..row.len()).filter(|worker| round.arrivals[*worker].is_none()) {
                let report = reports.of_answer(place, worker);
                match report.and_then(|report| Some((report, report.whole()?))) {
                    Some((report, whole)) => {
                        let late = round.delays.get(worker).copied().unwrap_or(0.0);
                        let due = report.came + whole - report.computed + late;
                        row[worker] = round.seconds.max(due);
                    }
                    None => estimated += 1,
                }
            }
            row
        });
        let rows = rows.collect();
        Self { rows, estimated }
    }
}

/// Reports by round and worker.
pub(super) struct Reports<'a> {
    /// The last report of each, by the place of its round; empty where there are none at all.
    by_answer: Vec<Option<&'a WorkReport>>,
    workers: usize,
}

impl<'a> Reports<'a> {
    /// Those of rounds that the record holds.
    pub(super) fn of(record: &'a Record) -> Self {
        let workers = record.workers();
        let mut reports = record.reports().peekable();
        if reports.peek().is_none() {
            return Self { by_answer: Vec::new(), workers };
        }
        let mut by_answer = vec![None; record.rounds() * workers];
        for (place, report) in reports {
            by_answer[place * workers + report.worker as usize] = Some(report);
        }
        Self { by_answer, workers }
    }

    /// What a worker has reported of a round.
    pub(super) fn of_answer(&self, place: usize, worker: usize) -> Option<&'a WorkReport> {
        self.by_answer.get(place * self.workers + worker).copied().flatten()
    }

    /// Whether a worker has reported enough of a round to tell how long all of it takes.
    pub(super) fn has_whole(&self, place: usize, worker: usize) -> bool {
        self.of_answer(place, worker).is_some_and(|report| report.whole().is_some())
    }

    /// All of a worker's reports of rounds from a place on, in which it finished something.
    pub(super) fn of_worker(
        &self,
        worker: usize,
        from: usize,
    ) -> impl Iterator<Item = &'a WorkReport> + '_ {
        let rounds = self.by_answer.chunks(self.workers.max(1)).skip(from);
        rounds.filter_map(move |round| round[worker]).filter(|report| report.progress > 0.0)
    }
}

/// Times of workers that can be compared: of answers, or of the whole of a task.
pub(super) struct Times {
    pub(super) rows: Vec<Vec<f64>>,
    /// Place in the record of each row's round.
    pub(super) places: Vec<usize>,
    /// The median of each row.
    pub(super) medians: Vec<f64>,
    /// How long the quickest workers took in each.
    pub(super) quickest: QuickestWorkers,
    /// For each worker its times over the medians.
    pub(super) ratios: Vec<Vec<f64>>,
}

impl Times {
    fn new(rows: Vec<Vec<f64>>, places: Vec<usize>) -> Self {
        let mut scratch = Scratch::default();
        let medians: Vec<f64> = rows.iter().map(|row| scratch.median(row)).collect();
        let workers = rows.first().map_or(0, Vec::len);
        let mut ratios: Vec<Vec<f64>> =
            (0..workers).map(|_| Vec::with_capacity(rows.len())).collect();
        for (row, median) in rows.iter().zip(&medians) {
            let shares = row.iter().map(|time| times(*time, *median));
            ratios.iter_mut().zip(shares).for_each(|(ratios, ratio)| ratios.push(ratio));
        }
        let quickest = QuickestWorkers::of(&rows);
        Self { rows, places, medians, quickest, ratios }
    }

    /// Of all answers.
    pub(super) fn of_answers(rows: Vec<Vec<f64>>) -> Self {
        let places = (0..rows.len()).collect();
        Self::new(rows, places)
    }

    /// What the whole of each worker's tasks takes it to compute, in the rounds that all workers
    /// have reported of; all of them are assigned equal loads.
    pub(super) fn of_computing(record: &Record, reports: &Reports<'_>) -> Self {
        let whole = |place: usize| -> Option<Vec<f64>> {
            let reported = |worker| reports.of_answer(place, worker)?.whole();
            (0..record.workers()).map(reported).collect()
        };
        let known = (0..record.rounds()).filter_map(|place| Some((whole(place)?, place)));
        let (rows, places) = known.unzip();
        Self::new(rows, places)
    }

    pub(super) fn workers(&self) -> usize {
        self.ratios.len()
    }

    /// The level shifts of a series with a value per row, told by the numbers of their rounds.
    pub(super) fn changes(&self, series: &[f64], record: &Record) -> Vec<LevelShift> {
        let number = |row: u64| record.closed[self.places[row as usize]].round;
        let told = |shift: LevelShift| LevelShift {
            round: number(shift.round),
            seen: number(shift.seen),
            ..shift
        };
        LevelShifts::of(series).into_iter().map(told).collect()
    }
}
