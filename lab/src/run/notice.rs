//! How a worker leaves a run: with notice, so that its task is not lost and the run does not wait.

use codedgrad::transport::Closer;
use codedgrad_shell::clock::now;
use codedgrad_shell::output::say;
use codedgrad_shell::shared::lock;
use codedgrad_shell::signals::EndRequest;
use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A file that appears at this path counts as SIGTERM: a cloud says so that the host goes.
const FILE: &str = "CODEDGRAD_NOTICE_FILE";
/// How often it is looked for signals, and for that file.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_FILE: Duration = Duration::from_secs(1);
/// A signal that comes so soon after the first is of the same order: launchers and schedulers send
/// one to the process and one to its group.
const SAME_ORDER: Duration = Duration::from_secs(1);

/// The file, as it was found last.
struct NoticeFile {
    path: Option<PathBuf>,
    there: bool,
    looked: Instant,
}

impl NoticeFile {
    fn of_environment() -> Self {
        let path = env::var_os(FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
        // One of an earlier notice says nothing of this process.
        let there = path.as_ref().is_some_and(|path| path.exists());
        Self { path, there, looked: now() }
    }

    /// Whether it has appeared since this was asked last; looked at once a second.
    fn has_appeared(&mut self) -> bool {
        let Some(path) = &self.path else { return false };
        if self.looked.elapsed() < LOOK_AT_FILE {
            return false;
        }
        self.looked = now();
        let there = path.exists();
        there && !std::mem::replace(&mut self.there, there)
    }
}

/// Leaves the run for its process when a signal or the file asks.
#[derive(Clone, Debug)]
pub(super) struct Leaver {
    closer: Arc<Mutex<Option<Closer>>>,
    asked: EndRequest,
}

impl Leaver {
    /// Watches for a request from now on: then the worker leaves with this notice, and ends when
    /// the run lets it go. Before it has joined, without notice, when that is over, and at a second
    /// request, the process ends at once. The run goes on without, and that is no failure.
    pub(super) fn watch(asked: EndRequest, notice: Duration) -> Self {
        let leaver = Self { closer: Arc::default(), asked };
        let watched = leaver.clone();
        let mut file = NoticeFile::of_environment();
        thread::spawn(move || {
            let mut since: Option<Instant> = None;
            loop {
                thread::sleep(LOOK);
                // Nothing that was asked is forgotten between this and what follows from it.
                let closer = lock(&watched.closer);
                let called = watched.asked.take() > 0 || file.has_appeared();
                let passed = since.map(|since| since.elapsed());
                match (passed, closer.as_ref()) {
                    (None, Some(closer)) if called && !notice.is_zero() => {
                        say!("leaving the run, within {} s", notice.as_secs_f64());
                        closer.leave(notice);
                        since = Some(now());
                    }
                    (None, _) if called => break,
                    (Some(passed), _) if called && passed >= SAME_ORDER || passed >= notice => {
                        break;
                    }
                    _ => {}
                }
            }
            say!("leaving the run at once");
            std::process::exit(0);
        });
        leaver
    }

    /// The worker is there, and may be needed.
    pub(super) fn joined(&self, closer: Closer) {
        *lock(&self.closer) = Some(closer);
    }

    /// Whether it leaves, or was asked to just now.
    pub(super) fn leaves(&self) -> bool {
        let closer = lock(&self.closer);
        self.asked.status() > 0 || closer.as_ref().is_some_and(Closer::is_leaving)
    }
}
