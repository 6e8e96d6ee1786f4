//! Schemes that take turns on a machine whose load changes, and what a resumed run may be told.
#![cfg(unix)]

use crate::coordinated::LAB;
use crate::processes;
use crate::program::{MODEL, codedgrad, flags, json, refused, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Steps long enough that a signal ends a run in the block for which it is meant.
static SLOW: LazyLock<Vec<&str>> = LazyLock::new(|| {
    flags(&[
        "--layers 1 --heads 2 --width 16 --context 16 --micro-batch-rows 48 --workers 4",
        "--audit-every 1000 --checkpoint-every 5",
    ])
});
/// Steps so short that there can be many.
static QUICK: LazyLock<Vec<&str>> = LazyLock::new(|| flags(&[MODEL, "--workers 4"]));
const SCHEMES: [&str; 3] = ["uncoded", "groups:s=1", "queue:m=2"];
const MODELS: [&str; 3] = ["model-0-uncoded", "model-1-groups-s-1", "model-2-queue-m-2"];

fn train(home: &Path, arguments: &[&[&str]]) -> Output {
    codedgrad(home, &[&["train"], &arguments.concat()[..]].concat())
}

fn read(home: &Path, file: &str) -> Vec<u8> {
    fs::read(home.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn read_json(home: &Path, file: &str) -> Value {
    serde_json::from_slice(&read(home, file)).unwrap()
}

/// The whole lines of a record.
fn record(home: &Path, out: &str) -> Vec<Value> {
    let text = fs::read_to_string(home.join(out).join("run.jsonl")).unwrap_or_default();
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_else(|| panic!("{key} of {line}"))
}

/// The digest and the loss of every step of every run; no step may be there twice.
fn bits(lines: &[Value]) -> BTreeMap<(u64, u64), (Value, Value)> {
    let mut bits = BTreeMap::new();
    for line in lines {
        let step = (number(line, "run"), number(line, "step"));
        let before = bits.insert(step, (line["digest"].clone(), line["loss"].clone()));
        assert_eq!(before, None, "{step:?} is there twice");
    }
    bits
}

/// Runs of a record, in their order, each with the turn, the first step and how many steps it made.
fn blocks(lines: &[Value]) -> Vec<(u64, Option<u64>, u64, usize)> {
    let place = |line: &Value| (line["turn"].as_u64(), number(line, "run"));
    let blocks = lines.chunk_by(|a, b| place(a) == place(b));
    blocks
        .map(|lines| {
            let (turn, run) = place(&lines[0]);
            (run, turn, number(&lines[0], "step"), lines.len())
        })
        .collect()
}

/// The same run on a virtual clock, where schemes run one after the other: parameters do not depend
/// on time.
fn one_after_the_other(home: &Path, arguments: &[&[&str]]) {
    let clock = ["--clock", "virtual", "--out", "ordered", "--json"];
    let summary = json(&train(home, &[&arguments.concat(), &clock]));
    assert_eq!(summary.get("speedup_low"), None);
    assert!(record(home, "ordered").iter().all(|line| line.get("turn").is_none()));
    assert_eq!(read_json(home, "ordered/plan.json").get("turns"), None);
}

/// Whether a run came to what it comes to where schemes run one after the other.
fn has_the_same_bits(home: &Path, out: &str, models: &[&str]) {
    assert!(bits(&record(home, out)) == bits(&record(home, "ordered")), "digests or losses");
    for model in models {
        let parameters = |out: &str| read(home, &format!("{out}/{model}/model.safetensors"));
        assert!(parameters(out) == parameters("ordered"), "{model} differs");
    }
}

/// The ratios of the first run's mean step time to a run's: over all turns, and turn by turn.
fn ratios(lines: &[Value], run: u64, turns: &[u64]) -> (f64, Vec<f64>) {
    let seconds = |run: u64, turns: &[u64]| -> f64 {
        lines
            .iter()
            .filter(|line| number(line, "run") == run && turns.contains(&number(line, "turn")))
            .map(|line| line["seconds"].as_f64().unwrap())
            .sum()
    };
    let of = |turns: &[u64]| seconds(0, turns) / seconds(run, turns);
    (of(turns), turns.iter().map(|turn| of(&[*turn])).collect())
}

fn is_near(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
}

/// Runs until the record has so many lines, and sends a signal then.
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn signalled(home: &Path, arguments: &[&str], signal: &str, out: &str, lines: usize) -> Output {
    let mut command = Command::new(LAB);
    command.arg("train").args(arguments).current_dir(home);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (begin, path) = (Instant::now(), home.join(out).join("run.jsonl"));
    let there = || fs::read(&path).unwrap_or_default().iter().filter(|b| **b == b'\n').count();
    while there() < lines {
        assert!(begin.elapsed() < Duration::from_secs(240), "{} of {lines} steps", there());
        std::thread::sleep(Duration::from_millis(2));
    }
    processes::signal(&child, signal);
    child.wait_with_output().unwrap()
}

#[test]
fn schemes_take_turns_and_no_bit_changes() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--steps", "35"];
    one_after_the_other(home, &[&QUICK, &plan]);
    let summary = json(&train(home, &[&QUICK, &plan, &["--out", "turns", "--json"]]));
    has_the_same_bits(home, "turns", &MODELS);
    let lines = record(home, "turns");
    let expected: Vec<_> = [(0, 0, 10), (1, 10, 10), (2, 20, 15)]
        .into_iter()
        .flat_map(|(turn, start, steps)| (0..3).map(move |run| (run, Some(turn), start, steps)))
        .collect();
    assert_eq!(blocks(&lines), expected, "the last block takes the rest");
    let found = json(&codedgrad(home, &["doctor", "--json", "turns", "--run", "1"]));
    assert!(found["effective"].is_null(), "the time between its steps is that of the others");
    for turn in 0..3 {
        let mut seconds =
            lines.iter().filter(|line| line["turn"] == turn).map(|line| &line["step_seconds"]);
        let first = seconds.next().unwrap();
        assert!(first.as_f64().unwrap() > 0.0 && seconds.all(|seconds| seconds == first));
    }
    let first = &read_json(home, "turns/plan.json")["step_seconds"];
    assert_eq!((first, first), (&lines[0]["step_seconds"], &summary["step_seconds"]));
    assert_ne!(lines[0]["step_seconds"], lines[104]["step_seconds"], "measured anew");
    // The rounds of a run go on where it stopped.
    for run in 0..3 {
        let rounds = lines.iter().filter(|line| number(line, "run") == run);
        let numbers = rounds.flat_map(|line| line["rounds"].as_array().unwrap());
        assert!(numbers.map(|round| number(round, "round")).eq(0..35), "run {run}");
    }
    let compared = lines.iter().filter(|line| number(line, "run") > 0);
    assert!(compared.clone().all(|line| line["gradient_difference"] == 0.0), "all in step");
    let (all, each) = ratios(&lines, 2, &[0, 1, 2]);
    is_near(&summary["speedup"], all);
    is_near(&summary["speedup_low"], each.iter().copied().fold(f64::INFINITY, f64::min));
    is_near(&summary["speedup_high"], each.iter().copied().fold(0.0, f64::max));
    assert_eq!(summary["complete_turns"], 3);
    for file in ["loss.svg", "steps.svg"] {
        let picture = String::from_utf8(read(home, &format!("turns/{file}"))).unwrap();
        assert!(SCHEMES.iter().all(|scheme| picture.contains(scheme)), "{file}");
    }
    let shown = train(home, &[&["--resume", "turns"]]);
    let said = text(&shown.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("over 3 turns)") && said.contains("schemes take turns, 10 steps"));
    assert!(text(&shown.stderr).contains("already finished: 35 steps; --steps M"));
    let given = ["--steps", "20", "--step-seconds", "0.004", "--out", "given", "--json"];
    json(&train(home, &[&QUICK, &given]));
    assert!(record(home, "given").iter().all(|line| line["step_seconds"] == 0.004));
}

/// Schemes over several rounds have all steps of a block decided before the next block begins.
#[test]
fn blocks_of_schemes_with_a_delay_lose_nothing() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = flags(&[
        "--scheme defer:cap=1,cut=2 --compare uncoded --models 2 --steps 40",
        "--audit-every 20 --micro-batches 8",
    ]);
    one_after_the_other(home, &[&QUICK, &plan]);
    let summary = json(&train(home, &[&QUICK, &plan, &["--out", "turns", "--json"]]));
    let models = ["model-0-uncoded-0", "model-0-uncoded-1"];
    let deferred = ["model-1-defer-cap-1-cut-2-0", "model-1-defer-cap-1-cut-2-1"];
    has_the_same_bits(home, "turns", &[models, deferred].concat());
    let found: Vec<_> = blocks(&record(home, "turns"));
    let first = [(0, Some(0), 0, 30), (1, Some(0), 0, 30)];
    assert_eq!(found, [first, [(0, Some(1), 30, 50), (1, Some(1), 30, 50)]].concat());
    for run in summary["runs"].as_array().unwrap() {
        assert_eq!((&run["steps"], &run["samples_lost"]), (&Value::from(80), &Value::from(0)));
    }
    // For one model, what is late in the last step of a block has no next step to go to.
    let plan = flags(&["--scheme defer:cap=2,cut=2 --late next-step --compare uncoded"]);
    let rest = ["--steps", "60", "--micro-batches", "8", "--out", "next", "--json"];
    let summary = json(&train(home, &[&QUICK, &plan, &rest]));
    assert_eq!(summary["complete_turns"], 2);
    let lines = record(home, "next");
    let covered: f64 = lines
        .iter()
        .filter(|line| number(line, "run") == 1)
        .map(|line| line["coverage"].as_f64().unwrap())
        .sum();
    assert!((covered - 60.0).abs() < 1e-9, "every sample counts once: {covered}");
}

/// `kill -9` in every scheme's block, between two turns and in the last one.
#[test]
fn a_killed_run_goes_on_in_its_turn() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--steps", "25"];
    one_after_the_other(home, &[&SLOW, &plan]);
    let begin = [&SLOW[..], &plan, &["--out", "cut"]].concat();
    let mut hit = Vec::new();
    for lines in [3, 14, 24, 30, 37, 52, 67] {
        let resume = ["--resume", "cut"];
        let arguments = if hit.is_empty() { &begin[..] } else { &resume };
        let killed = signalled(home, arguments, "-KILL", "cut", lines);
        assert_eq!(killed.status.code(), None, "{}", text(&killed.stderr));
        let last = record(home, "cut").pop().unwrap();
        hit.push((number(&last, "turn"), number(&last, "run")));
    }
    // Each signal comes some steps before its block ends, but the run may hear it later.
    let runs: Vec<u64> = hit.iter().map(|(_, run)| *run).collect();
    assert!((0..3).all(|run| runs.contains(&run)), "{hit:?}");
    assert!(hit.iter().any(|(turn, _)| *turn == 0) && hit.iter().any(|(turn, _)| *turn == 1));
    let summary = json(&train(home, &[&["--resume", "cut", "--json"]]));
    assert_eq!((&summary["complete_turns"], &summary["interrupted"]), (&2.into(), &false.into()));
    has_the_same_bits(home, "cut", &MODELS);
    let lines = record(home, "cut");
    let order = |turn, start, steps| (0..3).map(move |run| (run, Some(turn), start, steps));
    let expected: Vec<_> = order(0, 0, 10).chain(order(1, 10, 15)).collect();
    assert_eq!(blocks(&lines), expected);
    for turn in 0..2 {
        let of_turn = lines.iter().filter(|line| line["turn"] == turn);
        let seconds: Vec<_> = of_turn.map(|line| &line["step_seconds"]).collect();
        assert!(seconds.iter().all(|found| *found == seconds[0]), "measured once in turn {turn}");
    }
}

/// Ctrl-C in the middle of turns: what is compared is what all schemes have finished.
#[test]
fn an_interrupted_comparison_counts_whole_turns() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--steps", "25", "--fault", "nan@12:1"];
    one_after_the_other(home, &[&SLOW, &plan]);
    let begin = [&SLOW[..], &plan, &["--out", "cut", "--json"]].concat();
    let stopped = signalled(home, &begin, "-INT", "cut", 14);
    let summary: Value = serde_json::from_slice(&stopped.stdout).unwrap();
    let nothing = ["speedup", "speedup_low", "speedup_high"].map(|key| summary[key].is_null());
    assert_eq!(nothing, [true; 3], "{summary}");
    assert_eq!((&summary["interrupted"], &summary["complete_turns"]), (&true.into(), &0.into()));
    let resume = ["--resume", "cut", "--json"];
    let stopped = signalled(home, &resume, "-INT", "cut", 50);
    let summary: Value = serde_json::from_slice(&stopped.stdout).unwrap();
    let lines = record(home, "cut");
    assert!((50..75).contains(&lines.len()), "{}", lines.len());
    assert_eq!(summary["complete_turns"], 1, "{summary}");
    let (all, each) = ratios(&lines, 2, &[0]);
    is_near(&summary["speedup"], all);
    is_near(&summary["speedup_low"], each[0]);
    is_near(&summary["speedup_high"], each[0]);
    let refused = summary["faults"].as_array().unwrap();
    let of_baseline = |fault: &Value| fault["run"] == 0 && fault["step"] == 12;
    assert!(refused.iter().any(of_baseline), "{refused:?}");
    // Every step after the signal is kept, so that none is made twice.
    assert_eq!(read_json(home, "cut/summary.json"), summary);
    let summary = json(&train(home, &[&resume]));
    // A step of the second turn was refused, which is nothing to be faster by.
    assert_eq!((&summary["interrupted"], &summary["complete_turns"]), (&false.into(), &1.into()));
    has_the_same_bits(home, "cut", &MODELS);
    assert!(record(home, "cut")[..lines.len()] == lines[..], "nothing was made again");
}

/// Makes a checkpoint one of a version whose checkpoints did not say of which plan they are.
fn forget_the_plan(run: &Path) {
    let path = run.join("checkpoint.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let key = b"plan_digest";
    let at = bytes.windows(key.len()).position(|bytes| bytes == key).unwrap();
    bytes[at] = b'q';
    fs::write(path, bytes).unwrap();
}

/// A run on the wall clock that was begun before there were turns: its plan has none, and its
/// checkpoint is of one run.
#[test]
fn a_run_without_turns_goes_on_in_the_old_order() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--steps", "200", "--checkpoint-every", "9"];
    one_after_the_other(home, &[&QUICK, &plan]);
    let begin = [&QUICK[..], &plan, &["--clock", "virtual", "--out", "old", "--json"]].concat();
    signalled(home, &begin, "-KILL", "old", 230);
    let mut plan = read_json(home, "old/plan.json");
    assert_eq!((plan.get("turns"), &plan["clock"]), (None, &Value::from("virtual")));
    plan["clock"] = "wall".into();
    plan["step_seconds"] = 0.001.into();
    // Of a version whose plans and checkpoints had no digests of plans.
    plan.as_object_mut().unwrap().remove("digest");
    fs::write(home.join("old/plan.json"), plan.to_string()).unwrap();
    forget_the_plan(&home.join("old"));
    let summary = json(&train(home, &[&["--resume", "old", "--json"]]));
    assert_eq!((summary.get("speedup_low"), &summary["interrupted"]), (None, &false.into()));
    assert!(summary["speedup"].as_f64().unwrap() > 0.0);
    let lines = record(home, "old");
    let expected: Vec<_> = (0..3).map(|run| (run, None, 0, 200)).collect();
    assert_eq!(blocks(&lines), expected);
    has_the_same_bits(home, "old", &MODELS);
    let checkpoint = read(home, "old/checkpoint.safetensors");
    let header = String::from_utf8_lossy(&checkpoint[..1000]).into_owned();
    assert!(header.contains("\"parameters\"") && !header.contains("made"), "{header}");
    // A checkpoint of turns under a plan without them is of another run.
    json(&train(home, &[&QUICK, &["--steps", "20", "--out", "turns", "--json"]]));
    let mut plan = read_json(home, "turns/plan.json");
    plan.as_object_mut().unwrap().remove("turns");
    plan.as_object_mut().unwrap().remove("digest");
    fs::write(home.join("turns/plan.json"), plan.to_string()).unwrap();
    forget_the_plan(&home.join("turns"));
    refused(home, &["train", "--resume", "turns"], &["not of this plan"]);
}

#[test]
fn a_damaged_checkpoint_of_turns_leaves_the_one_before() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--steps", "20", "--checkpoint-every", "4"];
    one_after_the_other(home, &[&QUICK, &plan]);
    json(&train(home, &[&QUICK, &plan, &["--out", "cut", "--json"]]));
    for model in MODELS {
        fs::remove_dir_all(home.join("cut").join(model)).unwrap();
    }
    let whole = read(home, "cut/checkpoint.safetensors");
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(home.join("cut/checkpoint.safetensors"), &damaged).unwrap();
    let output = train(home, &[&["--resume", "cut", "--json"]]);
    json(&output);
    let said = text(&output.stderr);
    assert!(said.contains("digest") && said.contains("step 20, 20, 16 of the runs"), "{said}");
    has_the_same_bits(home, "cut", &MODELS);
    // Where each run stands is under the digest too.
    let place = b"20,20,20";
    let at = whole.windows(place.len()).position(|found| found == place).unwrap();
    let mut damaged = whole;
    damaged[at + 1] = b'1';
    fs::write(home.join("cut/checkpoint.safetensors"), &damaged).unwrap();
    let _ = fs::remove_file(home.join("cut/checkpoint.before.safetensors"));
    refused(home, &["train", "--resume", "cut"], &["digest of its place"]);
}

#[test]
fn a_resumed_run_takes_limits_and_more_steps() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--clock", "virtual", "--scheme", "groups:s=1", "--steps", "12"];
    for out in ["once", "twice"] {
        json(&train(home, &[&QUICK, &plan, &["--out", out, "--json"]]));
    }
    let (before, planned) = (read(home, "once/run.jsonl"), read_json(home, "once/plan.json"));
    let model = read(home, "once/model-0-groups-s-1/model.safetensors");
    refused(home, &["train", "--resume", "once", "--steps", "11"], &["--steps 11", "made 12"]);
    for (limit, problem) in [("--max-wait=0", "above 0 is needed"), ("--grace=-1", "0 or more")] {
        refused(home, &["train", "--resume", "once", limit], &[&limit[..7], problem]);
    }
    let taken =
        ["--steps, --workers (MIN..MAX), --max-wait, --grace", "keeps the settings in its folder"];
    for flag in ["--seed", "--width", "--micro-batches"] {
        refused(home, &["train", "--resume", "once", flag, "3"], &[&[flag], &taken[..]].concat());
    }
    refused(home, &["train", "--resume", "once", "--scheme", "uncoded"], &["--scheme", taken[1]]);
    assert_eq!(read_json(home, "once/plan.json"), planned, "what is refused changes nothing");
    let limits = flags(&["--max-wait 7 --grace 0.5 --workers 2..4 --audit-every 3"]);
    let more = ["--steps", "20", "--checkpoint-every", "4", "--json"];
    let summary = json(&train(home, &[&["--resume", "once"], &limits, &more]));
    assert_eq!(summary["runs"][0]["steps"], 20);
    let longer = read_json(home, "once/plan.json");
    for (key, value) in [
        ("steps", 20.into()),
        ("max_wait_seconds", 7.0.into()),
        ("grace_seconds", 0.5.into()),
        ("min_workers", 2.into()),
        ("audit_every", 3.into()),
        ("checkpoint_every", Value::from(4)),
    ] {
        assert_eq!(longer[key], value, "{key}");
    }
    assert_eq!(longer["optimizer"], planned["optimizer"], "the schedule stays as it was");
    assert!(read(home, "once/run.jsonl").starts_with(&before), "what is done stays done");
    let aside = read(home, "once/model-0-groups-s-1-step-12/model.safetensors");
    assert!(aside == model && aside != read(home, "once/model-0-groups-s-1/model.safetensors"));
    // The way to 20 steps does not matter.
    for steps in ["15", "20"] {
        json(&train(home, &[&["--resume", "twice", "--steps", steps, "--json"]]));
    }
    assert!(bits(&record(home, "once")) == bits(&record(home, "twice")));
    let model = "model-0-groups-s-1/model.safetensors";
    assert!(read(home, &format!("once/{model}")) == read(home, &format!("twice/{model}")));
    // A finished run says so, and stays as it is.
    let again = train(home, &[&["--resume", "once", "--json"]]);
    assert_eq!(json(&again), summary);
    assert!(text(&again.stderr).contains("already finished: 20 steps; --steps M"));
}

/// A command that is killed while it makes a run longer has renamed models and nothing else.
#[test]
fn a_run_is_made_longer_however_often_that_broke_off() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--clock", "virtual", "--scheme", "groups:s=1", "--steps", "6"];
    json(&train(home, &[&QUICK, &plan, &["--out", "run", "--json"]]));
    let model = home.join("run/model-0-groups-s-1");
    fs::rename(&model, home.join("run/model-0-groups-s-1-step-6")).unwrap();
    json(&train(home, &[&["--resume", "run", "--json"]]));
    assert!(model.exists(), "made again, from the checkpoint");
    let summary = json(&train(home, &[&["--resume", "run", "--steps", "9", "--json"]]));
    assert_eq!(summary["runs"][0]["steps"], 9);
    assert!(home.join("run/model-0-groups-s-1-step-6/model.safetensors").exists());
}

#[test]
fn turns_go_on_beyond_their_end() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plan = ["--scheme", "groups:s=1", "--compare", "uncoded", "--steps", "25"];
    json(&train(home, &[&QUICK, &plan, &["--out", "turns", "--json"]]));
    let summary = json(&train(home, &[&["--resume", "turns", "--steps", "50", "--json"]]));
    assert_eq!(summary["complete_turns"], 4);
    let lines = record(home, "turns");
    let expected: Vec<_> = [(0, 0, 10), (1, 10, 15), (2, 25, 10), (3, 35, 15)]
        .into_iter()
        .flat_map(|(turn, start, steps)| (0..2).map(move |run| (run, Some(turn), start, steps)))
        .collect();
    assert_eq!(blocks(&lines), expected);
    let compared = lines.iter().filter(|line| number(line, "run") == 1);
    assert!(compared.clone().all(|line| line["gradient_difference"] == 0.0));
    // One after the other, only the last run's optimizer is there to go on with.
    one_after_the_other(home, &[&QUICK, &plan]);
    let needles = ["--steps 30", "uncoded has ended after 25 steps", "begin a new run"];
    refused(home, &["train", "--resume", "ordered", "--steps", "30"], &needles);
    let said = text(&train(home, &[&["--resume", "ordered"]]).stderr);
    assert!(said.contains("already finished: 25 steps") && !said.contains("--steps M"), "{said}");
}
