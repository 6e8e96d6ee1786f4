//! `codedgrad doctor` as its users meet it.

use crate::program::{codedgrad, json, refused, text};
use crate::serving;
use codedgrad::ids::Worker;
use codedgrad::train::{Aggregator, Event};
use codedgrad::transport::RunFacts;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const RUNS: [&str; 4] = ["static_uncoded", "static_groups", "made_up_uncoded", "made_up_groups"];
/// As many lines as are printed, on a terminal of so many columns.
const LINES_MOST: usize = 40;
const COLUMNS: usize = 80;

fn record(run: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doctor");
    fs::read_to_string(folder.join(format!("{run}.jsonl"))).unwrap()
}

/// A folder with the folders of the runs.
fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    for run in RUNS {
        fs::create_dir(home.path().join(run)).unwrap();
        fs::write(home.path().join(run).join("run.jsonl"), record(run)).unwrap();
    }
    home
}

fn examined(home: &Path, arguments: &[&str]) -> Value {
    json(&codedgrad(home, &[&["doctor", "--json"], arguments].concat()))
}

fn on_a_terminal(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    let columns = COLUMNS.to_string();
    command.arg("doctor").args(arguments).current_dir(home).env("COLUMNS", columns);
    command.output().unwrap()
}

fn kinds(found: &Value) -> Vec<&str> {
    let findings = found["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect()
}

/// The writer of a record says neither what is opened here nor what a terminal does.
#[test]
fn a_record_opens_no_file_and_moves_no_cursor() {
    let home = home();
    let pipe = home.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::create_dir(home.path().join("evil")).unwrap();
    // A process that opens a pipe without a writer waits for ever.
    for scheme in [format!("matrix:{}", pipe.display()), "x\u{1b}[31m\u{9b}2J\u{202e}".into()] {
        let lines = record("static_uncoded");
        let renamed = lines.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line["scheme"] = scheme.clone().into();
            line.to_string() + "\n"
        });
        fs::write(home.path().join("evil/run.jsonl"), renamed.collect::<String>()).unwrap();
        let by_record = &["trace", "record", "evil"][..];
        let plans = ["plan", "--delays", "evil", "--max-delay", "0"];
        let looks = [&["doctor", "evil"][..], &["doctor", "evil", "--plan"]];
        for arguments in looks.into_iter().chain([by_record, &plans, &["doctor", "evil", "--json"]])
        {
            let output = codedgrad(home.path(), arguments);
            let said = text(&output.stdout) + &text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
            let strange = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
            assert!(!said.contains(strange), "{arguments:?}: {said:?}");
        }
        let found = examined(home.path(), &["evil"]);
        assert_eq!(found["scheme"], scheme, "JSON has it as it is");
    }
}

/// How long a unit takes, and from when on it takes one worker twice as long: on a busy machine
/// others are half as long again.
const UNIT: Duration = Duration::from_millis(12);
const SLOW: Worker = Worker(2);
const SINCE: u64 = 40;

/// A trainer whose gradients are ones.
fn train(mut aggregator: Aggregator) {
    let gets_slow = aggregator.worker() == Some(SLOW);
    while let Some(event) = aggregator.next_event().unwrap() {
        match event {
            Event::Compute(mut task) => {
                let is_slow = gets_slow && task.step() >= SINCE;
                while task.next_part().is_some() {
                    thread::sleep(if is_slow { UNIT * 2 } else { UNIT });
                    task.message().fill(1.0);
                }
                task.submit(vec![]).unwrap();
            }
            Event::Provide(request) => request.reply(vec![vec![0.0; 2]]),
            Event::Apply(_) | Event::Skip(_) | Event::Resync(_) => {}
        }
    }
}

/// A run of four workers, one of which gets slow.
fn run(home: &Path, out: &str, scheme: &str) {
    let flags = ["--workers", "4", "--scheme", scheme];
    let (mut serving, address, security) = serving::serve(home, out, &flags);
    let facts = RunFacts {
        length: Some(2),
        units: Some(8),
        steps: Some(120),
        dtype: Some("f32".into()),
        layout: Some(7),
        ..RunFacts::default()
    };
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let joining =
                Aggregator::join(&address).security(security.clone()).facts(facts.clone());
            let aggregator = joining.worker(worker).unit_samples(1);
            thread::spawn(move || train(aggregator.connect().unwrap()))
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(serving.ends(), Some(0), "{}", serving.said());
}

/// One of four workers gets slow in a run whose code does without it. No round waits for it, and
/// the doctor names it all the same, by what it reports of its work. What the plan says of that run
/// is how long it takes without a code.
#[test]
fn a_worker_that_gets_slow_behind_a_code_is_named() {
    let home = tempfile::tempdir().unwrap();
    run(home.path(), "run", "groups:s=1");
    let found = examined(home.path(), &["run"]);
    let since =
        found["findings"].as_array().unwrap().iter().find(|it| it["kind"] == "slower-since");
    let since = since.unwrap_or_else(|| panic!("no change is found: {}", found["findings"]));
    assert_eq!(since["workers"], serde_json::json!([SLOW.0]));
    assert!(since["since"].as_u64().unwrap().abs_diff(SINCE) <= 40, "{since}");
    assert_eq!(found["of_workers"][SLOW.index()]["because"], "computing", "{found}");

    run(home.path(), "uncoded", "uncoded");
    let steps = fs::read_to_string(home.path().join("uncoded/run.jsonl")).unwrap();
    let steps: Vec<Value> = steps.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seconds: f64 = steps.iter().map(|step| step["seconds"].as_f64().unwrap()).sum();
    let measured = seconds / steps.len() as f64;
    let plan = &examined(home.path(), &["run", "--plan"])["plan"];
    let predicted = plan["baseline"].as_f64().unwrap();
    println!("uncoded: {predicted:.4} s a step by the plan, {measured:.4} s measured");
    // The goal is a tenth; a busy machine is no reason to fail.
    assert!((0.5..2.0).contains(&(predicted / measured)), "{predicted} s, {measured} s: {plan}");
}

/// `plan` and `simulate` take a run's times as recorded at the load of its scheme, as `doctor
/// --plan` does.
#[test]
fn a_run_is_planned_with_as_the_doctor_says() {
    let home = home();
    for run in RUNS {
        let by_doctor = &examined(home.path(), &[run, "--plan"])["plan"];
        let asked = ["plan", "--max-delay", "0", "--json", "--delays", run];
        let plan = json(&codedgrad(home.path(), &asked));
        for key in ["baseline", "recommended", "growth", "gain"] {
            assert_eq!(plan[key], by_doctor[key], "{run}: {key}");
        }
        let load = if run.ends_with("groups") { 0.25 } else { 0.125 };
        assert_eq!(plan["growth"]["base_load"], load, "{run}");
        let (rounds, scheme) = (plan["jobs"].to_string(), plan["recommended"].as_str().unwrap());
        let asked = ["simulate", scheme, "--delays", run, "--jobs", &rounds, "--json"];
        let replayed = json(&codedgrad(home.path(), &asked));
        let of_plan = plan["candidates"].as_array().unwrap().iter();
        let of_plan = of_plan.clone().find(|it| it["scheme"] == scheme).unwrap();
        let times = [&replayed, of_plan].map(|it| it["time_per_job"].as_f64().unwrap());
        assert!((times[0] - times[1]).abs() < 1e-9, "{run}: {times:?}");
    }
    let asked = ["plan", "--delays", "made_up_groups", "--base-load", "0.25"];
    let said = codedgrad(home.path(), &asked);
    let (said, warned) = (text(&said.stdout), text(&said.stderr));
    assert!(said.contains("Times grow in proportion to the load, recorded at load 1/4"), "{said}");
    assert!(!warned.contains("give --base-load"), "{warned}");
}

#[test]
fn a_run_is_told_in_at_most_40_lines() {
    let home = home();
    for run in RUNS {
        let output = on_a_terminal(home.path(), &[run, "--plan"]);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(said.lines().count() <= LINES_MOST, "{said}");
        let command = |line: &&str| line.starts_with("  try: ");
        let wide = said.lines().filter(|line| !command(line) && line.chars().count() > COLUMNS);
        assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new(), "{said}");
    }
    let said = text(&on_a_terminal(home.path(), &["made_up_uncoded"]).stdout);
    for words in [
        "made_up_uncoded, run 0, uncoded: 120 steps of 8 workers in 150.5 s",
        "40.0 %: 60.0 % of the wall time went into steps; the longest gap is 100.0 s",
        "9.4 %: worker 5 has computed 1.30 times as long since step 60 (1:10).\n  try: codedgrad \
         doctor made_up_uncoded --from 60 --plan\n",
        "computing            123.932  82.3 %  until a round's first answer\n",
        "Rounds took 1.17 times as long as their median answers; worker 5 explains 63.8 %",
        "2        1.064       0       59       0     1.000      0.082  2.2 %  elsewhere\n",
    ] {
        assert!(said.contains(words), "{words}\n{said}");
    }
}

#[test]
fn json_has_every_key() {
    let home = home();
    let found = examined(home.path(), &["made_up_groups"]);
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    let expected = [
        "cautions",
        "changes",
        "checkpoints",
        "effective",
        "estimated",
        "events",
        "findings",
        "mfu",
        "names",
        "not_seen",
        "of_workers",
        "plan",
        "reason",
        "replay_error",
        "replayed",
        "rounds",
        "run",
        "scheme",
        "slow_rounds",
        "slowdown",
        "steps",
        "time",
        "workers",
        "worst_workers",
    ];
    let mut keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(
        kinds(&found),
        ["lost-time", "slow-rounds", "slightly-slow-workers", "slower-since"]
    );
    let slower = &found["findings"][3];
    assert_eq!((slower["since"].as_u64(), slower["workers"][0].as_u64()), (Some(60), Some(5)));
    assert_eq!(slower["try"], "codedgrad doctor made_up_groups --from 60 --plan");
    assert_eq!(found["of_workers"][2]["because"], "elsewhere");
    assert_eq!(found["time"].as_object().unwrap().len(), 5);
    assert_eq!((&found["plan"], &found["mfu"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_trace_is_a_run_that_waits_for_everybody() {
    let home = tempfile::tempdir().unwrap();
    let row = |round: usize| format!("1,1.01,{},1\n", if round < 50 { 1.0 } else { 1.6 });
    fs::write(home.path().join("mine.csv"), (0..100).map(row).collect::<String>()).unwrap();
    let found = examined(home.path(), &["mine.csv", "--plan"]);
    assert_eq!((found["scheme"].as_str(), &found["run"]), (Some("uncoded"), &Value::Null));
    assert_eq!(found["rounds"], 100);
    assert!(kinds(&found).contains(&"slower-since"), "{found}");
    assert!(found["plan"]["candidates"].as_array().unwrap().len() > 3);
    let other = kinds(&found).iter().position(|kind| *kind == "other-scheme").unwrap();
    let scheme = found["plan"]["recommended"].as_str().unwrap();
    let command = found["findings"][other]["try"].as_str().unwrap();
    assert!(command.starts_with(&format!("codedgrad simulate {scheme} --delays mine.csv")));
    // What is advised can be done.
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(codedgrad(home.path(), &words).status.code(), Some(0), "{command}");
    fs::write(home.path().join("calm.csv"), "1,1.01,1\n1,1,1.01\n1.01,1,1\n").unwrap();
    let calm = text(&codedgrad(home.path(), &["doctor", "calm.csv"]).stdout);
    assert!(calm.contains("Nothing is wrong that the record shows.\n"), "{calm}");
    assert!(calm.contains("calm.csv, as uncoded: 3 steps of 3 workers in 3.0 s"), "{calm}");
}

#[test]
fn a_run_under_way_and_its_folder_are_read() {
    let home = tempfile::tempdir().unwrap();
    let run = home.path().join("run");
    fs::create_dir(&run).unwrap();
    let whole = record("made_up_uncoded");
    let lines: Vec<&str> = whole.lines().collect();
    let cut = lines[..100].join("\n") + "\n" + &lines[100][..200];
    fs::write(run.join("run.jsonl"), cut).unwrap();
    let events = [
        r#"{"at": 1700000099.5, "run": 0, "step": 90, "worker": 3, "kind": "lost"}"#,
        r#"{"at": 1700000150.5, "run": 0, "step": 90, "worker": 3, "kind": "join"}"#,
        r#"{"at": 1700000150.5, "run": 1, "step": 90, "worker": 4, "kind": "lost", "what": "x"}"#,
        r#"{"at": 1700000150.5, "run": 0, "step": 90, "kin"#,
    ];
    fs::write(run.join("events.jsonl"), events.join("\n")).unwrap();
    fs::write(run.join("summary.json"), r#"{"runs": [{"scheme": "uncoded", "mfu": 0.25}]}"#)
        .unwrap();
    let output = codedgrad(home.path(), &["doctor", "run", "--json"]);
    let said = text(&output.stderr);
    assert!(said.contains("line 101 of run/run.jsonl was cut off"), "{said}");
    assert!(said.contains("line 4 of run/events.jsonl was cut off"), "{said}");
    let found = json(&output);
    assert_eq!((found["steps"].as_u64(), found["mfu"].as_f64()), (Some(100), Some(0.25)));
    assert_eq!(found["events"], serde_json::json!({"join": 1, "lost": 1}));
}

#[test]
fn parts_of_runs_are_looked_at() {
    let home = tempfile::tempdir().unwrap();
    let second = record("static_groups").replace("\"run\":0", "\"run\":1");
    fs::write(home.path().join("both.jsonl"), record("static_uncoded") + &second).unwrap();
    let found = examined(home.path(), &["both.jsonl", "--run", "1", "--from", "10", "--to", "19"]);
    assert_eq!((found["run"].as_u64(), found["steps"].as_u64()), (Some(1), Some(10)));
    assert_eq!(
        (found["scheme"].as_str(), kinds(&found)[0]),
        (Some("groups:s=1"), "constantly-slow-workers")
    );
    let advised = "codedgrad doctor both.jsonl --run 1 --from 10 --to 19 --plan";
    assert_eq!(found["findings"][0]["try"], advised);
    let one = examined(home.path(), &["both.jsonl", "--from", "29"]);
    assert_eq!((one["steps"].as_u64(), &one["slowdown"]), (Some(1), &Value::Null));
    assert!(
        one["reason"].as_str().unwrap().contains("too few rounds to compare workers: 1,"),
        "{one}"
    );
}

#[test]
fn what_cannot_be_examined_is_named() {
    let home = home();
    let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
    let no = |arguments: &[&str], needles: &[&str]| {
        refused(home.path(), &[&["doctor"], arguments].concat(), needles);
    };
    no(&["absent"], &["absent: no such file; expected the folder of a run, its run.jsonl"]);
    fs::create_dir(home.path().join("empty")).unwrap();
    no(&["empty"], &["cannot read the record empty/run.jsonl"]);
    no(&["."], &[". is a folder of runs, not of one: there are runs in it", "made_up_groups"]);
    write("nothing.jsonl", "");
    no(&["nothing.jsonl"], &["nothing.jsonl holds no step at all"]);
    no(&["static_groups", "--run", "2"], &["run 2", "holds the runs 0 (groups:s=1)"]);
    no(&["static_groups", "--from", "30"], &["from 30 to 29", "holds steps 0 to 29"]);
    no(&["static_groups", "--from", "9", "--to", "8"], &["--from 9 is after --to 8"]);
    write("mine.csv", "1,2\n1,x\n");
    no(&["mine.csv"], &["mine.csv: line 2, column 2: \"x\""]);
    write("mine.csv", "1,2\n1,2\n");
    no(&["mine.csv", "--run", "0"], &["--run 0: mine.csv is no record of runs"]);
    let good = record("static_groups");
    let lines: Vec<&str> = good.lines().collect();
    for (line, needle) in [
        ("{\"step\":1}", "line 2: not a step of a training run: missing field `committed`"),
        ("hello", "line 2: not a step of a training run: expected value"),
        (&*lines[1].replace("\"opened\":2", "\"opened\":-2"), "line 2: opened: -2.002"),
        (
            &*lines[1].replace("\"arrivals\":[", "\"arrivals\":[1.0,"),
            "line 2: round 1 has arrivals of 9 workers, where 8",
        ),
        (&*lines[1].replace("\"seconds\":2", "\"seconds\":1e999"), "line 2: not a step"),
    ] {
        write("bad.jsonl", &format!("{}\n{line}\n{}\n", lines[0], lines[2]));
        no(&["bad.jsonl"], &["bad.jsonl: ", needle]);
    }
}

#[test]
fn what_is_odd_is_warned_of() {
    let home = home();
    let lines = record("made_up_uncoded");
    let lines = lines.replacen("[0,0,1.012882,1.0,1.023351]", "[0,12,1.0,1.0,1.0]", 1);
    let lines = lines.replacen("\"at\":1700000002.217017", "\"at\":1600000000.0", 1);
    fs::write(home.path().join("odd.jsonl"), lines).unwrap();
    let output = codedgrad(home.path(), &["doctor", "odd.jsonl", "--json"]);
    let said = text(&output.stderr);
    assert!(said.contains("warning: 1 reports of work are left out"), "{said}");
    assert!(said.contains("warning: the time stamp of step 1 is before"), "{said}");
    assert_eq!(json(&output)["effective"], Value::Null);
    // Nothing can be planned where answers tell no times; everything else is there.
    let queue = record("made_up_uncoded").replace("\"uncoded\"", "\"queue:m=16\"");
    fs::write(home.path().join("queue.jsonl"), queue).unwrap();
    let output = codedgrad(home.path(), &["doctor", "queue.jsonl", "--plan", "--json"]);
    assert!(text(&output.stderr).contains("warning: there is nothing to plan with"));
    let found = json(&output);
    assert_eq!((&found["plan"], kinds(&found)), (&Value::Null, vec!["lost-time"]));
    assert_eq!(found["of_workers"][5]["ratio"], Value::Null);
}

/// Reports make a trace of a coded run: fewer of its numbers are estimates.
#[test]
fn a_trace_of_a_coded_run_has_what_workers_report() {
    let home = home();
    let output = codedgrad(home.path(), &["trace", "record", "made_up_groups"]);
    let said = text(&output.stderr);
    assert!(said.contains("censored: 2 answers (0.2 %)"), "{said}");
    let output = codedgrad(home.path(), &["trace", "record", "static_groups"]);
    assert!(text(&output.stderr).contains("censored: 76 answers"), "{}", text(&output.stderr));
}

#[test]
fn samples_are_what_is_said_of_them() {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let found = examined(&examples, &["slow_worker.csv"]);
    assert_eq!(kinds(&found), ["slower-since", "slightly-slow-workers"]);
    let workers = |at: usize| found["findings"][at]["workers"][0].as_u64();
    assert_eq!((workers(0), workers(1)), (Some(5), Some(2)));
    assert!(found["findings"][0]["since"].as_u64().unwrap().abs_diff(90) <= 3);
}

#[test]
fn what_is_not_known_is_not_called_right() {
    let home = home();
    let queue = record("static_uncoded").replace("\"uncoded\"", "\"queue:m=16\"");
    fs::write(home.path().join("queue.jsonl"), queue).unwrap();
    let output = codedgrad(home.path(), &["doctor", "queue.jsonl"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Which workers are slow is not known under queue"), "{said}");
    assert!(!said.contains("Nothing is wrong"), "{said}");
}

#[test]
fn a_plan_is_proposed_where_most_of_the_time_is_waiting() {
    let home = home();
    let rows: String = (0..40)
        .map(|round| {
            let late = |worker: usize| if round % 4 == worker { "0.5" } else { "0.1" };
            (0..4).map(late).collect::<Vec<_>>().join(",") + "\n"
        })
        .collect();
    fs::write(home.path().join("late.csv"), rows).unwrap();
    let output = codedgrad(home.path(), &["doctor", "late.csv"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("try: codedgrad doctor late.csv --plan"), "{said}");
}
