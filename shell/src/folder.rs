//! The folder of one run: files are written whole or not at all, the record grows line by line, and
//! one command at a time works in it.

use crate::failure::{Failure, OrInput, OrWork};
use crate::found;
use crate::lock::{FolderLock, hold};
use crate::output::say;
use anyhow::{Context, anyhow, bail};
use codedgrad::files::{self, BoundedReader};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// No file of JSON in a run's folder is longer: a plan, or a summary of 65,536 workers.
pub const JSON_BYTES_MAX: u64 = 256 << 20;
/// No line of a record is longer: a round of 65,536 workers takes 10 MB.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// No record is longer: a million steps of 64 workers take 6 GB.
pub const RECORD_BYTES_MAX: u64 = 64 << 30;
/// Logs that are listed of a folder that stays.
const LOGS_LISTED: usize = 4;
/// Where runs without `--out` go.
const DEFAULT_PARENT: &str = "runs";
/// What tells the folder of a run of the lab's GPT: all that it takes to go on with it.
pub const PLAN: &str = "plan.json";
/// The same of a run whose trainers are others' programs.
pub const SERVED: &str = "serve.json";
/// The commands that make such folders and go on with them.
const KINDS: [(&str, &str); 2] = [(PLAN, "`codedgrad-lab train`"), (SERVED, "`codedgrad serve`")];

/// Lines of its steps.
pub const RECORD: &str = "run.jsonl";
/// What happened beside them.
pub const EVENTS: &str = "events.jsonl";
/// What came of it, written at the end.
pub const SUMMARY: &str = "summary.json";
/// Who is done without on purpose: a worker's number per line; what comes after `#` is for people.
pub const DRAIN: &str = "drain";
/// What the coordinator said, where another process had started it.
pub const COORDINATOR_LOG: &str = "coordinator.log";
/// Where the coordinator listens.
pub const ADDRESS: &str = "address";
/// What else a run may leave, beside models and the logs of its workers.
const WRITTEN: [&str; 11] = [
    RECORD,
    EVENTS,
    "checkpoint.safetensors",
    "checkpoint.before.safetensors",
    "checkpoint.damaged.safetensors",
    SUMMARY,
    "loss.svg",
    "steps.svg",
    "token",
    ADDRESS,
    DRAIN,
];

/// Refuses a file, or a folder that holds a run, as the folder for what another command writes:
/// that could have the names of the run's own files.
pub fn holds_no_run(path: &Path) -> Result<(), Failure> {
    let name = path.display();
    if path.exists() && !path.is_dir() {
        return Err(Failure::Input(anyhow!("{name} is not a folder")));
    }
    // Before its workers are there a run has only said what it is to do.
    let has_begun = || {
        let plan = plan_of(path);
        plan.is_some_and(|plan| plan.get("started").is_some()).then_some(PLAN)
    };
    let of_runs = [RECORD, EVENTS, SERVED];
    match of_runs.into_iter().find(|file| path.join(file).exists()).or_else(has_begun) {
        Some(file) => Err(Failure::Input(anyhow!(
            "{name} holds a run, as its {file} shows: name another folder with --out"
        ))),
        None => Ok(()),
    }
}

/// What a file of JSON holds: nothing where there is none, or one of something else.
pub fn json_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match files::read(path, JSON_BYTES_MAX) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    .or_input()
}

/// The object in a folder's plan, if there is one.
fn plan_of(path: &Path) -> Option<serde_json::Value> {
    json_if_there(&path.join(PLAN)).ok().flatten()
}

/// Whether a folder's plan is an answer of `codedgrad plan`, which has the same name, and no run's.
fn holds_found(path: &Path) -> bool {
    plan_of(path).is_some_and(|plan| plan.get("recommended").is_some())
}

/// What was at a folder's path before this command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolderState {
    Nothing,
    /// A folder without a run.
    Folder,
    Run,
}

/// A run's folder, in which no other command works meanwhile.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Which of the [`KINDS`] it is, by its file.
    plan: &'static str,
    found: FolderState,
    /// Held until this command is done with the folder.
    lock: FolderLock,
}

impl RunFolder {
    /// A folder that holds no other run: a new one under `runs/`, or the one asked for.
    pub fn create(plan: &'static str, out: Option<&Path>, force: bool) -> Result<Self, Failure> {
        let Some(path) = out else { return Self::numbered(plan, Path::new(DEFAULT_PARENT)) };
        let kind = || KINDS.iter().find(|(plan, _)| path.join(plan).exists());
        let holds_run = || kind().is_some();
        let refused = || {
            let name = path.display();
            if holds_found(path) {
                return Failure::Input(anyhow!(
                    "{name} holds what `codedgrad plan` has found ({PLAN}); another --out keeps \
                     it, --force overwrites it"
                ));
            }
            let by = kind().map_or("", |(_, command)| command);
            Failure::Input(anyhow!(
                "{name} holds a run already; another --out keeps both, --force overwrites it, {by} \
                 goes on with it by --resume {name}"
            ))
        };
        if holds_run() && !force {
            return Err(refused());
        }
        if let Some(runs) = found::runs_in(path, &[PLAN, SERVED]) {
            return Err(Failure::Input(anyhow!(
                "{name} is a folder of runs, not of one: {runs}; name a new folder in it",
                name = path.display()
            )));
        }
        if path.exists() && !path.is_dir() {
            return Err(Failure::Input(anyhow!("{} is not a folder", path.display())));
        }
        let made = make(path)
            .with_context(|| format!("cannot make the folder {}", path.display()))
            .or_input()?;
        let lock = FolderLock::take(path)?;
        // Another command may have come and gone before the lock was taken.
        let found = match (made, holds_run()) {
            (_, true) if !force => return Err(refused()),
            (_, true) => FolderState::Run,
            (true, false) => FolderState::Nothing,
            (false, false) => FolderState::Folder,
        };
        if found == FolderState::Run {
            clear(path)
                .and_then(|()| remove_others(path, plan))
                .with_context(|| format!("cannot overwrite the run in {}", path.display()))
                .or_input()?;
        }
        Ok(Self { path: path.into(), plan, found, lock })
    }

    fn numbered(plan: &'static str, parent: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot make the folder {}", parent.display()))
            .or_input()?;
        for number in 1.. {
            let path = parent.join(format!("{number:04}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let lock = FolderLock::take(&path)?;
                    return Ok(Self { path, plan, found: FolderState::Nothing, lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot make the folder {}", path.display()))
                        .or_input();
                }
            }
        }
        unreachable!("numbers do not end")
    }

    /// The folder of a run that is to go on. Nothing in it may be read before.
    pub fn open(plan: &'static str, path: &Path) -> Result<Self, Failure> {
        if !path.join(plan).is_file() {
            let name = path.display();
            let other = KINDS.iter().find(|(other, _)| path.join(other).is_file());
            return Err(Failure::Input(match other {
                Some((_, command)) => {
                    anyhow!("{name} holds another kind of run: go on with it by {command}")
                }
                None => match found::runs_in(path, &[plan]) {
                    Some(runs) => anyhow!("{name} is no run; {runs}"),
                    None => anyhow!("{name} holds no run to resume (no {plan} in it)"),
                },
            }));
        }
        let lock = FolderLock::take(path)?;
        Ok(Self { path: path.into(), plan, found: FolderState::Run, lock })
    }

    /// Passes on how a command went. One that failed before its first step leaves nothing that
    /// would keep it from being tried again: of a folder that it made itself, only what its workers
    /// said.
    pub fn settle<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let removed = !self.path.exists();
        if outcome.is_ok() || self.found == FolderState::Run || self.has_steps() || removed {
            return outcome;
        }
        let logs = self.logs();
        if logs.is_empty() {
            if let Err(error) = self.vacate() {
                tracing::warn!("cannot remove what was made in {}: {error}", self.path.display());
            }
        } else {
            // Nothing is there to go on with, and a coordinator alone is soon tried again.
            if self.plan == SERVED {
                let _ = fs::remove_file(self.plan());
            }
            let more = match logs.len().saturating_sub(LOGS_LISTED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let listed = logs[..logs.len().min(LOGS_LISTED)].join(", ");
            let path = self.path.display();
            say!("{path} stays, since its workers may have said why: {listed}{more}");
        }
        outcome
    }

    /// Whether [`RunFolder::settle`] leaves a run here that can go on, should it fail now.
    pub fn outlives_failure(&self) -> bool {
        self.found == FolderState::Run || self.has_steps() || !self.logs().is_empty()
    }

    /// Whether it is there under another name than when this command began.
    pub fn is_moved(&self) -> bool {
        self.lock.is_moved()
    }

    fn has_steps(&self) -> bool {
        fs::metadata(self.file(RECORD)).is_ok_and(|record| record.len() > 0)
    }

    /// The logs of workers, by path.
    fn logs(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let logs = entries.filter(|entry| is_log(&entry.file_name().to_string_lossy()));
        let mut paths: Vec<_> = logs.map(|entry| entry.path().display().to_string()).collect();
        paths.sort_unstable();
        paths
    }

    /// Removes the run that was begun here: from a folder that a user made, its plan, which makes
    /// it a run's.
    fn vacate(&self) -> io::Result<()> {
        if self.found == FolderState::Nothing {
            clear(&self.path)?;
        }
        match fs::remove_file(self.plan()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if self.found == FolderState::Nothing { self.lock.remove_folder() } else { Ok(()) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of the file that makes it a run's.
    pub fn plan(&self) -> PathBuf {
        self.file(self.plan)
    }

    /// The lines of the record, up to the first that is no whole one or is not wanted, by itself
    /// and by how many come before it.
    pub fn recorded<T: DeserializeOwned>(
        &self,
        is_wanted: impl Fn(&T, usize) -> bool,
    ) -> Result<Vec<T>, Failure> {
        let path = self.file(RECORD);
        let cannot = || format!("cannot read {}", path.display());
        let mut input = match BoundedReader::open(&path, RECORD_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            input => BufReader::new(input.with_context(cannot).or_input()?),
        };
        let (mut lines, mut text) = (Vec::new(), Vec::new());
        while read_line(&mut input, &mut text).with_context(cannot).or_input()? > 0 {
            match serde_json::from_slice(&text) {
                Ok(line) if text.ends_with(b"\n") && is_wanted(&line, lines.len()) => {
                    lines.push(line);
                }
                _ => break,
            }
        }
        Ok(lines)
    }

    /// Writes the file that makes it a run's.
    pub fn write_plan(&self, plan: &impl Serialize) -> anyhow::Result<()> {
        self.write_json(self.plan, plan)
    }

    /// Writes a file under another name first, so that it is never there by halves.
    pub fn write_whole(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        write_whole(&self.file(name), bytes)
    }

    /// The same with a value as JSON.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        self.write_whole(name, text.as_bytes())
    }
}

/// Writes a file under another name first, so that it is never there by halves.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_by_part(path, &[bytes], |part, path| fs::rename(part, path))
}

/// Writes the parts of a file one after the other under another name, as [`write_whole`] does, and
/// the file that was there before stays under a name of its own. If anything ends this process or
/// its host, one of the two is whole.
pub fn write_keeping(path: &Path, before: &Path, parts: &[&[u8]]) -> anyhow::Result<()> {
    write_by_part(path, parts, |part, path| {
        if path.exists() {
            fs::rename(path, before)?;
        }
        fs::rename(part, path)?;
        path.parent().map_or(Ok(()), sync)
    })
}

/// Makes what was renamed in a folder last longer than the host's power.
pub fn sync(folder: &Path) -> io::Result<()> {
    // Elsewhere folders cannot be opened.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn write_by_part(
    path: &Path,
    parts: &[&[u8]],
    put: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let write = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = files::create(part)?;
        parts.iter().try_for_each(|bytes| file.write_all(bytes))?;
        file.sync_all()?;
        put(part, path)
    };
    write()
        .inspect_err(|_| drop(fs::remove_file(part)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a folder where none is; false if one is there.
fn make(path: &Path) -> io::Result<bool> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a file is what a process of this host said.
fn is_log(name: &str) -> bool {
    name.starts_with("worker-") && name.ends_with(".log") || name == COORDINATOR_LOG
}

/// Takes away what makes a folder that of another kind of run.
fn remove_others(path: &Path, plan: &str) -> io::Result<()> {
    for (other, _) in KINDS.iter().filter(|(other, _)| *other != plan) {
        match fs::remove_file(path.join(other)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Takes away what an earlier run left, and nothing else.
fn clear(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let whole = name.strip_suffix(".part").unwrap_or(&name);
        let aside = name.starts_with("run-until-") && name.ends_with(".jsonl");
        if is_log(&name) || aside || WRITTEN.contains(&whole) {
            fs::remove_file(entry.path())?;
        } else if name.starts_with("model-") && entry.path().join("model.safetensors").is_file() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Reads the next line of a record, with its end if it has one, and gives back its bytes: 0 at the
/// end of the file.
pub fn read_line(input: impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let read = input.take(LINE_BYTES_MAX).read_until(b'\n', line)? as u64;
    if read == LINE_BYTES_MAX {
        let problem = format!("a line has more than {LINE_BYTES_MAX} bytes: this is no record");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(read)
}

/// A file of one JSON object per line that only grows.
#[derive(Debug)]
pub struct LineFile {
    file: File,
    path: PathBuf,
}

impl LineFile {
    /// Opens a record and cuts it after its first `lines` lines.
    pub fn open(path: &Path, lines: usize) -> Result<Self, Failure> {
        let cannot = || format!("cannot open {}", path.display());
        let mut options = File::options();
        let file = files::open_regular(path, options.create(true).append(true).read(true));
        let file = file.with_context(cannot).or_work()?;
        hold(&file, path)?;
        let open = || -> anyhow::Result<Self> {
            let mut reader = BufReader::new(&file);
            let (mut kept, mut line) = (0, Vec::new());
            for _ in 0..lines {
                let read = read_line(&mut reader, &mut line)?;
                // What a process that was killed has left of a last line.
                if line.last() != Some(&b'\n') {
                    break;
                }
                kept += read;
            }
            file.set_len(kept)?;
            Ok(Self { file, path: path.into() })
        };
        open().with_context(cannot).or_work()
    }

    /// Opens a file to which a run adds each time it goes on.
    pub fn append(path: &Path) -> Result<Self, Failure> {
        Self::open(path, usize::MAX)
    }

    /// The same file, for a thread that has its lines outlive the host's power meanwhile.
    pub fn same(&self) -> anyhow::Result<Self> {
        let file = self.file.try_clone();
        let file = file.with_context(|| format!("cannot open {}", self.path.display()))?;
        Ok(Self { file, path: self.path.clone() })
    }

    /// Has the lines so far outlive the host's power, as a checkpoint that counts them does.
    pub fn sync(&self) -> anyhow::Result<()> {
        self.file.sync_data().with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Adds one line; it is with the operating system when this returns. Of a line that does not
    /// fit on the disk nothing stays.
    pub fn push(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        // Where files may be removed while they are open, lines would go on into nothing.
        if !self.path.exists() {
            bail!("{} was removed or moved while the run went on", self.path.display());
        }
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        let before = self.file.metadata().map(|file| file.len());
        let written = self.file.write_all(&line).inspect_err(|_| {
            drop(before.and_then(|length| self.file.set_len(length)));
        });
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}
