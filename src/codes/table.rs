//! Tables of numbers as text: code matrices, intervals, speeds.

use crate::spelling::several;
use thiserror::Error;

/// A table that cannot be used. Lines and columns are counted from 1; the lines of a matrix given
/// as vectors are its rows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// Nothing in it.
    #[error("the table is empty: expected one line per worker, numbers separated by commas")]
    NoLines,
    /// A line without numbers among others.
    #[error("line {line} is empty: expected one line per worker, numbers separated by commas")]
    EmptyLine {
        /// Which line.
        line: usize,
    },
    /// A cell that is no finite number.
    #[error("line {line}, column {column}: {cell:?} is not {expected}")]
    Cell {
        /// Which line.
        line: usize,
        /// Which column.
        column: usize,
        /// What stands there.
        cell: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// A line of another length than the first.
    #[error("line {line} has {}, expected {expected}", several(*found, "column"))]
    Ragged {
        /// Which line.
        line: usize,
        /// Its columns.
        found: usize,
        /// Columns of the first line, or of such a table.
        expected: usize,
    },
    /// A worker that would send nothing.
    #[error(
        "line {line} is all zero: its worker would send nothing; give it a share or leave it out, \
         or give err= if the code is approximate"
    )]
    ZeroLine {
        /// Which line.
        line: usize,
    },
}

/// Reads lines of numbers separated by commas; `accepts` says which numbers, `expected` says it in
/// words.
pub(super) fn read<T: std::str::FromStr>(
    text: &str,
    expected: &'static str,
    accepts: impl Fn(&T) -> bool,
) -> Result<Vec<Vec<T>>, TableError> {
    let text = text.trim_end();
    if text.is_empty() {
        return Err(TableError::NoLines);
    }
    let mut rows = Vec::new();
    for (index, content) in text.lines().enumerate() {
        let line = index + 1;
        if content.trim().is_empty() {
            return Err(TableError::EmptyLine { line });
        }
        let mut row = Vec::new();
        for (column, cell) in content.split(',').map(str::trim).enumerate() {
            match cell.parse::<T>() {
                Ok(number) if accepts(&number) => row.push(number),
                _ => {
                    return Err(TableError::Cell {
                        line,
                        column: column + 1,
                        cell: cell.into(),
                        expected,
                    });
                }
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
