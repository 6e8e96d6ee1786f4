//! Rules of the house that a compiler does not check; ARCHITECTURE.md states them.

mod arrows;
mod documents;
mod edits;
mod passes;
mod sizes;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The code of the library, of what its programs share, of these, and of the Python package.
const CRATES: [&str; 5] = ["src", "shell/src", "cli/src", "lab/src", "python/src"];
/// All our code.
const ROOMS: [&str; 12] = [
    "src",
    "shell/src",
    "cli/src",
    "lab/src",
    "python/src",
    "tests",
    "cli/tests",
    "lab/tests",
    "benches",
    "lab/benches",
    "examples",
    "lab/examples",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &str) -> Vec<(PathBuf, String)> {
    files(folder, "rs")
}

fn files(folder: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let mut open = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    files.sort();
    assert!(!files.is_empty());
    files
}

/// A file without its tests; nothing of one that is of tests alone.
fn without_tests(text: &str) -> &str {
    match text.contains("\n#![cfg(test)]\n") {
        true => "",
        false => text.split("\nmod tests {").next().unwrap_or(text),
    }
}

/// The part of a file that ships: its tests and comments left out.
fn shipped(text: &str) -> String {
    without_tests(text)
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn nowhere_in(folder: &str, words: &[&str], except: &str) {
    for (path, text) in rust_files(folder) {
        if !except.is_empty() && path.starts_with(except) {
            continue;
        }
        for word in words {
            assert!(!shipped(&text).contains(word), "{} names {word}", path.display());
        }
    }
}

#[test]
fn a_public_name_means_one_type() {
    let mut files: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in ["src", "lab/src/trainer"].into_iter().flat_map(rust_files) {
        let text = shipped(&text);
        let types = text.lines().filter_map(|line| {
            let (kind, rest) = line.strip_prefix("pub ")?.split_once(' ')?;
            let name = rest.split(|c: char| !c.is_alphanumeric()).next()?;
            ["struct", "enum", "trait", "type"].contains(&kind).then(|| name.to_owned())
        });
        for name in types {
            files.entry(name).or_default().insert(path.clone());
        }
    }
    assert!(files.contains_key("GradientCode") && files.contains_key("LocalRun"));
    for (name, files) in &files {
        assert_eq!(files.len(), 1, "{name} is a public type in {files:?}");
    }
}

#[test]
fn no_unsafe_and_no_unwrap_in_what_ships() {
    for folder in CRATES {
        nowhere_in(folder, &[".unwrap()", "todo!", "unimplemented!", "dbg!"], "");
    }
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        let may = ["src/gpu/cuda.rs", "src/transport/nccl.rs", "python/src/memory.rs"];
        let may = may.iter().any(|file| path == Path::new(file));
        let unsafe_words =
            ["unsafe ", "unsafe_code"].iter().any(|word| shipped(&text).contains(word));
        assert!(may || !unsafe_words, "{} is unsafe", path.display());
    }
}

/// Who opens a pipe waits for its other end, and a device may have none.
#[test]
fn files_are_looked_at_before_they_are_opened() {
    let opens = ["File::open(", "File::create(", "fs::read(", "fs::read_to_string(", "fs::write("];
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        // A folder, and a picture for wherever its user wants it.
        let text = shipped(&text).replace("File::open(folder)?.sync_all()", "");
        let may = ["src/files.rs", "cli/src/tools/simulate.rs"].map(Path::new).contains(&&*path);
        // `LineFile` opens a record.
        let named = |open: &&str| {
            let mut found = text.match_indices(*open).map(|(at, _)| &text[..at]);
            found.any(|before| !before.ends_with(char::is_alphabetic))
        };
        let open = opens.into_iter().find(|open| !may && named(open));
        assert_eq!(open, None, "{}: `crate::files` opens files", path.display());
    }
}

/// One front door: what a run is not told means the same wherever the run is made.
#[test]
fn a_run_becomes_an_engine_at_one_place() {
    let mut places = Vec::new();
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        let calls = shipped(&text).matches("Engine::new(").count();
        places.extend(std::iter::repeat_n(path.display().to_string(), calls));
    }
    assert_eq!(places, ["src/train/builder.rs"]);
}

/// Whether an answer is still wanted is asked in one place: the engine asks the current scheme. An
/// answer is kept from it in one: where its order was abandoned for good.
#[test]
fn one_place_judges_an_answer() {
    let asks = |(path, text): (PathBuf, String)| {
        (shipped(&text).matches("scheme.returned(").count(), path)
    };
    let engine: Vec<_> = ["src/schedulers", "src/train", "src/transport"]
        .into_iter()
        .flat_map(rust_files)
        .map(asks)
        .filter(|(count, _)| *count > 0)
        .collect();
    let edge = root().join("src/schedulers/engine/active.rs");
    let judges: Vec<_> = engine.iter().filter(|(_, path)| !edge.ends_with(path)).collect();
    assert_eq!(judges, [&(1, PathBuf::from("src/schedulers/engine.rs"))]);
    let keeps: Vec<_> = ["src/schedulers", "src/train", "src/sim"]
        .into_iter()
        .flat_map(rust_files)
        .filter(|(_, text)| shipped(text).contains("ResultDemand::No"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(keeps, [PathBuf::from("src/schedulers/orders.rs")]);
}

#[test]
fn every_code_says_the_same_things_in_the_same_order() {
    for (path, text) in rust_files("src/codes") {
        if !text.contains("impl GradientCode for") {
            continue;
        }
        let mut rest = text.as_str();
        for heading in ["# Construction", "# Guarantee", "# Cost", "# Numerics", "# Source"] {
            let at = rest.find(heading).unwrap_or_else(|| {
                panic!("{} lacks {heading} or has it too early", path.display())
            });
            rest = &rest[at..];
        }
        assert!(text.contains("# Formula"), "{} has no formula", path.display());
    }
}

/// Sums are made by machines: they name no transport, socket, clock, task or thread.
#[test]
fn sums_have_no_io() {
    nowhere_in(
        "src/sums",
        &[
            "crate::transport",
            "crate::train",
            "tokio",
            "async ",
            ".await",
            "std::net",
            "std::io",
            "std::thread",
            "Instant::now",
            "super::super",
        ],
        "",
    );
}
