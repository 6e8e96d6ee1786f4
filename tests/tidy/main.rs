//! Rules of the house that a compiler does not check; ARCHITECTURE.md states them.

mod edits;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The code of the library, the bundled trainer, the program and the Python package.
const CRATES: [&str; 4] = ["src", "trainer/src", "cli/src", "python/src"];
/// All our code.
const ROOMS: [&str; 9] = [
    "src",
    "trainer/src",
    "cli/src",
    "python/src",
    "tests",
    "cli/tests",
    "benches",
    "trainer/benches",
    "examples",
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

/// The part of a file that ships: its tests and comments left out.
fn shipped(text: &str) -> String {
    let code = text.split("\nmod tests {").next().unwrap_or(text);
    code.lines()
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
fn arrows_point_one_way() {
    let outside = ["crate::train", "crate::transport", "crate::delays"];
    nowhere_in(
        "src/codes",
        &[
            &outside[..],
            &[
                "crate::schedulers",
                "std::time",
                "std::net",
                "std::thread",
                "OsRng",
                "thread_rng",
                "rand::rng",
                "f32",
            ],
        ]
        .concat(),
        "",
    );
    nowhere_in("src/codes", &["crate::gpu"], "src/codes/berrut/arrays.rs");
    for (path, text) in rust_files("src") {
        let sees_arrays = ["src/codes/berrut/arrays.rs", "src/codes/berrut/trial.rs"]
            .iter()
            .any(|file| path == Path::new(file));
        assert!(
            sees_arrays || !shipped(&text).contains("ndarray"),
            "{} names ndarray",
            path.display()
        );
    }
    nowhere_in("src/codes", &["std::fs"], "src/codes/family/fields.rs");
    nowhere_in(
        "src/schedulers",
        &[
            &outside[..],
            &["crate::gpu", "std::time", "std::net", "std::thread", "std::fs", "std::io"],
        ]
        .concat(),
        "",
    );
    nowhere_in(
        "src/delays",
        &[
            "crate::codes",
            "crate::schedulers",
            "crate::train",
            "crate::transport",
            "crate::gpu",
            "std::time",
            "std::thread",
        ],
        "",
    );
    nowhere_in(
        "src/gpu",
        &["crate::codes", "crate::schedulers", "crate::train", "crate::transport", "crate::delays"],
        "",
    );
    nowhere_in(
        "src/transport",
        &["crate::codes", "crate::schedulers", "crate::train", "crate::delays"],
        "",
    );
    nowhere_in("src/sim", &["crate::train", "crate::transport", "crate::gpu", "std::net"], "");
    nowhere_in("src", &["codedgrad_trainer", "codedgrad_cli"], "");
    nowhere_in("trainer/src", &["codedgrad_cli"], "");
    for folder in ["src", "trainer/src"] {
        nowhere_in(folder, &["anyhow", "clap", "indicatif", "plotters"], "");
    }
    for folder in ["src", "cli/src"] {
        nowhere_in(folder, &["candle_core", "candle_nn"], "");
    }
    for (path, text) in rust_files("src") {
        let sees_devices = [
            "src/gpu/cuda.rs",
            "src/gpu/cuda/staging.rs",
            "src/gpu/cuda/vector.rs",
            "src/transport/nccl.rs",
        ]
        .iter()
        .any(|file| path == Path::new(file));
        assert!(
            sees_devices || !shipped(&text).contains("cudarc"),
            "{} names cudarc",
            path.display()
        );
    }
    nowhere_in("src", &["rustdct"], "src/codes/berrut");
    nowhere_in("src", &["tokio", "rustls", "TcpStream", "TcpListener"], "src/transport");
    let ids = fs::read_to_string(root().join("src/ids.rs")).unwrap();
    assert!(!shipped(&ids).contains("crate::"), "ids knows nothing");
    let run = fs::read_to_string(root().join("src/run.rs")).unwrap();
    assert!(!shipped(&run).replace("crate::ids", "").contains("crate::"), "run knows ids alone");
    for (path, text) in rust_files("src/mesh") {
        let text = shipped(&text).replace("crate::ids", "");
        assert!(!text.contains("crate::"), "{} knows more than ids", path.display());
    }
}

/// It judges what others have done, and nobody needs it for that.
#[test]
fn the_doctor_only_looks_on() {
    nowhere_in(
        "src/doctor",
        &[
            "crate::train",
            "crate::transport",
            "crate::schedulers",
            "crate::gpu",
            "std::fs",
            "std::io",
            "std::net",
            "std::time",
            "std::thread",
        ],
        "",
    );
    for folder in ["src/codes", "src/sim", "src/delays", "src/schedulers", "src/train"] {
        nowhere_in(folder, &["crate::doctor"], "");
    }
}

/// The module that a file of a crate is, as `crate::` would be followed by it.
fn module_of(path: &Path, folder: &str) -> Vec<String> {
    let path = path.strip_prefix(folder).unwrap().with_extension("");
    let mut names: Vec<String> =
        path.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    names.pop_if(|name| ["lib", "main", "mod"].contains(&name.as_str()));
    names
}

/// Reads a path, or a tree of them as `use` has it; gives back what follows.
fn read_paths<'a>(
    mut rest: &'a str,
    mut path: Vec<&'a str>,
    found: &mut Vec<Vec<&'a str>>,
) -> &'a str {
    loop {
        rest = rest.trim_start();
        if let Some(mut rest) = rest.strip_prefix('{') {
            while !rest.starts_with('}') {
                rest = read_paths(rest, path.clone(), found);
                // A comma, the star of `*`, or a space.
                let other = rest.chars().next().filter(|c| !c.is_alphanumeric() && *c != '}');
                rest = &rest[other.map_or(0, char::len_utf8)..];
            }
            return &rest[1..];
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        path.push(&rest[..end]);
        rest = &rest[end..];
        let Some(more) = rest.strip_prefix("::") else {
            found.push(path);
            return rest;
        };
        rest = more;
    }
}

/// All that a text names by `crate::` or `super::`, as names from the crate's root on.
fn named_in(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = [rest.find("crate::"), rest.find("super::")].into_iter().flatten().min() {
        rest = read_paths(&rest[at..], Vec::new(), &mut found);
    }
    let from_root = |path: Vec<&str>| {
        let up = path.iter().take_while(|name| **name == "super").count();
        // Modules within a file are the file's.
        let mut names = module[..module.len().saturating_sub(up)].to_vec();
        if path[0] == "crate" {
            names.clear();
        }
        names.extend(path[up.max(1)..].iter().map(|name| (*name).to_owned()));
        names
    };
    found.into_iter().map(from_root).collect()
}

/// Who names whom among modules, but for a module and those inside it, which are one place: the
/// one hands on what the others define, and may define what they share.
fn arrows(files: &BTreeMap<Vec<String>, String>) -> BTreeSet<(Vec<String>, Vec<String>)> {
    let mut arrows = BTreeSet::new();
    for (module, text) in files {
        for mut names in named_in(text, module) {
            while !files.contains_key(&names) {
                names.pop();
            }
            if !module.starts_with(&names) && !names.starts_with(module) {
                arrows.insert((module.clone(), names));
            }
        }
    }
    arrows
}

/// The arrows of circles, and of the ways from one to another.
fn circles(mut arrows: BTreeSet<(Vec<String>, Vec<String>)>) -> Vec<String> {
    loop {
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = arrows.iter().cloned().unzip();
        let all = arrows.len();
        arrows.retain(|(a, b)| to.contains(a) && from.contains(b));
        if arrows.len() == all {
            return arrows
                .iter()
                .map(|(a, b)| format!("{} -> {}", a.join("::"), b.join("::")))
                .collect();
        }
    }
}

#[test]
fn files_do_not_name_each_other_in_circles() {
    for folder in ["src/transport", "trainer/src", "cli/src", "python/src"] {
        let files = rust_files(folder)
            .into_iter()
            .filter(|(path, _)| !path.ends_with("main.rs"))
            .map(|(path, text)| (module_of(&path, folder), shipped(&text)))
            .collect();
        let circles = circles(arrows(&files));
        assert!(circles.is_empty(), "circles in {folder}:\n{}", circles.join("\n"));
    }
}

#[test]
fn a_circle_is_found_wherever_its_paths_are() {
    let found = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(module, text)| {
            let names = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned);
            (names.collect::<Vec<_>>(), (*text).to_owned())
        });
        circles(arrows(&files.collect()))
    };
    let root = ("", "use run::plan::Plan;");
    let plan =
        ("run::plan", "use super::{record::{Line, read as r}, turns::*};\nuse crate::Failure;");
    let run = ("run", "use plan::Plan;");
    let line = ("run::record", "use super::Run;\nuse crate::run::turns;");
    let turns = ("run::turns", "fn of(plan: &super::super::run::plan::Plan) {}");
    let lone = ("run::turns", "fn of() -> super::Run {}");
    assert_eq!(
        found(&[root, run, plan, line, turns]),
        [
            "run::plan -> run::record",
            "run::plan -> run::turns",
            "run::record -> run::turns",
            "run::turns -> run::plan",
        ]
    );
    assert!(found(&[root, run, plan, line, lone]).is_empty());
}

#[test]
fn a_public_name_means_one_type() {
    let mut files: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in ["src", "trainer/src"].into_iter().flat_map(rust_files) {
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
        let may =
            ["src/gpu/cuda.rs", "src/transport/nccl.rs"].iter().any(|file| path == Path::new(file));
        let unsafe_words =
            ["unsafe ", "unsafe_code"].iter().any(|word| shipped(&text).contains(word));
        assert!(may || !unsafe_words, "{} is unsafe", path.display());
    }
}

/// The body of the first item that begins with these words.
fn body<'a>(text: &'a str, begins: &str) -> &'a str {
    let from = text.find(begins).unwrap_or_else(|| panic!("no `{begins}`"));
    let end = text[from..].find("\n}\n").unwrap_or_else(|| panic!("`{begins}` has no end"));
    &text[from..from + end]
}

/// What the driver of a scheme has to know stays small: methods, events, what a simulator may skip,
/// and the vote.
#[test]
fn a_scheme_is_small() {
    let read = |file: &str| shipped(&fs::read_to_string(root().join(file)).unwrap());
    let functions = |text: &str| text.matches("\n    fn ").count();
    let scheme = read("src/codes/sequential/scheme.rs");
    let methods = functions(body(&scheme, "pub trait Scheme"));
    assert!((1..=12).contains(&methods), "{methods} methods");
    let variant = |line: &&str| {
        let word = line.strip_prefix("    ").unwrap_or_default();
        word.starts_with(|first: char| first.is_ascii_uppercase())
    };
    let events = body(&scheme, "pub enum RoundEvent").lines().filter(variant).count();
    let skips = functions(body(&scheme, "pub trait FastForward"));
    let vote = read("src/codes/vote.rs");
    let verifier = body(&vote, "impl Verifier").matches("\n    pub fn ").count();
    assert!(events > 0 && skips > 0 && verifier > 0, "{events}, {skips}, {verifier}");
    assert!(methods + events + skips + verifier <= 30, "{methods}, {events}, {skips}, {verifier}");
    // A method of the trait that can be left out is there for three schemes at least.
    let codes = rust_files("src/codes");
    for (at, _) in scheme.match_indices(") -> Option<&mut dyn FastForward> {") {
        assert!(scheme[..at].ends_with("fn fast_forward(&mut self"), "a second such method");
    }
    let told = |text: &str| shipped(text).matches("    fn fast_forward(&mut self)").count();
    assert!(codes.iter().map(|(_, text)| told(text)).sum::<usize>() > 3);
}

/// A transport is small, and the exchange is a machine: it names no socket, clock, task or thread.
#[test]
fn a_transport_is_small_and_the_exchange_has_no_io() {
    let transport = shipped(&fs::read_to_string(root().join("src/transport/mod.rs")).unwrap());
    let methods = body(&transport, "pub trait Transport").matches("\n    fn ").count();
    assert!((1..=8).contains(&methods), "{methods} methods");
    nowhere_in(
        "src/transport/exchange",
        &[
            "tokio",
            "async ",
            ".await",
            "std::net",
            "std::io",
            "std::thread",
            "Instant::now",
            "super::super",
            "transport::tcp",
        ],
        "",
    );
}

/// Whether an answer is still wanted is asked in one place: the engine asks the scheme at hand. An
/// answer is kept from it in one: where its order was abandoned for good.
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
        .filter(|(_, text)| shipped(text).contains("Wanted::No"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(keeps, [PathBuf::from("src/schedulers/orders.rs")]);
}

/// Lines that rustfmt cannot break: tables and formulas in documentation, texts of `--help`.
const LONG_LINES: usize = 66;

#[test]
fn files_stay_short() {
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        let lines = shipped(&text).lines().count();
        assert!(lines <= 720, "{}: {lines} lines", path.display());
    }
    let mut long = Vec::new();
    for (path, text) in ROOMS.into_iter().flat_map(rust_files) {
        let wide = text.lines().filter(|line| line.chars().count() > 100);
        long.extend(wide.map(|line| format!("{}: {line}", path.display())));
        assert!(
            text.starts_with("//!") || text.starts_with("#![doc"),
            "{} does not say what it is",
            path.display()
        );
    }
    assert!(
        long.len() <= LONG_LINES,
        "{} lines over 100 columns:\n{}",
        long.len(),
        long.join("\n")
    );
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(architecture.lines().count() <= 100);
}

#[test]
fn the_python_package_has_short_files_and_keeps_privates_private() {
    for (path, text) in files("python/codedgrad", "py") {
        let lines = text.lines().count();
        assert!(lines <= 700, "{}: {lines} lines", path.display());
        assert!(text.starts_with("\"\"\""), "{} does not say what it is", path.display());
        // What lies below a `Run` is for `_run.py` alone: others take it as they are given it.
        let reads = text.lines().find(|line| line.contains("run._"));
        assert_eq!(reads, None, "{}", path.display());
    }
}

/// Statements that give more than two values to as many names at once: one a line is read faster.
/// May only fall.
const AT_ONCE: usize = 14;
/// Comments that say why, per 1,000 lines of code and documentation: at least so many where much
/// depends on the order in which things happen. May only rise.
const WHY: [(&str, usize); 1] = [("src/schedulers", 20)];

/// The text in the brackets that a text begins with, and what comes behind them.
fn in_brackets(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (at, x) in text.char_indices() {
        match x {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.starts_with('(').then(|| (&text[1..at], &text[at + 1..]));
        }
    }
    None
}

/// Parts between commas that are in no brackets.
fn parts(text: &str) -> usize {
    let mut depth = 0;
    let commas = text.chars().filter(|x| {
        match x {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        *x == ',' && depth == 0
    });
    commas.count() + usize::from(!text.trim_end().ends_with(','))
}

/// Statements that assign more than two values at once.
fn at_once(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        let statement = &code[at + indent..];
        at += line.len();
        let tuples = statement.strip_prefix("let ").unwrap_or(statement);
        let assigned = in_brackets(tuples).and_then(|(names, rest)| {
            let (_, rest) = in_brackets(rest.strip_prefix(" =")?.trim_start())?;
            rest.starts_with(';').then(|| parts(names))
        });
        if assigned.is_some_and(|values| values > 2) {
            found.push(line.trim());
        }
    }
    found
}

#[test]
fn code_is_read_line_by_line() {
    let files: Vec<_> = CRATES.into_iter().flat_map(rust_files).collect();
    let all: Vec<String> = files.iter().map(|(_, text)| shipped(text)).collect();
    let found: Vec<&str> = all.iter().flat_map(|code| at_once(code)).collect();
    assert!(found.len() <= AT_ONCE, "{} statements:\n{}", found.len(), found.join("\n"));
    let example = "  let (a, (b, c), d) =\n    (f(1, 2), (2, 3), 4);\n  (x, y) = (1, 2);\n";
    assert_eq!(at_once(example), ["let (a, (b, c), d) ="]);

    for (folder, least) in WHY {
        let text: String = rust_files(folder).into_iter().map(|(_, text)| text).collect();
        let why = text.lines().filter(|line| line.trim_start().starts_with("// ")).count();
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(why * 1000 >= least * lines, "{folder}: {why} in {lines} lines");
    }
}

/// Most fields of a struct, unless they are the flags of a command: what has more is a list of
/// state that belongs to several, whom nobody has named.
const FIELDS: usize = 15;

/// The structs of a file that have named fields: what is said above each, its name, and how many
/// fields.
fn structs(code: &str) -> Vec<(String, String, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.trim_start();
        let indent = &line[..line.len() - declared.len()];
        let visibility = declared.split_once("struct ").map(|(before, _)| before.trim_end());
        let Some(visibility) = visibility.filter(|_| line.ends_with('{')) else { continue };
        if !visibility.is_empty() && !visibility.starts_with("pub") {
            continue;
        }
        let name = declared[visibility.len()..].trim_start().strip_prefix("struct ").unwrap();
        let name = name.split(|x: char| !x.is_alphanumeric()).next().unwrap();
        let end = format!("{indent}}}");
        // A help text may have empty lines, and ends of anything but of an item.
        let above: Vec<&str> =
            lines[..at].iter().rev().take_while(|line| **line != end).copied().collect();
        let is_field = |line: &&&str| {
            let deep = line.strip_prefix(indent).and_then(|rest| rest.strip_prefix("    "));
            deep.is_some_and(|field| {
                field.contains(':') && field.starts_with(|x: char| x.is_alphabetic() || x == '_')
            })
        };
        let fields =
            lines[at + 1..].iter().take_while(|line| **line != end).filter(is_field).count();
        found.push((above.concat(), name.to_owned(), fields));
    }
    found
}

#[test]
fn structs_have_at_most_15_fields() {
    let mut seen = 0;
    let mut large = Vec::new();
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        for (above, name, fields) in structs(&shipped(&text)) {
            seen += 1;
            let flags = ["Args", "Parser"].iter().any(|derived| above.contains(derived));
            if fields > FIELDS && !flags {
                large.push((name, path.clone(), fields));
            }
        }
    }
    assert!(seen > 300, "only {seen} structs were found");
    assert!(large.is_empty(), "more than {FIELDS} fields: {large:#?}");
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

#[test]
fn every_dependency_is_explained() {
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    for manifest in ["Cargo.toml", "trainer/Cargo.toml", "cli/Cargo.toml"] {
        let manifest = fs::read_to_string(root().join(manifest)).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let name = line.split([' ', '.']).next().unwrap_or_default();
            if section.ends_with("dependencies]") && line.contains('=') {
                assert!(
                    contributing.contains(name),
                    "CONTRIBUTING.md does not say why {name} is there"
                );
            }
        }
    }
}

/// Every document, by its path from the root.
fn documents() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for folder in ["", "docs", "python", "examples/traces", "cli/tests/data/traces"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path.strip_prefix(root()).unwrap().to_owned(), text);
            }
        }
    }
    assert!(found.len() >= 20, "only {} documents were found", found.len());
    found
}

/// Where a document's links lead: `[text](target)`, and `[name]: target` on a line of its own.
fn targets(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let defined = text.lines().filter_map(|line| {
        let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
        (!name.contains(']')).then_some(target)
    });
    inline.chain(defined).collect()
}

/// The names by which links reach a document's headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|x| x.is_alphanumeric() || ['-', '_'].contains(x)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents = documents();
    for (document, text) in &documents {
        for link in targets(text) {
            // Nothing is published: pages about it elsewhere do not exist.
            let dead = ["https://docs.rs/codedgrad", "https://docs.rs/crate/codedgrad"];
            let dead = dead.iter().any(|page| link.starts_with(page))
                || link.starts_with("https://pypi.org/project/codedgrad");
            assert!(!dead, "{} links to {link}, which is not published", document.display());
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) =
                link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let folder = document.parent().unwrap();
            let mut target = if path.is_empty() { document.clone() } else { folder.join(path) };
            while let Some(up) = target.iter().position(|part| part == "..") {
                target = target.iter().take(up - 1).chain(target.iter().skip(up + 1)).collect();
            }
            assert!(root().join(&target).exists(), "{} links to {link}", document.display());
            if let Some(anchor) = anchor {
                let found = documents
                    .get(&target)
                    .is_some_and(|text| anchors(text).iter().any(|heading| heading == anchor));
                assert!(found, "{} links to {link}, which has no such heading", document.display());
            }
        }
    }
    // A reference that is not defined is shown as it stands.
    for page in ["README.md", "python/README.md"] {
        let (document, text) = (Path::new(page), &documents[Path::new(page)]);
        let prose: String = text.split("```").step_by(2).collect();
        let uses = prose.split("][").skip(1).filter_map(|rest| rest.split(']').next());
        for name in uses.filter(|name| name.chars().all(|x| x.is_alphanumeric() || x == '-')) {
            let defined = text.lines().any(|line| line.starts_with(&format!("[{name}]: ")));
            assert!(defined || name.is_empty(), "{}: [{name}]", document.display());
        }
    }
}

#[test]
fn the_readme_is_short_and_shows_what_other_pages_test() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let readme = read("README.md");
    let words = readme.split_whitespace().count();
    assert!(words <= 1300, "{words} words, by `wc -w`");
    // Without tables and examples.
    let prose = readme.split("```").step_by(2).flat_map(str::lines);
    let prose = prose.filter(|line| !line.starts_with('|')).flat_map(str::split_whitespace);
    let words = prose.count();
    assert!(words <= 660, "{words} words of prose");
    // The library's front page has the same loop, as far as an example in Rust can be the same.
    let block = |text: &str, start: &str| {
        let (_, block) = text.split_once(start).unwrap();
        block.split("```").next().unwrap().trim().to_owned()
    };
    let front = read("src/lib.rs");
    let front = front.lines().filter_map(|line| line.strip_prefix("//!"));
    let front: String =
        front.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
    assert_eq!(block(&readme, "```rust\n"), block(&front, "```\n"));
    // So has the Python package's, whose tests run it.
    assert_eq!(block(&readme, "```diff\n"), block(&read("python/README.md"), "```diff\n"));
}

/// Words that documents, help and errors do not use; docs/glossary.md has what to say instead.
const OLD_WORDS: [&str; 31] = [
    "weave",
    "weaving",
    "woven",
    "loom",
    "fabric",
    "salvage",
    "wrong workers",
    "wrong worker",
    "wrong ones",
    "answer wrongly",
    "answers wrongly",
    "micro-steps",
    "micro-step",
    "trained in turn",
    "models in turn",
    "becomes of",
    "whoever",
    "whatever",
    "at hand",
    "is gone",
    "are gone",
    "anew",
    "twin",
    "twins",
    "spoilt",
    "sent home",
    "borne",
    "keeper",
    "foreseen",
    "foretold",
    "rival",
];

/// The old words in a text, as whole words, also where a line ends within one.
fn old_words(text: &str) -> Vec<&'static str> {
    let plain = text.to_lowercase();
    let plain = format!(" {} ", plain.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_inside = |x: char| x.is_alphanumeric() || x == '_' || x == '-';
    let stands = |word: &&str| {
        plain.match_indices(*word).any(|(at, _)| {
            let before = plain[..at].chars().next_back();
            let after = plain[at + word.len()..].chars().next();
            !before.is_some_and(is_inside) && !after.is_some_and(is_inside)
        })
    };
    OLD_WORDS.iter().filter(|word| stands(word)).copied().collect()
}

/// The texts in double quotes of a file, as far as they are what it says: names are no sentences.
fn sentences(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find('"') {
        // A character, not the beginning of a text.
        if rest[..start].ends_with('\'') {
            rest = &rest[start + 1..];
            continue;
        }
        let mut end = start + 1;
        while let Some(next) = rest[end..].chars().next() {
            match next {
                '"' => break,
                '\\' => end += 1 + rest[end + 1..].chars().next().map_or(0, char::len_utf8),
                _ => end += next.len_utf8(),
            }
        }
        let text = rest[start + 1..end.min(rest.len())].replace("\\\n", " ").replace("\\n", " ");
        if text.contains(' ') {
            found.push(text);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    found
}

#[test]
fn documents_help_and_errors_use_the_words_of_the_glossary() {
    let mut found = Vec::new();
    // What is past may be told in its words.
    let past = ["docs/glossary.md", "CHANGELOG.md"];
    for (path, text) in documents() {
        if !past.iter().any(|page| path == Path::new(page)) {
            found.extend(old_words(&text).into_iter().map(|word| (path.clone(), word)));
        }
    }
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        for sentence in sentences(&shipped(&text)) {
            found.extend(old_words(&sentence).into_iter().map(|word| (path.clone(), word)));
        }
    }
    let help = "cli/tests/pins/golden/help.txt";
    let shown = fs::read_to_string(root().join(help)).unwrap();
    found.extend(old_words(&shown).into_iter().map(|word| (help.into(), word)));
    assert!(found.is_empty(), "old words, for which docs/glossary.md has others: {found:#?}");
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    assert_eq!(old_words("It is\nat hand, woven; micro_steps"), ["woven", "at hand"]);
    assert!(old_words(&glossary).len() >= 20);
}

/// How often the old words stand in the source, comments and names of items included: lower these
/// numbers with every file that is renamed; none of them may rise.
const OLD_NAMES: [(&str, usize); 23] = [
    ("woven", 1),
    ("salvage", 0),
    ("hopes(", 0),
    ("whoever", 10),
    ("whatever", 39),
    ("at hand", 0),
    ("is gone", 1),
    ("becomes of", 1),
    ("twin", 0),
    ("spoil", 0),
    ("anew", 6),
    ("foretell", 0),
    ("foretold", 0),
    ("foreseen", 0),
    ("keeper", 0),
    ("inlet", 0),
    ("bereft", 0),
    ("somebody_out", 0),
    ("stretch", 2),
    ("wrong workers", 0),
    ("answer wrongly", 0),
    ("micro-step", 2),
    ("sent home", 1),
];

#[test]
fn old_names_become_fewer() {
    let source: String =
        CRATES.into_iter().flat_map(rust_files).map(|(_, text)| text.to_lowercase()).collect();
    for (name, most) in OLD_NAMES {
        let count = source.matches(name).count();
        assert!(count <= most, "`{name}` stands {count} times in the source, {most} before");
    }
}

/// What is assigned in one statement by a pattern of names, at most.
const AT_A_TIME: usize = 2;

#[test]
fn few_names_are_assigned_at_a_time() {
    let is_name = |word: &str| {
        let word = word.trim().trim_start_matches("mut ");
        !word.is_empty()
            && word.chars().all(|letter| letter.is_alphanumeric() || "_.".contains(letter))
    };
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        for line in text.lines() {
            let statement = line.trim_start().trim_start_matches("///").trim_start();
            let pattern = statement.trim_start_matches("let ").strip_prefix('(');
            let Some((names, _)) = pattern.and_then(|rest| rest.split_once(") = (")) else {
                continue;
            };
            let names: Vec<&str> = names.split(',').filter(|name| is_name(name)).collect();
            assert!(names.len() <= AT_A_TIME, "{}: {statement}", path.display());
        }
    }
}

/// Comments that say why, lines of them per 1,000 lines of code, at least: where a state machine
/// reads as if it could be simpler, the next engineer asks.
const REASONS_LEAST: [(&str, usize); 2] = [("src/schedulers", 40), ("src/transport", 25)];

#[test]
fn state_machines_say_why() {
    for (folder, least) in REASONS_LEAST {
        let (mut reasons, mut code) = (0, 0);
        for (_, text) in rust_files(folder) {
            let text = text.split("\nmod tests {").next().unwrap_or_default();
            for line in text.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
                let is_doc = line.starts_with("///") || line.starts_with("//!");
                reasons += usize::from(line.starts_with("//") && !is_doc);
                code += usize::from(!line.starts_with("//"));
            }
        }
        let found = 1000 * reasons / code;
        assert!(found >= least, "{folder}: {found} lines of 1,000 say why, {least} before");
    }
}

#[test]
fn what_is_said_of_the_version_is_true() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let manifest = read("Cargo.toml");
    let value = |key: &str| {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    assert!(read("CITATION.cff").contains(&format!("\nversion: {}\n", value("version"))));
    assert!(read("README.md").contains(&format!("Rust {} or later", value("rust-version"))));
}

#[test]
fn front_pages_link_to_nothing_beside_them() {
    // Where documentation is shown there are no files of the repository.
    for page in ["src/lib.rs", "trainer/src/lib.rs", "cli/src/lib.rs"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(!text.contains("#![doc = include_str!"), "{page} shows another file");
        let front = text.lines().filter(|line| line.starts_with("//!"));
        for link in front.flat_map(|line| line.split("](").skip(1)) {
            assert!(link.starts_with("http"), "{page} links to {link}");
        }
    }
}
