//! What a run has written down, as its lines of JSON have it.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// One line of `run.jsonl`: a step that was decided and the rounds that closed meanwhile. Times are
/// seconds on the run's clock, but for `at`. Fields that the doctor has no use for are passed over.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RecordedStep {
    /// Which run of the folder, from 0.
    #[serde(default)]
    pub run: usize,
    /// The text of its scheme.
    #[serde(default)]
    pub scheme: String,
    /// Number of the step, from 0.
    pub step: u64,
    /// When it was committed.
    pub committed: f64,
    /// From the commit before it to its own.
    pub seconds: f64,
    /// Unix time of its commit, on the wall's clock; older records and those of a virtual clock
    /// have none.
    #[serde(default)]
    pub at: Option<f64>,
    /// Rounds that closed meanwhile.
    pub rounds: Vec<RecordedRound>,
    /// Workers whose results are in the gradient; a trace and the oldest records do not tell.
    #[serde(default)]
    pub survivors: Option<Vec<u32>>,
    /// What workers have reported since the line before, also of earlier rounds.
    #[serde(default)]
    pub spent: Vec<WorkReport>,
    /// What it was computed under, where schemes change during a run.
    #[serde(default)]
    pub using: Option<UsedScheme>,
    /// For whom it was planned, in lines where that is another than in those before.
    #[serde(default)]
    pub plan: Option<UsedPlan>,
    /// The load assigned for it, in batches.
    #[serde(default)]
    pub work: Option<f64>,
    /// Fraction of the batch in its gradient.
    #[serde(default)]
    pub coverage: Option<f64>,
}

/// One round of a [`RecordedStep`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RecordedRound {
    /// Number of the round, from 0.
    pub round: u64,
    /// When it opened.
    pub opened: f64,
    /// How long it was open.
    pub seconds: f64,
    /// When each worker had answered, since the round opened; none if it had not by the close.
    pub arrivals: Vec<Option<f64>>,
    /// Injected lateness of each worker; empty where the run injected none.
    #[serde(default)]
    pub delays: Vec<f64>,
}

/// For whom a step was planned.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UsedPlan {
    /// Those who are given tasks.
    pub members: Vec<u32>,
    /// The text of the scheme for them.
    pub scheme: String,
}

/// The scheme that a step was computed under.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UsedScheme {
    /// Its text.
    pub scheme: String,
}

/// What a worker has done for a round, whether or not its answer was waited for: in a record the
/// list `[round, worker, computed, progress, came, units]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkReport {
    /// Which round.
    pub round: u64,
    /// Whose.
    pub worker: u64,
    /// Seconds of computation, by the worker's own clock.
    pub computed: f64,
    /// Fraction of what it was assigned in that round that is finished, from 0 to 1.
    pub progress: f64,
    /// Seconds from the opening of that round to the worker's last word of it.
    pub came: f64,
    /// Units of the batch that it finished in that round; older records do not tell.
    pub units: Option<u64>,
}

impl<'de> Deserialize<'de> for WorkReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ReportVisitor)
    }
}

/// Reads a report from a list, whose last entry may be missing.
struct ReportVisitor;

impl<'de> Visitor<'de> for ReportVisitor {
    type Value = WorkReport;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a list of round, worker, computed, progress, came and units")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WorkReport, A::Error> {
        Ok(WorkReport {
            round: entry(&mut list, 0)?,
            worker: entry(&mut list, 1)?,
            computed: entry(&mut list, 2)?,
            progress: entry(&mut list, 3)?,
            came: entry(&mut list, 4)?,
            units: list.next_element()?,
        })
    }
}

/// The next entry of a list, of which there are `before` before it.
fn entry<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    list: &mut A,
    before: usize,
) -> Result<T, A::Error> {
    list.next_element()?.ok_or_else(|| A::Error::invalid_length(before, &ReportVisitor))
}

impl WorkReport {
    /// Seconds that the whole of its tasks would have taken; none if nothing was finished.
    pub(super) fn whole(&self) -> Option<f64> {
        (self.progress > 0.0).then(|| self.computed / self.progress)
    }

    /// Seconds of computation per unit; none if no unit was finished, or their number is unknown.
    pub(super) fn per_unit(&self) -> Option<f64> {
        let units = self.units.filter(|units| *units > 0)?;
        Some(self.computed / units as f64)
    }

    /// Seconds that passed without computation: network, queues, the host.
    pub(super) fn elsewhere(&self) -> f64 {
        self.came - self.computed
    }

    /// Whether it can be true. Clocks that were set back show as more computation than time.
    fn is_sound(&self, workers: usize) -> bool {
        const SLACK: f64 = 1.0;
        let times = [self.computed, self.came];
        self.worker < workers as u64
            && times.iter().all(|time| time.is_finite() && *time >= 0.0)
            && (0.0..=1.0).contains(&self.progress)
            && self.computed <= self.came + SLACK
    }
}

/// What happened in a run beside its steps: one line of `events.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// Unix time; none under a virtual clock.
    pub at: Option<f64>,
    /// Which run of the folder.
    #[serde(default)]
    pub run: usize,
    /// During which step.
    pub step: Option<u64>,
    /// The round that was opened last.
    pub round: Option<u64>,
    /// Of which worker, if of one.
    pub worker: Option<usize>,
    /// `join`, `lost`, `checkpoint` and so on.
    pub kind: String,
    /// The same in words.
    #[serde(default)]
    pub what: String,
    /// Which process the worker is, or was last; where workers are processes.
    #[serde(flatten)]
    pub process: Option<WorkerProcess>,
    /// The notice with which a worker leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Whether a worker that has left was asked to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub told: bool,
    /// What a checkpoint took.
    #[serde(flatten)]
    pub checkpoint: Option<CheckpointCost>,
}

/// A worker's process, as far as it has said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerProcess {
    /// Its name; null where none has come.
    #[serde(deserialize_with = "Option::deserialize")]
    pub identity: Option<String>,
    /// With which others it may fail at once.
    pub domain: Option<String>,
}

/// What a checkpoint took; under a virtual clock its times are null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointCost {
    /// Seconds for which it held up training.
    #[serde(deserialize_with = "Option::deserialize")]
    pub blocked: Option<f64>,
    /// Seconds that it took beside training.
    pub writing: Option<f64>,
    /// Of its file.
    #[serde(default)]
    pub bytes: u64,
}

impl RunEvent {
    /// How the words of an `end` begin if the run broke off; what follows is why.
    pub const FAILED: &str = "failed: ";

    /// Why the run broke off, if that is what is told.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.what.strip_prefix(Self::FAILED).filter(|_| self.kind == "end")
    }
}

/// A line that cannot belong to the record.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A round without workers.
    #[error("round {round} has arrivals of 0 workers, where one or more are expected")]
    Nobody {
        /// Which round.
        round: u64,
    },
    /// A round of another number of workers.
    #[error("round {round} has arrivals of {found} workers, where {expected} are expected")]
    Workers {
        /// Which round.
        round: u64,
        /// Workers of this round.
        found: usize,
        /// Workers of the rounds before.
        expected: usize,
    },
    /// A number that is no time.
    #[error("{what}: {value} is no time in seconds (a finite number of 0 or more)")]
    Time {
        /// The field.
        what: &'static str,
        /// What stands there.
        value: f64,
    },
    /// No step between two numbers.
    #[error("there is no step from {from} to {to}: the record holds steps {first} to {last}")]
    Empty {
        /// The first step asked for.
        from: u64,
        /// The last step asked for.
        to: u64,
        /// The first step there is.
        first: u64,
        /// The last step there is.
        last: u64,
    },
}

/// When a step was decided, and which rounds closed meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) step: u64,
    pub(super) committed: f64,
    pub(super) seconds: f64,
    pub(super) at: Option<f64>,
    pub(super) work: Option<f64>,
    pub(super) coverage: Option<f64>,
    /// Its rounds, as places in the list of all of them.
    pub(super) rounds: std::ops::Range<usize>,
    /// How often the run had been resumed.
    leg: usize,
    using: Option<String>,
    pub(super) plan: Option<Arc<UsedPlan>>,
    /// In ascending order.
    pub(super) survivors: Option<Vec<u32>>,
}

/// The steps of one run, line by line.
///
/// ```
/// use codedgrad::doctor::Record;
/// let line = r#"{"run": 0, "scheme": "uncoded", "step": 0, "committed": 1.5, "seconds": 1.5,
///     "rounds": [{"round": 0, "opened": 0.0, "seconds": 1.25, "arrivals": [1.0, 1.25]}]}"#;
/// let mut record = Record::default();
/// record.push(serde_json::from_str(line)?)?;
/// assert_eq!((record.workers(), record.rounds(), record.scheme()), (2, 1, "uncoded"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Record {
    scheme: String,
    workers: usize,
    pub(super) steps: Vec<Step>,
    pub(super) closed: Vec<RecordedRound>,
    /// What was reported, and how often the run had been resumed then.
    reports: Vec<(usize, WorkReport)>,
    unsound: usize,
    is_trace: bool,
    /// What is added to times, for a run that goes on begins its clock again.
    since: f64,
}

impl Record {
    /// Takes in the next line of the run.
    ///
    /// Reports of work that cannot be true (of an unknown worker, with progress beyond 0 to 1, or
    /// with more computation than time) are left out and [counted](Record::unsound_reports).
    ///
    /// # Errors
    /// [`RecordError`] if a round has another number of workers than those before, or a time is
    /// negative or not finite; the record is then as it was.
    pub fn push(&mut self, line: RecordedStep) -> Result<(), RecordError> {
        let workers = self.check(&line)?;
        // Seats that a run got later had no worker before; those that it lost never had one.
        if workers != self.workers {
            for round in &mut self.closed {
                round.arrivals.resize(workers, None);
                if !round.delays.is_empty() {
                    round.delays.resize(workers, 0.0);
                }
            }
        }
        self.workers = workers;
        let mut leg = self.steps.last().map_or(0, |last| last.leg);
        if let Some(last) = self.steps.last().map(|last| last.committed)
            && self.begins_again(&line, last)
        {
            let opened = line.rounds.first().map_or(line.committed, |round| round.opened);
            self.since = last - opened;
            leg += 1;
        }
        let before = self.steps.last().and_then(|step| step.plan.clone());
        let plan = line.plan.map(Arc::new).or(before);
        let first = self.closed.len();
        self.closed.extend(
            line.rounds
                .into_iter()
                .map(|round| RecordedRound { opened: round.opened + self.since, ..round }),
        );
        let before = self.reports.len();
        let sound = line.spent.iter().filter(|report| report.is_sound(workers));
        self.reports.extend(sound.map(|report| (leg, *report)));
        self.unsound += line.spent.len() - (self.reports.len() - before);
        self.steps.push(Step {
            step: line.step,
            committed: line.committed + self.since,
            seconds: line.seconds,
            at: line.at,
            work: line.work,
            coverage: line.coverage,
            rounds: first..self.closed.len(),
            leg,
            using: line.using.map(|using| using.scheme),
            plan,
            survivors: line.survivors.map(|mut survivors| {
                survivors.sort_unstable();
                survivors
            }),
        });
        if self.steps.len() == 1 {
            self.scheme = line.scheme;
        }
        Ok(())
    }

    /// Whether a run was resumed with this line, after a last step that was `committed` then: its
    /// clock begins again, and so may the numbers of its rounds.
    fn begins_again(&self, line: &RecordedStep, committed: f64) -> bool {
        let numbers = (self.closed.last(), line.rounds.first());
        let by_number = matches!(numbers, (Some(last), Some(next)) if next.round <= last.round);
        by_number || line.committed + self.since < committed
    }

    /// The number of workers, if the line fits the lines before.
    fn check(&self, line: &RecordedStep) -> Result<usize, RecordError> {
        let legal = |what, value: f64| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => Err(RecordError::Time { what, value }),
        };
        legal("committed", line.committed)?;
        legal("seconds", line.seconds)?;
        legal("at", line.at.unwrap_or(0.0))?;
        let mut workers = self.workers;
        for RecordedRound { round, opened, seconds, arrivals, delays } in &line.rounds {
            let found = arrivals.len();
            if found == 0 {
                return Err(RecordError::Nobody { round: *round });
            }
            // A run that goes on may have got other seats, and says so by its plan.
            let may_change = line.plan.is_some() && workers == self.workers;
            if workers != 0 && found != workers && !may_change {
                return Err(RecordError::Workers { round: *round, found, expected: workers });
            }
            workers = found;
            legal("opened", *opened)?;
            legal("seconds of a round", *seconds)?;
            arrivals.iter().flatten().try_for_each(|time| legal("arrivals", *time))?;
            delays.iter().try_for_each(|time| legal("delays", *time))?;
        }
        Ok(workers)
    }

    /// A trace as the record of a run of `uncoded`: every row is a step of one round, which waits
    /// for all workers. An answer that was not received is infinite.
    ///
    /// # Errors
    /// As [`Record::push`].
    pub fn of_trace(rows: impl IntoIterator<Item = Vec<f64>>) -> Result<Self, RecordError> {
        Self::of_numbered_trace((0..).zip(rows))
    }

    /// The same where rounds have numbers of their own, which grow.
    ///
    /// # Errors
    /// As [`Record::push`].
    ///
    /// ```
    /// use codedgrad::doctor::Record;
    /// let rows = [(12000, vec![1.0, 1.5]), (12010, vec![1.0, f64::INFINITY])];
    /// let record = Record::of_numbered_trace(rows)?;
    /// assert!(record.clone().between(Some(12010), None).is_ok_and(|part| part.rounds() == 1));
    /// assert!(record.between(Some(12011), None).is_err());
    /// # Ok::<(), codedgrad::doctor::RecordError>(())
    /// ```
    pub fn of_numbered_trace(
        rows: impl IntoIterator<Item = (u64, Vec<f64>)>,
    ) -> Result<Self, RecordError> {
        let mut record = Self { is_trace: true, ..Self::default() };
        let mut now = 0.0;
        for (number, row) in rows {
            let received = |time: &f64| *time < f64::INFINITY;
            let seconds = row.iter().copied().filter(received).fold(0.0, f64::max);
            let round = RecordedRound {
                round: number,
                opened: now,
                seconds,
                // What is no number is no time, and is refused as such.
                arrivals: row
                    .into_iter()
                    .map(|time| (time != f64::INFINITY).then_some(time))
                    .collect(),
                delays: Vec::new(),
            };
            now += seconds;
            record.push(RecordedStep {
                run: 0,
                scheme: "uncoded".into(),
                step: number,
                committed: now,
                seconds,
                at: None,
                rounds: vec![round],
                survivors: None,
                spent: Vec::new(),
                using: None,
                plan: None,
                work: None,
                coverage: None,
            })?;
        }
        Ok(record)
    }

    /// Whether a trace says that a worker's answer was not received.
    pub(super) fn not_received(&self, place: usize, worker: usize) -> bool {
        self.is_trace && self.closed[place].arrivals[worker].is_none()
    }

    /// Whether it was a trace, whose times may have been taken anywhere.
    pub(super) fn is_trace(&self) -> bool {
        self.is_trace
    }

    /// The steps from one number to another, both included, with all that is known of their rounds.
    ///
    /// # Errors
    /// [`RecordError::Empty`] if there is no such step.
    pub fn between(mut self, from: Option<u64>, to: Option<u64>) -> Result<Self, RecordError> {
        let ends = self.steps.first().zip(self.steps.last());
        let Some((first, last)) = ends.map(|(first, last)| (first.step, last.step)) else {
            return Ok(self);
        };
        let (from, to) = (from.unwrap_or(first), to.unwrap_or(last));
        self.steps.retain(|step| (from..=to).contains(&step.step));
        if self.steps.is_empty() {
            return Err(RecordError::Empty { from, to, first, last });
        }
        Ok(self.with_rounds_of_steps())
    }

    /// The record without its first steps, this many or all there are.
    ///
    /// ```
    /// use codedgrad::doctor::Record;
    /// let record = Record::of_trace((0..5).map(|_| vec![1.0, 1.5]))?;
    /// assert_eq!(record.clone().without_first(3).rounds(), 2);
    /// assert_eq!(record.without_first(9).steps(), 0);
    /// # Ok::<(), codedgrad::doctor::RecordError>(())
    /// ```
    #[must_use]
    pub fn without_first(mut self, steps: usize) -> Self {
        self.steps.drain(..steps.min(self.steps.len()));
        self.with_rounds_of_steps()
    }

    /// The same without the rounds of steps that were left out.
    fn with_rounds_of_steps(mut self) -> Self {
        let mut all = std::mem::take(&mut self.closed);
        for step in &mut self.steps {
            let kept = self.closed.len();
            self.closed.extend(all[step.rounds.clone()].iter_mut().map(|round| RecordedRound {
                arrivals: std::mem::take(&mut round.arrivals),
                delays: std::mem::take(&mut round.delays),
                ..*round
            }));
            step.rounds = kept..self.closed.len();
        }
        self
    }

    /// Number of workers; 0 as long as no round has closed.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Rounds.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.closed.len()
    }

    /// The text of the scheme: that which all steps were computed under, or the run's own.
    #[must_use]
    pub fn scheme(&self) -> &str {
        let used = self.steps.first().and_then(|step| {
            let planned = step.plan.as_ref().map(|plan| plan.scheme.as_str());
            step.using.as_deref().or(planned)
        });
        used.filter(|_| self.switched().is_none()).unwrap_or(&self.scheme)
    }

    /// How many of the workers its steps were planned for, where that is not all of them.
    #[must_use]
    pub fn planned_for(&self) -> Option<usize> {
        let plan = self.steps.first().and_then(|step| step.plan.as_ref());
        plan.map(|plan| plan.members.len()).filter(|members| *members < self.workers)
    }

    /// The first step that was computed under another scheme than the one before it, or for other
    /// workers, and the last such step, if there is any.
    #[must_use]
    pub fn switched(&self) -> Option<(u64, u64)> {
        let under = |step: &Step| (step.using.clone(), step.plan.clone());
        let other = |pair: &&[Step]| under(&pair[0]) != under(&pair[1]);
        let mut switches = self.steps.windows(2).filter(other).map(|pair| pair[1].step);
        let first = switches.next()?;
        Some((first, switches.next_back().unwrap_or(first)))
    }

    /// Reports of work that were left out.
    #[must_use]
    pub fn unsound_reports(&self) -> usize {
        self.unsound
    }

    /// What was reported of the rounds that are held, with the places of these.
    pub(super) fn reports(&self) -> impl Iterator<Item = (usize, &WorkReport)> {
        // A run that was resumed may have several rounds of a number.
        let of_step = |step: &Step| {
            let leg = step.leg;
            step.rounds.clone().map(move |place| ((leg, self.closed[place].round), place))
        };
        let places: HashMap<(usize, u64), usize> = self.steps.iter().flat_map(of_step).collect();
        let place =
            move |leg: usize, report: &WorkReport| places.get(&(leg, report.round)).copied();
        self.reports.iter().filter_map(move |(leg, report)| Some((place(*leg, report)?, report)))
    }

    /// The step in which a round closed, by the round's place.
    pub(super) fn step_of(&self, place: usize) -> Option<&Step> {
        let at = self.steps.partition_point(|step| step.rounds.end <= place);
        self.steps.get(at)
    }
}

#[cfg(test)]
mod tests;
