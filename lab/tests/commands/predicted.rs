//! What the simulator foretells of a run is what the trainer writes down, in every round and to the
//! last digit.

use crate::program::{self, MODEL, codedgrad, flags, json, text};
use codedgrad::codes::SchemeSpec;
use codedgrad::delays::{DelayRows, Unit};
use codedgrad::ids::{Step, Worker};
use codedgrad::run::{Jobs, Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings, VirtualClock};
use codedgrad::sim::{DecodedStep, EngineOutcome, EngineRound, over_engine};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A run as `train` and `simulate --rules trainer` are told of it.
#[derive(Clone, Copy)]
struct Case {
    scheme: &'static str,
    workers: usize,
    micro_batches: u32,
    jobs: u64,
    models: u64,
    micro_steps: u64,
    delays: &'static str,
    mu: f64,
    grace: f64,
    step_seconds: f64,
}

/// Of a scheme on the preset `bursts`.
fn case(scheme: &'static str, micro_batches: u32) -> Case {
    Case {
        scheme,
        workers: 8,
        micro_batches,
        jobs: 24,
        models: 1,
        micro_steps: 1,
        delays: "bursts",
        mu: 1.0,
        grace: 0.0,
        step_seconds: 1.0,
    }
}

impl Case {
    /// The flags that both commands have.
    fn flags(&self) -> Vec<String> {
        let flags = [
            ("--workers", self.workers.to_string()),
            ("--micro-batches", self.micro_batches.to_string()),
            ("--models", self.models.to_string()),
            ("--accumulate", self.micro_steps.to_string()),
            ("--delays", self.delays.to_owned()),
            ("--mu", self.mu.to_string()),
            ("--grace", self.grace.to_string()),
        ];
        flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Trains for real, and gives the lines of the record.
    fn train(&self, folder: &Path) -> Vec<Value> {
        let steps = (self.jobs / self.models / self.micro_steps).to_string();
        let seconds = self.step_seconds.to_string();
        let own = ["--scheme", self.scheme, "--steps", &steps, "--step-seconds", &seconds];
        let own = [&own[..], &["--out", "run", "--force"]].concat();
        let told = self.flags();
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        let small = flags(&["train --clock virtual --json", MODEL]);
        json(&codedgrad(folder, &[&small[..], &own, &told].concat()));
        let record = fs::read_to_string(folder.join("run/run.jsonl")).unwrap();
        record.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the command foretells.
    fn command(&self, folder: &Path) -> Value {
        let jobs = self.jobs.to_string();
        let slope = (self.step_seconds * self.workers as f64).to_string();
        let own = ["simulate", self.scheme, "--rules", "trainer", "--jobs", &jobs, "--json"];
        let own = [&own[..], &["--slope", &slope]].concat();
        let told = self.flags();
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        json(&codedgrad(folder, &[&own[..], &told].concat()))
    }

    /// What the library foretells, round by round.
    fn predict(&self, folder: &Path) -> (Vec<EngineRound>, EngineOutcome) {
        let shape = Shape::new(self.workers, self.micro_batches);
        let spec: SchemeSpec = self.scheme.parse().unwrap();
        let scheme = spec.scheme(shape.workers, shape.units, 0..self.jobs).unwrap();
        let config = RunConfig {
            jobs: Jobs { models: self.models, micro_steps: self.micro_steps },
            limits: Limits { mu: self.mu, grace_seconds: self.grace, ..Limits::default() },
            ..RunConfig::new(shape, 1, self.jobs / self.micro_steps)
        };
        let engine = Engine::new(scheme, config, Settings::default()).unwrap();
        let file = folder.join(self.delays);
        let name = if file.exists() { file.to_str().unwrap() } else { self.delays };
        let mut rows = DelayRows::open(name, Some(self.workers), 1).unwrap();
        let unit: Unit = rows.unit();
        let mut lateness =
            || rows.next().unwrap().map(|row| unit.lateness(row, self.workers, self.step_seconds));
        let clock = VirtualClock { step_seconds: self.step_seconds };
        let mut rounds = Vec::new();
        let outcome =
            over_engine(engine, clock, &mut lateness, &mut |round| rounds.push(round.clone()));
        (rounds, outcome.unwrap())
    }
}

/// The steps that rounds come to, as the record has them.
fn recorded(rounds: &[EngineRound], workers: usize) -> Vec<Value> {
    let mut decoded: BTreeMap<Step, &DecodedStep> = BTreeMap::new();
    let (mut since, mut steps) = (Vec::new(), Vec::new());
    for round in rounds {
        let report = &round.report;
        since.push(json!({
            "round": report.round.0,
            "opened": report.opened_at,
            "seconds": report.closed_at - report.opened_at,
            "arrivals": report.arrivals,
            "erased": report.erased,
            "work": report.work,
        }));
        decoded.extend(round.decoded.iter().map(|decoded| (decoded.step, decoded)));
        for step in &round.committed {
            let decoded = decoded.remove(step).expect("a step is decoded before it is committed");
            let survivors: Vec<Worker> = decoded.survivors(workers).iter().collect();
            steps.push(json!({
                "step": step.0,
                "committed": report.closed_at,
                "rounds": std::mem::take(&mut since),
                "survivors": survivors,
                "weights": decoded.weights(workers),
                "residual": decoded.decode.residual,
                "amplification": decoded.decode.amplification,
                "coverage": decoded.decode.coverage,
                "error": decoded.decode.error,
            }));
        }
    }
    assert!(decoded.is_empty() && since.is_empty(), "the last round commits the last step");
    steps
}

/// What is compared of a line of the record.
fn compared(line: &Value) -> Value {
    let mut rounds = line["rounds"].clone();
    for round in rounds.as_array_mut().unwrap() {
        // Those of the preset, which both begin with.
        round.as_object_mut().unwrap().remove("delays").unwrap();
    }
    let keys = ["step", "committed", "survivors", "weights", "residual", "amplification"];
    let mut kept = json!({ "rounds": rounds });
    for key in keys.iter().chain(&["coverage", "error"]) {
        kept[key] = line[key].clone();
    }
    kept
}

/// What was read as it was written: a number may change its last bit on the way.
fn read(value: &Value) -> Value {
    serde_json::from_str(&value.to_string()).unwrap()
}

/// Trains, foretells and compares; gives the rounds and what they come to.
fn agree(folder: &Path, case: Case) -> (Vec<EngineRound>, EngineOutcome) {
    let trained = case.train(folder);
    let (rounds, outcome) = case.predict(folder);
    let predicted = recorded(&rounds, case.workers);
    assert_eq!(trained.len() as u64 * case.micro_steps, case.jobs, "{}", case.scheme);
    assert_eq!(predicted.len(), trained.len(), "{}", case.scheme);
    for (predicted, trained) in predicted.iter().zip(&trained) {
        let (predicted, trained) = (read(predicted), compared(trained));
        assert_eq!(predicted, trained, "{} at step {}", case.scheme, trained["step"]);
    }
    let command = case.command(folder);
    let last = trained.last().unwrap();
    assert_eq!(command["total_time"], last["committed"], "{}", case.scheme);
    assert_eq!(command["rounds"].as_u64(), Some(rounds.len() as u64), "{}", case.scheme);
    let finish = command["job_finish_time"].as_array().unwrap();
    assert_eq!(finish.len() as u64, case.jobs);
    let committed = trained.iter().map(|line| &line["committed"]);
    assert!(finish.iter().step_by(case.micro_steps as usize).eq(committed), "{}", case.scheme);
    (rounds, outcome)
}

/// Whether some round closed without a worker: else the comparison says little.
fn somebody_was_missing(rounds: &[EngineRound]) -> bool {
    rounds.iter().any(|round| !round.missing.is_empty())
}

#[test]
fn one_round_codes_are_trained_as_foretold() {
    let folder = tempfile::tempdir().unwrap();
    for (scheme, micro_batches) in [
        ("groups:s=1", 8),
        ("groups:l=3,rescale", 12),
        ("min-load:s=3", 8),
        ("cyclic:s=2", 8),
        ("graph:d=3,err=0.2", 8),
        ("drop:b=2", 8),
    ] {
        let (rounds, _) = agree(folder.path(), case(scheme, micro_batches));
        assert!(somebody_was_missing(&rounds), "{scheme}");
    }
    let (rounds, outcome) = agree(folder.path(), case("uncoded", 16));
    assert!(!somebody_was_missing(&rounds));
    assert_eq!((outcome.work, outcome.late_counted), (1.0, 0));
}

#[test]
fn votes_and_grace_are_foretold() {
    let folder = tempfile::tempdir().unwrap();
    let vote = Case { workers: 12, ..case("vote:s=1,b=1", 12) };
    assert!(somebody_was_missing(&agree(folder.path(), vote).0));
    let hasty = case("drop:b=2", 8);
    let patient = Case { grace: 0.75, ..hasty };
    let times = [hasty, patient].map(|case| agree(folder.path(), case).1.total_time);
    assert!(times[0] < times[1], "grace is waited for: {times:?}");
}

#[test]
fn feedback_is_foretold() {
    let folder = tempfile::tempdir().unwrap();
    for case in [
        case("queue:m=2", 16),
        case("ring:reach=4", 8),
        Case { models: 2, ..case("defer:T=1,cap=2,cut=2", 16) },
        Case { micro_steps: 4, ..case("defer:T=1,cap=2,cut=2", 16) },
    ] {
        let (rounds, outcome) = agree(folder.path(), case);
        assert!(somebody_was_missing(&rounds), "{}", case.scheme);
        assert_eq!(outcome.late_counted, 0);
    }
}

/// With late answers that count, which the simulator throws away.
#[test]
fn codes_over_rounds_are_trained_as_foretold() {
    let folder = tempfile::tempdir().unwrap();
    let mut late = 0;
    for case in [
        Case { models: 2, jobs: 60, ..case("m-sgc:B=1,W=2,lambda=3", 40) },
        Case { models: 2, jobs: 60, mu: 0.25, ..case("m-sgc:B=1,W=2,lambda=8", 16) },
        Case { models: 3, ..case("m-sgc:B=1,W=3,lambda=1,rep", 48) },
        Case { micro_steps: 4, ..case("m-sgc:B=1,W=2,lambda=3", 40) },
        Case { models: 2, jobs: 60, ..case("sr-sgc:B=1,W=2,lambda=4", 8) },
        Case { micro_steps: 6, mu: 0.25, ..case("sr-sgc:B=1,W=2,lambda=4", 8) },
    ] {
        let (rounds, outcome) = agree(folder.path(), case);
        assert!(somebody_was_missing(&rounds), "{}", case.scheme);
        late += outcome.late_counted;
        let shown: usize = rounds.iter().map(|round| round.late.len()).sum();
        assert_eq!(shown, outcome.late_counted);
    }
    assert!(late > 20, "only {late} late answers counted");
}

#[test]
fn files_and_other_step_times_are_foretold() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = DelayRows::open("serverless", Some(8), 5).unwrap().take(9);
    let line = |row: Vec<f64>| row.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
    let lines: Vec<String> = drawn.map(|row| line(row.unwrap())).collect();
    fs::write(folder.path().join("rows.csv"), lines.join("\n")).unwrap();
    for case in [
        Case { delays: "rows.csv", step_seconds: 0.3, ..case("groups:s=1", 8) },
        Case { delays: "rows.csv", step_seconds: 2.5, ..case("queue:m=2", 16) },
        Case { delays: "hotspot", step_seconds: 0.7, ..case("ring:reach=3", 8) },
        Case { delays: "serverless", models: 2, ..case("m-sgc:B=1,W=2,lambda=3", 40) },
    ] {
        agree(folder.path(), case);
    }
}

/// By its own rules, `simulate` takes an uncoded run's record for what it is: codes of one round
/// and schemes with feedback take the times that they are trained in. Codes over rounds never take
/// less than that: late answers are thrown away.
#[test]
fn the_simulators_own_rules_are_the_safe_side() {
    let folder = tempfile::tempdir().unwrap();
    let run = Case { jobs: 70, ..case("uncoded", 8) };
    run.train(folder.path());
    let recorded = codedgrad(folder.path(), &["trace", "record", "run", "--out", "rows.csv"]);
    assert_eq!(recorded.status.code(), Some(0), "{}", text(&recorded.stderr));
    let mut faster = 0;
    for (scheme, micro_batches, models) in [
        ("uncoded", 8, 1),
        ("groups:s=1", 8, 1),
        ("min-load:s=3", 8, 1),
        ("queue:m=2", 16, 1),
        ("ring:reach=4", 8, 1),
        ("defer:T=1,cap=2,cut=2", 16, 2),
        ("m-sgc:B=1,W=2,lambda=3", 40, 2),
        ("sr-sgc:B=1,W=2,lambda=4", 8, 2),
    ] {
        // A step of 1 s on 8 workers; written down, some answers take a little less.
        let load = ["--base-load", "0.125", "--slope", "7.9999999999"];
        let own = ["simulate", scheme, "--delays", "rows.csv", "--jobs", "60", "--json"];
        let simulated = json(&codedgrad(folder.path(), &[&own[..], &load].concat()));
        let case = Case { delays: "rows.csv", jobs: 60, models, ..case(scheme, micro_batches) };
        let trained = case.command(folder.path());
        let total = |shown: &Value| shown["total_time"].as_f64().unwrap();
        let found = total(&trained) / total(&simulated);
        if scheme.contains("sgc") {
            assert!(found < 1.0 + 1e-9, "{scheme}: {found}");
            faster += u32::from(found < 0.95);
        } else {
            assert!((found - 1.0).abs() < 1e-9, "{scheme}: {found}");
        }
    }
    assert!(faster > 0, "late answers save nothing");
}

#[test]
fn options_that_make_no_sense_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |own: &[&str], needles: &[&str]| {
        let told = ["simulate", "groups:s=1", "--delays", "bursts", "--jobs", "12"];
        let output = program::refused(folder.path(), &[&told[..], own].concat(), needles);
        assert!(output.stdout.is_empty(), "{own:?}");
    };
    for (flags, why) in [
        (&["--close", "all"][..], "the engine closes a round as soon as it can decode"),
        (&["--accept", "model"], "training always closes a round by look-ahead"),
        (&["--accept", "lookahead"], "training always closes a round by look-ahead"),
        (&["--dispatch", "0"], "a pull costs nothing"),
        (&["--base-load", "0.125"], "the trainer computes a load L in L x --slope"),
    ] {
        let said = format!("{} is not for --rules trainer: ", flags[0]);
        refused(&[&["--rules", "trainer"], flags].concat(), &[&said, why]);
    }
    let no_steps = "--jobs 12 is no multiple of --accumulate 5: train ends with whole steps";
    refused(&["--rules", "trainer", "--accumulate", "5"], &[no_steps]);
    let no_models = "--jobs 12 is no multiple of --models 8";
    refused(&["--rules", "trainer", "--models", "8"], &[no_models]);
    refused(&["--rules", "trainer", "--slope", "0"], &["--slope 0: a number above 0"]);
    for flag in ["--models", "--accumulate", "--micro-batches", "--grace", "--max-wait"] {
        refused(&[flag, "2"], &["is for --rules trainer alone"]);
    }
}

/// What a run of `train` would be refused for, this is, and in the same words.
#[test]
fn what_no_run_can_do_is_not_foretold() {
    let folder = tempfile::tempdir().unwrap();
    for (scheme, flags, needles) in [
        ("m-sgc:B=1,W=2,lambda=3", "--micro-batches 40", &["needs --models 2 or more"][..]),
        ("groups:s=1", "--micro-batches 2", &["needs --micro-batches 4 or more"]),
        ("groups:s=1", "--models 2 --accumulate 2", &["2 models with 2 batches per step"]),
    ] {
        let own = flags.split(' ').collect::<Vec<_>>();
        let train = [&["train", "--clock", "virtual", "--scheme", scheme][..], &own].concat();
        program::refused(folder.path(), &train, needles);
        let told = ["simulate", scheme, "--rules", "trainer", "--delays", "bursts", "--jobs", "12"];
        program::refused(folder.path(), &[&told[..], &own].concat(), needles);
    }
    // A round that is open for too long ends a run in the middle of its work.
    fs::write(folder.path().join("stall.csv"), "0,0,0,90\n").unwrap();
    let stalled =
        ["simulate", "uncoded", "--rules", "trainer", "--delays", "stall.csv", "--jobs", "3"];
    let output = codedgrad(folder.path(), &stalled);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("step 0: waited 60.0 s (max_wait) and workers {3} never came"), "{said}");
    let patient =
        json(&codedgrad(folder.path(), &[&stalled[..], &["--max-wait", "2m", "--json"]].concat()));
    assert_eq!(patient["total_time"].as_f64(), Some(273.0));
}

/// The rounds are drawn with the names of their tasks, also where the jobs of every step begin
/// again.
#[test]
fn foretold_rounds_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let told = [
        "simulate",
        "m-sgc:B=1,W=2,lambda=2",
        "--rules",
        "trainer",
        "--delays",
        "bursts",
        "--workers",
        "4",
        "--micro-batches",
        "12",
        "--jobs",
        "4",
        "--accumulate",
        "2",
        "--grid",
        "--svg",
        "times.svg",
    ];
    let output = codedgrad(folder.path(), &told);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let rounds: Vec<&str> = shown.lines().filter(|line| line.starts_with("r=")).collect();
    assert_eq!(rounds.len(), 6, "{shown}");
    for (round, (first, end)) in rounds.iter().zip([
        ("r=1 | a0.1", "|"),
        ("r=2 | a0.2 c0.1", "|"),
        ("r=3 | c0.2", "|  g(1)  g(2)"),
        ("r=4 | a0.3", "|"),
        ("r=5 | a0.4 c0.3", "|"),
        ("r=6 | c0.4", "|  g(3)  g(4)"),
    ]) {
        assert!(round.starts_with(first) && round.ends_with(end), "{shown}");
    }
    assert!(shown.contains("4 jobs of 4 workers in ") && shown.contains("Every 2 jobs add up"));
    assert!(fs::read_to_string(folder.path().join("times.svg")).unwrap().contains("</svg>"));
}
