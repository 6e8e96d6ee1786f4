//! Where `simulate` and `plan` have their delays from: a preset, a file, standard input or a run.

use super::recorded::Recorded;
use super::suspicious;
use super::trace::Recording;
use crate::output::Output;
use crate::{Failure, OrInput};
use anyhow::Context;
use codedgrad::delays::{DelayError, DelayRows, Growth, Preset, TraceReader, Unit};
use std::io::{Cursor, Read};
use std::path::Path;

/// What stands for standard input.
const STDIN: &str = "-";

/// Delays of a known number of workers, in answer times.
pub(crate) struct Source {
    pub(crate) preset: Option<Preset>,
    workers: usize,
    rows: Rows,
    /// How a run's times grow, where its record tells.
    recorded: Option<Growth>,
}

/// Rows of delays, one after the other.
pub(crate) type Endless = Box<dyn Iterator<Item = Result<Vec<f64>, DelayError>>>;

enum Rows {
    Preset(DelayRows),
    File(TraceReader),
    /// What can be read only once.
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
            std::io::stdin()
                .read_to_end(&mut text)
                .context("cannot read the delays from standard input")
                .or_input()?;
            return Self::kept(text, "standard input", workers, output);
        }
        if preset.is_none() && Recorded::is_in(path) {
            let (csv, recorded) = Recording::as_text(path, grown, output)?;
            let kept = Self::kept(csv, &format!("the record of {name}"), workers, output)?;
            return Ok(Self { recorded, ..kept });
        }
        if preset.is_some() || !path.exists() {
            let rows = DelayRows::open(name, workers, seed).or_input()?;
            return Ok(Self {
                preset,
                workers: rows.workers(),
                rows: Rows::Preset(rows),
                recorded: None,
            });
        }
        let trace = TraceReader::open(path, workers).or_input()?;
        suspicious::say_of_columns(name, trace.workers(), trace.columns(), output);
        Ok(Self { preset, workers: trace.workers(), rows: Rows::File(trace), recorded: None })
    }

    fn kept(
        csv: Vec<u8>,
        name: &str,
        workers: Option<usize>,
        output: &mut Output<'_>,
    ) -> Result<Self, Failure> {
        let trace = TraceReader::new(Cursor::new(csv), Path::new(name), workers).or_input()?;
        suspicious::say_of_columns(name, trace.workers(), trace.columns(), output);
        let workers = trace.workers();
        let rows: Vec<Vec<f64>> = trace.collect::<Result<_, _>>().or_input()?;
        suspicious::say_of_rows(name, &rows[..rows.len().min(suspicious::ROWS)], output);
        Ok(Self { preset: None, workers, rows: Rows::Kept(rows), recorded: None })
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// How the delays grow with the load, unless somebody says otherwise.
    pub(crate) fn growth(&self) -> Growth {
        self.recorded.unwrap_or(Growth::usual(self.preset, self.workers))
    }

    /// The first rounds, no more than `most`, and whether there are others.
    pub(crate) fn first(self, most: usize) -> Result<(Vec<Vec<f64>>, bool), Failure> {
        match self.rows {
            Rows::Preset(rows) => {
                let rows = answers(rows).take(most).collect::<Result<_, _>>().or_input()?;
                Ok((rows, true))
            }
            Rows::File(mut trace) => {
                let rows = trace.by_ref().take(most).collect::<Result<_, _>>().or_input()?;
                Ok((rows, trace.next().is_some()))
            }
            Rows::Kept(mut rows) => {
                let more = rows.len() > most;
                rows.truncate(most);
                Ok((rows, more))
            }
        }
    }

    /// How late everybody is, without end, as [`Source::endless`] has rounds: by how many seconds
    /// each worker's delay is beyond the least one, in steps of so many seconds.
    pub(crate) fn lateness(
        self,
        rounds: Option<usize>,
        step_seconds: f64,
    ) -> Result<Endless, Failure> {
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
    pub(crate) fn endless(self, rounds: Option<usize>) -> Result<Endless, Failure> {
        let kept = match (rounds, self.rows) {
            (None, Rows::Preset(rows)) => return Ok(Box::new(answers(rows))),
            (None, Rows::File(trace)) => return Ok(Box::new(DelayRows::from_trace(trace))),
            (rounds, rows) => Self { rows, ..self }.first(rounds.unwrap_or(usize::MAX))?.0,
        };
        Ok(Box::new(kept.into_iter().cycle().map(Ok)))
    }
}

/// The times of answers.
fn answers(rows: DelayRows) -> impl Iterator<Item = Result<Vec<f64>, DelayError>> {
    let unit = rows.unit();
    rows.map(move |row| Ok(row?.into_iter().map(|delay| unit.answer_time(delay)).collect()))
}
