//! A process that the launcher has started: its group, what it says, and its end.

use super::echo::Lines;
use super::screen::{OutputStream, Voice};
use super::supervise::End;
use codedgrad::files;
use codedgrad::transport::both_ends;
use codedgrad_shell::clock::now;
use codedgrad_shell::shared::lock;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;
/// How long the launcher waits for the last words of a process that has ended, while it looks after
/// the others. A child that left its group may hold its pipes for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often it is looked whether they are read.
const READ: Duration = Duration::from_millis(10);
/// The end of a log that is shown.
const TAIL: (u64, usize) = (16 << 10, 12);

/// All that a process says, in a file.
#[derive(Clone, Debug)]
pub(super) struct Log(Arc<Mutex<LogState>>);

#[derive(Debug)]
enum LogState {
    /// Until there is a file.
    Bytes(Vec<u8>),
    File(File),
}

impl Log {
    /// One that has its file later.
    pub(super) fn later() -> Self {
        Self(Arc::new(Mutex::new(LogState::Bytes(Vec::new()))))
    }

    /// A new file.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let log = Self::later();
        log.open(path).map(|()| log)
    }

    /// Goes on with a file, in which another start is told by a line.
    pub(super) fn again(path: &Path, line: &str) -> io::Result<Self> {
        let mut options = File::options();
        let mut file = files::open_regular(path, options.create(true).read(true).append(true))?;
        let mut last = [b'\n'];
        if file.seek(SeekFrom::End(-1)).is_ok() {
            file.read_exact(&mut last)?;
        }
        let end = if last == [b'\n'] { "" } else { "\n" };
        file.write_all(format!("{end}{line}\n").as_bytes())?;
        Ok(Self(Arc::new(Mutex::new(LogState::File(file)))))
    }

    /// Says which file it is, a new one.
    pub(super) fn open(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().create(true).append(true).open(path)?;
        let mut kept = self.kept();
        if let LogState::Bytes(bytes) = &*kept {
            file.write_all(bytes)?;
        }
        *kept = LogState::File(file);
        Ok(())
    }

    fn write(&self, bytes: &[u8]) {
        match &mut *self.kept() {
            LogState::Bytes(kept) => kept.extend_from_slice(bytes),
            // A full disk must not stand in the way of the run.
            LogState::File(file) => drop(file.write_all(bytes)),
        }
    }

    fn kept(&self) -> MutexGuard<'_, LogState> {
        lock(&self.0)
    }
}

/// What happens to what a process says.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) log: Log,
    /// Who sees it too, and what is put before each line.
    pub(super) voice: Option<(Voice, String)>,
}

/// A process that runs, in a group of its own.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    group: Pid,
    since: Instant,
    readers: Vec<JoinHandle<()>>,
    /// How it ended and for how long it was up, and until when its last words are waited for.
    ended: Option<(End, Duration, Instant)>,
}

impl ChildProcess {
    /// Starts a command. What it says on standard error goes to `words`; the other pipe is left to
    /// the process that has started it.
    pub(super) fn start(command: &mut Command, words: &Words) -> io::Result<Self> {
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = child.stderr.take();
        let readers = stderr.map(|pipe| pass_on(pipe, words.clone(), OutputStream::Err));
        let readers = readers.into_iter().collect();
        Ok(Self { group: Pid::from_child(&child), child, since: now(), readers, ended: None })
    }

    /// Passes on what it prints, too.
    pub(super) fn echoed(mut self, words: &Words) -> Self {
        if let Some(pipe) = self.child.stdout.take() {
            self.readers.push(pass_on(pipe, words.clone(), OutputStream::Out));
        }
        self
    }

    /// Has a thread read what it prints, for which it is waited when it has ended.
    pub(super) fn read_by(&mut self, read: impl FnOnce(ChildStdout) + Send + 'static) {
        if let Some(pipe) = self.child.stdout.take() {
            self.readers.push(thread::spawn(move || read(pipe)));
        }
    }

    pub(super) fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to all of its group.
    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.is_some() {
            // The number of its group may be another one's by now.
            return;
        }
        // Who has just ended needs none.
        let _ = kill_process_group(self.group, signal);
    }

    /// How it ended, once it has and its last words are read, and for how long it was up. Whom it
    /// has left behind in its group ends with it; who has left its group may go on, and what that
    /// one says is still passed on.
    pub(super) fn ended(&mut self) -> Option<(End, Duration)> {
        let (end, up, until) = match self.ended {
            Some(ended) => ended,
            None => self.reap()?,
        };
        self.ended = Some((end, up, until));
        let read = self.readers.iter().all(JoinHandle::is_finished);
        (read || until <= now()).then_some((end, up))
    }

    fn reap(&mut self) -> Option<(End, Duration, Instant)> {
        let looked = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::Pid(self.group), looked), Ok(None)) {
            return None;
        }
        let up = self.since.elapsed();
        // Before its end is taken note of, so that the number of its group is still its own.
        self.signal(Signal::KILL);
        let end = self.child.wait().map_or(End::Status(1), End::of);
        Some((end, up, now() + LAST_WORDS))
    }

    /// When it is worth a look, where no signal tells of it.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.ended.map(|(_, _, until)| until.min(now() + READ))
    }
}

impl Drop for ChildProcess {
    /// Kills the process: none outlives the launcher, however that ends.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Writes all that comes to a log, and shows it line by line.
fn pass_on(mut pipe: impl Read + Send + 'static, words: Words, to: OutputStream) -> JoinHandle<()> {
    thread::spawn(move || {
        let Words { log, voice } = words;
        let (mut lines, mut chunk) = (Lines::default(), vec![0; CHUNK]);
        let show = |line: Vec<u8>| {
            if let Some((voice, prefix)) = &voice {
                voice.line(to, [prefix.as_bytes(), &line].concat());
            }
        };
        loop {
            match pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => {
                    log.write(&chunk[..read]);
                    lines.take(&chunk[..read]).into_iter().for_each(show);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        lines.rest().into_iter().for_each(show);
    })
}

/// The last lines of a log, for those who ask why.
pub(super) fn last_words(log: &Path) -> String {
    let read = || {
        let mut file = files::open_regular(log, File::options().read(true))?;
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL.0)))?;
        let mut bytes = Vec::new();
        file.take(TAIL.0).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes: Vec<u8> = read().unwrap_or_default();
    let mut lines = Lines::default();
    let mut said = lines.take(&bytes);
    said.extend(lines.rest());
    let shown = |line: &Vec<u8>| format!("    {}", both_ends(&String::from_utf8_lossy(line)));
    let said: Vec<String> = said[said.len().saturating_sub(TAIL.1)..].iter().map(shown).collect();
    said.join("\n")
}
