//! `codedgrad plan` as its users meet it.

mod program;

use codedgrad::delays::Preset;
use program::{codedgrad, refused, text};
use serde_json::Value;
use std::fs;

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
            "40",
            "--json",
            "--out",
            "here",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown: Value =
        serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else");
    assert!(
        ["baseline", "recommended", "gain", "candidates"]
            .iter()
            .all(|key| shown.get(key).is_some())
    );
    let keys = [
        "scheme",
        "close",
        "mu",
        "load",
        "work",
        "time_per_job",
        "gain",
        "low",
        "high",
        "coverage",
        "reason",
    ];
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
    let unit = Preset::Bursts.unit();
    let answer =
        |row: Vec<f64>| row.into_iter().map(|delay| unit.answer_time(delay)).collect::<Vec<f64>>();
    let rows = Preset::Bursts.rows(5, 30, 4).into_iter().map(answer);
    let lines: String = rows
        .map(|row| row.iter().map(|x| format!("{x}")).collect::<Vec<_>>().join(",") + "\n")
        .collect();
    fs::write(folder.path().join("trace.csv"), lines).unwrap();
    for more in [
        &[][..],
        &["--base-load", "0.2", "--slope", "1.5"],
        &["--families", "m-sgc,sr-sgc"],
        &["--dispatch", "0.02"],
    ] {
        let arguments = [&["plan", "--delays", "trace.csv"][..], more].concat();
        let said = text(&codedgrad(folder.path(), &arguments).stdout);
        let json = codedgrad(folder.path(), &[&arguments[..], &["--json"]].concat());
        let shown: Value = serde_json::from_slice(&json.stdout).unwrap();
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
        let simulated: Value =
            serde_json::from_slice(&codedgrad(folder.path(), &arguments).stdout).unwrap();
        let time = simulated["total_time"].as_f64().unwrap() / simulated["jobs"].as_f64().unwrap();
        assert!((time / chosen["time_per_job"].as_f64().unwrap() - 1.0).abs() < 1e-12, "{check}");
    }
}

#[test]
fn bad_input_is_named_and_short_traces_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("dead.csv"), "1,2\n1,inf\n").unwrap();
    fs::write(folder.path().join("short.csv"), "1,1,4\n1,1,1\n5,1,1\n").unwrap();
    fs::write(folder.path().join("ragged.csv"), "1,2\n1\n").unwrap();
    for (arguments, needles) in [
        (&["--delays", "dead.csv"][..], &["line 2, column 2", "\"inf\""][..]),
        (&["--delays", "ragged.csv"], &["line 2, column 2"]),
        (&["--delays", "hotspott"], &["did you mean \"hotspot\""]),
        (&["--delays", "hotspot", "--max-work", "0.9"], &["--max-work 0.9"]),
        (&["--delays", "hotspot", "--dispatch", "-1"], &["dispatch = -1"]),
        (&["--delays", "hotspot", "--workers", "0"], &["0 is not in 1..=4096"]),
        (&["--delays", "hotspot", "--families", "grups"], &["groups"]),
        (&["--delays", "short.csv", "--base-load", "0.3"], &["needs --slope A"]),
        (&["--delays", "short.csv", "--share-costs", "ragged.csv"], &["line 1 has 2 columns"]),
        (&["--delays", "short.csv", "--accumulate", "9"], &["does not fit"]),
        (&[], &["--delays"]),
    ] {
        refused(folder.path(), &[&["plan"], arguments].concat(), needles);
    }
    let output = codedgrad(folder.path(), &["plan", "--delays", "short.csv"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("closed forms")
            && text(&output.stderr).contains("3 rounds are too few")
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
