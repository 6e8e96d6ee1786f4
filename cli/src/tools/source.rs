//! Where `simulate` and `plan` have their delays from: a preset, a file, standard input or a run.

use super::called::{Rounds, TraceLabels};
use super::ranks::Ranks;
use super::recorded::RecordedRun;
use super::recording::Recording;
use super::times::{Times, TraceTimes};
use anyhow::{Context, anyhow};
use codedgrad::delays::{
    DelayError, DelayRows, Growth, Preset, TRACE_BYTES_MAX, TraceReader, Unit, at_least,
};
use codedgrad::files::BoundedReader;
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::input::decoded;
use codedgrad_shell::output::Output;
use codedgrad_shell::suspicious;
use std::io::{Cursor, Read};
use std::path::Path;

/// What stands for standard input.
const STDIN: &str = "-";

/// Seed of a preset's draws, where none is given.
pub(crate) const SEED: u64 = 1;

/// The seed that these delays were drawn from; none where they are recorded.
pub(crate) fn seed_of(delays: &str, given: Option<u64>) -> Option<u64> {
    Preset::named(delays).map(|_| given.unwrap_or(SEED))
}

/// Says so where a seed is given and nothing is drawn.
pub(crate) fn say_seed(delays: &str, given: Option<u64>, output: &mut Output<'_>) {
    if let Some(seed) = given.filter(|_| Preset::named(delays).is_none()) {
        output.note(format_args!("--seed {seed} has no effect: these delays are recorded"));
    }
}

/// Delays of a known number of workers, in answer times.
pub(crate) struct Source {
    pub(crate) preset: Option<Preset>,
    workers: usize,
    rows: Rows,
    /// How a run's times grow, where its record tells.
    recorded: Option<Growth>,
    /// What a trace's workers and rounds are called.
    called: Option<TraceLabels>,
    /// Whether the times may have been taken anywhere, as those of others.
    is_trace: bool,
}

/// Rounds as they are told, and what they are called.
pub(crate) struct NamedRounds {
    /// Infinite where an answer was not received.
    pub(crate) rows: Vec<Vec<f64>>,
    /// Whether there are others.
    pub(crate) more: bool,
    /// The number of each round.
    pub(crate) numbers: Vec<u64>,
    /// Of each worker; none where they have numbers alone.
    pub(crate) names: Vec<String>,
    /// How far most rounds are apart.
    pub(crate) distance: u64,
    /// What the rows do not show, in words.
    pub(crate) not_seen: Vec<String>,
    /// Whether the times may have been taken anywhere.
    pub(crate) is_trace: bool,
}

/// Rows of delays, one after the other.
pub(crate) type RowIterator = Box<dyn Iterator<Item = Result<Vec<f64>, DelayError>>>;

enum Rows {
    Preset(DelayRows),
    File(TraceReader),
    /// What can be read only once, as it was told.
    Kept(Vec<Vec<f64>>),
}

impl Source {
    /// Opens what `--delays` says, for the given number of workers or for as many as there are.
    /// With `grown`, a run's times are those to plan with, for [`Source::growth`].
    pub(crate) fn open(
        name: &str,
        workers: Option<usize>,
        seed: u64,
        grown: bool,
        output: &mut Output<'_>,
    ) -> Result<Self, Failure> {
        let path = Path::new(name);
        let preset = Preset::named(name);
        if preset.is_none() && name == STDIN {
            let mut text = Vec::new();
            BoundedReader::new(std::io::stdin(), TRACE_BYTES_MAX)
                .read_to_end(&mut text)
                .context("cannot read the delays from standard input")
                .or_input()?;
            return Self::kept(text, "standard input", workers, true, output);
        }
        if preset.is_none() && Ranks::is_in(path) {
            return Self::of_ranks(&[path], workers, output);
        }
        if preset.is_none() && RecordedRun::is_in(path) {
            let (csv, recorded) = Recording::as_text(path, grown, output)?;
            let kept = Self::kept(csv, &format!("the record of {name}"), workers, false, output)?;
            return Ok(Self { recorded, ..kept });
        }
        if preset.is_some() || !path.exists() {
            let rows = DelayRows::open(name, workers, seed).or_input()?;
            return Ok(Self {
                preset,
                workers: rows.workers(),
                rows: Rows::Preset(rows),
                recorded: None,
                called: None,
                is_trace: false,
            });
        }
        if let Some(text) = decoded(path) {
            return Self::kept(text, name, workers, true, output);
        }
        let trace = TraceReader::open(path, workers).or_input()?;
        suspicious::say_of_columns(name, trace.workers(), trace.columns(), output);
        let called = TraceLabels::of(path)?;
        let workers = trace.workers();
        Ok(Self {
            preset,
            workers,
            rows: Rows::File(trace),
            recorded: None,
            called,
            is_trace: true,
        })
    }

    /// The steps of another trainer's ranks, of so many of them if that is said.
    pub(crate) fn of_ranks(
        folders: &[&Path],
        workers: Option<usize>,
        output: &mut Output<'_>,
    ) -> Result<Self, Failure> {
        let Ranks { mut rows, called, .. } = Ranks::read(folders, output)?;
        let ranks = called.workers.len();
        let workers = workers.unwrap_or(ranks);
        if workers > ranks {
            return Err(Failure::Input(anyhow!(
                "{} has {ranks} ranks, not {workers}",
                folders[0].display()
            )));
        }
        rows.iter_mut().for_each(|row| row.truncate(workers));
        Ok(Self {
            preset: None,
            workers,
            rows: Rows::Kept(rows),
            recorded: None,
            called: Some(called),
            // They were taken before others are waited for.
            is_trace: false,
        })
    }

    fn kept(
        csv: Vec<u8>,
        name: &str,
        workers: Option<usize>,
        is_trace: bool,
        output: &mut Output<'_>,
    ) -> Result<Self, Failure> {
        let mut trace = TraceReader::new(Cursor::new(csv), Path::new(name), workers).or_input()?;
        suspicious::say_of_columns(name, trace.workers(), trace.columns(), output);
        let workers = trace.workers();
        let rows = as_told(&mut trace, usize::MAX)?;
        // The times of our own runs were taken before the exchange.
        if is_trace {
            let seen = at_least_of(rows.iter().take(suspicious::ROWS).cloned());
            suspicious::say_of_rows(name, &seen.collect::<Vec<_>>(), output);
        }
        let rows = Rows::Kept(rows);
        Ok(Self { preset: None, workers, rows, recorded: None, called: None, is_trace })
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// The same without what has gaps, if there are some among the first rounds: rounds or workers
    /// are left out as [`Source::told`] does.
    pub(crate) fn without_gaps(
        self,
        name: &str,
        most: usize,
        output: &mut Output<'_>,
    ) -> Result<Self, Failure> {
        let has_gaps = match &self.rows {
            Rows::Preset(_) => false,
            Rows::File(_) => suspicious::has_gaps(name, self.workers, most),
            Rows::Kept(rows) => rows.iter().flatten().any(|time| time.is_nan()),
        };
        if !has_gaps {
            return Ok(self);
        }
        let (preset, recorded) = (self.preset, self.recorded);
        let NamedRounds { rows, is_trace, .. } = self.told(most, output)?;
        let workers = rows.first().map_or(0, Vec::len);
        Ok(Self { preset, workers, rows: Rows::Kept(rows), recorded, called: None, is_trace })
    }

    /// How the delays grow with the load, unless a user says otherwise.
    pub(crate) fn growth(&self) -> Growth {
        self.recorded.unwrap_or(Growth::usual(self.preset, self.workers))
    }

    /// The first rounds, no more than `most`, and whether there are others. A round with a value
    /// that is missing is left out, and what was not received took as long as the round's last.
    pub(crate) fn first(self, most: usize) -> Result<(Vec<Vec<f64>>, bool), Failure> {
        let (rows, more) = self.told_rows(most)?;
        let rows: Vec<Vec<f64>> = at_least_of(rows.into_iter()).collect();
        if rows.is_empty() {
            return Err(Failure::Input(anyhow!("no round has a time of every worker")));
        }
        Ok((rows, more))
    }

    fn told_rows(self, most: usize) -> Result<(Vec<Vec<f64>>, bool), Failure> {
        match self.rows {
            Rows::Preset(rows) => {
                let rows = answers(rows).take(most).collect::<Result<_, _>>().or_input()?;
                Ok((rows, true))
            }
            Rows::File(mut trace) => {
                let rows = as_told(&mut trace, most)?;
                Ok((rows, trace.next_as_told().is_some()))
            }
            Rows::Kept(mut rows) => {
                let more = rows.len() > most;
                rows.truncate(most);
                Ok((rows, more))
            }
        }
    }

    /// The first rounds, no more than `most`, with what they and their workers are called. Where
    /// values are missing, rounds or workers are left out, as `trace import` does; it is said.
    pub(crate) fn told(
        mut self,
        most: usize,
        output: &mut Output<'_>,
    ) -> Result<NamedRounds, Failure> {
        let workers = self.workers;
        let is_trace = self.is_trace;
        let called = self.called.take().filter(|called| called.workers.len() >= workers);
        let called = called.unwrap_or_default();
        let (rows, more) = self.told_rows(most)?;
        let all = called.rounds.all_numbers();
        let numbers: Vec<u64> = match all.filter(|all| all.len() >= rows.len()) {
            Some(numbers) => numbers.into_iter().take(rows.len()).collect(),
            None => (0..rows.len() as u64).collect(),
        };
        called.not_seen.iter().for_each(|it| output.note(format_args!("not seen: {it}")));
        let mut told = NamedRounds {
            distance: called.rounds.distance(),
            names: called.workers.into_iter().take(workers).collect(),
            not_seen: called.not_seen,
            is_trace,
            rows,
            more,
            numbers,
        };
        if told.rows.iter().flatten().any(|time| time.is_nan()) {
            told.settle(output)?;
        }
        if told.rows.first().is_none_or(Vec::is_empty) {
            return Err(Failure::Input(anyhow!("no round has a time of every worker")));
        }
        Ok(told)
    }

    /// How late each worker is, without end, as [`Source::endless`] has rounds: by how many seconds
    /// its delay exceeds the least one, in steps of `step_seconds`.
    pub(crate) fn lateness(
        self,
        rounds: Option<usize>,
        step_seconds: f64,
    ) -> Result<RowIterator, Failure> {
        let workers = self.workers;
        let late = move |row, unit: Unit| unit.lateness(row, workers, step_seconds);
        let drawn = match self.rows {
            Rows::Preset(drawn) => drawn,
            rows => {
                let rows = Self { rows, ..self }.endless(rounds)?;
                return Ok(Box::new(rows.map(move |row| Ok(late(row?, Unit::Seconds)))));
            }
        };
        let unit = drawn.unit();
        let rows = drawn.map(move |row| Ok(late(row?, unit)));
        match rounds {
            None => Ok(Box::new(rows)),
            Some(rounds) => {
                let kept: Vec<_> = rows.take(rounds).collect::<Result<_, _>>().or_input()?;
                Ok(Box::new(kept.into_iter().cycle().map(Ok)))
            }
        }
    }

    /// Rounds without end: the first `rounds`, or all there are, over and over.
    pub(crate) fn endless(self, rounds: Option<usize>) -> Result<RowIterator, Failure> {
        let kept = match (rounds, self.rows) {
            (None, Rows::Preset(rows)) => return Ok(Box::new(answers(rows))),
            (None, Rows::File(trace)) => return Ok(Box::new(DelayRows::from_trace(trace))),
            (rounds, rows) => Self { rows, ..self }.first(rounds.unwrap_or(usize::MAX))?.0,
        };
        Ok(Box::new(kept.into_iter().cycle().map(Ok)))
    }
}

impl NamedRounds {
    /// Leaves out what has gaps.
    fn settle(&mut self, output: &mut Output<'_>) -> Result<(), Failure> {
        let workers = self.rows.first().map_or(0, Vec::len);
        if self.names.is_empty() {
            self.names = (0..workers).map(|worker| worker.to_string()).collect();
        }
        let mut times = Times::of_workers(&self.names);
        times.keep_order();
        for (number, row) in self.numbers.iter().zip(std::mem::take(&mut self.rows)) {
            times.push(&number.to_string(), row);
        }
        let settled: TraceTimes = times.settled();
        settled.say_gaps("round", "a value was missing", output);
        self.not_seen.extend(settled.gone());
        self.numbers = match Rounds::of(&settled.rounds).all_numbers() {
            Some(numbers) => numbers,
            None => (0..settled.rounds.len() as u64).collect(),
        };
        self.rows = settled.rows().collect();
        self.names = settled.workers;
        Ok(())
    }

    /// Has the largest time of a round stand for what was not received, and says how many answers
    /// that are.
    pub(crate) fn at_least(&mut self) -> usize {
        let filled = self.rows.iter_mut().map(|row| at_least(row).unwrap_or(0));
        filled.sum()
    }
}

fn as_told<R: std::io::BufRead>(
    trace: &mut TraceReader<R>,
    most: usize,
) -> Result<Vec<Vec<f64>>, Failure> {
    std::iter::from_fn(|| trace.next_as_told()).take(most).collect::<Result<_, _>>().or_input()
}

/// Complete rows, in which the largest time stands for what was not received.
fn at_least_of(rows: impl Iterator<Item = Vec<f64>>) -> impl Iterator<Item = Vec<f64>> {
    rows.filter_map(|mut row| at_least(&mut row).map(|_| row))
}

/// The times of answers.
fn answers(rows: DelayRows) -> impl Iterator<Item = Result<Vec<f64>, DelayError>> {
    let unit = rows.unit();
    rows.map(move |row| Ok(row?.into_iter().map(|delay| unit.answer_time(delay)).collect()))
}
