//! Lines of a CSV file, one at a time, with what is needed to say where something is wrong.

use super::TraceError;
use super::cell::{Comma, Commas, time_in};
use crate::cells::{Separator, is_comment, no_text, plain_line};
use crate::files::BoundedReader;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// No line is longer: 65,536 workers with numbers of 60 characters. What goes on without a line
/// break is no CSV.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// No trace is longer: ten million rounds of 40 workers, with times of 10 characters.
pub const TRACE_BYTES_MAX: u64 = 4 << 30;

/// The longest time that is one: thirty years. What is longer is a slip, and sums of such are no
/// numbers.
pub const TIME_MAX: f64 = 1e9;

/// Rows after which a comma that nothing has decided is not read as either.
const UNDECIDED_MOST: usize = 64;

/// Lines that are neither blank nor comments, with one of them in memory. What the first has
/// between its cells, all have.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    path: PathBuf,
    bytes: Vec<u8>,
    line: usize,
    read: u64,
    separator: Option<Separator>,
    commas: Commas,
    rows: usize,
}

impl Lines<BufReader<BoundedReader<File>>> {
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let file = BoundedReader::open_or_wait(path, TRACE_BYTES_MAX)
            .map_err(|source| TraceError::Io { path: path.into(), source })?;
        Ok(Self::new(BufReader::new(file), path))
    }
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, path: &Path) -> Self {
        let path = path.into();
        Self {
            input,
            path,
            bytes: Vec::new(),
            line: 0,
            read: 0,
            separator: None,
            commas: Commas::default(),
            rows: 0,
        }
    }

    /// Reads on to the next line that says something; false at the end of the file.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            self.bytes.clear();
            let read = (&mut self.input).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.bytes);
            let read = read.map_err(|source| TraceError::Io { path: self.path.clone(), source })?;
            if read == 0 {
                return self.check_commas().map(|()| false);
            }
            self.line += 1;
            self.read += read as u64;
            if read as u64 == LINE_BYTES_MAX && self.bytes.last() != Some(&b'\n') {
                return Err(TraceError::LongLine {
                    path: self.path.clone(),
                    line: self.line,
                    limit: LINE_BYTES_MAX,
                });
            }
            let Ok(line) = std::str::from_utf8(&self.bytes) else {
                let not_text = || format!("line {} is not text", self.line);
                let what =
                    no_text(&self.bytes).map_or_else(not_text, |what| format!("it is {what}"));
                let source = std::io::Error::new(ErrorKind::InvalidData, what);
                return Err(TraceError::Io { path: self.path.clone(), source });
            };
            let text = plain_line(line).trim();
            if !text.is_empty() && !is_comment(text) {
                let separator = *self.separator.get_or_insert_with(|| Separator::of(text));
                if separator.comma() == Comma::Decimal && text.contains(',') {
                    separator.cells(text).for_each(|cell| self.commas.see(cell));
                }
                self.rows += 1;
                if self.rows > UNDECIDED_MOST {
                    self.check_commas()?;
                }
                return Ok(true);
            }
        }
    }

    /// The line it is at.
    pub(super) fn text(&self) -> &str {
        plain_line(std::str::from_utf8(&self.bytes).unwrap_or_default())
    }

    fn separator(&self) -> Separator {
        self.separator.unwrap_or(Separator::Mark(','))
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = &str> {
        self.separator().cells(self.text())
    }

    /// Refuses numbers that may be two.
    fn check_commas(&self) -> Result<(), TraceError> {
        let refused =
            |cell: &str| TraceError::Commas { path: self.path.clone(), cell: cell.into() };
        self.commas.doubtful().map_or(Ok(()), |cell| Err(refused(cell)))
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read
    }

    /// A cell that should be a time, as [`time_in`] reads it; columns count from 0.
    pub(super) fn time(&self, column: usize, cell: &str) -> Result<f64, TraceError> {
        time_in(cell, self.separator().comma()).ok_or_else(|| TraceError::Cell {
            path: self.path.clone(),
            line: self.line,
            column: column + 1,
            cell: shortened(cell),
        })
    }

    /// Refuses a line that has not as many cells as the first.
    pub(super) fn check_columns(&self, columns: usize) -> Result<(), TraceError> {
        let found = self.cells().count();
        if found == columns {
            return Ok(());
        }
        let column = found.min(columns) + 1;
        Err(TraceError::Ragged { path: self.path.clone(), line: self.line, column, found, columns })
    }
}

impl<R: BufRead + Seek> Lines<R> {
    /// Back to the start of the file.
    pub(super) fn rewind(&mut self) -> Result<(), TraceError> {
        self.line = 0;
        self.input
            .seek(SeekFrom::Start(0))
            .map_err(|source| TraceError::Io { path: self.path.clone(), source })?;
        Ok(())
    }
}

/// A cell short enough to be shown.
pub(super) fn shortened(cell: &str) -> String {
    const SHOWN_MAX: usize = 40;
    match cell.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell.into(),
    }
}
