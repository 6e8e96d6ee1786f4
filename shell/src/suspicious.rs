//! Warnings of tables that look like no traces.

use crate::output::Output;
use codedgrad::delays::{Preset, Suspicion, TraceReader, suspicions};
use std::path::Path;

/// As many rows as tell what a column is.
pub const ROWS: usize = 1000;

/// A file of delays. Pipes, which can be read only once, and what cannot be read are left to those
/// who use them.
fn opened(delays: &str, workers: Option<usize>) -> Option<TraceReader> {
    let path = Path::new(delays);
    if Preset::named(delays).is_some() || !path.is_file() {
        return None;
    }
    TraceReader::open(path, workers).ok()
}

/// What looks wrong about a file of delays.
fn found(delays: &str, workers: Option<usize>) -> Vec<Suspicion> {
    let Some(rows) = opened(delays, workers) else { return Vec::new() };
    let rows: Vec<Vec<f64>> = rows.take(ROWS).map_while(Result::ok).collect();
    suspicions(&rows)
}

fn warning(name: &str, suspicion: &Suspicion) -> String {
    format!("warning: {name}: {suspicion}")
}

/// What is to be said of a file of delays before it is used.
pub fn warnings(delays: &str, workers: usize) -> Vec<String> {
    let found = found(delays, Some(workers));
    found.iter().map(|suspicion| warning(delays, suspicion)).collect()
}

/// Says what looks wrong about a file of delays.
pub fn say(delays: &str, workers: Option<usize>, output: &mut Output<'_>) {
    for suspicion in found(delays, workers) {
        output.note(format_args!("{}", warning(delays, &suspicion)));
    }
}

/// The same but for what an examination of the times says itself.
pub fn say_of_form(delays: &str, output: &mut Output<'_>) {
    let of_form = |found: &Suspicion| {
        !matches!(found, Suspicion::AfterExchange { .. } | Suspicion::WaitedFor { .. })
    };
    for suspicion in found(delays, None).into_iter().filter(of_form) {
        output.note(format_args!("{}", warning(delays, &suspicion)));
    }
}

/// The same but for its unit, and for who is waited for, where these are looked at with more care.
pub fn say_of_shape(delays: &str, workers: Option<usize>, output: &mut Output<'_>) {
    let of_shape = |suspicion: &Suspicion| {
        !matches!(suspicion, Suspicion::Milliseconds { .. } | Suspicion::WaitedFor { .. })
    };
    for suspicion in found(delays, workers).into_iter().filter(of_shape) {
        output.note(format_args!("{}", warning(delays, &suspicion)));
    }
}

/// Says what looks wrong about the first rows of a table.
pub fn say_of_rows(name: &str, rows: &[Vec<f64>], output: &mut Output<'_>) {
    for suspicion in suspicions(rows) {
        output.note(format_args!("{}", warning(name, &suspicion)));
    }
}

/// Whether a value is missing among the rows up to the `most`-th whole one.
pub fn has_gaps(delays: &str, workers: usize, most: usize) -> bool {
    opened(delays, Some(workers)).is_some_and(|mut rows| {
        rows.by_ref().take(most).map_while(Result::ok).for_each(drop);
        rows.incomplete() > 0
    })
}

/// Says so where there are more columns than workers.
pub fn say_of_columns(name: &str, workers: usize, columns: usize, output: &mut Output<'_>) {
    if columns > workers {
        output.note(format_args!("{name}: using the first {workers} of {columns} columns"));
    }
}
