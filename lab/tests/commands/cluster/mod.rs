//! Clusters of the program's processes to which things happen: connections that are cut, workers
//! that are there twice, and workers that lie. Whatever it is, the run ends with the bits of one
//! without faults.
#![cfg(unix)]

#[path = "../../../../tests/bare/mod.rs"]
mod bare;
mod cuts;
mod donor;
mod duplicates;
mod ending;
#[path = "../../../../tests/proxy/mod.rs"]
mod proxy;

use crate::coordinated::{Run, SMALL, VIRTUAL};
use crate::processes::{Kept, lines};
use crate::program::{self, json};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::fs;
use std::path::Path;

const WORKERS: usize = 4;

/// The flags of a run of so many steps, in which every result has a twin.
fn plan(steps: &str) -> [&str; 6] {
    ["--workers", "4", "--scheme", "groups:s=1", "--steps", steps]
}

/// What a run comes to: loss and digest of every step, and the model at the end.
#[derive(PartialEq)]
struct Outcome {
    results: Vec<(Value, Value)>,
    model: Vec<u8>,
}

impl Outcome {
    fn read(run: &Path) -> Self {
        let result = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            (line["loss"].clone(), line["digest"].clone())
        };
        let results = lines(&run.join("run.jsonl")).iter().map(result).collect();
        Self { results, model: fs::read(run.join("model-0-groups-s-1/model.safetensors")).unwrap() }
    }

    /// Of the same run over threads, in which nothing happens.
    fn without_faults(plan: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let threads = ["train", "--no-stragglers", "--out", "threads", "--json"];
        json(&program::codedgrad(
            folder.path(),
            &[&threads[..], &VIRTUAL, &SMALL[..], plan].concat(),
        ));
        Self::read(&folder.path().join("threads"))
    }

    /// Sees that a run that has finished has come to the same.
    fn check(&self, run: &Run, what: &str) {
        let found = Self::read(&run.folder.path().join("run"));
        let steps = self.results.len().max(found.results.len());
        let differs = (0..steps).find(|&step| found.results.get(step) != self.results.get(step));
        assert_eq!(differs, None, "{what}: the first step that is another");
        assert!(found.model == self.model, "{what}: another model");
    }
}

/// Writes how late each worker is in each round, in seconds between two bounds: by chance, so that
/// of two that compute the same now one comes first and now the other.
fn write_delays(folder: &Path, bounds: [[f64; 2]; WORKERS], random: &mut ChaCha8Rng) {
    let mut row = || {
        bounds.map(|[least, most]| format!("{:.4}", random.random_range(least..=most))).join(",")
    };
    let table: String = (0..1000).map(|_| row() + "\n").collect();
    fs::write(folder.join("delays.csv"), table).unwrap();
}

/// The end of what a process has said.
fn last_words(process: &Kept) -> String {
    let said = process.said();
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// How often a worker was said to be lost, or another thing of that beginning.
fn count_faults(summary: &Value, worker: usize, beginning: &str) -> usize {
    let faults = summary["faults"].as_array().unwrap();
    let of = |fault: &&Value| {
        fault["worker"] == worker && fault["what"].as_str().unwrap().starts_with(beginning)
    };
    faults.iter().filter(of).count()
}
