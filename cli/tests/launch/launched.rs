//! A launcher that runs, and its processes.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything here may take.
const BOUND: Duration = Duration::from_secs(120);

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

/// The worker of these tests, as a command line.
pub(crate) fn worker() -> Vec<String> {
    let program = std::env::current_exe().unwrap().display().to_string();
    let rest = "worker::worker --exact --nocapture --include-ignored --test-threads 1";
    [program].into_iter().chain(rest.split(' ').map(str::to_owned)).collect()
}

/// A launcher in a folder, with its words in files.
pub(crate) struct Launched {
    pub(crate) folder: PathBuf,
    name: String,
    child: Child,
    kept: Option<TempDir>,
}

impl Launched {
    /// `codedgrad run` with these flags, of workers in this environment; the run is in `run`.
    pub(crate) fn start(flags: &str, environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut launched = Self::start_in(folder.path(), "launcher", flags, environment);
        launched.kept = Some(folder);
        launched
    }

    pub(crate) fn start_in(
        folder: &Path,
        name: &str,
        flags: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_program(folder, name, flags, &worker(), environment)
    }

    pub(crate) fn start_program(
        folder: &Path,
        name: &str,
        flags: &str,
        program: &[String],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
        command.arg("run").args(flags.split_whitespace()).arg("--").args(program);
        Self::spawn(folder, name, command.envs(environment.iter().copied()))
    }

    /// The same where files cannot grow beyond so many blocks, as on a disk that is full.
    pub(crate) fn start_limited(
        folder: &Path,
        blocks: u32,
        flags: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let script = format!("ulimit -f {blocks}; exec \"$0\" run \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_codedgrad")]);
        command.args(flags.split_whitespace()).arg("--").args(worker());
        Self::spawn(folder, "limited", command.envs(environment.iter().copied()))
    }

    /// The same, deaf to the end of its terminal.
    pub(crate) fn start_by_nohup(folder: &Path, flags: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new("nohup");
        command.args([env!("CARGO_BIN_EXE_codedgrad"), "run"]).args(flags.split_whitespace());
        command.arg("--").args(worker()).envs(environment.iter().copied());
        Self::spawn(folder, "nohup", &mut command)
    }

    /// A coordinator alone, `codedgrad serve`.
    pub(crate) fn serve(folder: &Path, name: &str, flags: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
        Self::spawn(folder, name, command.arg("serve").args(flags.split_whitespace()))
    }

    /// A worker of it, started by hand.
    pub(crate) fn hand(folder: &Path, number: u32, environment: &[(&str, &str)]) -> Self {
        let path = folder.join("run/address");
        let address = wait_for("the address", || fs::read_to_string(&path).ok());
        let program = worker();
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).envs(environment.iter().copied());
        command.env("CODEDGRAD_ADDRESS", address.trim()).env("CODEDGRAD_TOKEN_FILE", "run/token");
        let number = number.to_string();
        command.env("CODEDGRAD_WORKER", &number).env("CODEDGRAD_WORKERS", "2");
        command.env("CODEDGRAD_EPOCH", "0");
        Self::spawn(folder, &format!("hand-{number}"), &mut command)
    }

    fn spawn(folder: &Path, name: &str, command: &mut Command) -> Self {
        let file = |what: &str| {
            let path = folder.join(format!("{name}.{what}"));
            fs::File::options().create(true).append(true).open(path).unwrap()
        };
        command.current_dir(folder).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
        let child = command.stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Self { folder: folder.to_owned(), name: name.into(), child, kept: None }
    }

    pub(crate) fn printed(&self) -> String {
        self.text(&format!("{}.out", self.name))
    }

    pub(crate) fn said(&self) -> String {
        self.text(&format!("{}.err", self.name))
    }

    /// What is in a file, as far as it is there.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join(name)).unwrap_or_default()).into_owned()
    }

    pub(crate) fn waits_for_words(&self, words: &str) {
        wait_for(&format!("{words:?}"), || self.said().contains(words).then_some(()));
    }

    /// The steps of the record, in the order of its lines.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let record = self.text("run/run.jsonl");
        let whole = record.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let step = |line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap();
        whole.map(step).collect()
    }

    pub(crate) fn waits_for_steps(&self, count: usize) {
        wait_for(&format!("{count} steps: {}", self.said()), || {
            (self.steps().len() >= count).then_some(())
        });
    }

    /// The processes that it has started and that live, by what is in their environment.
    pub(crate) fn children(&self) -> Vec<Process> {
        Process::all().into_iter().filter(|process| process.parent == self.child.id()).collect()
    }

    /// The process of a worker, once it runs.
    pub(crate) fn worker(&self, number: u32) -> Process {
        let of = format!("CODEDGRAD_WORKER={number}");
        wait_for(&of, || self.children().into_iter().find(|child| child.has(&of)))
    }

    pub(crate) fn coordinator(&self) -> Process {
        let look = || self.children().into_iter().find(|child| child.line.contains("serve"));
        wait_for("the coordinator", look)
    }

    pub(crate) fn signal(&self, signal: &str) {
        send(signal, self.child.id());
    }

    /// Its exit status, once it has ended, by which time no process of its run is left.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let status = self.ends_itself();
        assert_eq!(self.left(), [], "{}", self.said());
        status
    }

    /// Its exit status, once it has ended, whoever is left.
    pub(crate) fn ends_itself(&mut self) -> Option<i32> {
        let what = format!("the end of {}: {}", self.name, self.said());
        wait_for(&what, || self.child.try_wait().unwrap()).code()
    }

    /// Ends it with no chance to do anything about it.
    pub(crate) fn is_killed(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The processes of its run that live, whoever their parent is.
    pub(crate) fn left(&self) -> Vec<Process> {
        let folder = self.folder.canonicalize().unwrap();
        Process::all()
            .into_iter()
            .filter(|process| process.id != self.child.id())
            .filter(|process| process.folder.as_deref().is_some_and(|at| at.starts_with(&folder)))
            .collect()
    }

    /// What each worker has come to.
    pub(crate) fn digests(&self, workers: u32) -> Vec<BTreeSet<String>> {
        let of = |worker| {
            let log = self.text(&format!("run/worker-{worker}.log"));
            let ends = log.lines().filter_map(|line| line.split_once("ends with "));
            ends.map(|(_, digest)| digest.to_owned()).collect()
        };
        (0..workers).map(of).collect()
    }

    /// Sees that all workers have come to what one process alone comes to, and that every step is
    /// in the record once.
    pub(crate) fn is_whole(&self, workers: u32, steps: u64) {
        let alone: BTreeSet<String> = [crate::worker::alone(steps)].into();
        let whole = self.digests(workers).iter().all(|digests| *digests == alone);
        assert!(whole, "{:?} and not {alone:?}: {}", self.digests(workers), self.said());
        assert_eq!(self.steps(), (0..steps).collect::<Vec<u64>>());
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.kept.is_some() {
            self.left().iter().for_each(|process| process.signal("-KILL"));
        }
    }
}

pub(crate) fn send(signal: &str, process: u32) {
    let _ = Command::new("kill").args([signal, &process.to_string()]).status();
}

/// A process of this host that is no zombie.
#[derive(Debug, PartialEq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) group: u32,
    parent: u32,
    line: String,
    environment: String,
    folder: Option<PathBuf>,
}

impl Process {
    fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| Self::read(entry.file_name().to_str()?.parse().ok()?)).collect()
    }

    fn read(id: u32) -> Option<Self> {
        let file = |name: &str| {
            let bytes = fs::read(format!("/proc/{id}/{name}")).ok()?;
            Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
        };
        let stat = file("stat")?;
        // The name before may have spaces in it.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let alive = fields.next().is_some_and(|state| state != "Z" && state != "X");
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        alive.then_some(())?;
        let folder = fs::read_link(format!("/proc/{id}/cwd")).ok();
        Some(Self {
            id,
            group,
            parent,
            line: file("cmdline")?,
            environment: file("environ").unwrap_or_default(),
            folder,
        })
    }

    /// Whether a variable is set so.
    pub(crate) fn has(&self, variable: &str) -> bool {
        self.environment.split(' ').any(|set| set == variable)
    }

    pub(crate) fn signal(&self, signal: &str) {
        send(signal, self.id);
        if signal == "-STOP" {
            // On a loaded host a later signal of a lower number, such as SIGTERM, comes before it.
            wait_for("the process to stand still", || self.is_stopped().then_some(()));
        }
    }

    fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
    }
}
