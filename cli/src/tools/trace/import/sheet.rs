//! Tables of cells, with any separators between these.

use anyhow::{Context, anyhow};
use codedgrad::delays::{Comma, Commas, time_in};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::input::Input;
use codedgrad_shell::output::plain;
use csv::{ByteRecord, Reader, ReaderBuilder};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// As much of a file tells what stands between its cells.
const LOOKED_AT: usize = 1 << 16;
/// Lines of it that are looked at.
const LINES: usize = 12;
/// A cell or a list that is shown is cut after so many letters or names.
const SHOWN_MOST: (usize, usize) = (40, 8);

/// A table with a header, row by row.
pub(super) struct Sheet {
    reader: Reader<Box<dyn Read>>,
    record: ByteRecord,
    pub(super) header: Vec<String>,
    comma: Comma,
    /// What the commas of each column of times say they are.
    commas: RefCell<BTreeMap<usize, Commas>>,
    path: PathBuf,
    bytes: Rc<Cell<u64>>,
    /// A last line that was cut off.
    pub(super) cut: Option<u64>,
}

/// Turns blanks between cells into tabs, one for any number of them.
struct Blanks<R> {
    input: R,
    /// Whether blanks have been read behind a cell of this line.
    pending: bool,
    in_line: bool,
    ready: Vec<u8>,
    given: usize,
}

impl<R: Read> Read for Blanks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() {
            self.ready.clear();
            self.given = 0;
            let mut raw = vec![0; buffer.len().max(1)];
            let read = self.input.read(&mut raw)?;
            if read == 0 {
                return Ok(0);
            }
            for &byte in &raw[..read] {
                match byte {
                    b' ' | b'\t' => self.pending = self.in_line,
                    b'\n' | b'\r' => {
                        (self.pending, self.in_line) = (false, false);
                        self.ready.push(byte);
                    }
                    _ => {
                        if std::mem::take(&mut self.pending) {
                            self.ready.push(b'\t');
                        }
                        self.in_line = true;
                        self.ready.push(byte);
                    }
                }
            }
        }
        let count = buffer.len().min(self.ready.len() - self.given);
        buffer[..count].copy_from_slice(&self.ready[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

/// How often a mark stands in a line outside of quotes.
fn count(line: &str, mark: char) -> usize {
    let mut quoted = false;
    let outside = line.chars().filter(|letter| {
        quoted ^= *letter == '"';
        *letter == mark && !quoted
    });
    outside.count()
}

/// What stands between the cells of some lines: none for blanks.
fn separator(lines: &[&str]) -> Option<u8> {
    let Some(header) = lines.first() else { return Some(b',') };
    let marks = [b',', b';', b'\t', b'|'];
    let counted = |mark: &&u8| count(header, **mark as char);
    let same = |mark: &&u8| {
        let there = counted(mark);
        there > 0 && lines.iter().all(|line| count(line, **mark as char) == there)
    };
    let most = marks.iter().filter(same).max_by_key(|mark| counted(mark));
    let most = most.or_else(|| marks.iter().filter(|mark| counted(mark) > 0).max_by_key(counted));
    match most {
        Some(mark) => Some(*mark),
        None if header.trim().contains(' ') => None,
        None => Some(b','),
    }
}

/// Whether all cells of a line are numbers.
fn is_numeric(cells: &[&str], comma: Comma) -> bool {
    cells.iter().all(|cell| time_in(cell.trim(), comma).is_some_and(|time| !time.is_nan()))
}

impl Sheet {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = || format!("cannot read {}", path.display());
        let input = Input::open(path).with_context(cannot).or_input()?;
        let bytes = input.counter();
        let (start, all) = input.with_start(LOOKED_AT).with_context(cannot).or_input()?;
        let text = String::from_utf8_lossy(&start);
        let whole_lines = |line: &&str| !line.trim().is_empty();
        let mut lines: Vec<&str> = text.split(['\n', '\r']).filter(whole_lines).collect();
        if start.len() == LOOKED_AT && lines.len() > 1 {
            lines.pop();
        }
        let comments: Vec<&str> =
            lines.iter().copied().take_while(|line| line.trim_start().starts_with('#')).collect();
        lines.retain(|line| !line.trim_start().starts_with('#'));
        // The last line may be cut off.
        lines.truncate(LINES.min(lines.len().saturating_sub(1).max(1)));
        let mark = separator(&lines);
        let comma = if mark == Some(b',') { Comma::Thousands } else { Comma::Decimal };
        let input: Box<dyn Read> = match mark {
            Some(_) => all,
            None => Box::new(Blanks {
                input: all,
                pending: false,
                in_line: false,
                ready: Vec::new(),
                given: 0,
            }),
        };
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true).comment(Some(b'#'));
        let reader = builder.delimiter(mark.unwrap_or(b'\t')).from_reader(input);
        let mut sheet = Self {
            reader,
            record: ByteRecord::new(),
            header: Vec::new(),
            comma,
            commas: RefCell::default(),
            path: path.to_owned(),
            bytes,
            cut: None,
        };
        let cells = |line: &str| -> Vec<String> {
            let cells: Vec<&str> = match mark {
                Some(mark) => line.split(mark as char).collect(),
                None => line.split_whitespace().collect(),
            };
            cells.into_iter().map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
        };
        let first = lines.first().map(|line| cells(line)).unwrap_or_default();
        let numbers = first.iter().map(String::as_str).collect::<Vec<_>>();
        // `numpy.savetxt` writes its header as a comment.
        let commented = comments.last().filter(|_| is_numeric(&numbers, comma));
        let commented = commented.map(|line| cells(line.trim().trim_start_matches('#').trim()));
        sheet.header = match commented.filter(|header| header.len() == first.len()) {
            Some(header) => header,
            None if sheet.next()? => {
                let names = (0..sheet.record.len()).map(|at| sheet.cell(at).into_owned());
                names.collect()
            }
            None => {
                return Err(Failure::Input(anyhow!(
                    "{}: no rounds: expected a header and a line per round",
                    path.display()
                )));
            }
        };
        Ok(sheet)
    }

    /// Reads on to the next row; false at the end. A header that stands between the rows, as a job
    /// that was started again leaves it, is passed over.
    pub(super) fn next(&mut self) -> Result<bool, Failure> {
        loop {
            let path = &self.path;
            let read = self.reader.read_byte_record(&mut self.record);
            let read =
                read.with_context(|| format!("cannot read {}", path.display())).or_input()?;
            if !read {
                return self.check_commas().map(|()| false);
            }
            let columns = self.header.len();
            if columns == 0 || self.record.len() == columns {
                let cells = self.record.iter().zip(&self.header);
                let mut same = cells.map(|(cell, name)| cell.trim_ascii() == name.as_bytes());
                if columns > 0 && same.all(|same| same) {
                    continue;
                }
                return Ok(true);
            }
            return self.ragged();
        }
    }

    /// The row has not as many cells as the header: it is wrong, or the last, which was cut off.
    fn ragged(&mut self) -> Result<bool, Failure> {
        let (found, columns) = (self.record.len(), self.header.len());
        let line = self.line();
        // A program that still writes has not finished its last line.
        if found < columns && !self.reader.read_byte_record(&mut self.record).unwrap_or(true) {
            self.cut = Some(line);
            return Ok(false);
        }
        Err(Failure::Input(anyhow!(
            "{}: line {line}, column {}: the line has {found} columns, but the first one has \
             {columns}",
            self.path.display(),
            found.min(columns) + 1,
        )))
    }

    fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// A cell of the row it is at.
    pub(super) fn cell(&self, column: usize) -> std::borrow::Cow<'_, str> {
        match std::str::from_utf8(&self.record[column]) {
            Ok(text) => text.trim().into(),
            Err(_) => String::from_utf8_lossy(&self.record[column]).trim().to_owned().into(),
        }
    }

    /// A cell that should be a time.
    pub(super) fn time(&self, column: usize) -> Result<f64, Failure> {
        let cell = self.cell(column);
        if self.comma == Comma::Decimal && cell.contains(',') {
            self.commas.borrow_mut().entry(column).or_default().see(&cell);
        }
        time_in(&cell, self.comma).ok_or_else(|| {
            Failure::Input(anyhow!(
                "{}: line {}, column {}: {:?} is not a delay in seconds (a finite number of 0 or \
                 more; -1 or inf if it was not received, nan if it is not known)",
                self.path.display(),
                self.line(),
                column + 1,
                shortened(&cell)
            ))
        })
    }

    /// Refuses a column whose numbers may be two.
    fn check_commas(&self) -> Result<(), Failure> {
        for (column, commas) in &*self.commas.borrow() {
            if let Some(cell) = commas.doubtful() {
                return Err(Failure::Input(anyhow!(
                    "{}: column {}: {}, and nothing in the column says which: give more \
                     decimals (1,0130), or a point",
                    self.path.display(),
                    column + 1,
                    Commas::readings(cell)
                )));
            }
        }
        Ok(())
    }

    /// Bytes of the file that are read.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes.get()
    }

    /// A complaint about the header.
    pub(super) fn wrong_header(&self, problem: &str) -> Failure {
        Failure::Input(anyhow!("{}: line 1: {problem}", self.path.display()))
    }

    /// The column of a name, its case aside where nothing else fits.
    pub(super) fn column(&self, name: &str) -> Result<usize, Failure> {
        let name = name.trim();
        let exact = self.header.iter().position(|column| column == name);
        let alike = || self.header.iter().position(|column| column.eq_ignore_ascii_case(name));
        exact.or_else(alike).ok_or_else(|| {
            let columns = listed(&self.header);
            self.wrong_header(&format!(
                "no column is named {name:?}; the columns are {columns}; expected a header such \
                 as step,rank,seconds, or names of columns to take"
            ))
        })
    }
}

/// A cell short enough to be shown.
pub(super) fn shortened(cell: &str) -> String {
    match cell.char_indices().nth(SHOWN_MOST.0) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell.into(),
    }
}

/// The first of some names.
pub(super) fn listed(names: &[String]) -> String {
    let shown: Vec<String> =
        names.iter().take(SHOWN_MOST.1).map(|it| plain(&shortened(it))).collect();
    if names.len() > SHOWN_MOST.1 {
        format!("{}, ... ({} in all)", shown.join(", "), names.len())
    } else {
        shown.join(", ")
    }
}

#[cfg(test)]
mod tests;
