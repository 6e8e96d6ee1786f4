//! `codedgrad serve` as a process, whose workers are the test's own.

use codedgrad::transport::tcp::security::{Security, Token};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that does not outlive its test.
pub(crate) struct Serving(Child);

impl Serving {
    pub(crate) fn start(home: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
        command.arg("serve").args(flags).current_dir(home);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Where it listens, and what it lets in, once its folder says so.
    pub(crate) fn listens(&self, out: &Path) -> (String, Security) {
        let read = |file: &str| fs::read_to_string(out.join(file)).ok();
        #[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
        let begin = Instant::now();
        loop {
            match (read("address"), read("token")) {
                (Some(address), Some(_)) if !address.is_empty() => {
                    let token = Token::read(&out.join("token")).unwrap();
                    return (address.trim().to_owned(), Security::Plain { token });
                }
                _ if begin.elapsed() > Duration::from_secs(60) => panic!("it does not listen"),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn ends(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
