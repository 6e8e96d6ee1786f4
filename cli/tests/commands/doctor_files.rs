//! The page and the trace that `codedgrad doctor` writes.

use crate::program::{codedgrad, json, refused, root, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// No page is longer.
const BYTES_MOST: u64 = 2_000_000;
/// What may not occur in a page: it runs nothing, and loads nothing.
const NEVER: [&str; 8] =
    ["<script", "javascript:", "src=", "url(", "@import", "<link", "http:", "https:"];

fn record(run: &str) -> String {
    fs::read_to_string(root().join(format!("tests/data/doctor/{run}.jsonl"))).unwrap()
}

/// A folder with the folder of a run.
fn home(run: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("run")).unwrap();
    fs::write(home.path().join("run/run.jsonl"), record(run)).unwrap();
    home
}

/// What a page says of these arguments, after what holds for every page.
fn page(home: &Path, arguments: &[&str]) -> String {
    let file = home.join("page.html");
    let written = [arguments, &["--html", "page.html", "--json"]].concat();
    let found = json(&codedgrad(home, &[&["doctor"], &written[..]].concat()));
    let page = fs::read_to_string(&file).unwrap();
    assert!(fs::metadata(&file).unwrap().len() <= BYTES_MOST, "{} bytes", page.len());
    for never in NEVER {
        assert!(!page.to_lowercase().contains(never), "{never}: {arguments:?}");
    }
    let names = found["names"].as_array();
    for finding in found["findings"].as_array().unwrap() {
        let words = escaped(finding["words"].as_str().unwrap());
        assert!(page.contains(&words), "{words}: {arguments:?}");
        if let Some(command) = finding["try"].as_str() {
            assert!(page.contains(&escaped(command)), "{command}");
        }
        for worker in finding["workers"].as_array().unwrap() {
            let name = names.map_or(worker, |names| &names[worker.as_u64().unwrap() as usize]);
            let name = escaped(name.as_str().unwrap_or(&worker.to_string()));
            assert!(page.contains(&format!("worker {name}")), "{name}: {finding}");
            assert!(page.contains(&format!("<tr><td>{name}")), "{name}: {finding}");
        }
    }
    page
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// The entries of the trace that is written of these arguments.
fn trace(home: &Path, arguments: &[&str]) -> Vec<Value> {
    let written = [&["doctor"], arguments, &["--trace", "trace.json"]].concat();
    let output = codedgrad(home, &written);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("where the time went"), "the answer is printed too");
    let trace: Value = serde_json::from_slice(&fs::read(home.join("trace.json")).unwrap()).unwrap();
    assert_eq!(trace["displayTimeUnit"], "ms");
    let entries = trace["traceEvents"].as_array().unwrap().clone();
    no_slices_overlap(&entries);
    arrows_lie_in_slices(&entries);
    entries
}

fn of_phase<'a>(entries: &'a [Value], phase: &'a str) -> impl Iterator<Item = &'a Value> {
    entries.iter().filter(move |entry| entry["ph"] == phase)
}

type Slices = BTreeMap<(u64, u64), Vec<(u64, u64)>>;

/// Slices by process and thread, as when they begin and end.
fn slices(entries: &[Value]) -> Slices {
    let mut slices = Slices::new();
    for slice in of_phase(entries, "X") {
        let number = |key: &str| slice[key].as_u64().unwrap();
        let thread = slices.entry((number("pid"), number("tid"))).or_default();
        thread.push((number("ts"), number("ts") + number("dur")));
    }
    slices.values_mut().for_each(|thread| thread.sort_unstable());
    slices
}

fn no_slices_overlap(entries: &[Value]) {
    for (thread, slices) in slices(entries) {
        let apart = slices.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(apart, "slices of {thread:?} overlap");
    }
}

/// An arrow leaves a worker's slice and reaches one of the coordinator, and no two have a number.
fn arrows_lie_in_slices(entries: &[Value]) {
    let slices = slices(entries);
    let within = |entry: &Value| {
        let number = |key: &str| entry[key].as_u64().unwrap();
        let thread = &slices[&(number("pid"), number("tid"))];
        thread.iter().any(|(begin, end)| (*begin..*end).contains(&number("ts")))
    };
    assert!(of_phase(entries, "s").chain(of_phase(entries, "f")).all(within));
    let ids = |phase| of_phase(entries, phase).map(|it| it["id"].as_u64().unwrap());
    let begun: BTreeSet<u64> = ids("s").collect();
    assert_eq!(begun.len(), ids("s").count());
    assert_eq!(begun, ids("f").collect());
}

fn called(entries: &[Value], name: &str) -> usize {
    entries.iter().filter(|entry| entry["name"] == name).count()
}

#[test]
fn a_trace_is_that_of_another_implementation() {
    let home = home("static_groups");
    let golden = root().join("tests/data/doctor/static_groups.chrome.json");
    let golden: Vec<Value> = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
    let set = |entries: &[Value]| entries.iter().map(Value::to_string).collect::<BTreeSet<_>>();
    let found = trace(home.path(), &["run"]);
    assert_eq!((set(&found), found.len()), (set(&golden), golden.len()));
    // Each of the four groups has its arrow in each step.
    let mut arrows: BTreeMap<u64, usize> = BTreeMap::new();
    for arrow in of_phase(&found, "f") {
        *arrows.entry(arrow["ts"].as_u64().unwrap()).or_default() += 1;
    }
    assert_eq!(arrows.into_values().collect::<Vec<_>>(), [4; 30]);
    let part = trace(home.path(), &["run", "--from", "10", "--to", "19"]);
    assert_eq!((called(&part, "round 10"), called(&part, "round 20")), (1, 0));
    assert_eq!(of_phase(&part, "s").count(), 40);
    // It is written anew in its place.
    assert_eq!(trace(home.path(), &["run"]), found);
}

#[test]
fn all_results_of_a_csv_count_but_those_that_never_came() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("mine.csv"), "1,2,0\n1,inf,1.5\n0,0,0\n").unwrap();
    let found = trace(home.path(), &["mine.csv"]);
    // What took no time has no length that an arrow could begin in.
    assert_eq!((called(&found, "answer"), called(&found, "abandoned")), (8, 1));
    assert_eq!(of_phase(&found, "s").count(), 4);
    let one = trace(home.path(), &["mine.csv", "--to", "0"]);
    assert_eq!((called(&one, "round 0"), called(&one, "decide step 0")), (1, 1));
}

#[test]
fn events_are_marked_in_both() {
    let home = home("made_up_uncoded");
    let events = [
        r#"{"at": 1, "run": 0, "step": 3, "worker": 5, "kind": "lost", "what": "<b><script>"}"#,
        r#"{"at": 2, "run": 0, "step": null, "worker": null, "kind": "begin", "what": ""}"#,
        r#"{"at": 3, "run": 0, "step": 4000, "worker": 5, "kind": "join", "what": "later"}"#,
    ];
    fs::write(home.path().join("run/events.jsonl"), events.join("\n") + "\n").unwrap();
    let page = page(home.path(), &["run"]);
    assert!(page.contains("<p>begin x 1, lost x 1</p>"), "{page}");
    assert!(page.contains("<title>step 3, worker 5, lost: &lt;b&gt;&lt;script&gt;</title>"));
    let found = trace(home.path(), &["run"]);
    let marks: Vec<&Value> = of_phase(&found, "i").collect();
    assert_eq!(marks.len(), 2);
    let commit = found.iter().find(|entry| entry["name"] == "decide step 3").unwrap();
    let commit = commit["ts"].as_u64().unwrap() + commit["dur"].as_u64().unwrap();
    assert_eq!((&marks[0]["name"], marks[0]["ts"].as_u64()), (&"lost".into(), Some(commit)));
    assert_eq!(marks[0]["args"]["what"], "<b><script>");
}

#[test]
fn a_page_has_what_is_printed() {
    for run in ["static_uncoded", "static_groups", "made_up_uncoded", "made_up_groups"] {
        let home = home(run);
        for more in [&["run"][..], &["run", "--from", "5", "--to", "90"], &["run", "--plan"]] {
            let page = page(home.path(), more);
            let printed = text(&codedgrad(home.path(), &[&["doctor"], more].concat()).stdout);
            let heading = printed.lines().next().unwrap();
            assert!(page.contains(&escaped(heading)), "{heading}");
            let numbers = printed.lines().filter(|line| {
                ["computing", "waiting", "deciding", "between"]
                    .iter()
                    .any(|it| line.starts_with(it))
            });
            for seconds in numbers.map(|line| line.split_whitespace().nth(1).unwrap()) {
                assert!(page.contains(&format!(">{seconds} s<")), "{seconds}");
            }
            assert!(page.contains("worker 7</span>") && page.contains("<rect class="));
        }
        let one = page(home.path(), &["run", "--from", "29", "--to", "29"]);
        assert!(one.contains("A column is a round."), "{one}");
    }
    // A scheme whose results do not tell how fast workers are has no map.
    let home = home("static_uncoded");
    let queue = record("static_uncoded").replace("\"uncoded\"", "\"queue:m=16\"");
    fs::write(home.path().join("run/run.jsonl"), queue).unwrap();
    let page = page(home.path(), &["run"]);
    assert!(page.contains("there is no map of workers") && !page.contains("worker 7</span>"));
}

#[test]
fn names_of_others_are_text() {
    let home = home("static_uncoded");
    let evil = r#"<script>alert("x")</script>&'"#;
    let lines = record("static_uncoded").lines().fold(String::new(), |mut lines, line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["scheme"] = evil.into();
        let _ = writeln!(lines, "{line}");
        lines
    });
    fs::write(home.path().join("run/run.jsonl"), lines).unwrap();
    assert!(page(home.path(), &["run"]).contains("&lt;script&gt;alert(&quot;x&quot;)"));
    // A worker, and a file.
    let named = home.path().join("<script>.csv");
    let name = evil.replace('"', "");
    let mut rows = "step,rank,s\n".to_owned();
    for step in 0..40 {
        for (worker, time) in [(name.as_str(), 9), ("b", 1), ("c", 1), ("d", 1)] {
            let _ = writeln!(rows, "{step},{worker},{time}");
        }
    }
    fs::write(home.path().join("long.csv"), rows).unwrap();
    let made = ["trace", "import", "long.csv", "--long", "step,rank,s", "--out", "<script>.csv"];
    let output = codedgrad(home.path(), &made);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(named.exists());
    let page = page(home.path(), &["<script>.csv"]);
    assert!(page.contains("worker &lt;script&gt;alert(x)"), "{page}");
    assert!(page.contains("&lt;script&gt;.csv, as uncoded"), "{page}");
    let found = trace(home.path(), &["<script>.csv"]);
    let name = format!("worker {name}");
    assert!(of_phase(&found, "M").any(|it| it["args"]["name"] == *name), "{name}");
}

#[test]
fn the_folder_of_a_recorder_is_a_run() {
    let home = tempfile::tempdir().unwrap();
    let steps = root().join("examples/steps").display().to_string();
    let page = page(home.path(), &[&steps]);
    assert!(page.contains("<rect class="), "{page}");
    let found = trace(home.path(), &[&steps]);
    let results = called(&found, "answer") + called(&found, "abandoned");
    let workers = of_phase(&found, "M").count() - 1;
    assert!(called(&found, "answer") > 0 && results.is_multiple_of(workers));
}

/// A number between 0 and 1 that looks drawn.
fn drawn(at: usize) -> f64 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as f64 / (1u64 << 53) as f64
}

/// Times without order give the longest page: no two neighbours have a colour.
#[test]
fn a_million_results_are_a_page_to_send_and_a_trace() {
    const WORKERS: usize = 64;
    const ROUNDS: usize = 15_625;
    let home = tempfile::tempdir().unwrap();
    let mut rows = String::new();
    for round in 0..ROUNDS {
        for worker in 0..WORKERS {
            let time = 0.5
                + drawn(round * WORKERS + worker) * (1.0 + drawn(round / 39 * WORKERS + worker));
            let end = if worker + 1 < WORKERS { ',' } else { '\n' };
            let _ = write!(rows, "{time:.4}{end}");
        }
    }
    fs::write(home.path().join("many.csv"), rows).unwrap();
    let written = ["doctor", "many.csv", "--html", "page.html", "--trace", "trace.json"];
    let output = codedgrad(home.path(), &written);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = fs::read_to_string(home.path().join("page.html")).unwrap();
    println!("{} bytes of a page, {} rectangles", page.len(), page.matches("<rect").count());
    assert!(page.len() as u64 <= BYTES_MOST && !page.contains("<script"), "{}", page.len());
    assert!(page.contains("worker 63</span>") && page.contains("up to 40 rounds"));
    let trace = fs::read_to_string(home.path().join("trace.json")).unwrap();
    let results = trace.lines().filter(|line| line.contains("\"answer\",\"ts\"")).count();
    assert_eq!(results, WORKERS * ROUNDS);
    assert!(trace.ends_with("}]}\n"));
}

#[test]
fn more_workers_than_rows_leave_the_slowest() {
    let home = tempfile::tempdir().unwrap();
    let row = |round: usize| {
        let time = |worker: usize| 1.0 + drawn(round * 200 + worker) / 100.0;
        let times = (0..200).map(|worker| if worker == 150 { 1.3 } else { time(worker) });
        times.map(|time| format!("{time:.4}")).collect::<Vec<_>>().join(",") + "\n"
    };
    fs::write(home.path().join("wide.csv"), (0..30).map(row).collect::<String>()).unwrap();
    let page = page(home.path(), &["wide.csv"]);
    assert!(page.contains("These are the 64 slowest of 200 workers."), "{page}");
    let (_, first) = page.split_once("<span>worker ").unwrap();
    assert!(first.starts_with("150</span>"), "{first}");
}

#[test]
fn what_is_not_ours_is_not_overwritten() {
    let home = home("static_groups");
    let is = |name: &str, text: &str| {
        assert_eq!(fs::read_to_string(home.path().join(name)).unwrap(), text, "{name}");
    };
    for text in ["", "<!doctype html><p>mine", "{\"traceEvents\":[]}"] {
        fs::write(home.path().join("mine"), text).unwrap();
        for flag in ["--html", "--trace"] {
            let needles = ["mine is there and is no ", "name another file, or remove it"];
            refused(home.path(), &["doctor", "run", flag, "mine"], &needles);
            is("mine", text);
        }
    }
    refused(home.path(), &["doctor", "run", "--html", "run"], &["cannot write run", "a folder"]);
    refused(home.path(), &["doctor", "run", "--html", "/dev/null"], &["/dev/null", "a device"]);
    for other in ["new", "./new", "run/../new"] {
        let both = ["doctor", "run", "--html", "new", "--trace", other];
        refused(home.path(), &both, &["--html and --trace name the same file"]);
    }
    fs::write(home.path().join("page.html.part"), "mine").unwrap();
    // A page is no trace, and the other way round.
    let written = ["doctor", "run", "--html", "page.html", "--trace", "trace.json"];
    assert_eq!(codedgrad(home.path(), &written).status.code(), Some(0));
    refused(home.path(), &["doctor", "run", "--html", "trace.json"], &["is no page"]);
    refused(home.path(), &["doctor", "run", "--trace", "page.html"], &["is no trace"]);
    assert_eq!(codedgrad(home.path(), &written).status.code(), Some(0), "they are ours");
    let nowhere = codedgrad(home.path(), &["doctor", "run", "--html", "no/page.html"]);
    assert_eq!(nowhere.status.code(), Some(1), "{}", text(&nowhere.stderr));
    let names = fs::read_dir(home.path()).unwrap().map(|it| it.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    let left = ["mine", "page.html", "page.html.part", "run", "trace.json"];
    assert_eq!(names, left, "no half is left");
    is("page.html.part", "mine");
}
