//! Tables with a row per round and worker, as loggers write them, read as rows of delays.

use super::TraceError;
use super::lines::{Lines, shortened};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A number of a round or a worker where it is one, else its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64, String);

impl Key {
    fn of(cell: &str) -> Self {
        Self(cell.parse().unwrap_or(u64::MAX), cell.to_owned())
    }
}

/// A table in long format: its header names a column of rounds, one of workers and one of times.
///
/// Rounds and workers come in the order of their numbers, those without one by name. A round in
/// which a worker has no time, or several, is left out.
///
/// ```
/// use codedgrad::delays::LongTable;
/// let table = "step,rank,ms\n0,0,12\n0,1,15.5\n1,1,14\n1,0,13\n2,0,12\n";
/// let names = ["step", "rank", "ms"];
/// let table = LongTable::new(table.as_bytes(), "example".as_ref(), names)?;
/// assert_eq!(table.rows().collect::<Vec<_>>(), [vec![12.0, 15.5], vec![13.0, 14.0]]);
/// assert_eq!((table.workers(), table.incomplete()), (2, 1));
/// # Ok::<(), codedgrad::delays::TraceError>(())
/// ```
///
/// What is in no table of commas comes cell by cell:
///
/// ```
/// let mut table = codedgrad::delays::LongTable::default();
/// table.insert("0", "a", 1.5);
/// table.insert("0", "b", 2.5);
/// assert_eq!(table.rows().collect::<Vec<_>>(), [[1.5, 2.5]]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LongTable {
    rounds: BTreeMap<Key, BTreeMap<Key, Option<f64>>>,
    workers: BTreeSet<Key>,
}

impl LongTable {
    /// Opens a file; `names` are those of the columns of rounds, workers and times.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be read, has no such columns, or no time in a cell.
    pub fn open(path: &Path, names: [&str; 3]) -> Result<Self, TraceError> {
        Self::read(Lines::<BufReader<File>>::open(path)?, names)
    }

    /// Reads from anything; `name` is what errors call it.
    ///
    /// # Errors
    /// As [`LongTable::open`].
    pub fn new(input: impl BufRead, name: &Path, names: [&str; 3]) -> Result<Self, TraceError> {
        Self::read(Lines::new(input, name), names)
    }

    fn read<R: BufRead>(mut lines: Lines<R>, names: [&str; 3]) -> Result<Self, TraceError> {
        if !lines.advance()? {
            return Err(TraceError::Empty { path: lines.path().into() });
        }
        let header: Vec<String> =
            lines.cells().map(|name| name.trim_matches('"').to_owned()).collect();
        let mut taken = [0; 3];
        for (column, name) in taken.iter_mut().zip(names) {
            let at = header.iter().position(|other| other == name);
            *column = at.ok_or_else(|| {
                let shown: Vec<_> = header.iter().map(|name| shortened(name)).collect();
                TraceError::Table {
                    path: lines.path().into(),
                    line: lines.line(),
                    problem: format!(
                        "no column is named {name:?}; the columns are {}",
                        shown.join(", ")
                    ),
                    expected: &["step,rank,seconds"],
                }
            })?;
        }
        let mut table = Self::default();
        while lines.advance()? {
            lines.check_columns(header.len())?;
            let cells: Vec<&str> = lines.cells().collect();
            let [round, worker, time] = taken.map(|column| cells[column]);
            let time = lines.delay(taken[2], time)?;
            table.insert(round, worker, time);
        }
        Ok(table)
    }

    /// Adds the time of a worker in a round, a finite number of 0 or more. The second one of the
    /// same worker and round says that this is no table of rounds: the round is left out.
    pub fn insert(&mut self, round: &str, worker: &str, time: f64) {
        let worker = Key::of(worker);
        if !self.workers.contains(&worker) {
            self.workers.insert(worker.clone());
        }
        let times = self.rounds.entry(Key::of(round)).or_default();
        times.entry(worker).and_modify(|time| *time = None).or_insert(Some(time));
    }

    /// Number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The rounds in which every worker has one time.
    pub fn rows(&self) -> impl Iterator<Item = Vec<f64>> {
        self.rounds
            .values()
            .filter(|times| times.len() == self.workers.len())
            .filter_map(|times| times.values().copied().collect())
    }

    /// Rounds that are left out.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.rounds.len() - self.rows().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<LongTable, TraceError> {
        LongTable::new(text.as_bytes(), "long.csv".as_ref(), ["step", "rank", "ms"])
    }

    #[test]
    fn rounds_and_workers_are_put_in_order() {
        let found = table("x,rank,ms,step\na,10,1,9\na,2,2,9\na,2,4,10\na,10,3,10\n").unwrap();
        assert_eq!(found.rows().collect::<Vec<_>>(), [vec![2.0, 1.0], vec![4.0, 3.0]]);
        let named = table("step,rank,ms\n0,b,1\n0,a,2\n").unwrap();
        assert_eq!(named.rows().collect::<Vec<_>>(), [vec![2.0, 1.0]]);
        let twice = table("step,rank,ms\n0,0,1\n0,0,1\n1,0,5\n").unwrap();
        assert_eq!((twice.rows().collect::<Vec<_>>(), twice.incomplete()), (vec![vec![5.0]], 1));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let message = |text: &str| table(text).unwrap_err().to_string();
        assert!(message("step,worker,ms\n").contains("no column is named \"rank\""));
        assert!(message("step,rank,ms\n0,0,x\n").contains("line 2, column 3: \"x\""));
        assert!(message("step,rank,ms\n0,0\n").contains("line 2, column 3"));
        assert!(message("").contains("no rounds"));
    }
}
