//! Runs over TCP as processes of this host, for the tests that kill, stop and cut them off.
#![cfg_attr(not(feature = "trainer"), allow(dead_code, reason = "most tests train"))]

use crate::program::{MODEL, codedgrad, flags, json};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const VIRTUAL: [&str; 2] = ["--clock", "virtual"];
/// A model small enough for a debug build.
pub(crate) static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&[MODEL, "--learning-rate 0.01 --micro-batches 8"]));
/// How long anything here may take.
pub(crate) const BOUND: Duration = Duration::from_secs(180);

/// Waits for something, and for nothing for ever.
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < BOUND, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
}

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

/// Sends a signal to a process of a test, such as `-TERM`.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A process that does not outlive its test.
pub(crate) struct Kept {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
}

impl Kept {
    pub(crate) fn start(folder: &Path, name: &str, arguments: &[&str]) -> Self {
        Self::start_with(folder, name, arguments, &[])
    }

    /// With variables of its environment.
    pub(crate) fn start_with(
        folder: &Path,
        name: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let log = folder.join(format!("{name}.err"));
        let file = |path: &Path| fs::File::options().create(true).append(true).open(path).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
        command.args(arguments).current_dir(folder).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
        command.envs(variables.iter().copied());
        let child = command
            .stdout(file(&folder.join(format!("{name}.out"))))
            .stderr(file(&log))
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Its exit status, once it has ended.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let child = &mut self.child;
        wait_for(&format!("the end of {}", self.log.display()), || child.try_wait().unwrap()).code()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
