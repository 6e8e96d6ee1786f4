//! Compares what commands give with the golden files.

use crate::shell::{self, PROGRAM, Shell};
use crate::shown;
use std::env;
use std::fmt::Write as _;
use std::fs;

/// Commands and lines of each that a failure shows.
const SHOWN: (usize, usize) = (6, 4);
/// Columns of a line that a failure shows, and how many of them come before the difference.
const COLUMNS: (usize, usize) = (160, 40);

/// Stands for an outcome that is the one before.
const AS_BEFORE: &str = "(as the command before)\n";

/// Runs commands and compares what comes of them with the golden file of that name, or writes
/// the file, if `PINS=update` says so.
pub(crate) fn check(name: &str, commands: impl IntoIterator<Item = String>) {
    let shell = Shell::new();
    let (mut found, mut before) = (String::new(), String::new());
    for command in commands {
        let outcome = shell.outcome(&command);
        let shown = if outcome == before { AS_BEFORE } else { &outcome };
        found += &format!("$ {PROGRAM} {command}\n{shown}");
        before = outcome;
    }
    let path = shell::golden(name);
    if env::var_os("PINS").is_some_and(|what| what == "update") {
        return fs::write(path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if found != expected {
        panic!(
            "{}\n`PINS=update cargo test --test pins {name}` accepts all of this; `git diff \
             --word-diff` then shows it whole",
            difference(&path.display().to_string(), &expected, &found)
        );
    }
}

/// The same of the help of all commands.
pub(crate) fn check_help() {
    let shell = Shell::new();
    let mut commands = Vec::new();
    let mut open = vec![String::new()];
    while let Some(command) = open.pop() {
        let found = shell.run(&format!("{command}--help"));
        open.extend(shown::subcommands(&found).map(|name| format!("{command}{name} ")));
        commands.extend([format!("{command}-h"), format!("{command}--help")]);
    }
    commands.sort();
    check("help", commands);
}

/// The parts of a transcript, each with the command that it begins with.
fn parts(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut parts: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match parts.last_mut() {
            Some((_, lines)) if !line.starts_with("$ ") => lines.push(line),
            _ => parts.push((line, Vec::new())),
        }
    }
    parts
}

/// The first lines that differ, of the first commands that do.
fn difference(path: &str, expected: &str, found: &str) -> String {
    let (expected, found) = (parts(expected), parts(found));
    let mut blocks = Vec::new();
    for (command, lines) in &found {
        match expected.iter().find(|(theirs, _)| theirs == command) {
            None => blocks.push(format!("{command}\n  is not there yet\n")),
            Some((_, theirs)) if theirs == lines => (),
            Some((_, theirs)) => {
                blocks.push(format!("{command}\n{}", lines_that_differ(theirs, lines)));
            }
        }
    }
    for (command, _) in
        expected.iter().filter(|(theirs, _)| found.iter().all(|(mine, _)| mine != theirs))
    {
        blocks.push(format!("{command}\n  is pinned, and no test asks for it any more\n"));
    }
    let count = blocks.len();
    let mut text = format!("{path}: {count} commands of {} differ\n\n", found.len());
    blocks.iter().take(SHOWN.0).for_each(|block| text += &format!("{block}\n"));
    if count > SHOWN.0 {
        let _ = writeln!(text, "... and {} more", count - SHOWN.0);
    }
    text
}

fn lines_that_differ(expected: &[&str], found: &[&str]) -> String {
    let mut text = String::new();
    let rows = (0..expected.len().max(found.len()))
        .map(|row| (row + 1, expected.get(row), found.get(row)))
        .filter(|(_, expected, found)| expected != found);
    let count = rows.clone().count();
    for (row, expected, found) in rows.take(SHOWN.1) {
        let (expected, found) =
            (expected.copied().unwrap_or("(nothing)"), found.copied().unwrap_or("(nothing)"));
        let same = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
        let longest = expected.chars().count().max(found.chars().count());
        let start = if longest > COLUMNS.0 { same.saturating_sub(COLUMNS.1) } else { 0 };
        let _ = writeln!(text, "  line {row} expected: {}", part_from(start, expected));
        let _ = writeln!(text, "  line {row} found:    {}", part_from(start, found));
    }
    if count > SHOWN.1 {
        let _ = writeln!(text, "  ... and {} more lines", count - SHOWN.1);
    }
    text
}

/// The part of a line that is shown.
fn part_from(start: usize, line: &str) -> String {
    let shown: String = line.chars().skip(start).take(COLUMNS.0).collect();
    let dots = |there: bool| if there { "..." } else { "" };
    let after = start + shown.chars().count() < line.chars().count();
    format!("{}{shown}{}", dots(start > 0), dots(after))
}
