//! What a run writes is what `codedgrad doctor` and `codedgrad trace` read.

use crate::program::{MODEL, codedgrad, flags, good, json, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// A model small enough for a debug build, on a virtual clock of one second per uncoded step.
static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&["train --clock virtual", MODEL, "--out run"]));

fn stats(folder: &Path, arguments: &[&str]) -> Value {
    let arguments = [&["trace", "stats"], arguments, &["--json"]].concat();
    serde_json::from_str(&good(folder, &arguments).0)
        .expect("one JSON object on standard output and nothing else")
}

fn rows(trace: &str) -> Vec<Vec<f64>> {
    trace.lines().map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect()
}

#[test]
fn a_recorded_run_gives_back_the_delays_it_ran_under() {
    let folder = tempfile::tempdir().unwrap();
    let injected = "0,0.25,0,5\n0,0,0,0\n1.5,1.75,6,8\n";
    fs::write(folder.path().join("injected.csv"), injected).unwrap();
    let compared = [
        "--workers",
        "4",
        "--steps",
        "6",
        "--scheme",
        "groups:s=1",
        "--compare",
        "uncoded",
        "--delays",
        "injected.csv",
    ];
    good(folder.path(), &[&SMALL[..], &compared].concat());
    // Computation takes 1 s uncoded and 2 s at twice the load; the least delay of a round makes no
    // worker late.
    let expected = |compute: f64| {
        let late = |row: Vec<f64>| {
            let least = row.iter().copied().fold(f64::INFINITY, f64::min);
            row.into_iter().map(|d| compute + d - least).collect()
        };
        rows(injected).into_iter().map(late).cycle().take(6).collect::<Vec<Vec<f64>>>()
    };
    let near = |found: &[Vec<f64>], expected: &[Vec<f64>]| {
        assert_eq!(found.len(), expected.len());
        let pairs = found.iter().flatten().zip(expected.iter().flatten());
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-9), "{found:?} {expected:?}");
    };
    let (uncoded, said) = good(folder.path(), &["trace", "record", "run"]);
    near(&rows(&uncoded), &expected(1.0));
    assert!(
        said.contains("6 steps of 4 workers, run 0 (uncoded) of 2")
            && said.contains("censored: 0 answers"),
        "{said}"
    );
    let (nothing, said) = good(
        folder.path(),
        &["trace", "record", "run/run.jsonl", "--run", "1", "--out", "coded.csv"],
    );
    assert_eq!(nothing, "");
    near(&rows(&fs::read_to_string(folder.path().join("coded.csv")).unwrap()), &expected(2.0));
    assert!(
        !said.contains("censored: 0 answers") && said.contains("a run that waits for all workers"),
        "{said}"
    );
    assert!(!folder.path().join("coded.csv.part").exists());

    // And back again: what was recorded can be trained under and measured.
    fs::write(folder.path().join("recorded.csv"), uncoded).unwrap();
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    let again =
        ["--workers", "3", "--steps", "2", "--scheme", "uncoded", "--delays", "recorded.csv"];
    let (said, _) = good(folder.path(), &[&SMALL[..], &again].concat());
    assert!(said.contains("the first 3 of 4 columns"), "{said}");
    let found = stats(folder.path(), &["recorded.csv"]);
    assert_eq!(
        (found["rounds"].as_u64(), found["workers"].as_u64(), found["unit"].as_str()),
        (Some(6), Some(4), Some("seconds"))
    );
    assert_eq!(found["slowest_mean"].as_f64(), Some((6.0 + 1.0 + 7.5) / 3.0));
}

/// A run as the program makes it today: its events, its time stamps, what workers report, and what
/// is said at its end.
#[test]
fn a_run_writes_what_the_doctor_reads() {
    let home = tempfile::tempdir().unwrap();
    // Worker 3 is always late, so that every round waits for worker 2 while it is alive.
    fs::write(home.path().join("late.csv"), "0,0,0,0.1\n".repeat(12)).unwrap();
    let small = "train --layers 1 --heads 1 --width 8 --context 8 --workers 4 --steps 12 \
                 --scheme groups:s=1 --delays late.csv --fault panic@3:2 --checkpoint-every 4 \
                 --out run";
    let words: Vec<&str> = small.split_whitespace().collect();
    let output = codedgrad(home.path(), &words);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(said.contains("codedgrad doctor run\n"), "{said}");
    let lines = |file: &str| -> Vec<Value> {
        let text = fs::read_to_string(home.path().join("run").join(file)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let steps = lines("run.jsonl");
    let stamps: Vec<f64> = steps.iter().map(|step| step["at"].as_f64().unwrap()).collect();
    assert!(stamps.is_sorted() && stamps[0] > 1.6e9, "{stamps:?}");
    let reports = steps.iter().flat_map(|step| step["spent"].as_array().into_iter().flatten());
    assert!(reports.count() >= steps.len(), "a worker has finished in every round");
    let events = lines("events.jsonl");
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("begin", "end"));
    let of = |kind: &'static str| events.iter().filter(move |event| event["kind"] == kind);
    let lost: Vec<&Value> = of("lost").map(|event| &event["worker"]).collect();
    assert_eq!(lost, [&Value::from(2)]);
    let saved: Vec<u64> = of("checkpoint").map(|event| event["step"].as_u64().unwrap()).collect();
    assert_eq!(saved, [3, 7, 11]);
    assert!(of("checkpoint").all(|event| event["blocked"].as_f64().is_some()));
    let found = json(&codedgrad(home.path(), &["doctor", "--json", "run"]));
    assert_eq!(found["checkpoints"]["count"], 3);
    assert!(found["effective"].as_f64().is_some() && found["events"]["lost"] == 1, "{found}");
}

/// Training says so before it begins.
#[test]
fn a_numbered_column_is_told_before_training() {
    let home = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|row| format!("{row},0.3,0.5,0.7,0.4\n")).collect();
    fs::write(home.path().join("numbered.csv"), rows).unwrap();
    for command in [
        &["train", "--scheme", "uncoded", "--workers", "2", "--steps", "0"][..],
        &["train", "--scheme", "groups:s=5", "--workers", "2"],
    ] {
        let output = codedgrad(home.path(), &[command, &["--delays", "numbered.csv"]].concat());
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        let refused_before = command.contains(&"0");
        assert_eq!(said.contains("warning: numbered.csv: column 1"), !refused_before, "{said}");
    }
}
