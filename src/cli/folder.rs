//! The folder of one run: files are written whole or not at all, the record grows line by line.

use super::{Failure, OrInput, OrWork};
use anyhow::{Context, anyhow};
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// Where runs without `--out` go.
const DEFAULT_PARENT: &str = "runs";
/// Present in every run folder.
const PLAN: &str = "plan.json";

/// What else a run may leave, beside models and the logs of its workers.
const WRITTEN: [&str; 8] =
    ["run.jsonl", "checkpoint.safetensors", "start.safetensors", "summary.json", "loss.svg", "steps.svg", "token", "address"];

/// A run's folder.
#[derive(Clone, Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// A folder that holds no other run: a new one under `runs/`, or the one asked for.
    pub(super) fn create(out: Option<&Path>, force: bool) -> Result<Self, Failure> {
        let Some(path) = out else { return Self::numbered(Path::new(DEFAULT_PARENT)) };
        let holds_run = path.join(PLAN).exists();
        if holds_run && !force {
            let name = path.display();
            return Err(Failure::Input(anyhow!("{name} holds another run; --force overwrites it, --resume {name} goes on with it")));
        }
        if path.exists() && !path.is_dir() {
            return Err(Failure::Input(anyhow!("{} is not a folder", path.display())));
        }
        fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display())).or_input()?;
        if holds_run {
            clear(path).with_context(|| format!("cannot overwrite the run in {}", path.display())).or_input()?;
        }
        Ok(Self { path: path.into() })
    }

    fn numbered(parent: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(parent).with_context(|| format!("cannot make the folder {}", parent.display())).or_input()?;
        for number in 1.. {
            let path = parent.join(format!("{number:04}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make the folder {}", path.display())).or_input(),
            }
        }
        unreachable!("numbers do not end")
    }

    /// The folder of a run that is to go on.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if !path.join(PLAN).is_file() {
            return Err(Failure::Input(anyhow!("{} holds no run to resume (no {PLAN} in it)", path.display())));
        }
        Ok(Self { path: path.into() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn plan(&self) -> PathBuf {
        self.file(PLAN)
    }

    pub(super) fn write_plan(&self, plan: &impl Serialize) -> anyhow::Result<()> {
        self.write_json(PLAN, plan)
    }

    /// Writes a file under another name first, so that it is never there by halves.
    pub(super) fn write_whole(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let (path, half) = (self.file(name), self.file(&format!("{name}.part")));
        let write = || {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut file = File::create(&half)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&half, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&half))).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn write_json(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        self.write_whole(name, text.as_bytes())
    }
}

/// Takes away what an earlier run left, and nothing else.
fn clear(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let log = name.starts_with("worker-") && name.ends_with(".log");
        if log || WRITTEN.contains(&name.as_str()) {
            fs::remove_file(entry.path())?;
        } else if name.starts_with("model-") && entry.path().join("model.safetensors").is_file() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// A file of one JSON object per line that only grows.
#[derive(Debug)]
pub(super) struct LineFile {
    file: File,
    path: PathBuf,
}

impl LineFile {
    /// Opens a record and cuts it after its first `lines` lines.
    pub(super) fn open(path: &Path, lines: usize) -> Result<Self, Failure> {
        let open = || -> anyhow::Result<Self> {
            let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
            let mut reader = BufReader::new(&file);
            let (mut kept, mut line) = (0, Vec::new());
            for _ in 0..lines {
                line.clear();
                kept += reader.read_until(b'\n', &mut line)? as u64;
            }
            file.set_len(kept)?;
            Ok(Self { file, path: path.into() })
        };
        open().with_context(|| format!("cannot open {}", path.display())).or_work()
    }

    /// Adds one line; it is with the operating system when this returns.
    pub(super) fn push(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.file.write_all(&line).with_context(|| format!("cannot write {}", self.path.display()))
    }
}
