//! The program itself: its version, and how it is started again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process;

/// The version, and of which commit it was built (`build.rs`).
pub(crate) const VERSION: &str = env!("CODEDGRAD_VERSION");
/// The release, as results name it: that of a commit would make every commit's another.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");
const NAME: &str = "codedgrad";

/// The program in commands that are printed for the user to run: by the relative path that it was
/// called by, as `cargo run` does, where nothing of that name may be in PATH.
pub(crate) fn name() -> String {
    env::args().next().and_then(|called| by_relative_path(&called)).unwrap_or_else(|| NAME.into())
}

/// A path from the working folder to a program of this name; another is an interpreter's.
fn by_relative_path(called: &str) -> Option<String> {
    let path = Path::new(called);
    let has_folder = path.parent().is_some_and(|folder| !folder.as_os_str().is_empty());
    let is_program = path.file_stem() == Some(OsStr::new(NAME));
    (is_program && has_folder && path.is_relative()).then(|| quoted(called))
}

/// A word of a command line, as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// How the program that runs is started again by itself, for the processes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Itself {
    /// The program and what comes before the arguments of a command line.
    pub program: Vec<OsString>,
    /// The Python that runs the scripts of `codedgrad run`.
    pub python: OsString,
}

impl Itself {
    /// This process's executable, and `python3`.
    pub(crate) fn of_process() -> Self {
        let program = env::current_exe().map_or_else(|_| NAME.into(), Into::into);
        Self { program: vec![program], python: "python3".into() }
    }

    /// A start of this program, to which arguments are to be added.
    #[cfg_attr(
        not(any(unix, feature = "trainer")),
        expect(dead_code, reason = "nothing is started there")
    )]
    pub(crate) fn command(&self) -> process::Command {
        let (program, rest) = self.program.split_first().unzip();
        let mut command = process::Command::new(program.map_or(OsStr::new(NAME), |it| it));
        command.args(rest.unwrap_or_default());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_program_as_it_was_called() {
        assert_eq!(
            by_relative_path("target/release/codedgrad").as_deref(),
            Some("target/release/codedgrad")
        );
        assert_eq!(
            by_relative_path("./my builds/codedgrad.exe").as_deref(),
            Some("'./my builds/codedgrad.exe'")
        );
        for other in ["codedgrad", "/usr/bin/codedgrad", "venv/bin/python3", ""] {
            assert_eq!(by_relative_path(other), None, "{other}");
        }
    }
}
