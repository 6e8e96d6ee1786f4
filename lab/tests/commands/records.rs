//! docs/records.md names every field of the files that runs leave, and no other.

use crate::program::{MODEL, codedgrad, flags, text};
use crate::serving;
use codedgrad::train::{Aggregator, Event};
use codedgrad::transport::RunFacts;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What only runs write that this test does not make: on GPUs, of trainers that freeze parameters,
/// or with workers that come and go; and what is not written under a virtual clock.
const ELSEWHERE: [&str; 8] = [
    "unverified",
    "using.disturbed",
    "facts.frozen",
    "identity",
    "domain",
    "seconds",
    "told",
    "left",
];
/// Fields that stand in a file only in runs on a wall clock in which schemes take turns.
const TURNS: [&str; 11] = [
    "turn",
    "step_seconds",
    "turns.block",
    "turns.measured",
    "speedup_low",
    "speedup_high",
    "complete_turns",
    "give_up_after",
    "version",
    "command",
    "started",
];

/// The fields that a section of the page names.
fn documented(section: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/records.md"));
    let page = page.unwrap().replace("\r\n", "\n");
    let start = page.split_once(&format!("\n## {section}\n")).unwrap().1;
    let section = start.split("\n## ").next().unwrap();
    let cells = section.lines().filter(|line| line.starts_with("| `"));
    let cells = cells.filter_map(|line| line.split(" | ").next());
    let names = cells.flat_map(|cell| cell.trim_start_matches("| ").split(", "));
    names.map(|name| name.trim_matches(['`', ' ']).to_owned()).collect()
}

/// The fields of an object, those of objects in it after a point.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let point = if path.is_empty() { "" } else { "." };
                fields(value, &format!("{path}{point}{name}"), found);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter().for_each(|value| fields(value, &format!("{path}[]"), found));
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

/// Fields of a file of runs, each line of which is JSON or which is JSON as a whole.
fn of_files(home: &Path, runs: &[&str], file: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for run in runs {
        let text = fs::read_to_string(home.join(run).join(file)).unwrap();
        let values: Vec<&str> =
            if file.ends_with("jsonl") { text.lines().collect() } else { vec![&text] };
        for value in values {
            fields(&serde_json::from_str(value).unwrap(), "", &mut found);
        }
    }
    found
}

/// Compares a section with files; lists that are empty everywhere cannot be seen into.
fn compare(section: &str, found: &BTreeSet<String>) {
    let named = documented(section);
    let opened = |name: &String| {
        let inner = |other: &String| other.starts_with(&format!("{name}[]."));
        named.contains(name) || named.iter().any(inner)
    };
    // Null where there is no object, as facts are before a worker has come.
    let or_null = |name: &String| named.iter().any(|other| other.starts_with(&format!("{name}.")));
    let unknown: Vec<_> = found.iter().filter(|name| !opened(name) && !or_null(name)).collect();
    assert!(unknown.is_empty(), "docs/records.md does not name, in {section}: {unknown:?}");
    let elsewhere = |name: &&String| {
        TURNS.contains(&name.as_str())
            || ELSEWHERE.contains(&name.as_str())
            || ["what.", "facts."].iter().any(|start| name.starts_with(start))
    };
    let missing: Vec<_> = named.difference(found).filter(|name| !elsewhere(name)).collect();
    assert!(missing.is_empty(), "no file has, of {section} in docs/records.md: {missing:?}");
}

fn train(home: &Path, out: &str, words: &'static str) {
    let small = flags(&["train", MODEL, words]);
    let output = codedgrad(home, &[&small[..], &["--out", out]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// A run of others' programs: two steps of one worker, whose parameters are two numbers.
fn serve(home: &Path) {
    let flags = ["--workers", "1..2", "--join-wait", "1", "--scheme", "auto"];
    let (mut serving, address, token) = serving::serve(home, "served", &flags);
    let facts = RunFacts {
        length: Some(2),
        units: Some(2),
        steps: Some(2),
        dtype: Some("f32".into()),
        layout: Some(7),
        ..RunFacts::default()
    };
    let mut aggregator =
        Aggregator::join(address).security(token).facts(facts).unit_samples(1).connect().unwrap();
    while let Some(event) = aggregator.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                while let Some(part) = task.next_part() {
                    let _ = part.unit;
                    task.message().fill(1.0);
                }
                // A loss that is no number.
                task.submit(vec![f64::NAN]).unwrap();
            }
            Event::Provide(request) => request.reply(vec![vec![0.0; 2]]),
            Event::Apply(_) | Event::Skip(_) | Event::Resync(_) => {}
        }
    }
    assert_eq!(serving.ends(), Some(0), "{}", serving.said());
}

#[test]
fn every_field_of_every_file_is_described() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    // NaN that uncoded training cannot do without: a refused step, and a fault.
    train(
        home,
        "refused",
        "--steps 2 --clock virtual --workers 4 --scheme uncoded --fault nan@1:2",
    );
    train(
        home,
        "attacked",
        "--steps 4 --clock virtual --workers 12 --scheme vote:s=1,b=1 --attack flip --compare \
         uncoded",
    );
    train(
        home,
        "auto",
        "--steps 8 --clock virtual --workers 4 --scheme auto:probe=2,every=4 --compare \
         uncoded",
    );
    train(
        home,
        "wall",
        "--steps 4 --workers 4 --no-stragglers --scheme groups:s=1 --compare uncoded",
    );
    train(
        home,
        "fewer",
        "--steps 2 --clock virtual --workers 2..4 --scheme uncoded --fault panic@1:2",
    );
    fs::write(home.join("pool.csv"), "seconds,workers\n0,2\n3,3\n").unwrap();
    train(home, "pool", "--steps 5 --clock virtual --pool pool.csv --scheme uncoded");
    serve(home);
    let trained = ["refused", "attacked", "auto", "wall", "fewer", "pool"];
    let all = ["refused", "attacked", "auto", "wall", "fewer", "pool", "served"];
    compare("plan.json", &of_files(home, &trained, "plan.json"));
    compare("serve.json", &of_files(home, &["served"], "serve.json"));
    compare("run.jsonl", &of_files(home, &all, "run.jsonl"));
    compare("events.jsonl", &of_files(home, &all, "events.jsonl"));
    compare("summary.json", &of_files(home, &all, "summary.json"));
}
