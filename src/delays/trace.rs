//! Recorded delays: CSV without a header, one line per round, one number of seconds per worker.

use super::lines::{Lines, TIME_MAX};
use crate::cells::Commas;
use crate::files::BoundedReader;
use crate::spelling::several;
use std::fs::File;
use std::io::{BufRead, BufReader, Error as IoError, Seek, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A trace that cannot be used. Lines and columns count from 1.
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
    #[error("{}: line {line}, column {column}: {cell:?} is not a delay in seconds (a number \
        from 0 to 1e9; -1 or inf if it was not received, nan if it is not known)", path.display())]
    Cell {
        /// Which file.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// What stands there.
        cell: String,
    },
    /// Commas that may part thousands or fractions, and nothing in the file that says which.
    #[error(
        "{}: {}: give more decimals (1,0130), or a point",
        path.display(),
        Commas::readings(cell)
    )]
    Commas {
        /// Which file.
        path: PathBuf,
        /// A number with such a comma.
        cell: String,
    },
    /// A line of names where numbers should be.
    #[error("{}: line {line}, column {column}: {cell:?} looks like a header; a trace has none \
        (`codedgrad trace import` reads tables with one)", path.display())]
    Header {
        /// Which file.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
        /// What stands there.
        cell: String,
    },
    /// Fewer columns than workers.
    #[error(
        "{}: line {line} has {}, but the run has {}",
        path.display(),
        several(*columns, "column"),
        several(*workers, "worker")
    )]
    Columns {
        /// Which file.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Cells on it.
        columns: usize,
        /// Cells needed.
        workers: usize,
    },
    /// A line that has not as many cells as the first.
    #[error(
        "{}: line {line}, column {column}: the line has {}, but the first one has {columns}",
        path.display(),
        several(*found, "column")
    )]
    Ragged {
        /// Which file.
        path: PathBuf,
        /// Line.
        line: usize,
        /// The first column that is missing or too many.
        column: usize,
        /// Cells on this line.
        found: usize,
        /// Cells on the first line.
        columns: usize,
    },
    /// A line without an end.
    #[error("{}: line {line} is longer than {limit} bytes: this is not a trace", path.display())]
    LongLine {
        /// Which file.
        path: PathBuf,
        /// Line.
        line: usize,
        /// Bytes a line may have.
        limit: u64,
    },
    /// A value is missing in every round.
    #[error("{}: no round has a time of every worker", path.display())]
    Gaps {
        /// Which file.
        path: PathBuf,
    },
    /// A file without rounds.
    #[error("{}: no rounds: expected one line per round, one number per worker", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

/// Reads a trace row by row, with one row in memory.
///
/// Every line must have as many columns as the first; only those of the workers are read as
/// numbers. Blank lines and comments (`#`) count for nothing. Cells may be apart by commas,
/// semicolons, tabs, bars or blanks.
///
/// An answer that was not received (`-1`, `inf`) counts with the largest time of its round, which
/// is the least that it can have taken. A round with a value that is missing (empty, `nan`) is left
/// out. [`TraceReader::next_as_told`] has both as they are.
///
/// ```
/// use codedgrad::delays::TraceReader;
/// let mut rows = TraceReader::new("0.5,1,9\n0.25,2,9\n".as_bytes(), "example".as_ref(), Some(2))?;
/// assert_eq!((rows.workers(), rows.columns()), (2, 3));
/// assert_eq!(rows.next().transpose()?, Some(vec![0.5, 1.0]));
/// assert_eq!(rows.next().transpose()?, Some(vec![0.25, 2.0]));
/// assert_eq!(rows.line(), 2);
/// assert!(rows.next().is_none());
/// # Ok::<(), codedgrad::delays::TraceError>(())
/// ```
#[derive(Debug)]
pub struct TraceReader<R = BufReader<BoundedReader<File>>> {
    lines: Lines<R>,
    columns: usize,
    workers: usize,
    /// The first row, read ahead for its number of columns.
    first: Option<Vec<f64>>,
    incomplete: u64,
    /// The largest number that is one.
    most: f64,
}

impl TraceReader {
    /// Opens a file for the given number of workers, or for as many as it has columns.
    ///
    /// # Errors
    /// [`TraceError`] if the file or its first row cannot be used.
    pub fn open(path: &Path, workers: Option<usize>) -> Result<Self, TraceError> {
        Self::start(Lines::open(path)?, workers)
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads from anything; `name` is what errors call it.
    ///
    /// # Errors
    /// [`TraceError`] if the first row cannot be used.
    pub fn new(input: R, name: &Path, workers: Option<usize>) -> Result<Self, TraceError> {
        Self::start(Lines::new(input, name), workers)
    }

    fn start(mut lines: Lines<R>, workers: Option<usize>) -> Result<Self, TraceError> {
        if !lines.advance()? {
            return Err(TraceError::Empty { path: lines.path().into() });
        }
        let columns = lines.cells().count();
        let workers = workers.unwrap_or(columns);
        if columns < workers {
            return Err(TraceError::Columns {
                path: lines.path().into(),
                line: lines.line(),
                columns,
                workers,
            });
        }
        let mut reader =
            Self { lines, columns, workers, first: None, incomplete: 0, most: TIME_MAX };
        reader.first = Some(reader.row().map_err(|error| match error {
            TraceError::Cell { path, line, column, cell }
                if cell.starts_with(|c: char| c.is_alphabetic())
                    && cell.parse::<f64>().is_err() =>
            {
                TraceError::Header { path, line, column, cell }
            }
            other => other,
        })?);
        Ok(reader)
    }

    /// The same for numbers of any size, which are no times, such as costs.
    #[must_use]
    pub fn of_any_size(self) -> Self {
        Self { most: f64::INFINITY, ..self }
    }

    /// The line it is at as numbers.
    fn row(&self) -> Result<Vec<f64>, TraceError> {
        self.lines.check_columns(self.columns)?;
        self.lines
            .cells()
            .take(self.workers)
            .enumerate()
            .map(|(column, cell)| self.lines.time(column, cell))
            .collect()
    }

    /// Numbers in each row.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Columns of the file, of which the first are read.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The line of the row that was given last, from 1. Blank lines are lines.
    #[must_use]
    pub fn line(&self) -> usize {
        self.lines.line()
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.lines.bytes_read()
    }

    /// Rounds left out so far because a value was missing in them.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// The next row as it is told: infinity for an answer that was not received, no number for a
    /// value that is missing.
    pub fn next_as_told(&mut self) -> Option<Result<Vec<f64>, TraceError>> {
        let row = match self.first.take() {
            Some(row) => Ok(row),
            None => match self.lines.advance() {
                Ok(true) => self.row(),
                Ok(false) => return None,
                Err(error) => Err(error),
            },
        };
        Some(row.and_then(|row| self.limited(row)))
    }

    /// Refuses numbers that are too large.
    fn limited(&self, row: Vec<f64>) -> Result<Vec<f64>, TraceError> {
        let is_wrong = |number: &f64| *number > self.most && number.is_finite();
        let Some(column) = row.iter().position(is_wrong) else { return Ok(row) };
        Err(TraceError::Cell {
            path: self.lines.path().into(),
            line: self.lines.line(),
            column: column + 1,
            cell: in_few_digits(row[column]),
        })
    }
}

/// Has the largest time of a round stand for answers that were not received, and says how many
/// there are; none where a value is missing, or no answer was received at all.
///
/// ```
/// use codedgrad::delays::at_least;
/// let mut row = [0.5, f64::INFINITY, 0.75];
/// assert_eq!((at_least(&mut row), row), (Some(1), [0.5, 0.75, 0.75]));
/// assert_eq!(at_least(&mut [0.5, f64::NAN]), None);
/// assert_eq!(at_least(&mut [f64::INFINITY]), None);
/// ```
pub fn at_least(row: &mut [f64]) -> Option<usize> {
    let (mut largest, mut infinite) = (f64::NEG_INFINITY, 0);
    for time in &*row {
        if time.is_nan() {
            return None;
        }
        if time.is_finite() {
            largest = largest.max(*time);
        } else {
            infinite += 1;
        }
    }
    if infinite == 0 {
        return Some(0);
    }
    if infinite == row.len() {
        return None;
    }
    row.iter_mut().filter(|time| time.is_infinite()).for_each(|time| *time = largest);
    Some(infinite)
}

impl<R: BufRead + Seek> TraceReader<R> {
    /// Goes back to the first line.
    ///
    /// # Errors
    /// [`TraceError::Io`] where the input cannot be read twice, such as a pipe.
    pub fn rewind(&mut self) -> Result<(), TraceError> {
        self.first = None;
        self.lines.rewind()
    }

    /// That there is no row.
    pub(super) fn all_have_gaps(&self) -> TraceError {
        TraceError::Gaps { path: self.lines.path().into() }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Vec<f64>, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut row = match self.next_as_told()? {
                Ok(row) => row,
                error => return Some(error),
            };
            if at_least(&mut row).is_some() {
                return Some(Ok(row));
            }
            self.incomplete += 1;
        }
    }
}

/// Writes one line of a trace. Each number takes the fewest digits from which the same bits are
/// read back.
///
/// # Errors
/// What the output refuses with.
///
/// ```
/// let mut text = Vec::new();
/// codedgrad::delays::write_row(&mut text, &[0.1, 2.0, 1e-9])?;
/// assert_eq!(text, b"0.1,2,1e-9\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_row(output: &mut (impl Write + ?Sized), row: &[f64]) -> std::io::Result<()> {
    let mut digits = zmij::Buffer::new();
    for (column, delay) in row.iter().enumerate() {
        if column > 0 {
            output.write_all(b",")?;
        }
        // Both forms are exact; plain digits are the longer ones beyond this range.
        if *delay == 0.0 || (1e-5..1e16).contains(delay) {
            let text = digits.format_finite(*delay);
            if text.contains('e') {
                write!(output, "{delay}")?;
            } else {
                // As `Display` has whole numbers, four times as fast.
                output.write_all(text.strip_suffix(".0").unwrap_or(text).as_bytes())?;
            }
        } else {
            write!(output, "{delay:e}")?;
        }
    }
    output.write_all(b"\n")
}

/// A number as text of few digits: in scientific notation where plain digits would be many.
pub(crate) fn in_few_digits(number: f64) -> String {
    if number == 0.0 || (1e-5..1e16).contains(&number.abs()) {
        format!("{number}")
    } else {
        format!("{number:e}")
    }
}

/// Recorded delays of a run's workers, in seconds, in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    rows: Vec<Vec<f64>>,
    columns: usize,
    cut: bool,
}

impl Trace {
    /// Reads the first `workers` columns of a CSV file.
    ///
    /// # Errors
    /// [`TraceError`] naming the line and column that cannot be used.
    pub fn read(path: &Path, workers: usize) -> Result<Self, TraceError> {
        Self::read_rounds(path, workers, usize::MAX)
    }

    /// Reads no more than the first `rounds` rows, and nothing of the file after them.
    ///
    /// # Errors
    /// [`TraceError`] naming the line and column that cannot be used.
    pub fn read_rounds(path: &Path, workers: usize, rounds: usize) -> Result<Self, TraceError> {
        Self::of(TraceReader::open(path, Some(workers))?, rounds)
    }

    /// No more than the next `rounds` rows of a reader, and nothing after them.
    ///
    /// # Errors
    /// [`TraceError`] naming the line and column that cannot be used.
    pub fn of<R: BufRead>(mut reader: TraceReader<R>, rounds: usize) -> Result<Self, TraceError> {
        let columns = reader.columns();
        let rows = reader.by_ref().take(rounds.max(1)).collect::<Result<Vec<_>, _>>()?;
        let cut = rows.len() == rounds.max(1) && reader.lines.advance()?;
        Ok(Self { rows, columns, cut })
    }

    /// The rounds, one number of seconds per worker.
    #[must_use]
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }

    /// Columns of the file, of which the first are the workers'.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether the file goes on after these rounds.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

#[cfg(test)]
mod tests;
