//! Files that say how many workers there are, and from when on.

use anyhow::{Context, anyhow};
use codedgrad::files::Opener;
use codedgrad::sim::{Pool, PoolError};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::units::several;
use std::io::Read;
use std::path::Path;

const HEADER: &str = "seconds,workers";
/// No pool is longer: three million rows.
const POOL_BYTES_MAX: u64 = 64 << 20;

/// A time in whole milliseconds, as pools are replayed.
pub(crate) fn milliseconds(seconds: f64) -> u64 {
    // Longer ones than there are become the longest, which is refused.
    (1e3 * seconds).round() as u64
}

/// The pool of a file, mistakes by their line and column.
pub(crate) fn read(path: &Path, open: Opener) -> Result<Pool, Failure> {
    let mut text = String::new();
    open(path, POOL_BYTES_MAX)
        .and_then(|mut file| file.read_to_string(&mut text))
        .with_context(|| format!("cannot read the pool {}", path.display()))
        .or_input()?;
    let wrong = |line: usize, problem: String| {
        Failure::Input(anyhow!("{}: line {line}, {problem}", path.display()))
    };
    let mut lines = (1..).zip(text.lines().map(str::trim));
    let header = lines.next().map_or("", |(_, header)| header);
    if header.replace(' ', "") != HEADER {
        return Err(wrong(1, format!("column 1: {header:?} where the header is {HEADER}")));
    }
    let mut pool = Pool::default();
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        add(&mut pool, line).map_err(|problem| wrong(number, problem))?;
    }
    if pool == Pool::default() {
        return Err(wrong(2, format!("column 1: {}", PoolError::Empty)));
    }
    Ok(pool)
}

/// Adds a row, or says in which column which value is wrong.
fn add(pool: &mut Pool, line: &str) -> Result<(), String> {
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    let &[seconds, workers] = &cells[..] else {
        let column = cells.len().min(2) + usize::from(cells.len() > 2);
        let cell = cells[column - 1];
        let columns = several(cells.len(), "column");
        return Err(format!("column {column}: {cell:?} is the last of {columns}"));
    };
    let time: Option<f64> = seconds.parse().ok();
    let time = time.filter(|time| time.is_finite() && *time >= 0.0).ok_or_else(|| {
        format!("column 1: {seconds:?} is no time in seconds, a finite number of 0 or more")
    })?;
    let count: usize = workers.parse().map_err(|_| {
        format!("column 2: {workers:?} is no number of workers, a whole number of 0 or more")
    })?;
    pool.push(milliseconds(time), count).map_err(|error| match error {
        PoolError::Workers { .. } => format!("column 2: {error}"),
        _ => format!("column 1: {seconds:?}: {error}"),
    })
}
