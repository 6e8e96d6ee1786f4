//! What each worker is: a program, its arguments, and its environment.

use super::LaunchArgs;
use anyhow::anyhow;
use codedgrad::files;
use codedgrad_shell::failure::Failure;
use codedgrad_shell::itself::ProgramCommand;
use codedgrad_shell::pool::NOTICE;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What each worker runs.
#[derive(Debug)]
pub(super) struct Trainer {
    line: Vec<OsString>,
    /// What people know it by.
    pub(super) name: String,
    /// What it is to do to join the run.
    pub(super) joins_by: &'static str,
}

/// What a Python program calls to join, by which module of the package it names.
const JOINS: [(&str, &str); 3] = [
    ("transformers", "codedgrad.transformers.CodedTrainer.train"),
    ("torch", "codedgrad.torch.prepare or join"),
    ("loop", "codedgrad.loop.join"),
];
/// Where it names none, or is not read.
const EITHER_JOIN: &str = "codedgrad.torch.prepare or join, or codedgrad.loop.join";
/// So much of a script is looked at.
const SCRIPT_MAX: u64 = 1 << 20;

/// What a script calls to join, as far as its imports tell.
fn join_of(script: &Path) -> &'static str {
    let mut text = Vec::new();
    let opened = files::open_regular(script, File::options().read(true));
    if opened.and_then(|file| file.take(SCRIPT_MAX).read_to_end(&mut text)).is_err() {
        return EITHER_JOIN;
    }
    let text = String::from_utf8_lossy(&text);
    let imports = |module: &str| {
        text.lines().map(str::trim_start).any(|line| {
            let of_package = line.strip_prefix("from codedgrad import ").is_some_and(|names| {
                names.split(|c: char| !c.is_alphanumeric()).any(|name| name == module)
            });
            let whole = ["import", "from"].iter().any(|word| {
                let rest = line.strip_prefix(&format!("{word} codedgrad.{module}"));
                rest.is_some_and(|rest| {
                    !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                })
            });
            of_package || whole
        })
    };
    JOINS.iter().find(|(module, _)| imports(module)).map_or(EITHER_JOIN, |(_, join)| join)
}

impl Trainer {
    /// What the command line asks for, if it is there.
    pub(super) fn of(args: &LaunchArgs, itself: &ProgramCommand) -> Result<Self, Failure> {
        let python = || match &args.python {
            Some(python) => found(python.as_os_str(), "--python"),
            None => found(&itself.python, "Python"),
        };
        let named = |name: &OsStr| name.to_string_lossy().into_owned();
        if let [module, rest @ ..] = &args.module[..] {
            let line = [python()?, "-m".into(), module.clone()].into_iter();
            let line = line.chain(rest.iter().cloned()).collect();
            return Ok(Self { line, name: named(module), joins_by: EITHER_JOIN });
        }
        let [program, rest @ ..] = &args.program[..] else {
            return Err(Failure::Input(anyhow!("which program? for example: train.py")));
        };
        if Path::new(program).extension().is_some_and(|extension| extension == "py") {
            if !Path::new(program).is_file() {
                let name = Path::new(program).display();
                return Err(Failure::Input(anyhow!("{name} is not there: no such script")));
            }
            let line = [python()?, program.clone()].into_iter();
            let line = line.chain(rest.iter().cloned()).collect();
            let joins_by = join_of(Path::new(program));
            return Ok(Self { line, name: named(program), joins_by });
        }
        let line = [found(program, "the program")?].into_iter().chain(rest.iter().cloned());
        let joins_by =
            "codedgrad.torch.prepare or join, codedgrad.loop.join or Aggregator::from_env";
        Ok(Self { line: line.collect(), name: named(program), joins_by })
    }

    /// A start of a worker.
    pub(super) fn command(&self, place: &Place, worker: u32, start: Start<'_>) -> Command {
        let mut command = Command::new(&self.line[0]);
        command.args(&self.line[1..]).stdin(Stdio::null());
        command
            .env("CODEDGRAD_ADDRESS", &place.address)
            .env("CODEDGRAD_WORKER", worker.to_string())
            .env("CODEDGRAD_WORKERS", place.workers.to_string())
            .env("CODEDGRAD_EPOCH", start.epoch.to_string())
            .env("CODEDGRAD_LOG", start.log)
            .env(NOTICE, place.notice.as_secs_f64().to_string())
            .env("CODEDGRAD_FINAL", start.last_word);
        // Of a job that this one is started from.
        for secret in ["CODEDGRAD_TOKEN", "CODEDGRAD_TOKEN_FILE", "CODEDGRAD_KEYS"] {
            command.env_remove(secret);
        }
        match &place.secret {
            Secret::Keys(dir) => command.env("CODEDGRAD_KEYS", dir),
            Secret::Token(file) => command.env("CODEDGRAD_TOKEN_FILE", file),
        };
        for (name, value) in [
            ("PYTHONUNBUFFERED", "1".to_owned()),
            ("OMP_NUM_THREADS", (place.cores / place.here).max(1).to_string()),
        ] {
            if env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        command
    }
}

/// One start of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    /// How often it was started before.
    pub(super) epoch: u32,
    pub(super) log: &'a Path,
    /// The file in which it says that starting it again would not help.
    pub(super) last_word: &'a Path,
}

/// What all workers of this host are told.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) address: String,
    pub(super) secret: Secret,
    /// Of the whole run.
    pub(super) workers: u32,
    /// Of this host.
    pub(super) here: usize,
    pub(super) cores: usize,
    /// With how much notice they leave.
    pub(super) notice: Duration,
}

/// By what workers are let in.
#[derive(Clone, Debug)]
pub(super) enum Secret {
    /// A folder.
    Keys(PathBuf),
    /// A file.
    Token(PathBuf),
}

/// Where workers of this host find a coordinator that listens at an address of it. Those of other
/// hosts call them at the address by which they call it, so where there are other hosts it is one
/// that these reach too.
pub(super) fn reached(listens: SocketAddr, alone: bool) -> SocketAddr {
    if !listens.ip().is_unspecified() {
        return listens;
    }
    let local: std::net::IpAddr =
        if listens.is_ipv4() { [127, 0, 0, 1].into() } else { [0, 0, 0, 0, 0, 0, 0, 1].into() };
    // Nothing is sent; the system says by which of its addresses it would reach others.
    let outside = || {
        let socket = std::net::UdpSocket::bind((listens.ip(), 0)).ok()?;
        let far: SocketAddr = if listens.is_ipv4() {
            ([192, 0, 2, 1], 9).into()
        } else {
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9).into()
        };
        socket.connect(far).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = if alone { None } else { outside() };
    SocketAddr::new(ip.unwrap_or(local), listens.port())
}

/// A program by its path, or by its name among those that shells find.
fn found(program: &OsStr, what: &str) -> Result<OsString, Failure> {
    let path = Path::new(program);
    let name = path.display();
    // `./train` has one component more than `train`.
    if path.components().count() > 1 {
        let why = if is_executable(path) {
            return Ok(program.into());
        } else if path.is_dir() {
            "is a folder, and no program"
        } else if path.is_file() {
            "is not executable (chmod +x, or name what it is a script of before it)"
        } else {
            "is not there"
        };
        return Err(Failure::Input(anyhow!("{name} {why}: {what} cannot be started")));
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&folders).any(|folder| is_executable(&folder.join(path))) {
        return Ok(program.into());
    }
    let hint = if path.is_file() {
        format!("; for the one in this folder write ./{name}")
    } else {
        String::new()
    };
    Err(Failure::Input(anyhow!("{name} is in no folder of PATH: {what} cannot be started{hint}")))
}

/// Whether it is a file that some user may execute.
fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
