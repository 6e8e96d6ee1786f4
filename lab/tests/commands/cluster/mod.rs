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

use crate::processes::{Kept, lines};
use serde_json::Value;

const WORKERS: usize = 4;

/// The flags of a run in which every result has a twin.
const PLAN: &str = "--workers 4 --scheme groups:s=1";

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
