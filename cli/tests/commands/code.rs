//! `codedgrad code` and `codedgrad simulate` as their users meet them.

use crate::program::{codedgrad, json, json_of, refused, text};
use std::fs;

#[test]
fn code_prints_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let shown = json(&codedgrad(
        folder.path(),
        &["code", "groups:s=1", "--workers", "7", "--survivors", "0,2-6", "--json"],
    ));
    let keys: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    let mut contract = vec![
        "scheme",
        "workers",
        "shares",
        "share_weights",
        "stragglers",
        "load",
        "matrix",
        "survivors",
        "decodable",
        "weights",
        "residual",
        "amplification",
        "coverage",
        "error",
        "proof",
    ];
    contract.sort_unstable();
    let mut found = keys.clone();
    found.sort_unstable();
    assert_eq!(found, contract);
    assert_eq!((shown["shares"].as_u64(), shown["stragglers"].as_u64()), (Some(3), Some(1)));
    assert_eq!(shown["weights"], serde_json::json!([0.5, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5]));
    assert_eq!(shown["matrix"][3], serde_json::json!([0.0, 1.0, 0.0]));
    assert_eq!(shown["survivors"], serde_json::json!([0, 2, 3, 4, 5, 6]));
    let lost = json(&codedgrad(
        folder.path(),
        &["code", "groups:l=3", "--workers", "7", "--survivors", "0-4", "--json"],
    ));
    assert_eq!((lost["decodable"].as_bool(), lost["residual"].as_f64()), (Some(false), Some(1.0)));
    let drawn = text(&codedgrad(folder.path(), &["code", "uncoded", "--workers", "3"]).stdout);
    assert!(drawn.contains("█··") && drawn.contains("exact gradient can be decoded"), "{drawn}");
}

#[test]
fn verification_tries_every_set_and_names_what_fails() {
    let folder = tempfile::tempdir().unwrap();
    let verified_of = |arguments: &[&str], status| {
        let arguments = [&["code"], arguments, &["--verify", "--json"]].concat();
        json_of(&codedgrad(folder.path(), &arguments), status)["verified"].clone()
    };
    let verified = |arguments: &[&str]| verified_of(arguments, 0);
    let good = verified(&["min-load:s=2", "--workers", "8"]);
    assert_eq!(
        (good["sets"].as_u64(), good["exhaustive"].as_bool(), good["failed"].as_u64()),
        (Some(37), Some(true), Some(0))
    );
    assert!(
        good["worst_residual"].as_f64().unwrap() < 1e-12
            && good["failures"] == serde_json::json!([])
    );
    assert!((good["worst_amplification"].as_f64().unwrap() - 1.7).abs() < 0.1);
    fs::write(folder.path().join("mine.csv"), "1,1,0\n0,1,1\n1,0,1\n1,1,1\n").unwrap();
    let claimed = verified_of(&["matrix:mine.csv,s=2", "--workers", "4"], 1);
    assert_eq!(
        claimed["failed"].as_u64(),
        Some(claimed["failures"].as_array().unwrap().len() as u64)
    );
    assert_eq!(claimed["failures"][0]["stragglers"], serde_json::json!([0, 3]));
    assert!(claimed["failures"][0]["reason"].as_str().unwrap().contains("residual"));
    let sampled = verified(&["graph:d=4,err=0.1", "--workers", "120"]);
    assert_eq!(sampled["failed"].as_u64(), Some(0));
    let words =
        codedgrad(folder.path(), &["code", "matrix:mine.csv,s=2", "--workers", "4", "--verify"]);
    let words = text(&words.stdout);
    assert!(words.contains("FAILED") && words.contains("without 0,3: "), "{words}");
    let warned = codedgrad(folder.path(), &["code", "cyclic:s=3", "--workers", "40", "--json"]);
    assert!(text(&warned.stderr).contains("min-load:s=3"));
}

/// What is proven, what was tried and what is only claimed are told apart.
#[test]
fn a_tolerance_is_said_as_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let row = |worker: usize| {
        let cells = (0..8).map(|share| if worker % 8 == share { "1" } else { "0" });
        cells.collect::<Vec<_>>().join(",")
    };
    let rows: Vec<String> = (0..64).map(row).collect();
    fs::write(folder.path().join("m.csv"), rows.join("\n")).unwrap();
    let said = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let words = text(&codedgrad(folder.path(), &[&["code"], &arguments[..]].concat()).stdout);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (arguments, expected) in [
        ("groups:s=15 --workers 64 --verify", "any 15 stragglers tolerated, by construction ("),
        ("groups:s=1 --workers 64 --verify", "any 1 straggler tolerated. "),
        ("groups:s=15 --workers 64", "any 15 stragglers tolerated. "),
        ("matrix:m.csv --workers 64", "any 3 stragglers tolerated. "),
        ("matrix:m.csv,s=5 --workers 64", "it claims to tolerate any 5 stragglers. "),
        (
            "matrix:m.csv,s=5 --workers 64 --verify",
            "it claims to tolerate any 5 stragglers, and no failure was found. ",
        ),
        ("uncoded --workers 1", "1 worker, 1 share. "),
    ] {
        assert!(said(arguments).contains(expected), "{arguments}: {}", said(arguments));
    }
}

/// Load, delay, guarantee and the lower bound of a scheme that is no matrix (Krishnan et al. 2023).
#[test]
fn schemes_over_rounds_tell_what_they_promise() {
    let folder = tempfile::tempdir().unwrap();
    let scheme = "m-sgc:B=1,W=2,lambda=27";
    let shown = json(&codedgrad(folder.path(), &["code", scheme, "--workers", "256", "--json"]));
    let number = |key: &str| shown[key].as_f64().unwrap();
    assert!((number("load") - 0.007543).abs() < 1e-6 && number("delay") == 1.0);
    assert!((number("least_load") - 0.004124).abs() < 1e-6);
    let words = text(&codedgrad(folder.path(), &["code", scheme, "--workers", "256"]).stdout);
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "1 round after its own",
        "27 workers that are late within any 2 rounds",
        "no scheme that does has a load below 0.0041",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let refused = codedgrad(folder.path(), &["code", scheme, "--workers", "256", "--verify"]);
    assert!(text(&refused.stderr).contains("not a one-round code"));
}

/// The normalised error is said of every decode, also of what does not decode.
#[test]
fn a_decode_tells_its_normalised_error() {
    let folder = tempfile::tempdir().unwrap();
    let plane = "1,1,1,0,0,0,0\n1,0,0,1,1,0,0\n1,0,0,0,0,1,1\n0,1,0,1,0,1,0\n0,1,0,0,1,0,1\n\
                 0,0,1,1,0,0,1\n0,0,1,0,1,1,0\n";
    fs::write(folder.path().join("plane.csv"), plane).unwrap();
    fs::write(folder.path().join("zeros.csv"), format!("{plane}0,0,0,0,0,0,0\n")).unwrap();
    let run = |code: &str, workers: &str, more: &[&str]| {
        codedgrad(folder.path(), &[&["code", code, "--workers", workers], more].concat())
    };
    let without_2 = ["--survivors", "0,1,3-6"];
    let words = text(&run("matrix:plane.csv", "7", &without_2).stdout);
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("NOT decodable") && words.contains("normalised error 3.57e-2"),
        "{words}"
    );
    assert!(!words.contains("100.0 %"), "{words}");
    let nobody = text(&run("matrix:plane.csv", "7", &["--survivors", ""]).stdout);
    assert!(nobody.contains("coverage") && !nobody.contains("-0.0"), "{nobody}");
    let shown = json(&run("matrix:plane.csv", "7", &[&without_2[..], &["--json"]].concat()));
    assert!((shown["error"].as_f64().unwrap() - 1.0 / 28.0).abs() < 1e-12);

    let shown = json(&run("matrix:zeros.csv,err=0.036", "8", &["--verify", "--json"]));
    assert_eq!(
        (shown["stragglers"].as_u64(), shown["verified"]["failed"].as_u64()),
        (Some(1), Some(0))
    );
    let number = |key: &str| shown["verified"][key].as_f64().unwrap();
    assert!((number("worst_error") - 1.0 / 28.0).abs() < 1e-12);
    assert!((number("mean_error") - 7.0 / 28.0 / 9.0).abs() < 1e-12);
    for (code, problem) in [
        ("matrix:zeros.csv", "line 8 is all zero"),
        ("matrix:plane.csv,err=1.5", "err=1.5 is not a normalised error"),
        ("matrix:plane.csv,err=low", "err=low is not a number"),
    ] {
        let workers = if code.contains("zeros") { "8" } else { "7" };
        let refused = run(code, workers, &[]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(problem), "{code}: {}", text(&refused.stderr));
    }
}

#[test]
fn simulate_prints_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("delays.csv"), "1,1,5,1\n1,2,1,1.5\n").unwrap();
    let arguments = [
        "simulate",
        "groups:s=1",
        "--delays",
        "delays.csv",
        "--jobs",
        "4",
        "--json",
        "--grid",
        "--svg",
        "jobs.svg",
    ];
    let output = codedgrad(folder.path(), &arguments);
    let shown = json(&output);
    let mut keys: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut contract = vec![
        "scheme",
        "workers",
        "jobs",
        "delay",
        "load",
        "work",
        "growth",
        "close",
        "mu",
        "accept",
        "delays",
        "seed",
        "version",
        "total_time",
        "time_per_job",
        "rounds",
        "round_time",
        "wait_outs",
        "jobs_decoded",
        "coverage",
        "job_finish_time",
        "straggler_fraction",
    ];
    contract.sort_unstable();
    assert_eq!(keys, contract);
    // A file's answers took their time for a fourth of a batch; half a batch takes twice as long.
    assert_eq!((shown["total_time"].as_f64(), shown["work"].as_f64()), (Some(8.0), Some(2.0)));
    assert_eq!(shown["time_per_job"].as_f64(), Some(2.0));
    assert_eq!(shown["growth"], serde_json::json!({"kind": "proportional", "base_load": 0.25}));
    let constant = json(&codedgrad(folder.path(), &[&arguments[..7], &["--slope", "0"]].concat()));
    assert_eq!(constant["total_time"].as_f64(), Some(4.0));
    assert!(text(&output.stderr).contains("r=4 |"), "the grid goes to standard error");
    assert!(fs::read_to_string(folder.path().join("jobs.svg")).unwrap().starts_with("<svg"));
    let defer =
        ["simulate", "defer:cap=1,cut=2", "--delays", "delays.csv", "--jobs", "4", "--json"];
    let shown = json(&codedgrad(folder.path(), &defer));
    assert_eq!((shown["delay"].as_u64(), shown["deferred"].as_f64()), (Some(1), Some(4.0 / 16.0)));
    let words = codedgrad(
        folder.path(),
        &["simulate", "drop:b=1", "--delays", "delays.csv", "--jobs", "2", "--workers", "3"],
    );
    assert!(
        text(&words.stderr).contains("first 3 of 4 columns")
            && text(&words.stdout).contains("BIASED")
    );
    let preset = json(&codedgrad(
        folder.path(),
        &["simulate", "uncoded", "--delays", "static", "--jobs", "5", "--json"],
    ));
    assert!(
        (preset["round_time"]["mean"].as_f64().unwrap() - 2.35).abs() < 0.02,
        "one second, and 1.35 more for the slow worker"
    );
    for (arguments, needles) in [
        (vec!["groups:s=1", "--delays", "delays.csv", "--jobs", "0"], vec!["--jobs"]),
        (
            vec!["groups:s=1", "--delays", "delays.csv", "--jobs", "4", "--workers", "5"],
            vec!["line 1", "4 columns", "5 workers"],
        ),
        (vec!["groups:s=1", "--delays", "hotspt", "--jobs", "4"], vec!["did you mean", "hotspot"]),
        (
            vec!["groups:s=1", "--delays", "delays.csv", "--jobs", "4", "--mu", "-1"],
            vec!["--mu -1"],
        ),
        (
            vec!["groups:s=1", "--delays", "delays.csv", "--jobs", "4", "--slope", "0.5"],
            vec!["--slope 0.5 needs --base-load X"],
        ),
        (
            vec![
                "groups:s=1",
                "--delays",
                "delays.csv",
                "--jobs",
                "4",
                "--base-load",
                "0.5",
                "--slope",
                "3",
            ],
            vec!["round 1, worker 0", "1.5 s"],
        ),
        (vec!["m-sgc:B=2,W=2,lambda=1", "--delays", "delays.csv", "--jobs", "4"], vec!["take W=3"]),
    ] {
        refused(folder.path(), &[&["simulate"], &arguments[..]].concat(), &needles);
    }
}

#[test]
fn a_scheme_without_a_matrix_has_no_survivors() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        folder.path(),
        &["code", "queue:m=4", "--workers", "4", "--survivors", "0"],
        &["not a one-round code", "simulate"],
    );
}
