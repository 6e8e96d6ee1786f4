//! Runs of the lab's coordinator, whose workers are processes of this host.

use crate::processes::{Kept, lines, wait_for};
use crate::program::{MODEL, codedgrad, flags, json};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tempfile::TempDir;

/// The lab's program.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_codedgrad-lab");

pub(crate) const VIRTUAL: [&str; 2] = ["--clock", "virtual"];
/// A model small enough for a debug build.
pub(crate) static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&[MODEL, "--learning-rate 0.01 --micro-batches 8"]));

pub(crate) fn digests(path: &Path) -> Vec<String> {
    let digest = |line: &String| {
        serde_json::from_str::<Value>(line).unwrap()["digest"].as_str().unwrap().to_owned()
    };
    lines(path).iter().map(digest).collect()
}

/// The first step at which two runs differ.
pub(crate) fn first_difference(found: &[String], expected: &[String]) -> Option<usize> {
    (0..found.len().max(expected.len())).find(|&step| found.get(step) != expected.get(step))
}

/// A coordinator whose port is open.
pub(crate) struct Run {
    pub(crate) folder: TempDir,
    pub(crate) coordinator: Kept,
    pub(crate) address: String,
}

impl Run {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// On a virtual clock.
    pub(crate) fn start_in(folder: TempDir, arguments: &[&str]) -> Self {
        Self::start_at(folder, &[&VIRTUAL, arguments].concat())
    }

    /// In real time, in which workers can be waited for.
    pub(crate) fn start_in_real_time(arguments: &[&str]) -> Self {
        Self::start_at(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn start_at(folder: TempDir, arguments: &[&str]) -> Self {
        let all = [
            &["coordinator", "--listen", "127.0.0.1:0", "--out", "run", "--json"],
            &SMALL[..],
            arguments,
        ]
        .concat();
        let coordinator = Kept::start(folder.path(), "coordinator", &all);
        let file = folder.path().join("run/address");
        let address = wait_for(&format!("the address: {}", coordinator.said()), || {
            fs::read_to_string(&file).ok()
        });
        Self { folder, coordinator, address: address.trim().into() }
    }

    pub(crate) fn worker(&self, number: usize, more: &[&str]) -> Kept {
        self.worker_at(&self.address, number, more)
    }

    /// A worker that finds its coordinator at another address.
    pub(crate) fn worker_at(&self, address: &str, number: usize, more: &[&str]) -> Kept {
        let (name, number) = (format!("hand-{number}"), number.to_string());
        let arguments = ["worker", "--join", address, "--worker", &number];
        let token = if more.contains(&"--keys") || more.contains(&"--token") {
            &[][..]
        } else {
            &["--token", "run/token"]
        };
        Kept::start(self.folder.path(), &name, &[&arguments[..], token, more].concat())
    }

    pub(crate) fn workers(&self, count: usize, more: &[&str]) -> Vec<Kept> {
        (0..count).map(|number| self.worker(number, more)).collect()
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.folder.path().join("run/run.jsonl")
    }

    pub(crate) fn wait_for_steps(&self, count: usize) {
        wait_for(&format!("{count} steps: {}", self.coordinator.said()), || {
            (lines(&self.record()).len() >= count).then_some(())
        });
    }

    pub(crate) fn finishes(&mut self) -> Value {
        let status = self.coordinator.ends();
        assert_eq!(status, Some(0), "{}", self.coordinator.said());
        let summary = fs::read(self.folder.path().join("run/summary.json")).unwrap();
        serde_json::from_slice(&summary).unwrap()
    }

    /// The digests of the same run over threads, in the same folder.
    pub(crate) fn expected(&self, arguments: &[&str]) -> Vec<String> {
        let all = [
            &["train", "--no-stragglers", "--out", "threads", "--json"],
            &VIRTUAL[..],
            &SMALL[..],
            arguments,
        ]
        .concat();
        json(&codedgrad(self.folder.path(), &all));
        digests(&self.folder.path().join("threads/run.jsonl"))
    }
}
