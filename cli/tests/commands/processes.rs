//! Processes of this host, for the tests that kill, stop and cut them off.
#![allow(dead_code, reason = "the tests of each program need some of it")]

use crate::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
        let mut command = program::command(arguments);
        command.current_dir(folder).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
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
