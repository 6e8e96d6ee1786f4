//! Per-step tables with a header, as public data sets give them, read as rows of delays.

use super::TraceError;
use super::lines::{Lines, shortened};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Columns that number or date a row, or say what kind of row it is.
const INDEX_COLUMNS: [&str; 7] =
    ["round", "step", "epoch", "step_end", "iteration", "time", SAME_EPOCH];
/// Marks rows in which nothing but training went on (1) against those with an evaluation in them
/// (0).
const SAME_EPOCH: &str = "same_epoch";
const EXPECTED: [&str; 3] =
    ["round,w0,w1,...", "step,s0d0,s0d1,...", "epoch,step_end,same_epoch,w0,w1,..."];

/// What a table's header shows it to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// `round,w0,w1,...` or `step,w0,...`: a row per round, a column per worker, as made of the
    /// mini-batch times of Alibaba PAI (cluster-trace-gpu-v2020). A row with an empty cell is left
    /// out.
    Rounds,
    /// `step,s0d0,s0d1,...`: a column per pipeline stage and data-parallel rank, as made of
    /// ByteDance's straggler traces (OSDI 2025). Stages differ by design: only ranks of one stage
    /// are alike.
    Stages,
    /// `epoch,step_end,same_epoch,w0,...`: a column per training instance, as made of the logs of
    /// MLPerf HPC (weak scaling, 2021 to 2023). Rows in which `same_epoch` is not 1 contain an
    /// evaluation and are left out.
    Intervals,
    /// Columns chosen by name.
    Chosen,
}

/// Reads a table with a header row by row, with one row in memory.
///
/// ```
/// use codedgrad::delays::{TableFormat, TableReader};
/// let table = "step,s0d0,s0d1,s1d0,s1d1\n16,44.8,18.7,19.1,18.8\n";
/// let mut rows = TableReader::new(table.as_bytes(), "example".as_ref(), None)?;
/// assert_eq!((rows.format(), rows.workers().len()), (TableFormat::Stages, 4));
/// let mut first_stage = TableReader::new(table.as_bytes(), "example".as_ref(), Some("s0d*"))?;
/// assert_eq!(first_stage.next().transpose()?, Some(vec![44.8, 18.7]));
/// # Ok::<(), codedgrad::delays::TraceError>(())
/// ```
#[derive(Debug)]
pub struct TableReader<R = BufReader<File>> {
    lines: Lines<R>,
    format: TableFormat,
    names: Vec<String>,
    /// Columns taken, in order, and their number in the table.
    taken: Vec<usize>,
    columns: usize,
    same_epoch: Option<usize>,
    incomplete: u64,
    evaluations: u64,
}

impl TableReader {
    /// Opens a file. `choice` names columns, separated by commas; `*` at the end of a name stands
    /// for anything. Without it, the header must be one of the known ones.
    ///
    /// # Errors
    /// [`TraceError`] if the file or its header cannot be used.
    pub fn open(path: &Path, choice: Option<&str>) -> Result<Self, TraceError> {
        Self::start(Lines::open(path)?, choice)
    }
}

impl<R: BufRead> TableReader<R> {
    /// Reads from anything; `name` is what errors call it.
    ///
    /// # Errors
    /// [`TraceError`] if the header cannot be used.
    pub fn new(input: R, name: &Path, choice: Option<&str>) -> Result<Self, TraceError> {
        Self::start(Lines::new(input, name), choice)
    }

    fn start(mut lines: Lines<R>, choice: Option<&str>) -> Result<Self, TraceError> {
        if !lines.advance()? {
            return Err(TraceError::Empty { path: lines.path().into() });
        }
        let header: Vec<String> =
            lines.cells().map(|name| name.trim_matches('"').to_owned()).collect();
        let found = match choice {
            Some(choice) => chosen(&header, choice).map(|taken| (TableFormat::Chosen, taken)),
            None => recognised(&header),
        };
        let table = |problem| TraceError::Table {
            path: lines.path().into(),
            line: lines.line(),
            problem,
            expected: &EXPECTED,
        };
        let (format, taken) = found.map_err(table)?;
        Ok(Self {
            names: taken.iter().map(|&column| header[column].clone()).collect(),
            same_epoch: header
                .iter()
                .position(|name| name == SAME_EPOCH)
                .filter(|column| !taken.contains(column)),
            columns: header.len(),
            format,
            taken,
            lines,
            incomplete: 0,
            evaluations: 0,
        })
    }

    /// What the table was recognised as.
    #[must_use]
    pub fn format(&self) -> TableFormat {
        self.format
    }

    /// The names of the columns taken, one per worker.
    #[must_use]
    pub fn workers(&self) -> &[String] {
        &self.names
    }

    /// Rows left out so far because a worker had no number in them.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Rows left out so far because an evaluation took place in them.
    #[must_use]
    pub fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.lines.bytes_read()
    }

    /// The line it is at; none if it is to be left out.
    fn row(&mut self) -> Result<Option<Vec<f64>>, TraceError> {
        self.lines.check_columns(self.columns)?;
        let cells: Vec<&str> = self.lines.cells().collect();
        if self.same_epoch.is_some_and(|column| cells[column] != "1") {
            self.evaluations += 1;
            return Ok(None);
        }
        if self.taken.iter().any(|&column| cells[column].is_empty()) {
            self.incomplete += 1;
            return Ok(None);
        }
        self.taken
            .iter()
            .map(|&column| self.lines.delay(column, cells[column]))
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

impl<R: BufRead> Iterator for TableReader<R> {
    type Item = Result<Vec<f64>, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.lines.advance() {
                Ok(true) => match self.row() {
                    Ok(None) => {}
                    row => return row.transpose(),
                },
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The columns that a choice names.
fn chosen(header: &[String], choice: &str) -> Result<Vec<usize>, String> {
    let mut taken = Vec::new();
    for pattern in choice.split(',').map(str::trim) {
        let fits = |name: &str| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        let columns: Vec<usize> =
            (0..header.len()).filter(|&column| fits(&header[column])).collect();
        if columns.is_empty() {
            return Err(format!(
                "no column is named {pattern:?}; the columns are {}",
                listed(header)
            ));
        }
        taken.extend(
            columns.into_iter().filter(|column| !taken.contains(column)).collect::<Vec<_>>(),
        );
    }
    Ok(taken)
}

/// The format of a header and its workers' columns.
fn recognised(header: &[String]) -> Result<(TableFormat, Vec<usize>), String> {
    let (mut stages, mut workers) = (Vec::new(), Vec::new());
    for (column, name) in header.iter().enumerate() {
        if is_stage_and_rank(name) {
            stages.push(column);
        } else if is_worker(name) {
            workers.push(column);
        } else if !INDEX_COLUMNS.contains(&name.as_str()) {
            let hint = if name.parse::<f64>().is_ok() {
                " (the file has no header: it may be a trace already)"
            } else if ["rank", "worker", "node", "device"].contains(&name.as_str()) {
                " (a table with a row per round and worker is read by its three columns: \
                  `codedgrad trace import --long step,rank,ms`)"
            } else {
                ""
            };
            return Err(format!(
                "column {} is named {:?}, which is no worker's name{hint}",
                column + 1,
                shortened(name)
            ));
        }
    }
    match (stages.is_empty(), workers.is_empty()) {
        (true, true) => Err(format!("no column is a worker's among {}", listed(header))),
        (false, false) => Err("some columns are named by worker, others by stage and rank".into()),
        (false, true) => Ok((TableFormat::Stages, stages)),
        (true, false) if header.iter().any(|name| name == SAME_EPOCH) => {
            Ok((TableFormat::Intervals, workers))
        }
        (true, false) => Ok((TableFormat::Rounds, workers)),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `w3`, `worker3`, `rank3`.
fn is_worker(name: &str) -> bool {
    ["worker", "rank", "w"].iter().any(|start| name.strip_prefix(start).is_some_and(is_number))
}

/// `s0d3`.
fn is_stage_and_rank(name: &str) -> bool {
    let numbers = name.strip_prefix('s').and_then(|rest| rest.split_once('d'));
    numbers.is_some_and(|(stage, rank)| is_number(stage) && is_number(rank))
}

fn listed(header: &[String]) -> String {
    const SHOWN_MAX: usize = 8;
    let names: Vec<String> = header.iter().take(SHOWN_MAX).map(|name| shortened(name)).collect();
    if header.len() > SHOWN_MAX {
        format!("{}, ... ({} in all)", names.join(", "), header.len())
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(
        text: &str,
        choice: Option<&str>,
    ) -> Result<TableReader<std::io::Cursor<String>>, TraceError> {
        TableReader::new(std::io::Cursor::new(text.to_owned()), "table.csv".as_ref(), choice)
    }

    #[test]
    fn formats_are_told_by_their_headers() {
        let rows = |text: &str, choice: Option<&str>| {
            let mut reader = open(text, choice).unwrap();
            let rows = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
            (reader.format(), rows, reader.incomplete(), reader.evaluations())
        };
        let alibaba = rows("round,w0,w1\n1,,764.0\n11,816.0,764.0\n", None);
        assert_eq!(alibaba, (TableFormat::Rounds, vec![vec![816.0, 764.0]], 1, 0));
        let stages = rows("step,s0d0,s1d0\n16,44.8,19.1\n", None);
        assert_eq!(stages, (TableFormat::Stages, vec![vec![44.8, 19.1]], 0, 0));
        let intervals = rows(
            "epoch,step_end,same_epoch,w0,w1\n1,20,1,1.5,1.25\n2,30,0,9,9\n2,40,1,1,2\n",
            None,
        );
        assert_eq!(
            intervals,
            (TableFormat::Intervals, vec![vec![1.5, 1.25], vec![1.0, 2.0]], 0, 1)
        );
        assert_eq!(
            rows("x,a1,b,a2\n9,1,,2\n", Some("a2, a*")),
            (TableFormat::Chosen, vec![vec![2.0, 1.0]], 0, 0)
        );
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let message = |text: &str, choice| open(text, choice).unwrap_err().to_string();
        let unknown = message("node,start_day,end_day\n0,1,2\n", None);
        assert!(
            unknown.contains("line 1: column 1 is named \"node\"")
                && unknown.contains("round,w0,w1,..."),
            "{unknown}"
        );
        assert!(message("step,rank,ms\n0,0,12\n", None).contains("import --long step,rank,ms"));
        assert!(
            message("step,step_end\n1,2\n", None)
                .contains("no column is a worker's among step, step_end")
        );
        assert!(message("step,w0,s0d0\n1,2,3\n", None).contains("others by stage and rank"));
        assert!(message("0.5,0.25\n1,2\n", None).contains("it may be a trace already"));
        assert!(
            message("step,w0\n1,2\n", Some("w0,v*"))
                .contains("no column is named \"v*\"; the columns are step, w0")
        );
        assert!(message("", None).contains("no rounds"));
        let wrong =
            |text: &str| open(text, None).unwrap().find_map(Result::err).unwrap().to_string();
        assert!(wrong("step,w0,w1\n1,2,3\n2,3,x\n").contains("line 3, column 3: \"x\""));
        assert!(
            wrong("step,w0,w1\n1,2\n")
                .contains("line 2, column 3: the line has 2 columns, but the first one has 3")
        );
    }
}
