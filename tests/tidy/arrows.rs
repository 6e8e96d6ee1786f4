//! Who may know whom.

use super::{CRATES, nowhere_in, root, rust_files, shipped};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

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
    nowhere_in("src/codes", &["std::fs", "crate::files"], "src/codes/family/fields.rs");
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
    nowhere_in("src", &["codedgrad_shell", "codedgrad_cli", "codedgrad_lab"], "");
    nowhere_in("shell/src", &["codedgrad_cli", "codedgrad_lab", "TcpTransport", "TcpLink"], "");
    nowhere_in("cli/src", &["codedgrad_lab"], "");
    nowhere_in("python/src", &["codedgrad_lab"], "");
    // Runs of the lab over processes are those of `codedgrad run`.
    nowhere_in("lab/src", &["TcpTransport"], "");
    nowhere_in("lab/src/trainer", &["crate::run", "codedgrad_shell", "codedgrad_cli"], "");
    for folder in ["src", "lab/src/trainer"] {
        nowhere_in(folder, &["anyhow", "clap", "indicatif", "plotters"], "");
    }
    for folder in ["src", "shell/src", "cli/src", "python/src"] {
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

/// The room of a file of the programs' crate: a command, or what several of them share.
fn room_of(module: &[String]) -> Vec<String> {
    module[..module.len().min(2)].to_vec()
}

/// A command may use another, or what it is made of, and not the other way round as well.
#[test]
fn commands_do_not_name_each_other_in_circles() {
    let files = rust_files("cli/src").into_iter().filter(|(path, _)| !path.ends_with("main.rs"));
    let files = files.map(|(path, text)| (module_of(&path, "cli/src"), shipped(&text))).collect();
    let between = |(from, to): (Vec<String>, Vec<String>)| {
        let rooms = (room_of(&from), room_of(&to));
        (rooms.0 != rooms.1 && rooms.0.len() > 1).then_some(rooms)
    };
    let between: BTreeSet<_> = arrows(&files).into_iter().filter_map(between).collect();
    assert!(between.len() > 10, "{between:?}");
    let circles = circles(between);
    assert!(circles.is_empty(), "circles of commands:\n{}", circles.join("\n"));
}

#[test]
fn files_do_not_name_each_other_in_circles() {
    for folder in CRATES.into_iter().chain(["benches/drills", "benches/overlap"]) {
        let is_crate = root().join(folder).join("lib.rs").exists();
        let files = rust_files(folder)
            .into_iter()
            .filter(|(path, _)| !(is_crate && path.ends_with("main.rs")))
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
