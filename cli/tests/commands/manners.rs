//! What the program owes to whoever runs it: lines that fit the terminal, help of two screens. Exit
//! statuses and streams are looked at of both programs, by the tests of the lab.

use crate::program::{COMMANDS, check_help, check_width, codedgrad, shown, text};
use std::fs;

/// A code that claims too much: worker 1 alone holds the second share.
const FALSE_CLAIM: &str = "1,0\n0,1\n1,0\n";

/// Lines at 60, 80 and 120 columns, a command to be copied among them.
#[test]
fn lines_fit_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.csv"), FALSE_CLAIM).unwrap();
    for (name, line) in [
        ("plan", "plan --delays hotspot --workers 8 --rounds 30"),
        ("simulate", "simulate queue:m=4 --delays hotspot --workers 12 --jobs 3 --grid"),
        ("code", "code matrix:m.csv,s=1 --workers 3 --verify"),
    ] {
        let mut all = String::new();
        for columns in [60, 80, 120] {
            let output = shown(folder.path(), line, columns);
            let printed = text(&output.stdout) + &text(&output.stderr);
            for line in printed.lines() {
                assert!(line.chars().count() <= columns, "{name} at {columns}: {line}");
            }
            all += &format!("{columns} columns:\n{printed}\n");
        }
        insta::assert_snapshot!(name, all);
    }
}

#[test]
fn help_fits_the_terminal() {
    check_help(&COMMANDS);
    for line in ["trace stats --help", "trace import --help", "trace record --help", "--help", "-h"]
    {
        check_width(line);
    }
}

#[test]
fn a_version_says_what_it_was_built_of() {
    let folder = tempfile::tempdir().unwrap();
    let printed = text(&codedgrad(folder.path(), &["--version"]).stdout);
    let version = concat!("codedgrad ", env!("CARGO_PKG_VERSION"));
    let built = printed.trim_end().strip_prefix(version).unwrap_or_else(|| panic!("{printed}"));
    let commit = built.strip_prefix(" (").and_then(|built| built.strip_suffix(')'));
    let is_hash = |text: &str| text.len() == 9 && text.bytes().all(|x| x.is_ascii_hexdigit());
    let known = commit.is_none_or(|commit| commit == "debug build" || is_hash(commit));
    assert!(known && (commit.is_some() || built.is_empty()), "{printed}");
}

#[test]
#[cfg(feature = "pages")]
fn shells_and_man_know_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&codedgrad(folder.path(), &["completions", shell]).stdout);
        for word in COMMANDS.into_iter().chain(["accumulate", "survivors"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("micro-steps"), "{shell} shows an old spelling");
    }
    let pages = folder.path().join("a/man");
    let output = codedgrad(folder.path(), &["man", "a/man"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for command in COMMANDS {
        let page = fs::read_to_string(pages.join(format!("codedgrad-{command}.1"))).unwrap();
        assert!(page.contains("SYNOPSIS"), "{command}: {page}");
    }
    assert!(pages.join("codedgrad.1").exists() && pages.join("codedgrad-trace-stats.1").exists());
}

#[test]
fn a_file_has_lines_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let plan = ["plan", "--delays", "hotspot", "--workers", "8", "--rounds", "30"];
    let printed = text(&codedgrad(folder.path(), &plan).stdout);
    let saves = "queue:m=12 saves 70.8 % of the time per job (95 % for choosing so: ";
    assert!(printed.contains(saves), "{printed}");
    assert!(printed.lines().any(|line| line.len() > 120), "{printed}");
}

/// Commands that were here once take anything, and say where they are.
#[test]
fn commands_that_have_moved_say_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for (line, place) in [
        ("train --help", "`codedgrad-lab train`"),
        ("train --scheme groups:s=1 --clock virtual", "`codedgrad-lab train`"),
        ("worker --join host0:7000", "`codedgrad-lab worker`"),
        ("berrut", "`codedgrad-lab berrut`"),
        ("coordinator --listen 0.0.0.0:7000", "`codedgrad run`"),
    ] {
        let output = codedgrad(folder.path(), &line.split(' ').collect::<Vec<_>>());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(place) && said.contains("cargo install"), "{line}: {said}");
    }
    let help = text(&codedgrad(folder.path(), &["--help"]).stdout);
    assert!(!help.contains("berrut"), "{help}");
}
