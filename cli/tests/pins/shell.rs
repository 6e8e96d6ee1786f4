//! Runs the program as its users do, in a folder of its own.

use crate::shown;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const LAB: Option<&str> = option_env!("CARGO_BIN_EXE_codedgrad-lab");
/// The program that the pins are of, by its name.
pub(crate) const PROGRAM: &str = if LAB.is_some() { "codedgrad-lab" } else { "codedgrad" };

/// Where this test and its files are.
fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pins")
}

/// The files that commands name.
pub(crate) fn files() -> PathBuf {
    home().join("files")
}

/// The file of what some commands gave.
pub(crate) fn golden(name: &str) -> PathBuf {
    home().join("golden").join(name).with_extension("txt")
}

/// A folder with all files that commands name.
pub(crate) struct Shell {
    folder: TempDir,
}

impl Shell {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(files()).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        Self { folder }
    }

    /// What a command prints; it has no spaces but between its words.
    fn output(&self, command: &str) -> Output {
        let path = LAB.or(option_env!("CARGO_BIN_EXE_codedgrad")).expect("a program to be pinned");
        let mut program = Command::new(path);
        program.args(command.split_whitespace()).current_dir(self.folder.path());
        // The width of help texts, and what is said of panics.
        program.env_remove("COLUMNS").env("RUST_BACKTRACE", "0").output().unwrap()
    }

    /// What a command prints to standard output.
    pub(crate) fn run(&self, command: &str) -> String {
        shown::text(&self.output(command).stdout)
    }

    /// All that comes of a command.
    pub(crate) fn outcome(&self, command: &str) -> String {
        let output = self.output(command);
        let run = self.folder.path().join("run");
        let record = fs::read_to_string(run.join("run.jsonl")).unwrap_or_default();
        if run.exists() {
            fs::remove_dir_all(run).unwrap();
        }
        shown::outcome(&output, &record)
    }
}
