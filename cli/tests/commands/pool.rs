//! `codedgrad simulate --pool`: workers that come and go.

use crate::program::{codedgrad, json, refused, text};
use serde_json::json;
use std::fs;
use std::path::Path;

/// The recorded options of the example's first golden run, by `--work 80 --seconds 7200`.
fn line<'a>(scheme: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let pool = ["--pool", "examples/traces/pool.csv", "--work", "80", "--seconds", "2h"];
    [&["simulate", scheme][..], &pool, more].concat()
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
    // Until its last row, if nobody says otherwise.
    let brief = ["simulate", "uncoded", "--pool", "examples/traces/pool.csv", "--work", "80"];
    assert!(text(&codedgrad(&root, &brief).stdout).starts_with("uncoded: 865 steps in 7101 s"));
}

#[test]
fn mistakes_of_a_pool_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let line = ["simulate", "uncoded", "--pool", "pool.csv", "--work", "80"];
    let at = |line: usize, column: usize| format!("pool.csv: line {line}, column {column}: ");
    for (rows, place, needle) in [
        ("", at(1, 1), "\"\" where the header is seconds,workers"),
        ("second,workers\n0,4\n", at(1, 1), "\"second,workers\" where the header is"),
        ("seconds,workers\n", at(2, 1), "no rows"),
        ("seconds,workers\n0,4\n9\n", at(3, 1), "\"9\" is the last of 1 columns"),
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
    refused(
        folder.path(),
        &["simulate", "uncoded", "--pool", "absent", "--work", "1"],
        &["absent"],
    );
}

#[test]
fn what_is_not_for_a_pool_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pool.csv"), "seconds,workers\n0,4\n100,3\n").unwrap();
    let refused = |line: &str, needles: &[&str]| {
        let words: Vec<&str> = line.split(' ').collect();
        refused(folder.path(), &[&["simulate"], &words[..]].concat(), needles);
    };
    let families = ["uncoded or groups:s=.."];
    for scheme in ["groups:l=2", "groups:s=1,rescale", "queue:m=4", "min-load:s=1"] {
        refused(&format!("{scheme} --pool pool.csv --work 8"), &families);
    }
    refused("gruops:s=1 --pool pool.csv --work 8", &["did you mean", "groups"]);
    refused("uncoded --pool pool.csv", &["--work <SECONDS>"]);
    refused("uncoded --pool pool.csv --work 0", &["work is 0 s"]);
    refused("uncoded --pool pool.csv --work 8 --seconds 0", &["the end is 0 s"]);
    refused("uncoded --pool pool.csv --work 1e10", &["at most 1e9 s"]);
    for other in ["--mu 2", "--delays iid", "--jobs 4", "--as-trained", "--grid", "--workers 4"] {
        let flag = other.split(' ').next().unwrap();
        refused(&format!("uncoded --pool pool.csv --work 8 {other}"), &["--pool <FILE>", flag]);
    }
    refused("uncoded --work 8", &["--pool <FILE>"]);
    refused("uncoded --delays iid --jobs 4 --restart 3", &["cannot be used with", "--restart"]);
    refused("uncoded --jobs 4", &["--delays <PRESET|FILE>"]);
}
