//! Running the program in a folder, for the tests that meet it as its users do.
#![cfg_attr(not(feature = "trainer"), allow(dead_code, reason = "most tests train"))]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Flags of a model small enough for a debug build.
pub(crate) const MODEL: &str = "--layers 1 --heads 2 --width 16 --context 16 --micro-batch-rows 1";

/// All commands.
pub(crate) const COMMANDS: [&str; 16] = [
    "train",
    "coordinator",
    "worker",
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
    "berrut",
    "completions",
    "man",
];

/// Flags, each text split at its spaces.
pub(crate) fn flags(texts: &[&'static str]) -> Vec<&'static str> {
    texts.iter().flat_map(|text| text.split(' ')).collect()
}

/// The repository's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn codedgrad(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.args(arguments).current_dir(folder).env("RUST_BACKTRACE", "0").output().unwrap()
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
