//! Delays of workers, round by round: presets with a seed, and recorded traces from CSV files.
//!
//! A row holds one number per worker. Worker `i`'s answer is released `d_i - min(d)` after it is
//! ready, in units of the uncoded compute time of a step or in seconds, as [`Unit`] says.
//!
//! | to | take |
//! |---|---|
//! | inject delays into a run of known length | [`Delays`] |
//! | look at any number of rounds, one in memory at a time | [`DelayRows`] |
//! | read or write a trace | [`TraceReader`], [`write_row`] |
//! | read a cell that is not plain | [`time_in`], [`at_least`] |
//! | tell whether a table looks like no trace | [`suspicions`] |
//! | make a trace of a training run | [`recorded_row`] |
//! | measure how workers straggle | [`StragglerStats`] |

mod cell;
mod draw;
mod lines;
mod preset;
mod quantile;
mod record;
mod serverless;
mod stats;
mod suspicions;
mod trace;
mod windows;

pub use cell::{Comma, Commas, time_in};
pub use lines::{TIME_MAX, TRACE_BYTES_MAX};
pub use preset::{Growth, Preset, PresetRows};
pub use record::recorded_row;
pub use serverless::{Serverless, ServerlessRows};
pub use stats::{OverShare, SlowSummary, StragglerStats, StragglerSummary};
pub use suspicions::{Suspicion, after_exchange, suspicions};
pub(crate) use trace::in_few_digits;
pub use trace::{Trace, TraceError, TraceReader, at_least, write_row};
pub use windows::WindowSummary;

use crate::spelling::{hint, near, several};
use std::fmt;
use std::path::Path;
use thiserror::Error;

/// What a row of delays is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The uncoded compute time of one step; a number is what comes on top of it.
    StepTimes,
    /// Seconds; a number is the whole time of an answer, at the load it was recorded with.
    Seconds,
}

impl Unit {
    /// The time a whole answer takes, in this unit: `1 + d` for lateness in step times, `d` for
    /// seconds.
    ///
    /// ```
    /// use codedgrad::delays::Unit;
    /// assert_eq!((Unit::StepTimes.answer_time(0.5), Unit::Seconds.answer_time(0.5)), (1.5, 0.5));
    /// ```
    #[must_use]
    pub fn answer_time(self, delay: f64) -> f64 {
        match self {
            Self::StepTimes => 1.0 + delay,
            Self::Seconds => delay,
        }
    }

    /// Seconds by which each worker is later than the fastest, of a row of delays in this unit:
    /// what a trainer injects.
    ///
    /// # Formula
    /// ```text
    /// lateness_i = (d_i - min(d)) u
    /// ```
    /// where `u` is `step_seconds` (the uncoded compute time of a step) for step times and 1 for
    /// seconds. Workers beyond the row have `d_i` = 0.
    ///
    /// ```
    /// use codedgrad::delays::Unit;
    /// assert_eq!(Unit::StepTimes.lateness(vec![0.5, 2.0], 2, 4.0), [0.0, 6.0]);
    /// assert_eq!(Unit::Seconds.lateness(vec![0.5, 2.0], 2, 4.0), [0.0, 1.5]);
    /// ```
    #[must_use]
    pub fn lateness(self, mut row: Vec<f64>, workers: usize, step_seconds: f64) -> Vec<f64> {
        let unit = match self {
            Self::StepTimes => step_seconds,
            Self::Seconds => 1.0,
        };
        row.resize(workers, 0.0);
        let least = row.iter().copied().fold(f64::INFINITY, f64::min);
        row.into_iter().map(|delay| (delay - least) * unit).collect()
    }
}

/// Delays that cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DelayError {
    /// Neither a preset nor a file.
    #[error(
        "{text:?} is neither a preset nor a file; presets: {}{}",
        Preset::names().join(", "),
        hint(*nearest)
    )]
    Unknown {
        /// What was asked for.
        text: String,
        /// The preset that it is a slip of.
        nearest: Option<&'static str>,
    },
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A task of an impossible size.
    #[error("a task cannot have a load of {load} batches (a finite number of 0 or more)")]
    Load {
        /// The load asked for.
        load: f64,
    },
}

/// Where the delays of a run come from.
#[derive(Clone, Debug)]
pub enum Delays {
    /// No worker is delayed.
    None,
    /// A named preset.
    Preset {
        /// Which.
        preset: Preset,
        /// Number of workers.
        workers: usize,
        /// Seed of the draws.
        seed: u64,
    },
    /// A recorded trace; it starts again at its first row when it is used up.
    Trace(Trace),
}

impl Delays {
    /// A preset by its name, or a CSV file of seconds, which is read as a whole;
    /// [`Delays::for_rounds`] and [`DelayRows`] do not.
    ///
    /// # Errors
    /// [`DelayError`] when it is neither, or the file cannot be used.
    ///
    /// ```
    /// use codedgrad::delays::Delays;
    /// let delays = Delays::open("hotspot", 8, 1)?;
    /// assert_eq!(delays.rows(20).len(), 20);
    /// assert!(Delays::open("hotspott", 8, 1).unwrap_err().to_string().contains("hotspot"));
    /// # Ok::<(), codedgrad::delays::DelayError>(())
    /// ```
    pub fn open(text: &str, workers: usize, seed: u64) -> Result<Self, DelayError> {
        Self::for_rounds(text, workers, seed, usize::MAX)
    }

    /// The same for a run of `rounds` rounds: of a file, no line is read that the run will not come
    /// to.
    ///
    /// # Errors
    /// [`DelayError`] when it is neither, or those lines of the file cannot be used.
    pub fn for_rounds(
        text: &str,
        workers: usize,
        seed: u64,
        rounds: usize,
    ) -> Result<Self, DelayError> {
        match preset_or_file(text)? {
            Some(preset) => Ok(Self::Preset { preset, workers, seed }),
            None => Ok(Self::Trace(Trace::read_rounds(Path::new(text), workers, rounds)?)),
        }
    }

    /// The first `rounds` rows. Rows do not depend on how many are asked for.
    #[must_use]
    pub fn rows(&self, rounds: usize) -> Vec<Vec<f64>> {
        match self {
            Self::None => vec![Vec::new(); rounds],
            Self::Preset { preset, workers, seed } => preset.rows(*workers, rounds, *seed),
            Self::Trace(trace) => trace.rows().iter().cycle().take(rounds).cloned().collect(),
        }
    }

    /// What the rows are measured in.
    #[must_use]
    pub fn unit(&self) -> Unit {
        match self {
            Self::None => Unit::StepTimes,
            Self::Preset { preset, .. } => preset.unit(),
            Self::Trace(_) => Unit::Seconds,
        }
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "no stragglers"),
            Self::Preset { preset, .. } => write!(f, "{}: {}", preset.name(), preset.description()),
            Self::Trace(trace) => {
                write!(
                    f,
                    "{}{}",
                    if trace.is_cut() { "a longer trace's first " } else { "trace of " },
                    several(trace.rows().len(), "round")
                )?;
                let workers = trace.rows().first().map_or(0, Vec::len);
                if workers < trace.columns() {
                    write!(f, ", the first {workers} of {} columns", trace.columns())
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// The preset of that name, or none where it is a file's.
fn preset_or_file(text: &str) -> Result<Option<Preset>, DelayError> {
    let preset = Preset::named(text);
    if preset.is_none() && !Path::new(text).exists() {
        let nearest = near(text, Preset::names());
        return Err(DelayError::Unknown { text: text.into(), nearest });
    }
    Ok(preset)
}

/// Delays one row at a time and without end: a file starts again at its first line when it is used
/// up.
///
/// ```
/// use codedgrad::delays::{DelayRows, Unit};
/// let mut rows = DelayRows::open("serverless", Some(16), 7)?;
/// assert_eq!((rows.workers(), rows.unit()), (16, Unit::Seconds));
/// assert_eq!(rows.nth(1_000).transpose()?.map(|row| row.len()), Some(16));
/// # Ok::<(), codedgrad::delays::DelayError>(())
/// ```
#[derive(Debug)]
pub struct DelayRows {
    source: Source,
    unit: Unit,
    workers: usize,
}

#[derive(Debug)]
enum Source {
    Preset(Box<PresetRows>),
    File(Box<TraceReader>),
}

impl DelayRows {
    /// A preset by its name or a CSV file of seconds, for the given number of workers; where none
    /// is given, for all columns of the file or the preset's usual number.
    ///
    /// # Errors
    /// [`DelayError`] when it is neither, or the first line of the file cannot be used. Later lines
    /// are looked at when their turn comes.
    pub fn open(text: &str, workers: Option<usize>, seed: u64) -> Result<Self, DelayError> {
        match preset_or_file(text)? {
            Some(preset) => {
                let workers = workers.unwrap_or(preset.usual_workers());
                Ok(Self {
                    source: Source::Preset(Box::new(preset.stream(workers, seed))),
                    unit: preset.unit(),
                    workers,
                })
            }
            None => Ok(Self::from_trace(TraceReader::open(Path::new(text), workers)?)),
        }
    }

    /// The rows of a trace, over and over.
    #[must_use]
    pub fn from_trace(trace: TraceReader) -> Self {
        Self {
            workers: trace.workers(),
            source: Source::File(Box::new(trace)),
            unit: Unit::Seconds,
        }
    }

    /// What the rows are measured in.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Numbers in each row.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Columns of the file, of which the first are read; none for a preset.
    #[must_use]
    pub fn columns(&self) -> Option<usize> {
        match &self.source {
            Source::Preset(_) => None,
            Source::File(trace) => Some(trace.columns()),
        }
    }
}

impl Iterator for DelayRows {
    type Item = Result<Vec<f64>, DelayError>;

    fn next(&mut self) -> Option<Self::Item> {
        let trace = match &mut self.source {
            Source::Preset(rows) => return rows.next().map(Ok),
            Source::File(trace) => trace,
        };
        if let Some(row) = trace.next() {
            return Some(row.map_err(DelayError::from));
        }
        if let Err(error) = trace.rewind() {
            return Some(Err(error.into()));
        }
        let row = trace.next().unwrap_or_else(|| Err(trace.all_have_gaps()));
        Some(row.map_err(DelayError::from))
    }
}

#[cfg(test)]
mod tests;
