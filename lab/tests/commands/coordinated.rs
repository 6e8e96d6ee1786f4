//! Runs of `codedgrad serve`, whose workers are the lab's, in processes of this host.

use crate::processes::{Kept, lines, wait_for};
use crate::program::{MODEL, codedgrad, flags, text};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The lab's program.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_codedgrad-lab");

/// A model small enough for a debug build.
pub(crate) static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&[MODEL, "--learning-rate 0.01 --micro-batches 8"]));

/// The bits that uncoded training by so many workers over threads ends with.
pub(crate) fn uncoded(workers: &str, steps: &str) -> Vec<u8> {
    over_threads("uncoded", workers, steps)
}

/// The same of another scheme.
pub(crate) fn over_threads(scheme: &str, workers: &str, steps: &str) -> Vec<u8> {
    let home = tempfile::tempdir().unwrap();
    let own = ["train", "--scheme", scheme, "--workers", workers, "--steps", steps];
    let others = flags(&["--no-stragglers --clock virtual --out plain"]);
    let output = codedgrad(home.path(), &[&own, &others[..], &SMALL].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let name = scheme.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    fs::read(home.path().join(format!("plain/model-0-{name}/model.safetensors"))).unwrap()
}

/// A coordinator whose port is open.
pub(crate) struct Run {
    pub(crate) folder: TempDir,
    pub(crate) coordinator: Kept,
    pub(crate) address: String,
    steps: String,
}

impl Run {
    /// Of so many steps, with flags of `codedgrad serve`.
    pub(crate) fn start(steps: &str, flags: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), steps, flags)
    }

    pub(crate) fn start_in(folder: TempDir, steps: &str, flags: &str) -> Self {
        let line = format!("serve --listen 127.0.0.1:0 --out run --json {flags}");
        let coordinator =
            Kept::start(folder.path(), "coordinator", &line.split(' ').collect::<Vec<_>>());
        let file = folder.path().join("run/address");
        let address = wait_for(&format!("the address: {}", coordinator.said()), || {
            fs::read_to_string(&file).ok().filter(|address| !address.is_empty())
        });
        Self { folder, coordinator, address: address.trim().into(), steps: steps.into() }
    }

    /// Another coordinator that goes on.
    pub(crate) fn resume(&mut self, more: &str) {
        let line = format!("serve --resume run --json{more}");
        let words: Vec<&str> = line.split(' ').collect();
        self.coordinator = Kept::start(self.folder.path(), "coordinator-again", &words);
    }

    pub(crate) fn worker(&self, number: usize, flags: &str) -> Kept {
        self.worker_by(number, flags, &[])
    }

    /// With variables of its environment, which come after those of the run.
    pub(crate) fn worker_by(&self, number: usize, flags: &str, more: &[(&str, &str)]) -> Kept {
        let number = number.to_string();
        let environment = [("CODEDGRAD_WORKER", &*number)];
        self.process(&format!("hand-{number}"), flags, &[&environment, more].concat())
    }

    /// A worker without a number.
    pub(crate) fn process(&self, name: &str, flags: &str, more: &[(&str, &str)]) -> Kept {
        let own = ["worker", "--steps", &self.steps, "--out", "gpt"];
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let token = [("CODEDGRAD_TOKEN_FILE", "run/token")];
        let is_given = more.iter().any(|(name, _)| *name == "CODEDGRAD_KEYS");
        let secret = if is_given { &[][..] } else { &token };
        self.started(name, &[&own, &SMALL[..], &flags].concat(), &[secret, more].concat())
    }

    /// A process that knows where the run is, and no secret that it is not told here.
    pub(crate) fn started(&self, name: &str, line: &[&str], told: &[(&str, &str)]) -> Kept {
        let address = [("CODEDGRAD_ADDRESS", &*self.address)];
        Kept::start_with(self.folder.path(), name, line, &[&address, told].concat())
    }

    pub(crate) fn workers(&self, count: usize, flags: &str) -> Vec<Kept> {
        (0..count).map(|number| self.worker(number, flags)).collect()
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.folder.path().join("run/run.jsonl")
    }

    pub(crate) fn wait_for_steps(&self, count: usize) {
        wait_for(&format!("{count} steps: {}", self.coordinator.said()), || {
            (lines(&self.record()).len() >= count).then_some(())
        });
    }

    /// A worker has said what is trained.
    pub(crate) fn knows_what_is_trained(&self) {
        let plan = self.folder.path().join("run/serve.json");
        wait_for("what is trained", || {
            let plan: Value = serde_json::from_slice(&fs::read(&plan).ok()?).ok()?;
            plan["facts"]["length"].as_u64()
        });
    }

    /// The steps that are recorded.
    pub(crate) fn steps(&self) -> Vec<Value> {
        lines(&self.record()).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        let file = self.folder.path().join("run/events.jsonl");
        lines(&file).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn summary(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.path().join("run/summary.json")).unwrap())
            .unwrap()
    }

    /// The run is made to its end, and its workers end with it: its summary.
    pub(crate) fn finishes(&mut self, workers: &mut [Kept]) -> Value {
        let status = self.coordinator.ends();
        assert_eq!(status, Some(0), "{}", self.coordinator.said());
        for worker in workers {
            assert_eq!(worker.ends(), Some(0), "{}", worker.said());
        }
        self.summary()
    }

    /// Ends it by SIGTERM.
    pub(crate) fn is_stopped(&mut self) {
        self.coordinator.signal("-TERM");
        assert_eq!(self.coordinator.ends(), Some(143), "{}", self.coordinator.said());
    }

    /// Where its metrics are.
    pub(crate) fn metrics(&self) -> String {
        let said = self.coordinator.said();
        let metrics = said.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next());
        metrics.unwrap().to_owned()
    }

    /// Sees that the model has these bits.
    pub(crate) fn has_trained(&self, bits: &[u8], what: &str) {
        let model = fs::read(self.folder.path().join("gpt/model/model.safetensors")).unwrap();
        assert!(model == bits, "{what}: the model has other bits");
    }
}
