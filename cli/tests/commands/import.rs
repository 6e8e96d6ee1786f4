//! `codedgrad trace import` of long tables, JSON lines, logs and profiler traces.

use crate::program::{codedgrad, json, refused, text};
use std::fs;
use std::path::{Path, PathBuf};

fn good(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = codedgrad(folder, &[&["trace", "import"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn no(folder: &Path, arguments: &[&str], needles: &[&str]) {
    refused(folder, &[&["trace", "import"], arguments].concat(), needles);
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, lines)| fs::write(folder.path().join(name), lines).unwrap());
    folder
}

#[test]
fn lines_of_json_become_a_trace() {
    let lines = "{\"event\":\"begin\"}\n\
        {\"step\":0,\"rank\":\"b\",\"time\":{\"ms\":250}}\n\
        {\"step\":0,\"rank\":\"a\",\"time\":{\"ms\":500.0}}\n\n\
        {\"step\":10,\"rank\":\"a\",\"time\":{\"ms\":1000}}\n\
        {\"step\":10,\"rank\":\"b\",\"time\":{\"ms\":750}}\n\
        {\"step\":2,\"rank\":\"a\",\"time\":{\"ms\":1}}\n\
        {\"step\":3,\"rank\":\"a\",\"time\":{\"m";
    let home = folder(&[("log.jsonl", lines), ("plain.json", " [1]")]);
    let long = ["--long", "step,rank,time.ms", "--per-second", "1000"];
    let (trace, said) = good(home.path(), &[&["log.jsonl"], &long[..]].concat());
    assert_eq!(trace, "0.5,0.25\n1,0.75\n");
    for words in [
        "imported 2 rounds of 2 workers from lines of JSON",
        "left out: 1 round in which a worker had no time: worker b in 1 (round 2)",
        "workers: 0 = a, 1 = b",
        "rounds: 0 to 10",
        "passed over: 1 line without all of the fields",
        "line 8 of log.jsonl was cut off and is left out",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    no(
        home.path(),
        &["log.jsonl"],
        &["log.jsonl is JSON and no profiler's trace: --long step,rank,seconds"],
    );
    let fields = ["log.jsonl", "--long", "step,node,time.ms"];
    no(home.path(), &fields, &["no line has all of the fields step, node, time.ms"]);
    no(home.path(), &["log.jsonl", "--long", "step"], &["--long step: three columns are needed"]);
    let list = ["plain.json", "--long", "step,rank,ms"];
    no(home.path(), &list, &["no line has all of the fields step, rank, ms"]);
    for (time, needle) in [
        ("-2", "ms is -2, not a time"),
        ("\"fast\"", "ms is \"fast\", not a time"),
        ("1,\"rank\":null", "rank is null, not a number or a name"),
    ] {
        let line = format!("{{\"rank\":0,\"step\":0,\"ms\":{time}}}\n");
        fs::write(home.path().join("bad.jsonl"), line).unwrap();
        let bad = ["bad.jsonl", "--long", "step,rank,ms", "--out", "out.csv"];
        no(home.path(), &bad, &["bad.jsonl: line 1: ", needle]);
    }
    assert!(!home.path().join("out.csv").exists());
}

#[test]
fn logs_become_a_trace() {
    let log = "job starts\n\
        [rank 1] step 0 took 0.25 s\n[rank 0] step 0 took 0.5 s\n\
        [rank 0] step 1 took 0.5 s\n[rank 1] step 1 took 1.5 s\n";
    let own = |times: [&str; 2]| {
        times.iter().enumerate().map(|(step, time)| format!("it {step}: {time}\n")).collect()
    };
    let own: [String; 2] = [own(["1.5", "2"]), own(["3", "2.5"])];
    let home = folder(&[("log.txt", log), ("a.log", &own[0]), ("b.log", &own[1])]);
    let pattern = r"rank (?<worker>\d+)\] step (?<round>\d+) took (?<time>[\d.]+)";
    let (trace, said) = good(home.path(), &["log.txt", "--pattern", pattern]);
    assert_eq!(trace, "0.5,0.25\n0.5,1.5\n");
    assert!(said.contains("imported 2 rounds of 2 workers from the lines of logs"), "{said}");
    assert!(said.contains("passed over: 1 line that the pattern does not match"), "{said}");
    let each = ["a.log", "b.log", "--pattern", r"it (?<round>\d+): (?<time>[\d.]+)"];
    assert_eq!(good(home.path(), &each).0, "1.5,3\n2,2.5\n");
    let with = |pattern: &'static str| ["log.txt", "--pattern", pattern];
    no(home.path(), &with("(?<round>"), &["--pattern (?<round>"]);
    no(home.path(), &with(r"step (?<round>\d+)"), &["it has no group (?<time>..)"]);
    let alone = with(r"step (?<round>\d+) took (?<time>[\d.]+)");
    no(home.path(), &alone, &["it has no group (?<worker>..)", "a file of each worker"]);
    let nothing = with(r"(?<worker>stage) (?<round>\d+) (?<time>\d+)");
    no(home.path(), &nothing, &["the pattern matches no line; the first is \"job starts\""]);
    let words = with(r"(?<worker>\d)\] step (?<round>\d+) (?<time>\w+)");
    no(home.path(), &words, &["log.txt: line 2: the group time is \"took\""]);
    no(home.path(), &["a.log", "b.log"], &["2 files: one is read at a time"]);
    no(home.path(), &["a.log", "none.log", each[2], each[3]], &["cannot read none.log"]);
}

#[test]
fn a_table_of_each_worker_becomes_a_trace() {
    let home = folder(&[
        ("0.csv", "step,loss,ms\n0,4.5,500\n1,4.25,250\n"),
        ("1.csv", "step,loss,ms\n1,4.25,1000\n0,4.5,750\n2,4,1\n"),
    ]);
    let each = ["0.csv", "1.csv", "--long", "step,ms", "--per-second", "1000"];
    let (trace, said) = good(home.path(), &each);
    assert_eq!(trace, "0.5,0.75\n0.25,1\n");
    assert!(said.contains("imported 2 rounds of 2 workers from a long table"), "{said}");
    assert!(said.contains("left out: 1 round"), "{said}");
    let wrong = ["0.csv", "1.csv", "--long", "step,seconds"];
    no(home.path(), &wrong, &["no column is named \"seconds\"; the columns are step, loss, ms"]);
}

fn trace(rank: &str, computes: [f64; 2]) -> String {
    let mut events = Vec::new();
    for (step, computes) in computes.into_iter().enumerate() {
        let start = 1e6 * step as f64;
        for (name, cat, from, to) in [
            (&*format!("ProfilerStep#{step}"), "user_annotation", 0.0, 1.0),
            ("aten::mm", "cpu_op", 0.0, computes),
            ("gloo:all_reduce", "user_annotation", computes, 1.0),
        ] {
            let (ts, dur) = (start + 1e6 * from, 1e6 * (to - from));
            events.push(serde_json::json!(
                {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": "main"}
            ));
        }
    }
    let events = serde_json::to_string(&events).unwrap();
    format!("{{\"schemaVersion\":1{rank},\"traceEvents\":{events}}}")
}

#[test]
fn profiler_traces_become_a_trace() {
    let ranked = |rank: u32| format!(",\"distributedInfo\":{{\"rank\":{rank}}}");
    let home = folder(&[
        ("x.json", &trace(&ranked(1), [0.5, 0.75])),
        ("y.json", &trace(&ranked(0), [0.25, 0.5])),
        ("rank2.json", &trace("", [1.0, 0.25])),
        ("rank1.json", &trace("", [1.0, 0.25])),
        ("empty.json", "{\"traceEvents\":[]}"),
        ("list.json", "[]"),
        ("words.json", "hello"),
    ]);
    fs::write(home.path().join("z.json.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    let files = ["x.json", "y.json", "rank2.json"];
    let (trace, said) = good(home.path(), &files);
    assert_eq!(trace, "0.25,0.5,1\n0.5,0.75,0.25\n");
    assert!(said.contains("imported 2 rounds of 3 workers from profiler traces"), "{said}");
    let (_, said) = good(home.path(), &["x.json"]);
    assert!(said.contains("warning: that is one worker"), "{said}");
    let with = |file: &'static str| ["x.json", file];
    no(home.path(), &with("rank1.json"), &["x.json and rank1.json are both of rank 1"]);
    no(home.path(), &with("empty.json"), &["empty.json has no ProfilerStep#N"]);
    no(home.path(), &with("list.json"), &["list.json has no ProfilerStep#N"]);
    no(home.path(), &with("words.json"), &["words.json is no trace of a profiler"]);
    no(home.path(), &with("z.json.gz"), &["cannot read the trace z.json.gz"]);
    no(home.path(), &with("none.json"), &["cannot read the trace none.json"]);
}

/// What is imported is examined and planned with.
#[test]
fn samples_go_on_to_the_doctor_and_the_planner() {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("steps.csv");
    let out = out.to_str().unwrap();
    let logs = ["log0.txt", "log1.txt", "log2.txt", "log3.txt"];
    let pattern = ["--pattern", r"step=(?<round>\d+).*took=(?<time>[\d.]+)"];
    let logged = good(&examples, &[&logs[..], &pattern].concat()).0;
    good(&examples, &["steps.jsonl", "--long", "step,rank,time.seconds", "--out", out]);
    assert_eq!(logged, fs::read_to_string(out).unwrap());
    let found = json(&codedgrad(home.path(), &["doctor", "steps.csv", "--json"]));
    assert_eq!(found["findings"][0]["kind"], "constantly-slow-workers");
    assert_eq!(found["findings"][0]["workers"], serde_json::json!([2]));
    let plan = ["plan", "--delays", "steps.csv", "--max-delay", "0", "--json"];
    let plan = json(&codedgrad(home.path(), &plan));
    assert_eq!(plan["causes"][0]["workers"], serde_json::json!([2]));
    let profiled = ["profile_rank0.json", "profile_rank1.json"];
    let rows: Vec<f64> = good(&examples, &profiled)
        .0
        .lines()
        .map(|row| row.split(',').map(|time| time.parse::<f64>().unwrap()))
        .map(|mut row| row.next_back().unwrap() / row.next().unwrap())
        .collect();
    assert!(rows.len() == 6 && rows.iter().all(|ratio| (ratio - 1.25).abs() < 0.1), "{rows:?}");
}
