//! `codedgrad plan` as its users meet it.

use crate::program::{codedgrad, json, refused, text};
use codedgrad::codes::registry::Registry;
use codedgrad::delays::Preset;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Answer times that look recorded: slow spells, and no two numbers alike.
fn write_trace(path: &Path, workers: usize, rounds: usize) {
    let rows = Preset::Bursts.rows(workers, rounds, 4);
    let line = |row: Vec<f64>| {
        let times =
            row.iter().map(|delay| format!("{}", Preset::Bursts.unit().answer_time(*delay)));
        times.collect::<Vec<_>>().join(",") + "\n"
    };
    fs::write(path, rows.into_iter().map(line).collect::<String>()).unwrap();
}

/// How far two times are apart, as a share of the first.
fn apart(a: &Value, b: &Value) -> f64 {
    (b.as_f64().unwrap() / a.as_f64().unwrap() - 1.0).abs()
}

#[test]
fn plan_prints_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let output = codedgrad(
        folder.path(),
        &[
            "plan",
            "--delays",
            "hotspot",
            "--workers",
            "6",
            "--rounds",
            "100",
            "--json",
            "--out",
            "here",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown: Value =
        serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else");
    assert!(
        ["baseline", "recommended", "gain", "interval", "candidates", "rules", "accept"]
            .iter()
            .all(|key| shown.get(key).is_some())
    );
    let origin = [&shown["delays"], &shown["seed"], &shown["version"]];
    assert_eq!(origin, [&json!("hotspot"), &json!(1), &json!(env!("CARGO_PKG_VERSION"))]);
    let interval = &shown["interval"];
    assert!(
        interval["low"].as_f64() <= interval["high"].as_f64() && !interval["low"].is_null(),
        "{interval}"
    );
    assert!(["why", "causes", "notes"].iter().all(|key| shown.get(key).is_some()));
    let keys =
        ["scheme", "close", "mu", "load", "work", "time_per_job", "gain", "coverage", "reason"];
    for candidate in shown["candidates"].as_array().unwrap() {
        assert!(keys.iter().all(|key| candidate.get(key).is_some()), "{candidate}");
        assert!(
            ["all", "incremental", "decodable"].contains(&candidate["close"].as_str().unwrap())
        );
    }
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("here/plan.json")).unwrap())
            .unwrap();
    assert_eq!(kept, shown);
    for picture in ["time-work.svg", "schemes.svg"] {
        assert!(
            fs::read_to_string(folder.path().join("here").join(picture))
                .unwrap()
                .starts_with("<svg")
        );
    }
}

/// The command it prints gives the time it promises.
#[test]
fn the_check_it_names_gives_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder.path().join("trace.csv"), 5, 30);
    for line in [
        "trace.csv",
        "trace.csv --base-load 0.2 --slope 1.5",
        "trace.csv --base-load 0.2 --families queue",
        "trace.csv --slope 0 --families groups",
        "trace.csv --base-load 0.2 --slope 1.5 --families m-sgc,sr-sgc",
        "static --families m-sgc --rounds 30 --workers 5",
        "trace.csv --dispatch 0.02",
        // What is late after the last job is played on the first rounds again, not on later ones.
        "trace.csv --families defer --rounds 25 --dispatch 0.5",
        "bursts --families defer --rounds 25 --seed 6",
        "serverless --families queue --dispatch 0 --workers 24",
    ] {
        let arguments: Vec<&str> =
            ["plan", "--delays"].into_iter().chain(line.split(' ')).collect();
        let said = text(&codedgrad(folder.path(), &arguments).stdout);
        let output = codedgrad(folder.path(), &[&arguments[..], &["--json"]].concat());
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let chosen = shown["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .find(|found| found["scheme"] == shown["recommended"])
            .unwrap();
        let check = said
            .lines()
            .find_map(|line| line.strip_prefix("To check: codedgrad "))
            .expect("a command");
        let arguments: Vec<&str> = check.split(' ').chain(["--json"]).collect();
        let simulated = json(&codedgrad(folder.path(), &arguments));
        assert!(apart(&chosen["time_per_job"], &simulated["time_per_job"]) < 1e-12, "{check}");
        assert_ne!(chosen["scheme"], "uncoded", "{line}: this checks little");
    }
}

/// The best of every family takes as long by `simulate`, without a word of how times grow or with
/// the same words.
#[test]
fn plan_and_simulate_agree_on_every_family() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder.path().join("trace.csv"), 6, 40);
    for more in [
        "",
        "--dispatch 0.02",
        "--base-load 0.15 --slope 1.5",
        "--base-load 0.5 --dispatch 0.01",
        "--slope 0",
    ] {
        let more: Vec<&str> = more.split_whitespace().collect();
        let run = |arguments: &[&str]| {
            let arguments = [arguments, &["--delays", "trace.csv"], &more, &["--json"]].concat();
            json(&codedgrad(folder.path(), &arguments))
        };
        let plan = run(&["plan"]);
        let candidates = plan["candidates"].as_array().unwrap();
        let scheme = |candidate: &Value| candidate["scheme"].as_str().unwrap().to_owned();
        for family in Registry::builtin().families().iter().filter(|family| family.spaces.is_some())
        {
            let planned = |found: &Value| scheme(found).starts_with(family.name);
            assert!(candidates.iter().any(planned), "{family:?} of {more:?}");
        }
        for found in candidates {
            let (scheme, close) = (scheme(found), found["close"].as_str().unwrap());
            let mu = found["mu"].as_f64().unwrap_or(1.0).to_string();
            let arguments = ["simulate", &scheme, "--jobs", "40", "--close", close, "--mu", &mu];
            let simulated = run(&arguments);
            assert_eq!(simulated["growth"], plan["growth"]);
            let (planned, taken) = (&found["time_per_job"], &simulated["time_per_job"]);
            assert!(apart(planned, taken) < 1e-9, "{scheme} {more:?}: {planned} {taken}");
        }
    }
}

/// A pull costs `--dispatch`; what the order that opens a round has costs nothing more.
#[test]
fn only_pulls_are_paid_for() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("even.csv"), "4,4\n").unwrap();
    let time = |scheme: &str, dispatch: &str| {
        let line = ["simulate", scheme, "--delays", "even.csv", "--jobs", "3", "--json"];
        let found = codedgrad(folder.path(), &[&line[..], &["--dispatch", dispatch]].concat());
        json(&found)["time_per_job"].as_f64().unwrap()
    };
    // Two workers do two of four items each, or one of two shares.
    assert_eq!((time("queue:m=2", "0"), time("queue:m=2", "0.5")), (4.0, 5.0));
    assert_eq!((time("ring:reach=2", "0"), time("ring:reach=2", "0.5")), (4.0, 4.5));
    for scheme in ["defer:cap=1,cut=2", "groups:l=1", "m-sgc:B=1,W=2,lambda=1"] {
        assert_eq!(time(scheme, "0"), time(scheme, "0.5"), "{scheme}");
    }
    let dear = codedgrad(
        folder.path(),
        &[
            "simulate",
            "queue:m=2",
            "--delays",
            "serverless",
            "--workers",
            "4",
            "--jobs",
            "9",
            "--json",
        ],
    );
    let free = ["--dispatch", "0.63", "--workers", "4", "--jobs", "9", "--json"];
    let same = ["simulate", "queue:m=2", "--delays", "serverless"];
    assert_eq!(json(&dear), json(&codedgrad(folder.path(), &[&same[..], &free].concat())));
}

#[test]
fn both_say_how_times_grow() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder.path().join("trace.csv"), 4, 30);
    for (more, words) in [
        (&[][..], "Times grow in proportion to the load, recorded at load 1/4."),
        (
            &["--base-load", "0.25", "--slope", "1.5"],
            "Times grow by 1.5 s per batch, recorded at load 1/4.",
        ),
        (&["--slope", "0"], "Times stay as recorded under any load."),
    ] {
        for command in
            [&["plan", "--families", "groups"][..], &["simulate", "groups:s=1", "--jobs", "30"]]
        {
            let arguments = [command, &["--delays", "trace.csv"], more].concat();
            let said = text(&codedgrad(folder.path(), &arguments).stdout);
            assert!(said.lines().any(|line| line == words), "{arguments:?}: {said}");
        }
    }
    refused(
        folder.path(),
        &["plan", "--delays", "trace.csv", "--slope", "2"],
        &["--slope 2 needs --base-load X"],
    );
}

/// The folder of a run, its record, and what a user pipes in are traces too.
#[test]
fn delays_come_from_runs_and_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder.path().join("trace.csv"), 4, 30);
    fs::create_dir(folder.path().join("run")).unwrap();
    let trace = fs::read_to_string(folder.path().join("trace.csv")).unwrap();
    let step = |(number, row): (usize, &str)| {
        let times = "\"committed\":9.0,\"seconds\":9.0";
        let round = format!("\"round\":{number},\"opened\":0.0,\"seconds\":9.0");
        let rounds = format!("{{{round},\"arrivals\":[{row}]}}");
        format!("{{\"step\":{number},\"scheme\":\"uncoded\",{times},\"rounds\":[{rounds}]}}\n")
    };
    let record: String = trace.lines().enumerate().map(step).collect();
    fs::write(folder.path().join("run/run.jsonl"), record).unwrap();
    let plan = ["plan", "--families", "groups,defer", "--json", "--delays"];
    let simulate = ["simulate", "defer:cap=1,cut=2", "--jobs", "30", "--json", "--delays"];
    // What is taken for granted of a file; of a run, its record is asked.
    let growth = ["--base-load", "0.25"];
    for command in [&plan[..], &simulate] {
        let from = |source: &str| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
            let input = File::open(folder.path().join("trace.csv")).unwrap();
            let program = program.args(command).arg(source).args(growth).current_dir(folder.path());
            program.stdin(input).output().unwrap()
        };
        let expected = json(&from("trace.csv"));
        for source in ["-", "run", "run/run.jsonl"] {
            let mut found = json(&from(source));
            assert_eq!(found["delays"], source);
            found["delays"] = expected["delays"].clone();
            assert_eq!(found, expected, "{source}");
        }
        let said = text(&from("run").stderr);
        assert!(said.contains("recorded 30 steps of 4 workers") && !said.contains("one machine"));
        let into = ["plan", "--delays", "hotspot", "--out"];
        let refused_into =
            |out, why: &[&str]| refused(folder.path(), &[&into[..], &[out]].concat(), why);
        refused_into("run", &["run holds a run", "run.jsonl", "another folder with --out"]);
        refused_into("trace.csv", &["trace.csv is not a folder"]);
        fs::create_dir_all(folder.path().join("waits")).unwrap();
        fs::write(folder.path().join("waits/plan.json"), "{\"started\":\"now\"}").unwrap();
        refused_into("waits", &["waits holds a run", "plan.json"]);
        fs::remove_dir_all(folder.path().join("waits")).unwrap();
        fs::write(folder.path().join("run/plan.json"), "{\"clock\":\"wall\"}").unwrap();
        assert!(text(&from("run").stderr).contains("the workers shared one machine"));
        fs::remove_file(folder.path().join("run/plan.json")).unwrap();
    }
    refused(folder.path(), &["plan", "--delays", "."], &["a folder of runs", "./run"]);
    // What is piped in is looked at as a file is: here the first column counts the rows.
    let numbered: String = (0..30).map(|row| format!("{row},1.5,1.25\n")).collect();
    fs::write(folder.path().join("numbered.csv"), numbered).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    program.args(simulate).arg("-").stdin(File::open(folder.path().join("numbered.csv")).unwrap());
    assert!(text(&program.output().unwrap().stderr).contains("warning: standard input: "));
}

/// A matrix that does not tolerate what it claims is no input, whether all sets are tried or some.
#[test]
fn claims_that_are_not_true_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("three.csv"), "1,0\n0,1\n1,1\n").unwrap();
    // Groups of eight neighbours; whole groups are a burst.
    let row = |worker: usize| {
        (0..5)
            .map(|group| if worker / 8 == group { "1" } else { "0" })
            .collect::<Vec<_>>()
            .join(",")
    };
    let forty: Vec<String> = (0..40).map(row).collect();
    fs::write(folder.path().join("forty.csv"), forty.join("\n")).unwrap();
    for (matrix, workers, true_claim, false_claim, without) in [
        ("three.csv", "3", 1, 2, "without workers 0, 2"),
        ("forty.csv", "40", 7, 8, "without workers 0, 1, 2, 3, 4, 5, 6, 7"),
    ] {
        let claiming = |stragglers: usize| format!("matrix:{matrix},s={stragglers}");
        let simulate = |scheme: String| {
            let line = ["simulate", &scheme, "--delays", "calm", "--workers", workers];
            [&line.map(str::to_owned)[..], &["--jobs", "4"].map(str::to_owned)].concat()
        };
        let plan = |scheme: String| {
            let line = ["plan", "--also", &scheme, "--delays", "calm", "--workers", workers];
            [&line.map(str::to_owned)[..], &["--families", "groups"].map(str::to_owned)].concat()
        };
        for line in [&simulate as &dyn Fn(String) -> Vec<String>, &plan] {
            let wrong = line(claiming(false_claim));
            let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
            refused(folder.path(), &wrong, &[&claiming(false_claim), without]);
            let right = line(claiming(true_claim));
            let right: Vec<&str> = right.iter().map(String::as_str).collect();
            let output = codedgrad(folder.path(), &right);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
    }
}

#[test]
fn bad_input_is_named_and_short_traces_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("dead.csv"), "1,2\n1,-2\n").unwrap();
    fs::write(folder.path().join("short.csv"), "1,1,4\n1,1,1\n5,1,1\n").unwrap();
    fs::write(folder.path().join("ragged.csv"), "1,2\n1\n").unwrap();
    fs::write(folder.path().join("endless.csv"), "1,2\n1,1e308\n").unwrap();
    fs::write(folder.path().join("even.csv"), "1,2,3\n3,1,2\n2,2,3\n").unwrap();
    fs::write(folder.path().join("dear.csv"), "1,1e308,1e308\n1e308,1,1e308\n1,1,1\n").unwrap();
    for (arguments, needles) in [
        (&["--delays", "dead.csv"][..], &["line 2, column 2", "\"-2\""][..]),
        (&["--delays", "ragged.csv"], &["line 2, column 2"]),
        (&["--delays", "endless.csv"], &["line 2, column 2", "(a number from 0 to 1e9"]),
        (&["--delays", "hotspott"], &["did you mean \"hotspot\""]),
        (&["--delays", "hotspot", "--max-work", "0.9"], &["--max-work 0.9"]),
        (&["--delays", "hotspot", "--dispatch", "-1"], &["--dispatch", "is no time of 0 or more"]),
        (&["--delays", "hotspot", "--workers", "0"], &["0 is not in 1..=4096"]),
        (&["--delays", "hotspot", "--families", "grups"], &["groups"]),
        (&["--delays", "short.csv", "--base-load", "0"], &["--base-load 0.0:", "--slope A"]),
        (
            &["--delays", "short.csv", "--base-load", "0", "--slope", "1e308"],
            &["--slope 1e308: at most 1e9 is possible"],
        ),
        (
            &["--delays", "short.csv", "--base-load", "1e-300"],
            &["--base-load 1e-300: delays that grow", "need 1e-9 or more"],
        ),
        (
            &["--delays", "even.csv", "--dispatch", "1e300"],
            &["dispatch = 1e300: must be at most 1e9"],
        ),
        (
            &["--delays", "even.csv", "--share-costs", "dear.csv"],
            &["round 1, worker", "do these costs belong to this trace"],
        ),
        (&["--delays", "short.csv", "--share-costs", "ragged.csv"], &["line 1 has 2 columns"]),
        (&["--delays", "short.csv", "--accumulate", "9"], &["does not fit"]),
        (&[], &["--delays"]),
    ] {
        refused(folder.path(), &[&["plan"], arguments].concat(), needles);
    }
    // A worker that never answered is no bad input, unless none ever did.
    fs::write(folder.path().join("gone.csv"), "1,inf\n1,inf\n").unwrap();
    let gone = json(&codedgrad(folder.path(), &["plan", "--delays", "gone.csv", "--json"]));
    let known = [&gone["recommended"], &gone["baseline"], &gone["workers"]];
    assert_eq!(known, [&json!("uncoded"), &json!(1.0), &json!(2)]);
    assert!(gone["notes"].to_string().contains("2 answers were not received"), "{gone}");
    fs::write(folder.path().join("all-gone.csv"), "inf,inf\n").unwrap();
    refused(folder.path(), &["plan", "--delays", "all-gone.csv"], &["inf is no time"]);
    let output = codedgrad(folder.path(), &["plan", "--delays", "short.csv"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("a trace of 3 rounds is too short to recommend a code")
            && text(&output.stderr).contains("a trace of 3 rounds is shorter than 20")
    );
}

#[test]
fn a_scheme_of_ones_own_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.csv"), "1,0\n1,0\n0,1\n0,1\n").unwrap();
    let plan = |more: &[&str]| {
        let known = "plan --delays hotspot --workers 4 --families min-load --max-delay 1 --json";
        let known: Vec<&str> = known.split(' ').collect();
        codedgrad(folder.path(), &[&known, more].concat())
    };
    let output = plan(&["--also", "matrix:b.csv", "--also", "m-sgc:B=1,W=2,lambda=1"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |scheme: &str| {
        let mut candidates = found["candidates"].as_array().unwrap().iter();
        candidates.find(|candidate| candidate["scheme"] == scheme).unwrap().clone()
    };
    // The same code by another name takes the same time.
    assert_eq!(of("matrix:b.csv")["time_per_job"], of("min-load:s=1")["time_per_job"]);
    assert_eq!(of("m-sgc:B=1,W=2,lambda=1")["close"], "incremental");
    let late = plan(&["--also", "m-sgc:B=2,W=3,lambda=1"]);
    assert!(
        text(&late.stderr).contains("m-sgc:B=2,W=3,lambda=1 is left out: its jobs are up to 3")
    );
    refused(
        folder.path(),
        &["plan", "--delays", "hotspot", "--also", "matrix:b.csv"],
        &["b.csv is for 4 workers, but the run has 8"],
    );
}

#[test]
fn a_table_of_more_columns_than_there_can_be_workers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let row = vec!["1.5"; 16_000].join(",");
    fs::write(folder.path().join("wide.csv"), format!("{row}\n{row}\n")).unwrap();
    let plan = ["plan", "--delays", "wide.csv"];
    refused(folder.path(), &plan, &["wide.csv has 16000 columns", "4096 workers", "transposed"]);
    let few = [&plan[..], &["--workers", "4", "--json"]].concat();
    json(&codedgrad(folder.path(), &few));
}

/// What schemes are compared by is said, and one rule for all of them is that of the authors.
#[test]
fn rules_are_said() {
    let folder = tempfile::tempdir().unwrap();
    write_trace(&folder.path().join("trace.csv"), 6, 40);
    let run = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').collect();
        codedgrad(folder.path(), &arguments)
    };
    let release = env!("CARGO_PKG_VERSION");
    // Lines are as wide as the terminal: words are compared, not breaks.
    let said = |line: &str| {
        let words = text(&run(line).stdout);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let plan = "plan --delays trace.csv --families groups,sr-sgc";
    assert!(said(plan).contains("schemes by different rules: decodable"), "{}", said(plan));
    let paper = format!("{plan} --rules paper");
    let words = said(&paper);
    assert!(words.contains("Rounds closed for all schemes by the rule all, mu 1"), "{words}");
    assert!(words.contains(&format!("accept lookahead; codedgrad {release}")), "{words}");
    for candidate in json(&run(&format!("{paper} --json")))["candidates"].as_array().unwrap() {
        assert_eq!((&candidate["close"], &candidate["mu"]), (&json!("all"), &json!(1.0)));
        let scheme = candidate["scheme"].as_str().unwrap();
        let line = format!("simulate {scheme} --delays trace.csv --jobs 40 --json");
        let one = json(&run(&format!("{line} --rules paper")));
        assert_eq!((&one["close"], &one["mu"]), (&json!("all"), &json!(1.0)));
        assert_eq!(one["time_per_job"], json(&run(&format!("{line} --close all")))["time_per_job"]);
        assert!(apart(&one["time_per_job"], &candidate["time_per_job"]) < 1e-9, "{scheme}");
    }
    let words = said("simulate sr-sgc:B=1,W=2,lambda=2 --delays iid --workers 6 --jobs 9 --seed 4");
    assert!(words.contains("by the rule incremental, mu 1; accept lookahead; delays iid, seed 4"));
    assert!(words.contains("--rules paper closes all by one"), "{words}");
    let trained = json(&run("simulate groups:s=1 --rules trainer --delays iid --jobs 9 --json"));
    assert_eq!((&trained["close"], &trained["seed"]), (&json!("engine"), &json!(1)));
    let line = "simulate uncoded --delays iid --jobs 9 --rules paper --mu 2";
    let line: Vec<&str> = line.split(' ').collect();
    refused(folder.path(), &line, &["--rules paper is --close all --mu 1"]);
}
