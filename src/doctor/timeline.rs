//! A record as pictures need it: step by step, and the workers' ratios over the run.

use super::numbers::{Scratch, times};
use super::record::{Record, RecordedRound, RunEvent, UsedPlan};
use super::rows::{AnswerRows, Reports, Times};
use super::{in_record, scheme};
use crate::codes::registry::Registry;

/// A committed step and its rounds; times are seconds on the run's clock.
#[derive(Clone, Copy, Debug)]
pub struct TimelineStep<'a> {
    /// Number of the step.
    pub step: u64,
    /// When it was committed.
    pub committed: f64,
    /// Rounds that closed since the commit before it.
    pub rounds: &'a [RecordedRound],
    survivors: Option<&'a [u32]>,
    plan: Option<&'a UsedPlan>,
}

impl TimelineStep<'_> {
    /// Whether a worker's result is in the gradient, if it came. Each result of a step of several
    /// rounds is, and so is each where the record does not tell.
    #[must_use]
    pub fn counts(&self, worker: usize) -> bool {
        let Some(survivors) = self.survivors.filter(|_| self.rounds.len() == 1) else {
            return true;
        };
        u32::try_from(worker).is_ok_and(|worker| survivors.binary_search(&worker).is_ok())
    }

    /// Whether a worker was given a task: each was, unless the step was planned for some of them.
    #[must_use]
    pub fn has_task(&self, worker: usize) -> bool {
        // A plan lists its members in ascending order.
        let is_member = |members: &[u32]| {
            u32::try_from(worker).is_ok_and(|worker| members.binary_search(&worker).is_ok())
        };
        self.plan.is_none_or(|plan| is_member(&plan.members))
    }
}

impl Record {
    /// The steps, in the order of their commits.
    ///
    /// ```
    /// use codedgrad::doctor::Record;
    /// let record = Record::of_trace([vec![1.0, 1.5], vec![1.0, 1.25]])?;
    /// let commits: Vec<f64> = record.timeline().map(|step| step.committed).collect();
    /// assert_eq!(commits, [1.5, 2.75]);
    /// assert!(record.timeline().all(|step| step.counts(1) && step.rounds.len() == 1));
    /// # Ok::<(), codedgrad::doctor::RecordError>(())
    /// ```
    pub fn timeline(&self) -> impl Iterator<Item = TimelineStep<'_>> {
        self.steps.iter().map(|step| TimelineStep {
            step: step.step,
            committed: step.committed,
            rounds: &self.closed[step.rounds.clone()],
            survivors: step.survivors.as_deref(),
            plan: step.plan.as_deref(),
        })
    }

    /// The events of these steps, each with when its step was committed; one that names no step
    /// stands at the opening of the first round.
    pub fn dated_events<'a>(
        &'a self,
        events: &'a [RunEvent],
    ) -> impl Iterator<Item = (f64, &'a RunEvent)> {
        let opened = self.closed.first().map_or(0.0, |round| round.opened);
        let commit = move |step: u64| {
            let at = self.steps.partition_point(|before| before.step < step);
            self.steps.get(at).map(|step| step.committed)
        };
        in_record(self, events)
            .into_iter()
            .map(move |event| (event.step.and_then(commit).unwrap_or(opened), event))
    }
}

/// Rounds in a row, which share a column of a [`HeatMap`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundBin {
    /// The steps in which the first and the last of them closed.
    pub steps: (u64, u64),
    /// How many seconds they were open, on average.
    pub seconds: f64,
}

/// A worker's row of a [`HeatMap`].
#[derive(Clone, Debug, PartialEq)]
pub struct HeatRow {
    /// Which worker.
    pub worker: usize,
    /// Its mean ratio in each bin; none where every time of the bin is an estimate, or unknown.
    pub cells: Vec<Option<f64>>,
}

/// How many times as long as the median each worker took, over the run.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// The columns.
    pub bins: Vec<RoundBin>,
    /// The rows, by the workers' numbers; or, if some are left out, the slowest worker first. None
    /// where results do not tell how fast a worker is.
    pub rows: Vec<HeatRow>,
}

/// What is known of a worker in a bin.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    sum: f64,
    count: usize,
    is_known: bool,
}

impl HeatMap {
    /// The map of a record, of at most `rows_most` workers, the slowest ones, and `bins_most` bins.
    ///
    /// # Formula
    /// ```text
    /// cell[w][b] = mean of A[r][w] / m[r] over the rounds r of bin b
    /// bin b of B = the rounds floor(b R / B) .. floor((b + 1) R / B) of all R
    /// ```
    /// with the times `A` of [`AnswerRows`] and the median `m[r]` over workers; under a scheme of
    /// several rounds `A` are seconds of computation.
    ///
    /// ```
    /// use codedgrad::codes::registry::Registry;
    /// use codedgrad::doctor::{HeatMap, Record};
    /// let record = Record::of_trace((0..8).map(|_| vec![1.0, 1.0, 1.5]))?;
    /// let map = HeatMap::of(&record, Registry::builtin(), 1, 4);
    /// assert_eq!(map.bins[3].steps, (6, 7));
    /// assert_eq!((map.rows[0].worker, &map.rows[0].cells[..]), (2, &[Some(1.5); 4][..]));
    /// # Ok::<(), codedgrad::doctor::RecordError>(())
    /// ```
    #[must_use]
    pub fn of(record: &Record, registry: &Registry, rows_most: usize, bins_most: usize) -> Self {
        let count = record.rounds().min(bins_most.max(1));
        let ends: Vec<usize> = (1..=count).map(|bin| bin * record.rounds() / count).collect();
        let reports = Reports::of(record);
        let (rows, places) = match scheme(record, registry) {
            Ok((_, facts)) if facts.partial => Default::default(),
            Ok((_, facts)) if facts.delay > 0 => {
                let Times { rows, places, .. } = Times::of_computing(record, &reports);
                (rows, places)
            }
            // Where a round cannot be replayed, its answers can still be compared.
            _ => (AnswerRows::of(record).rows, (0..record.rounds()).collect::<Vec<_>>()),
        };
        let mut cells = vec![Cell::default(); record.workers() * count];
        let mut scratch = Scratch::default();
        for (row, place) in rows.iter().zip(places) {
            let bin = ends.partition_point(|end| *end <= place);
            let median = scratch.median(row);
            for (worker, time) in row.iter().enumerate() {
                let cell = &mut cells[worker * count + bin];
                cell.sum += times(*time, median);
                cell.count += 1;
                cell.is_known |= record.closed[place].arrivals[worker].is_some()
                    || reports.has_whole(place, worker);
            }
        }
        let bin = |(bin, end): (usize, &usize)| {
            let rounds = bin.checked_sub(1).map_or(0, |before| ends[before])..*end;
            let step = |place| record.step_of(place).map_or(0, |step| step.step);
            let open = record.closed[rounds.clone()].iter().map(|round| round.seconds);
            RoundBin {
                steps: (step(rounds.start), step(rounds.end - 1)),
                seconds: open.sum::<f64>() / rounds.len() as f64,
            }
        };
        let bins = ends.iter().enumerate().map(bin).collect();
        let rows = if rows.is_empty() { Vec::new() } else { slowest(&cells, count, rows_most) };
        Self { bins, rows }
    }
}

/// The rows of the workers with the largest mean ratios.
fn slowest(cells: &[Cell], bins: usize, rows_most: usize) -> Vec<HeatRow> {
    let mean = |cells: &[Cell]| {
        let (sum, count) = cells
            .iter()
            .fold((0.0, 0usize), |(sum, count), cell| (sum + cell.sum, count + cell.count));
        sum / count as f64
    };
    let mut workers: Vec<(usize, &[Cell])> = cells.chunks(bins).enumerate().collect();
    if workers.len() > rows_most {
        workers.sort_by(|a, b| mean(b.1).total_cmp(&mean(a.1)));
        workers.truncate(rows_most);
    }
    let value = |cell: &Cell| cell.is_known.then(|| cell.sum / cell.count as f64);
    let row = |(worker, cells): (usize, &[Cell])| HeatRow {
        worker,
        cells: cells.iter().map(value).collect(),
    };
    workers.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
