//! The program itself: its version, and how it is started again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process;

/// The version, and of which commit it was built (`build.rs`).
pub const VERSION: &str = env!("CODEDGRAD_VERSION");
/// The release, as results name it: that of a commit would make every commit's another.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The program of the product.
const NAME: &str = "codedgrad";
/// The program of the lab.
pub const LAB: &str = "codedgrad-lab";

/// The product's program in commands that are printed for the user to run: by the relative path
/// that this one was called by, as `cargo run` does, where nothing of that name may be in PATH.
pub fn name() -> String {
    called(NAME)
}

/// The same of the lab's program.
pub fn lab() -> String {
    called(LAB)
}

fn called(name: &str) -> String {
    let beside = env::args().next().and_then(|called| beside(&called, name));
    match beside {
        Some(path) if path.exists() => quoted(&path.to_string_lossy()),
        // Cargo builds the programs that it is asked for.
        Some(path) if path.components().any(|part| part.as_os_str() == "target") => {
            let package = if name == LAB { "codedgrad-lab" } else { "codedgrad-cli" };
            format!("cargo run --release -p {package} --")
        }
        _ => name.into(),
    }
}

/// Where a program of this name is expected, if one of ours was called by a path from the working
/// folder; another is an interpreter's.
fn beside(called: &str, name: &str) -> Option<PathBuf> {
    let path = Path::new(called);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let stem = path.file_stem()?;
    let extension = path.extension().map_or(String::new(), |it| format!(".{}", it.display()));
    let is_ours = [NAME, LAB].iter().any(|ours| stem == *ours) && path.is_relative();
    is_ours.then(|| folder.join(format!("{name}{extension}")))
}

/// A word of a command line, as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// How the program that runs is started again by itself, for the processes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCommand {
    /// The program and what comes before the arguments of a command line.
    pub program: Vec<OsString>,
    /// The Python that runs the scripts of `codedgrad run`.
    pub python: OsString,
}

impl ProgramCommand {
    /// This process's executable, and `python3`.
    pub fn of_process() -> Self {
        let program = env::current_exe().map_or_else(|_| NAME.into(), Into::into);
        Self { program: vec![program], python: "python3".into() }
    }

    /// A start of this program, to which arguments are to be added.
    pub fn command(&self) -> process::Command {
        let (program, rest) = self.program.split_first().unzip();
        let mut command = process::Command::new(program.map_or(OsStr::new(NAME), |it| it));
        command.args(rest.unwrap_or_default());
        command
    }
}

#[cfg(test)]
mod tests;
