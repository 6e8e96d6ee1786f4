//! What a table that was given as a trace looks like instead.

use super::in_few_digits;
use std::fmt;

/// Fewer rows say nothing about a column.
const ROWS_LEAST: usize = 5;
/// So many numbers do not grow from one to the next by chance, once in 10^13.
const GROWING_LEAST: usize = 16;
/// A column of each worker and this many times fewer rows.
const WORKERS_PER_ROUND: usize = 4;
/// Tables of fewer workers may be short.
const WORKERS_LEAST: usize = 16;
/// A table of so many rounds is long enough for any number of workers.
const ROUNDS_ENOUGH: usize = 256;
/// Workers that wait for one another in an all-reduce agree within a round so much better than
/// rounds do. In recorded times before it the quotient is 1.25 to 20.
const AGREE: f64 = 0.1;
/// Rounds that differ by less, relative to the usual, show nothing.
const ROUNDS_DIFFER: f64 = 1e-3;
/// Who is waited for takes as long as ever: its rounds differ by less than that part of what the
/// others' do.
const STEADY: f64 = 0.25;
/// Seconds above which a median answer time is more likely in milliseconds; half of it where all
/// numbers are whole. As in the planner's notes.
const MEDIAN_MOST: f64 = 100.0;
/// Two numbers that differ by less, relative to the larger, are alike: they may have been divided.
const ALIKE: f64 = 1e-9;

/// Why a table is probably no trace, or not one in seconds. Columns count from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Suspicion {
    /// Far more workers than rounds.
    Transposed {
        /// Rows.
        rounds: usize,
        /// Columns.
        workers: usize,
    },
    /// A column that only grows: a number or a date of the rows.
    Index {
        /// Which.
        column: usize,
        /// Its first two numbers.
        first: [f64; 2],
    },
    /// A column that goes through the same whole numbers again and again: a worker's number.
    Rank {
        /// Which.
        column: usize,
        /// The largest of them.
        last: usize,
    },
    /// Times that are too long for seconds.
    Milliseconds {
        /// Their median.
        median: f64,
    },
    /// Workers that agree far better than rounds do: they have waited for one another.
    AfterExchange {
        /// How far workers are apart within a round, over how far rounds are apart.
        quotient: f64,
    },
    /// The same of all workers but one, whose times are the short ones: they have waited for it.
    WaitedFor {
        /// Which, counted from 0.
        worker: usize,
        /// As above, of the others.
        quotient: f64,
    },
}

impl fmt::Display for Suspicion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transposed { rounds, workers } => write!(
                out,
                "{rounds} rounds of {workers} workers: a line should be a round and a column a \
                 worker; is the table transposed?"
            ),
            Self::Index { column, first: [first, second] } => write!(
                out,
                "column {column} only grows ({first}, {second}, ..): it looks like the number or \
                 the time of a round, not like a worker"
            ),
            Self::Rank { column, last } => write!(
                out,
                "column {column} is 0 to {last} again and again: it looks like the number of a \
                 worker; a trace has a column per worker (`codedgrad trace import --long` makes \
                 them)"
            ),
            Self::Milliseconds { median } => write!(
                out,
                "the median is {} s: if these are milliseconds, divide by 1000 (`codedgrad trace \
                 import --per-second 1000`)",
                in_few_digits(*median)
            ),
            Self::AfterExchange { quotient } => write!(
                out,
                "workers of a round agree {:.0} times as closely as rounds do: these look like \
                 times taken after the all-reduce, where every worker shows the slowest one's \
                 time. Measure before it",
                1.0 / quotient.max(1e-3)
            ),
            Self::WaitedFor { worker, quotient } => write!(
                out,
                "all workers but that of column {} agree {:.0} times as closely as rounds do with \
                 one another, and take longer than it: they wait for it. These times were taken \
                 after the all-reduce, where the one who is late has the short time. Record what \
                 each worker takes before it (loading data, forward, backward)",
                worker + 1,
                1.0 / quotient.max(1e-3)
            ),
        }
    }
}

/// What looks wrong about rows of seconds, one per round, each with a number per worker; some
/// hundred rows are enough. Nothing is certain: it is for warnings.
///
/// ```
/// use codedgrad::delays::suspicions;
/// let numbered: Vec<_> = (0..20).map(|step| vec![f64::from(step), 0.25, 0.5]).collect();
/// assert!(suspicions(&numbered)[0].to_string().starts_with("column 1 only grows (0, 1, ..)"));
/// let plain: Vec<_> = numbered.iter().map(|row| row[1..].to_vec()).collect();
/// assert!(suspicions(&plain).is_empty());
/// ```
#[must_use]
pub fn suspicions(rows: &[Vec<f64>]) -> Vec<Suspicion> {
    let workers = rows.iter().map(Vec::len).max().unwrap_or(0);
    let rounds = rows.len();
    let mut found = Vec::new();
    let short = rounds < ROUNDS_ENOUGH && workers >= WORKERS_PER_ROUND * rounds;
    if workers >= WORKERS_LEAST && short {
        found.push(Suspicion::Transposed { rounds, workers });
    }
    for column in 0..workers {
        let numbers: Vec<f64> = rows.iter().filter_map(|row| row.get(column).copied()).collect();
        if grows(&numbers) {
            let first = [numbers[0], numbers[1]];
            found.push(Suspicion::Index { column: column + 1, first });
        } else if let Some(last) = last_of_ranks(&numbers) {
            found.push(Suspicion::Rank { column: column + 1, last });
        }
    }
    let mut all: Vec<f64> = rows.iter().flatten().copied().collect();
    if !all.is_empty() {
        let whole = all.iter().all(|time| time.fract() == 0.0);
        let most = if whole { MEDIAN_MOST / 2.0 } else { MEDIAN_MOST };
        let middle = all.len() / 2;
        let (_, median, _) = all.select_nth_unstable_by(middle, f64::total_cmp);
        if *median > most {
            found.push(Suspicion::Milliseconds { median: *median });
        }
    }
    found.extend(after_exchange(rows));
    found
}

/// Whether rows look like times that were taken after the workers had waited for one another.
///
/// # Formula
/// ```text
/// q = median_r(mad_i(d_ri)) / mad_r(m_r),   m_r = median_i(d_ri)
/// ```
/// with `mad` the median absolute deviation from the median. Rows are suspicious if `q < 0.1`,
/// rounds differ at all and no worker sticks out by as much as they do. If that is so of all but
/// the worker that is most often the first, whose own rounds differ by less than a quarter of it,
/// the others have waited for that one.
///
/// ```
/// use codedgrad::delays::{Suspicion, after_exchange};
/// // The loader of worker 2 stalls in every other round, and its own time does not show it.
/// let row = |round: usize| match round % 2 {
///     0 => vec![0.83, 0.831, 0.829, 0.83],
///     _ => vec![2.07, 2.071, 0.831, 2.07],
/// };
/// let found = after_exchange(&(0..40).map(row).collect::<Vec<_>>());
/// assert!(matches!(found, Some(Suspicion::WaitedFor { worker: 2, .. })));
/// ```
#[must_use]
pub fn after_exchange(rows: &[Vec<f64>]) -> Option<Suspicion> {
    let workers = rows.iter().map(Vec::len).min().unwrap_or(0);
    if workers < 2 || rows.len() < ROWS_LEAST {
        return None;
    }
    if let Some((quotient, _)) = agreement(rows) {
        return Some(Suspicion::AfterExchange { quotient });
    }
    let mut first = vec![0; workers];
    for row in rows {
        first[(0..workers).min_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0)] += 1;
    }
    // Two workers that remain agree as any two do.
    let worker = (0..workers).max_by_key(|worker| first[*worker]).filter(|_| workers > 3)?;
    let others = |row: &Vec<f64>| {
        let mut row = row.clone();
        row.remove(worker);
        row
    };
    let (quotient, between) = agreement(&rows.iter().map(others).collect::<Vec<_>>())?;
    let (_, own) = median_and_deviation(rows.iter().map(|row| row[worker]).collect());
    let is_it = 2 * first[worker] >= rows.len() && own < STEADY * between;
    is_it.then_some(Suspicion::WaitedFor { worker, quotient })
}

/// How far workers are apart within a round over how far rounds are apart, and the latter, where
/// that says that workers have waited for one another.
fn agreement(rows: &[Vec<f64>]) -> Option<(f64, f64)> {
    let mut medians = Vec::new();
    let mut within = Vec::new();
    let mut ranges = Vec::new();
    for row in rows {
        let (median, deviation) = median_and_deviation(row.clone());
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = row.iter().copied().fold(f64::INFINITY, f64::min);
        medians.push(median);
        within.push(deviation);
        ranges.push(largest - least);
    }
    let (usual, between) = median_and_deviation(medians);
    let range = median(&mut ranges);
    let quotient = median(&mut within) / between;
    let agree = quotient < AGREE && range < between;
    (between > ROUNDS_DIFFER * usual && agree).then_some((quotient, between))
}

fn median(numbers: &mut [f64]) -> f64 {
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// The median, and the median of what numbers are away from it.
fn median_and_deviation(mut numbers: Vec<f64>) -> (f64, f64) {
    let middle = median(&mut numbers);
    numbers.iter_mut().for_each(|number| *number = (*number - middle).abs());
    (middle, median(&mut numbers))
}

/// Whether numbers are an arithmetic sequence that grows, blocks of equal length of one, or grow
/// for long.
fn grows(numbers: &[f64]) -> bool {
    let Some([first, .., last]) = (numbers.len() >= ROWS_LEAST).then_some(numbers) else {
        return false;
    };
    let slack = ALIKE * last.abs().max(first.abs());
    // The last block may be cut off, and a single block is a column that does not grow.
    let block = numbers.iter().take_while(|number| *number == first).count();
    let heads: Vec<f64> = numbers.iter().copied().step_by(block).collect();
    let in_blocks = (0..).zip(numbers).all(|(at, number): (usize, _)| heads[at / block] == *number);
    let step = heads.get(1).map_or(0.0, |second| second - first);
    let even = heads.windows(2).all(|pair| (pair[1] - pair[0] - step).abs() <= slack);
    let arithmetic = in_blocks && even && step > slack && heads.len() >= 3;
    let strictly = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    arithmetic || strictly && numbers.len() >= GROWING_LEAST
}

/// The largest of whole numbers that are 0, 1, .. again and again, twice at least.
fn last_of_ranks(numbers: &[f64]) -> Option<usize> {
    let period = 1 + numbers.iter().skip(1).position(|number| *number == 0.0)?;
    let cycles = period >= 3 && numbers.len() >= 2 * period;
    let fits = (0..).zip(numbers).all(|(at, number): (usize, _)| *number == (at % period) as f64);
    (cycles && fits).then_some(period - 1)
}

#[cfg(test)]
mod tests;
