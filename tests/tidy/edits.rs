//! What it takes to add a code or a scheme: one file of its own, and a line in each of few others;
//! and a message about sums: what it is, who says it, what is done then, and its documentation.
//!
//! `tests/edits/` keeps a patch for each. They are counted here, and must apply; `.ci/run` builds
//! and tests what they make. Files that a command writes (the table of `docs/schemes.md`, pins) are
//! not counted.

use std::path::{Path, PathBuf};
use std::process::Command;

fn patch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/edits").join(name)
}

fn git(arguments: &[&str], patch: &Path) -> String {
    let mut git = Command::new("git");
    let folder = env!("CARGO_MANIFEST_DIR");
    let done = git.current_dir(folder).arg("apply").args(arguments).arg(patch).output().unwrap();
    assert!(done.status.success(), "{patch:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Files that a patch adds, and lines that it adds to and takes from others, by file.
fn counted(name: &str) -> (usize, Vec<(String, usize)>) {
    let patch = patch(name);
    git(&["--check"], &patch);
    let summary = git(&["--summary"], &patch);
    let new = |path: &str| {
        summary.lines().any(|line| line.contains(" create mode ") && line.ends_with(path))
    };
    let mut edits = Vec::new();
    let mut files = 0;
    for line in git(&["--numstat"], &patch).lines() {
        let [added, removed, path] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        if new(path) {
            files += 1;
            continue;
        }
        let lines = added.parse::<usize>().unwrap() + removed.parse::<usize>().unwrap();
        edits.push((path.to_owned(), lines));
    }
    (files, edits)
}

#[test]
fn a_one_round_code_is_a_file_and_two_lines() {
    let (files, edits) = counted("one_round_code.patch");
    assert_eq!(files, 1);
    assert!(edits.len() <= 2 && edits.iter().all(|(_, lines)| *lines == 1), "{edits:?}");
}

#[test]
fn a_scheme_is_a_file_and_three_lines_at_most() {
    let (files, edits) = counted("scheme.patch");
    assert_eq!(files, 1);
    assert!(edits.len() <= 3 && edits.iter().all(|(_, lines)| *lines == 1), "{edits:?}");
}

#[test]
fn a_message_about_sums_is_a_seed_and_five_edits() {
    let (files, edits) = counted("wire_event.patch");
    assert_eq!(files, 1);
    assert!(edits.len() <= 5, "{edits:?}");
    let tests: usize = edits.iter().map(|(path, _)| usize::from(path.ends_with("tests.rs"))).sum();
    assert_eq!(tests, 1, "one of them is its test: {edits:?}");
}
