//! `codedgrad-lab pool` and `train --pool`: workers that come and go.

use crate::program::{codedgrad, json, refused, text};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The recorded options of the example's first golden run, by `--work 80 --seconds 7200`.
fn line<'a>(scheme: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let pool = ["examples/traces/pool.csv", "--work", "80", "--seconds", "2h"];
    [&["pool", scheme][..], &pool, more].concat()
}

#[test]
fn a_pool_is_replayed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let run = |scheme, more: &[&str]| codedgrad(&root, &line(scheme, more));
    let found = json(&run("uncoded", &["--restart", "120", "--json"]));
    let expected = json!({
        "scheme": "uncoded",
        "steps": 530,
        "aborted": 9,
        "lost_seconds": 2905.251,
        "plans": 25,
        "goodput": 0.597_007,
    });
    assert_eq!(found, expected);
    let found = json(&run("uncoded", &["--detect", "20", "--json"]));
    assert_eq!((&found["steps"], &found["lost_seconds"]), (&json!(850), &json!(264.312)));
    // Where some are not ready yet, it matters who is lost.
    let drawn = |seed| json(&run("uncoded", &["--sync", "10m", "--seed", seed, "--json"]));
    assert_eq!((&drawn("1")["steps"], &drawn("2")["steps"]), (&json!(769), &json!(766)));
    let found = json(&run("groups:s=1", &["--sync", "30s", "--json"]));
    assert_eq!((&found["steps"], &found["scheme"]), (&json!(419), &json!("groups:s=1")));
    let said = text(&run("uncoded", &["--restart", "2m"]).stdout);
    for needle in [
        "uncoded: 530 steps in 7200 s, 59.7 % of what the workers could have computed.",
        "Rounds begun again after a loss: 9. Seconds lost in them and in restarts: 2905.251.",
        "7 to 12 workers",
        "a restart takes 120 s",
    ] {
        assert!(said.replace('\n', " ").contains(needle), "{said}");
    }
    // Until its last row by default.
    let brief = ["pool", "uncoded", "examples/traces/pool.csv", "--work", "80"];
    assert!(text(&codedgrad(&root, &brief).stdout).starts_with("uncoded: 865 steps in 7101 s"));
}

#[test]
fn mistakes_of_a_pool_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let line = ["pool", "uncoded", "pool.csv", "--work", "80"];
    let at = |line: usize, column: usize| format!("pool.csv: line {line}, column {column}: ");
    for (rows, place, needle) in [
        ("", at(1, 1), "\"\" where the header is seconds,workers"),
        ("second,workers\n0,4\n", at(1, 1), "\"second,workers\" where the header is"),
        ("seconds,workers\n", at(2, 1), "no rows"),
        ("seconds,workers\n0,4\n9\n", at(3, 1), "\"9\" is the last of 1 column"),
        ("seconds,workers\n0,4\n9,3,2\n", at(3, 3), "\"2\" is the last of 3 columns"),
        ("seconds,workers\n0,4\n-9,3\n", at(3, 1), "\"-9\" is no time in seconds"),
        ("seconds,workers\n0,4\ninf,3\n", at(3, 1), "\"inf\" is no time in seconds"),
        ("seconds,workers\n0,-4\n", at(2, 2), "\"-4\" is no number of workers"),
        ("seconds,workers\n0,4\n\n9,1.5\n", at(4, 2), "\"1.5\" is no number of workers"),
        ("seconds,workers\n0,4\n9,3\n9,2\n", at(4, 1), "\"9\": it must be later than the row"),
        ("seconds,workers\n0,4\n1e-5,2\n", at(3, 1), "\"1e-5\": it must be later than the row"),
        ("seconds,workers\n0,4\n1e10,2\n", at(3, 1), "at most 1e9 s are replayed"),
        ("seconds,workers\n0,100000\n", at(2, 2), "100000 workers: at most 65536"),
    ] {
        fs::write(folder.path().join("pool.csv"), rows).unwrap();
        refused(folder.path(), &line, &[&place, needle]);
    }
    refused(folder.path(), &["pool", "uncoded", "absent", "--work", "1"], &["absent"]);
}

#[test]
fn what_is_not_for_a_pool_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pool.csv"), "seconds,workers\n0,4\n100,3\n").unwrap();
    let refused = |line: &str, needles: &[&str]| {
        let words: Vec<&str> = line.split(' ').collect();
        refused(folder.path(), &[&["pool"], &words[..]].concat(), needles);
    };
    let families = ["uncoded or groups:s=.."];
    for scheme in ["groups:l=2", "groups:s=1,rescale", "queue:m=4", "min-load:s=1"] {
        refused(&format!("{scheme} pool.csv --work 8"), &families);
    }
    refused("gruops:s=1 pool.csv --work 8", &["did you mean", "groups"]);
    refused("uncoded pool.csv", &["--work <SECONDS>"]);
    refused("uncoded pool.csv --work 0", &["work is 0 s"]);
    refused("uncoded pool.csv --work 8 --seconds 0", &["the end is 0 s"]);
    refused("uncoded pool.csv --work 1e10", &["at most 1e9 s"]);
}

/// How long a run is, and in how many units a batch is cut.
const LONG: [&str; 4] = ["--steps", "300", "--micro-batches", "24"];
const SHORT: [&str; 4] = ["--steps", "60", "--micro-batches", "16"];

/// The lines of a run of a small model by a pool, or by eight workers, on modelled time; and what
/// it comes to.
fn trained(folder: &Path, scheme: &str, size: [&str; 4], pool: Option<&str>) -> (String, Value) {
    let arguments = format!(
        "train --scheme {scheme} --clock virtual --no-stragglers \
         --step-seconds 1 --layers 1 --heads 1 --width 8 --context 8 --audit-every 1000 --settle 0 \
         --json --out run --force"
    );
    let mut arguments: Vec<&str> = arguments.split_whitespace().chain(size).collect();
    if let Some(pool) = pool {
        fs::write(folder.join("pool.csv"), pool).unwrap();
        arguments.extend(["--pool", "pool.csv"]);
    }
    let summary = json(&codedgrad(folder, &arguments));
    (fs::read_to_string(folder.join("run/run.jsonl")).unwrap(), summary)
}

/// What each step of a run has of a field.
fn each(record: &str, field: &str) -> Vec<Value> {
    let of_line = |line| serde_json::from_str::<Value>(line).unwrap()[field].clone();
    record.lines().map(of_line).collect()
}

#[test]
fn a_run_by_a_pool_learns_what_a_fixed_one_does() {
    let pool = Some("seconds,workers\n0,8\n40,12\n120,11\n200,9\n");
    let folder = tempfile::tempdir().unwrap();
    for scheme in ["uncoded", "groups:s=1", "queue:m=2"] {
        let (record, summary) = trained(folder.path(), scheme, LONG, pool);
        let again = trained(folder.path(), scheme, LONG, pool).0;
        assert!(record == again, "{scheme}: another record on modelled time");
        let run = &summary["runs"][0];
        assert_eq!((&run["samples_lost"], &run["pool"]["lost"]), (&json!(0), &json!(3)));
        assert_eq!(run["pool"]["joined"], 4, "{scheme}");
        let fixed = trained(folder.path(), scheme, LONG, None).0;
        let (found, expected) = (each(&record, "loss"), each(&fixed, "loss"));
        assert_eq!((found.len(), expected.len()), (300, 300));
        for (found, expected) in found.iter().zip(&expected) {
            let apart = (found.as_f64().unwrap() - expected.as_f64().unwrap()).abs();
            assert!(apart < 1e-5, "{scheme}: {found} and {expected}");
        }
    }
}

#[test]
fn where_shares_are_halves_of_others_a_pool_makes_the_same_bits() {
    let pool = Some("seconds,workers\n0,8\n20,4\n90,8\n");
    let folder = tempfile::tempdir().unwrap();
    for scheme in ["uncoded", "groups:s=1", "queue:m=2"] {
        let fixed = trained(folder.path(), scheme, SHORT, None).0;
        let (record, summary) = trained(folder.path(), scheme, SHORT, pool);
        assert_eq!(each(&record, "digest"), each(&fixed, "digest"), "{scheme}");
        if scheme == "uncoded" {
            let replay = "pool uncoded pool.csv --work 8 --sync 0 --seconds 96 --json";
            let replayed = json(&codedgrad(folder.path(), &replay.split(' ').collect::<Vec<_>>()));
            assert_eq!(summary["runs"][0]["pool"]["plans"], replayed["plans"]);
        }
    }
}

#[test]
fn a_pool_that_no_run_can_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused_pool = |rows: &str, more: &str, why: &str| {
        fs::write(folder.path().join("pool.csv"), format!("seconds,workers\n{rows}")).unwrap();
        let arguments = format!("train --pool pool.csv {more}");
        refused(folder.path(), &arguments.split_whitespace().collect::<Vec<_>>(), &[why]);
    };
    refused_pool("5,2\n", "", "the first row is at 5 s");
    refused_pool("0,4\n9,0\n", "", "0 to 4 workers");
    refused_pool("0,4\n9,2\n", "--workers 3..4", "say --workers 2..4");
    refused_pool("0,4\n9,6\n", "--workers 4", "4 to 6 workers");
    refused_pool("0,4\n0,6\n", "", "line 3, column 1");
    refused_pool("0,4\n", "--resume run", "cannot be used with");
}
