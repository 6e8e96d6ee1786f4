//! Delays of workers, round by round: presets with a seed, and recorded traces from CSV files.
//!
//! A row holds one number per worker. Worker `i`'s answer is released `d_i - min(d)` after it is ready,
//! in units of the uncoded compute time of a step for presets, in seconds for traces.

mod preset;
mod trace;

pub use preset::Preset;
pub use trace::{Trace, TraceError};

use std::fmt;
use std::path::Path;
use thiserror::Error;

/// What a row of delays is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The uncoded compute time of one step.
    StepTimes,
    /// Seconds.
    Seconds,
}

/// Delays that cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DelayError {
    /// Neither a preset nor a file.
    #[error("{text:?} is neither a preset nor a file; presets: {}; did you mean {nearest:?}?", Preset::names().join(", "))]
    Unknown {
        /// What was asked for.
        text: String,
        /// The preset closest to it.
        nearest: &'static str,
    },
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Where the delays of a run come from.
#[derive(Clone, Debug)]
pub enum Delays {
    /// Nobody is delayed.
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
    /// A preset by its name, or a CSV file of seconds.
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
        if let Some(preset) = Preset::named(text) {
            return Ok(Self::Preset { preset, workers, seed });
        }
        if !Path::new(text).exists() {
            let nearest = Preset::names().into_iter().min_by_key(|name| strsim::damerau_levenshtein(name, text));
            return Err(DelayError::Unknown { text: text.into(), nearest: nearest.unwrap_or_default() });
        }
        Ok(Self::Trace(Trace::read(Path::new(text), workers)?))
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
            Self::None | Self::Preset { .. } => Unit::StepTimes,
            Self::Trace(_) => Unit::Seconds,
        }
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "no stragglers"),
            Self::Preset { preset, .. } => write!(f, "{}: {}", preset.name(), preset.description()),
            Self::Trace(trace) => write!(f, "trace of {} rounds", trace.rows().len()),
        }
    }
}
