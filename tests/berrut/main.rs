//! Berrut codes: golden vectors made by an independent model, laws over all small cases, and the
//! measured claims.

mod arrays;
mod golden;
mod laws;
mod locators;
mod statistics;

use codedgrad::codes::berrut::{BerrutCode, ReceivedOutputs};
use codedgrad::ids::Worker;

fn workers(list: &[u32]) -> Vec<Worker> {
    list.iter().copied().map(Worker).collect()
}

fn received(code: &BerrutCode, survivors: &[Worker], outputs: &[Vec<f64>]) -> ReceivedOutputs {
    ReceivedOutputs::new(code, survivors, &outputs.iter().map(|y| &y[..]).collect::<Vec<_>>())
        .unwrap()
}

/// `rows x values`, the small matrix applied to a list of vectors.
fn product(rows: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let entry = |row: &[f64], c: usize| row.iter().zip(values).map(|(w, y)| w * y[c]).sum();
    rows.iter().map(|row| (0..values[0].len()).map(|c| entry(row, c)).collect()).collect()
}

/// All subsets of so many workers, as lists.
fn subsets(count: usize) -> impl Iterator<Item = Vec<Worker>> {
    (0u32..1 << count)
        .map(move |bits| Worker::all(count).filter(|w| bits >> w.0 & 1 == 1).collect())
}
