//! What Python gives, as it is read here, and what it is told where that cannot be.

use codedgrad::transport::tcp::security::Token;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An error of the library, in this package's words.
pub(crate) fn value_error(error: impl ToString) -> PyErr {
    let keys = "`keys=DIR` (from `codedgrad keygen DIR --workers N`)";
    PyValueError::new_err(error.to_string().replace("`Security::Tls`", keys))
}

/// Seconds as a duration.
pub(crate) fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("{name} is {seconds}: it must be a number of seconds"))
    })
}

/// A token from its 64 hexadecimal digits, or from a file with them.
pub(crate) fn token(text: &str) -> PyResult<Token> {
    let parsed = Token::parse(text);
    parsed.or_else(|_| Token::read(Path::new(text))).map_err(value_error)
}

/// Until when a call of Python's waits, if it ends at all.
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// So many seconds from now.
    pub(crate) fn after(seconds: Option<f64>) -> PyResult<Self> {
        let patience = seconds.map(|seconds| duration("seconds", seconds)).transpose()?;
        Ok(Self(patience.and_then(|patience| now().checked_add(patience))))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_some_and(|deadline| now() >= deadline)
    }

    /// How long it is until then, or `most`.
    pub(crate) fn left(&self, most: Duration) -> Duration {
        self.0.map_or(most, |deadline| deadline.saturating_duration_since(now()).min(most))
    }
}

/// What a mutex guards here stays whole when a thread panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "a trainer waits by the wall's clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
