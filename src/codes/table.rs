//! Tables of numbers as text: code matrices, intervals, speeds.

use crate::cells::{Commas, Separator, is_comment, plain, plain_line};
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
    /// Commas that may part thousands or fractions.
    #[error("{}: give more decimals (1,0130), or a point", Commas::readings(cell))]
    Commas {
        /// A number with such a comma.
        cell: String,
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

/// Reads lines of numbers, apart by commas, semicolons, tabs, bars or blanks; `accepts` says which
/// numbers, `expected` says it in words. Comments (`#`) count for nothing, nor does a first line in
/// which no cell is a number.
pub(super) fn read<T: std::str::FromStr>(
    text: &str,
    expected: &'static str,
    accepts: impl Fn(&T) -> bool,
) -> Result<Vec<Vec<T>>, TableError> {
    let lines = (1..).zip(text.trim_end().lines().map(plain_line));
    let mut lines = lines.filter(|(_, content)| !is_comment(content)).peekable();
    let Some(&(_, first)) = lines.peek() else { return Err(TableError::NoLines) };
    let separator = Separator::of(first.trim());
    let number = |cell: &str| match cell.parse::<T>() {
        Ok(number) => Some(number),
        Err(_) => plain(cell, separator.comma())?.parse().ok(),
    };
    let is_name = |cell: &str| cell.trim_matches('"').starts_with(char::is_alphabetic);
    if separator.cells(first).all(|cell| is_name(cell) && cell.parse::<f64>().is_err()) {
        lines.next();
    }
    let (mut rows, mut commas) = (Vec::new(), Commas::default());
    for (line, content) in lines {
        if content.trim().is_empty() {
            return Err(TableError::EmptyLine { line });
        }
        let mut row = Vec::new();
        for (column, cell) in separator.cells(content).enumerate() {
            commas.see(cell);
            match number(cell) {
                Some(number) if accepts(&number) => row.push(number),
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
    match commas.doubtful() {
        Some(cell) => Err(TableError::Commas { cell: cell.into() }),
        None if rows.is_empty() => Err(TableError::NoLines),
        None => Ok(rows),
    }
}
