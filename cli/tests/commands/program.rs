//! Running the programs in a folder, for the tests that meet them as their users do: the product's,
//! and in the tests of the lab, which have this file too, the lab's.
#![allow(dead_code, reason = "the tests of each program need some of it")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Flags of a model small enough for a debug build.
pub(crate) const MODEL: &str = "--layers 1 --heads 2 --width 16 --context 16 --micro-batch-rows 1";

/// All commands of the product.
pub(crate) const COMMANDS: [&str; 12] = [
    "run",
    "serve",
    "keygen",
    "status",
    "code",
    "simulate",
    "plan",
    "mesh",
    "doctor",
    "trace",
    "completions",
    "man",
];

/// All commands of the lab.
pub(crate) const LAB_COMMANDS: [&str; 4] = ["train", "worker", "berrut", "pool"];

/// The program that has the command of these arguments. The product's is built beside the lab's.
pub(crate) fn program_of(arguments: &[&str]) -> PathBuf {
    let lab = option_env!("CARGO_BIN_EXE_codedgrad-lab").map(PathBuf::from);
    let product = option_env!("CARGO_BIN_EXE_codedgrad").map(PathBuf::from);
    let is_lab = arguments.first().is_some_and(|command| LAB_COMMANDS.contains(command));
    let program = match (product, lab) {
        (_, Some(lab)) if is_lab => lab,
        (Some(product), _) => product,
        (None, lab) => lab.unwrap_or_default().with_file_name("codedgrad"),
    };
    assert!(program.exists(), "cargo build -p codedgrad-cli makes {}", program.display());
    program
}

/// A command of that program.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(program_of(arguments));
    command.args(arguments);
    command
}

/// Flags, each text split at its spaces.
pub(crate) fn flags(texts: &[&'static str]) -> Vec<&'static str> {
    texts.iter().flat_map(|text| text.split(' ')).collect()
}

/// The repository's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a command of either program gives in a folder.
pub(crate) fn codedgrad(folder: &Path, arguments: &[&str]) -> Output {
    command(arguments).current_dir(folder).env("RUST_BACKTRACE", "0").output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must fail with exit status 2 and say all of `needles`.
pub(crate) fn refused(folder: &Path, arguments: &[&str], needles: &[&str]) -> Output {
    let output = codedgrad(folder, arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    for needle in needles {
        assert!(said.contains(needle), "{arguments:?} should say {needle:?}: {said}");
    }
    output
}

/// The one JSON object that a command which succeeds prints.
pub(crate) fn json(output: &Output) -> Value {
    json_of(output, 0)
}

/// The same of a command that ends with another status.
pub(crate) fn json_of(output: &Output, status: i32) -> Value {
    assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout)
        .expect("one JSON object on standard output and nothing else")
}

/// What a command that succeeds prints, and what it says beside that.
pub(crate) fn good(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = codedgrad(folder, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Lines of two screens.
const TWO_SCREENS: usize = 64;

/// A command with its output to be read by a terminal of so many columns.
pub(crate) fn shown(folder: &Path, line: &str, columns: usize) -> Output {
    let mut command = command(&line.split(' ').collect::<Vec<_>>());
    command.current_dir(folder).env("COLUMNS", columns.to_string()).output().unwrap()
}

/// Sees that the help that a line asks for fits the terminal.
pub(crate) fn check_width(line: &str) {
    let folder = tempfile::tempdir().unwrap();
    for columns in [60, 80, 120] {
        let help = text(&shown(folder.path(), line, columns).stdout);
        assert!(help.lines().count() > 5, "{line}: {help}");
        for line in help.lines().filter(|line| !line.starts_with("Usage: ")) {
            assert!(line.chars().count() <= columns, "{line} at {columns}");
        }
    }
}

/// The same of commands, whose summaries are to be two screens.
pub(crate) fn check_help(commands: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for command in commands {
        check_width(&format!("{command} --help"));
        let help = text(&shown(folder.path(), &format!("{command} -h"), 80).stdout);
        let lines = help.lines().count();
        assert!((5..=TWO_SCREENS).contains(&lines), "{command} -h has {lines} lines:\n{help}");
    }
}
