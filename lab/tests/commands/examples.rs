//! The examples of README.md, of the documents and of every `--help` run as they are written, in a
//! folder that has the repository's `examples/` and `docs/`.
//!
//! What a page shows of a command's output (a block that begins with `$ codedgrad ..`) is what the
//! command prints; `...` stands for lines left out.
//!
//! Training is made short by flags at the end of a line (fewer steps of a smaller model). Commands
//! that wait for others ([`WAITING`]), and what resumes or needs a run that only they would leave,
//! are only parsed here; `tcp.rs` and `launched.rs` run such lines, and `cli/tests/launch`.
#![cfg(unix)]

use crate::coordinated::LAB;
use crate::program::{COMMANDS, LAB_COMMANDS, MODEL, codedgrad, program_of, root, text};
use std::fs;
use std::process::Command;

const WAITING: [&str; 4] = ["worker", "serve", "run", "status"];
/// Fewer lines than that were not found where they stand.
const LINES_LEAST: usize = 50;

/// Lines that a shell would take as one.
fn joined(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for line in text.lines() {
        let whole = lines.last_mut().unwrap();
        match line.trim().strip_suffix('\\') {
            Some(start) => *whole += &format!("{start} "),
            None => {
                *whole += line.trim();
                lines.push(String::new());
            }
        }
    }
    lines
}

/// The command of a line, without what is said of it.
fn command(line: &str) -> Option<String> {
    let line = line.trim_start_matches("$ ");
    let command = line.split(" #").next().unwrap_or(line).trim_end().trim_end_matches(" &");
    let ours = ["codedgrad", "codedgrad-lab"];
    command.split(' ').next().is_some_and(|it| ours.contains(&it)).then(|| command.to_owned())
}

/// README.md and the documents.
fn pages() -> Vec<String> {
    let mut pages = vec![root().join("README.md")];
    for folder in ["docs", "docs/lab"] {
        pages.extend(fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages.into_iter().map(|page| fs::read_to_string(page).unwrap()).collect()
}

/// What they have in blocks of shell.
fn of_documents() -> Vec<String> {
    let mut found = Vec::new();
    for text in pages() {
        for block in text.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next()) {
            found.extend(joined(block).iter().filter_map(|line| command(line)));
        }
    }
    found
}

/// What the help of a command shows.
fn of_help(name: &str) -> Vec<String> {
    let output = codedgrad(&root(), &[name, "--help"]);
    let help = text(&output.stdout);
    let examples = help.split_once("\nExamples:\n").map_or("", |(_, examples)| examples);
    joined(examples).iter().filter_map(|line| command(line)).collect()
}

/// The line as it is tried.
fn tried(line: &str) -> String {
    let mut words = line.split(' ').skip(1);
    let name = words.next().unwrap_or("train");
    if WAITING.contains(&name) || line.contains("--resume") || !line.contains(' ') {
        // What comes after a program is the program's.
        let programs = [" train.py", " python/examples/", " torchrun", " -m ", " codedgrad-lab "];
        let end = programs.iter().filter_map(|program| line.find(program)).min();
        let end = end.filter(|_| name == "run").unwrap_or(line.len());
        return format!("{} --help", &line[..end]);
    }
    if name != "train" {
        return line.to_owned();
    }
    let mut short = format!("{line} {MODEL} --steps 4");
    for (flag, value) in [("--clock", "virtual"), ("--step-seconds", "0.01")] {
        if !line.contains(flag) {
            short += &format!(" {flag} {value}");
        }
    }
    short
}

#[test]
fn every_example_runs_as_it_is_written() {
    let home = tempfile::tempdir().unwrap();
    for folder in ["examples", "docs"] {
        std::os::unix::fs::symlink(root().join(folder), home.path().join(folder)).unwrap();
    }
    let lines: Vec<String> = of_documents()
        .into_iter()
        .chain(COMMANDS.into_iter().chain(LAB_COMMANDS).flat_map(of_help))
        .collect();
    assert!(lines.len() >= LINES_LEAST, "{} examples", lines.len());
    // Runs first, since others look at what they leave. Keys are made once for each place.
    let (train, others): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.starts_with("codedgrad-lab train"));
    for line in train.into_iter().chain(others) {
        let _ = fs::remove_dir_all(home.path().join("keys"));
        let programs = "codedgrad() { \"$PROGRAM\" \"$@\"; }; codedgrad-lab() { \"$LAB\" \"$@\"; }";
        let script = format!("{programs}; {}", tried(line));
        let output = Command::new("bash")
            .args(["-c", &script])
            .env("PROGRAM", program_of(&["plan"]))
            .env("LAB", LAB)
            .env("SLURM_NTASKS", "8")
            .current_dir(home.path())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{line}\n(as {})\n{said}", tried(line));
    }
}

/// A page's blocks of text that begin with a command, each with what follows it.
fn shown(text: &str) -> Vec<(String, String)> {
    let blocks = text.split("```text\n$ ").skip(1).filter_map(|rest| rest.split("\n```").next());
    let whole = |block: &str| {
        let (command, output) = block.split_once('\n')?;
        Some((command.to_owned(), output.to_owned()))
    };
    blocks.filter_map(whole).collect()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn pages_show_what_their_commands_print() {
    let mut count = 0;
    for page in pages() {
        for (command, output) in shown(&page) {
            let arguments: Vec<&str> = command.split(' ').skip(1).collect();
            let printed = self::text(&codedgrad(&root(), &arguments).stdout);
            count += 1;
            let all = words(&printed);
            let mut rest = &*all;
            for part in output.split("\n...").map(words) {
                let Some(at) = rest.find(&part) else {
                    panic!("{command} prints\n{printed}\nwithout\n{part}")
                };
                rest = &rest[at + part.len()..];
            }
        }
    }
    assert!(count >= 2, "{count} outputs are shown");
}
