//! What the comparison of two runs prints, and how it ends.

#![cfg(test)]

use super::*;
use crate::Cli;
use clap::Parser;
use codedgrad_shell::output::Notes;
use std::fs;
use tempfile::TempDir;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn example(name: &str) -> String {
    format!("{EXAMPLES}/{name}")
}

/// What is printed, and the status.
fn compared(a: &str, b: &str, fail_above: Option<f64>, json: bool) -> (String, u8) {
    let mut out = Vec::new();
    let args = CompareArgs { a: a.into(), b: b.into(), fail_above, json };
    let mut notes = std::io::sink();
    let done = run(&args, &mut Output { out: &mut out, notes: Notes::Kept(&mut notes) });
    let status = match done {
        Ok(()) => 0,
        Err(Failure::Said(status)) => status,
        Err(failure) => panic!("{failure}"),
    };
    (String::from_utf8(out).unwrap(), status)
}

fn json(a: &str, b: &str, fail_above: f64) -> (Value, u8) {
    let (text, status) = compared(a, b, Some(fail_above), true);
    (serde_json::from_str(&text).unwrap(), status)
}

/// The folder of a run whose steps take these seconds.
fn folder(home: &TempDir, name: &str, rows: u64, seconds: impl Fn(u64) -> f64) -> String {
    let folder = home.path().join(name);
    fs::create_dir(&folder).unwrap();
    let mut now = 0.0;
    let line = |step: u64| {
        let (opened, seconds) = (now, seconds(step));
        now += seconds;
        let round = json!({
            "round": step, "opened": opened, "seconds": seconds,
            "arrivals": [0.5 * seconds, seconds, 0.5 * seconds],
        });
        let line = json!({
            "run": 0, "scheme": "uncoded", "step": step, "committed": now, "seconds": seconds,
            "rounds": [round], "work": 1.0, "coverage": 1.0,
        });
        line.to_string() + "\n"
    };
    fs::write(folder.join(RECORD), (0..120).map(line).collect::<String>()).unwrap();
    let joins = (0..3).map(|worker| {
        let join = json!({
            "at": 1.0, "run": 0, "step": 0, "round": 0, "worker": worker, "kind": "join",
            "what": "", "identity": format!("host{}", (worker + rows) % 3), "domain": null,
        });
        join.to_string() + "\n"
    });
    fs::write(folder.join("events.jsonl"), joins.collect::<String>()).unwrap();
    let plan = json!({"micro_batch_rows": rows, "micro_batches": 8});
    fs::write(folder.join(PLAN), plan.to_string()).unwrap();
    folder.display().to_string()
}

fn jitter(step: u64) -> f64 {
    1.0 + 0.01 * (step * 7 % 10) as f64
}

#[test]
fn a_slower_run_ends_with_1_and_equal_ones_do_not() {
    let home = tempfile::tempdir().unwrap();
    let a = folder(&home, "a", 3, jitter);
    let b = folder(&home, "b", 3, |step| 1.1 * jitter(step));
    let (found, status) = json(&a, &b, 5.0);
    assert_eq!((status, &found["verdict"], &found["per"]), (1, &"slower".into(), &"step".into()));
    assert_eq!((&found["warm_up"], &found["a"]["steps"]), (&3.into(), &117.into()));
    assert_eq!(found["a"]["samples"], 24.0);
    assert!((found["mean"]["change"].as_f64().unwrap() - 0.1).abs() < 1e-9, "{found}");
    assert_eq!(found["workers"]["host1"]["a"], 2.0, "{found}");
    assert_eq!(found["work"]["change"], 0.0);
    assert_eq!(found["not_compared"], json!([]));
    let (found, status) = json(&a, &b, 20.0);
    assert_eq!((status, &found["verdict"]), (0, &"not-slower".into()));
    let (found, status) = json(&a, &b, 10.1);
    assert_eq!((status, &found["verdict"]), (0, &"not-decided".into()));
    assert!(found["more_steps"].as_u64().unwrap() > 0, "{found}");
    let (text, status) = compared(&a, &b, Some(10.1), false);
    assert!(status == 0 && text.contains("is not decided: about "), "{text}");
    let (text, status) = compared(&a, &a, Some(0.0), false);
    assert!(status == 0 && text.contains("B takes 0.0 % more time per step than A"), "{text}");
    let (text, status) = compared(&b, &a, None, false);
    assert!(status == 0 && text.contains("B takes 9.1 % less time per step than A"), "{text}");
}

#[test]
fn unlike_batches_are_compared_per_sample_and_workers_by_identity() {
    let home = tempfile::tempdir().unwrap();
    let a = folder(&home, "a", 3, jitter);
    let b = folder(&home, "b", 4, |step| 4.0 / 3.0 * jitter(step));
    let (found, status) = json(&a, &b, 5.0);
    assert_eq!((status, &found["per"]), (0, &"sample".into()));
    assert!(found["mean"]["change"].as_f64().unwrap().abs() < 1e-9, "{found}");
    // Worker 1 is host1 in one run and host2 in the other.
    assert_eq!(found["workers"]["host1"]["a"], 2.0, "{found}");
    assert_eq!(found["workers"]["host1"]["b"], 1.0, "{found}");
    assert_eq!(found["workers"]["host2"]["b"], 2.0, "{found}");
}

#[test]
fn recorded_steps_show_their_parts_and_unlike_kinds_what_both_have() {
    let steps = example("steps");
    let (found, status) = json(&steps, &steps, 5.0);
    assert_eq!((status, &found["a"]["steps"]), (0, &36.into()));
    let parts: Vec<&String> = found["parts"].as_object().unwrap().keys().collect();
    assert_eq!(parts, ["backward", "forward", "loading", "wait"]);
    let seconds = |of: &Value| of["a"].as_f64().unwrap();
    let sum: f64 = found["parts"].as_object().unwrap().values().map(seconds).sum();
    // Rank 2 is the slowest, and older files do not show that the others wait for it.
    assert!(sum > 0.0 && sum < seconds(&found["mean"]), "{found}");
    let (found, _) = json(&steps, &example("traces/slow_worker.csv"), 5.0);
    let said = found["not_compared"].to_string();
    for line in [
        "seconds per sample cannot be compared: the runs differ in workers (4 and 8), and neither \
         run shows samples",
        "A alone has loading",
        "some workers cannot be compared: B alone has 4, 5, 6, 7",
        "the time outside rounds cannot be compared: B has the times of answers alone",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(found["workers"].as_object().unwrap().len(), 4);
}

#[test]
fn few_steps_decide_nothing() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("few.csv");
    fs::write(&path, "1.0,1.0\n2.0,2.0\n".repeat(10)).unwrap();
    let few = path.display().to_string();
    let (text, status) = compared(&few, &few, Some(5.0), false);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("17 steps after the warm-up, where 20 are needed"), "{text}");
    assert!(text.contains("is not decided: there is no interval."), "{text}");
}

#[test]
fn lines_fit_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    let a = folder(&home, "a", 3, jitter);
    for (a, b) in [(a.as_str(), example("steps")), ("-", example("traces/slow_worker.csv"))] {
        let run = |seconds: f64| RunSide {
            seconds: vec![seconds; 40],
            workers: 8,
            scheme: "interval:speeds=a/long/path/of/a/file.csv,l=2,units=8".into(),
            parts: vec![("computing".into(), seconds)],
            ..RunSide::default()
        };
        let runs = [run(0.001), run(1234.5)];
        let found = Comparison::of(&runs[0], &runs[1]);
        let args = CompareArgs { a: a.into(), b, fail_above: Some(5.0), json: false };
        let verdict = Some(found.verdict(0.05));
        let shown = Shown { args: &args, runs: &runs, left_out: 3, found: &found, verdict };
        let text = shown.text(Width::of(80));
        let is_path = |line: &&str| line.contains(EXAMPLES);
        let mut lines = text.lines().filter(|line| !is_path(line) && !line.contains(&args.a));
        assert!(lines.all(|line| line.chars().count() <= 80), "{text}");
    }
}

#[test]
fn a_limit_has_its_sign_and_a_folder_may_be_called_compare() {
    let line = |text: &str| Cli::try_parse_from(text.split(' '));
    for wrong in ["5", "0.05", "-1%", "x%", "inf%", "%"] {
        let error = line(&format!("codedgrad doctor compare a b --fail-above {wrong}"));
        let error = error.unwrap_err().to_string();
        let expected = format!("{wrong:?} is no limit: write a percentage of 0 or more");
        assert!(error.contains(&expected), "{error}");
    }
    for good in ["compare a b --fail-above 5%", "compare a b --json", "./compare", "a b --plan"] {
        assert!(line(&format!("codedgrad doctor {good}")).is_ok(), "{good}");
    }
    for wrong in ["compare a", "compare a b c", "--plan", ""] {
        assert!(line(format!("codedgrad doctor {wrong}").trim()).is_err(), "{wrong}");
    }
    let (mut out, mut notes) = (Vec::new(), std::io::sink());
    let args = CompareArgs { a: "-".into(), b: "-".into(), fail_above: None, json: false };
    let done = run(&args, &mut Output { out: &mut out, notes: Notes::Kept(&mut notes) });
    assert!(done.is_err_and(|failure| failure.to_string().contains("only one of A and B")));
}
