//! Recorded delays: CSV without a header, one line per round, one number of seconds per worker.

use std::fs::File;
use std::io::{BufRead, BufReader, Error as IoError};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A trace that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: IoError,
    },
    /// A cell that is not a delay.
    #[error("{}: line {line}, column {column}: {cell:?} is not a delay in seconds (a finite number of 0 or more)", path.display())]
    Cell {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What stands there.
        cell: String,
    },
    /// A line with too few cells.
    #[error("{}: line {line} has {columns} columns, but the run has {workers} workers", path.display())]
    Columns {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Cells on it.
        columns: usize,
        /// Cells needed.
        workers: usize,
    },
    /// A file without rounds.
    #[error("{}: no rounds: expected one line per round, one number per worker", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

/// Recorded delays of a run's workers, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    rows: Vec<Vec<f64>>,
}

impl Trace {
    /// Reads the first `workers` columns of a CSV file.
    ///
    /// # Errors
    /// [`TraceError`] naming the line and column that cannot be used.
    pub fn read(path: &Path, workers: usize) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.into(), source };
        let mut rows = Vec::new();
        for (index, line) in BufReader::new(File::open(path).map_err(io)?).lines().enumerate() {
            let text = line.map_err(io)?;
            if !text.trim().is_empty() {
                rows.push(row(&text, workers, index + 1, path)?);
            }
        }
        if rows.is_empty() {
            return Err(TraceError::Empty { path: path.into() });
        }
        Ok(Self { rows })
    }

    /// The rounds, one number of seconds per worker.
    #[must_use]
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }
}

fn row(text: &str, workers: usize, line: usize, path: &Path) -> Result<Vec<f64>, TraceError> {
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    if cells.len() < workers {
        return Err(TraceError::Columns { path: path.into(), line, columns: cells.len(), workers });
    }
    let delay = |(index, cell): (usize, &&str)| match cell.parse::<f64>() {
        Ok(delay) if delay.is_finite() && delay >= 0.0 => Ok(delay),
        _ => Err(TraceError::Cell { path: path.into(), line, column: index + 1, cell: (*cell).into() }),
    };
    cells.iter().enumerate().take(workers).map(delay).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, workers: usize) -> Result<Trace, TraceError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Trace::read(file.path(), workers)
    }

    #[test]
    fn cells_are_named() {
        assert_eq!(read("1, 2,9\n0.5,3,9\n\n", 2).unwrap().rows(), [vec![1.0, 2.0], vec![0.5, 3.0]]);
        let message = |text: &str| read(text, 2).unwrap_err().to_string();
        assert!(message("1,2\n3,x").contains("line 2, column 2: \"x\""));
        for bad in ["NaN", "-1", "inf", ""] {
            assert!(message(&format!("1,{bad}")).contains("line 1, column 2"), "{bad}");
        }
        assert!(message("1,2\n3").contains("line 2 has 1 columns, but the run has 2 workers"));
        assert!(message("\n").contains("no rounds"));
    }
}
