//! Workers that come and go: `--workers MIN..MAX`.

use super::processes::{Run, lines, wait_for};
use serde_json::Value;
use std::process::Command;

fn events(run: &Run) -> Vec<Value> {
    let file = run.folder.path().join("run/events.jsonl");
    lines(&file).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the events of a kind say.
fn said(run: &Run, kind: &str) -> Vec<String> {
    let of_kind = |event: &Value| (event["kind"] == kind).then(|| event["what"].clone());
    let said = events(run).iter().filter_map(of_kind).collect::<Vec<_>>();
    said.iter().map(|what| what.as_str().unwrap().to_owned()).collect()
}

fn is_planned(run: &Run, plan: &str) {
    wait_for(plan, || said(run, "replanned").last().is_some_and(|last| last == plan).then_some(()));
}

/// What `codedgrad status` shows of it.
fn status(run: &Run) -> String {
    let said = run.coordinator.said();
    let metrics = said.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next());
    let program = env!("CARGO_BIN_EXE_codedgrad");
    let shown = Command::new(program).args(["status", metrics.unwrap()]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn a_run_begins_with_some_takes_in_others_and_goes_on_without_them() {
    let mut run = Run::start_in_real_time(&[
        "--scheme",
        "groups:s=1",
        "--workers",
        "2..4",
        "--steps",
        "100000",
        "--join-wait",
        "2",
        "--settle",
        "0",
        "--metrics",
        "127.0.0.1:0",
        "--audit-every",
        "1",
    ]);
    let mut workers = run.workers(3, &[]);
    run.wait_for_steps(5);
    assert_eq!(said(&run, "lost"), [""; 0], "nobody waits for a seat that is empty");
    is_planned(&run, "planned for 3 of 4 workers (0-2) under groups:s=1");
    workers.push(run.worker(3, &[]));
    is_planned(&run, "planned for all 4 workers under groups:s=1");
    // The scheme could do without the first of them, and not without its partner.
    workers[0].signal("-KILL");
    is_planned(&run, "planned for 3 of 4 workers (1-3) under groups:s=1");
    workers[1].signal("-KILL");
    is_planned(&run, "planned for 2 of 4 workers (2-3) under groups:s=1");
    let before = lines(&run.record()).len();
    run.wait_for_steps(before + 5);
    let shown = "planned for 2 of 4 workers under groups:s=1 (4 plans so far)";
    assert!(status(&run).contains(shown), "{}", status(&run));
    workers.push(run.worker(1, &[]));
    is_planned(&run, "planned for 3 of 4 workers (1-3) under groups:s=1");
    run.coordinator.signal("-TERM");
    assert_eq!(run.coordinator.ends(), Some(143), "{}", run.coordinator.said());
    let record: Vec<Value> = lines(&run.record())
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .collect();
    let members = |step: &Value| step["plan"]["members"].as_array().map(Vec::len);
    let plans: Vec<usize> = record.iter().filter_map(members).collect();
    assert_eq!(plans, [3, 4, 3, 2, 3], "written down where they change");
    assert_eq!(said(&run, "join"), ["is there", "is there again"]);
    assert_eq!(record[0]["plan"]["members"], serde_json::json!([0, 1, 2]));
    let whole = |step: &Value| {
        step["coverage"] == 1.0
            && step["gradient_difference"].as_f64().is_none_or(|difference| difference < 1e-5)
    };
    assert!(record.iter().all(whole), "no sample is lost");
}

/// Shares of four workers are pairs of the shares of eight, which are summed in the same order.
#[test]
fn half_of_the_workers_make_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let digests = |scheme: &str, out: &str, faults: &str| {
        let arguments = format!(
            "train --scheme {scheme} --workers 2..8 --micro-batches 32 --steps 8 --no-stragglers \
             --clock virtual --layers 1 --heads 1 --width 8 --context 8 --audit-every 1000 --json \
             --settle 0 --out {out} {faults}"
        );
        let ended = Command::new(env!("CARGO_BIN_EXE_codedgrad"))
            .args(arguments.split_whitespace())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        lines(&folder.path().join(out).join("run.jsonl"))
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|step| (step["digest"].clone(), step["plan"]["members"].clone()))
            .unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let losses: String = (4..8).map(|worker| format!("--fault panic@2:{worker} ")).collect();
    for scheme in ["uncoded", "groups:s=1", "queue:m=4"] {
        let (all, _) = digests(scheme, "all", "--force");
        let (half, plans) = digests(scheme, "half", &format!("--force {losses}"));
        assert_eq!(all, half, "{scheme}");
        assert!(plans.contains(&serde_json::json!([0, 1, 2, 3])), "{scheme}: {plans:?}");
    }
}

/// With no return to wait for a second loss would stop an uncoded run for `--return-wait`.
#[test]
fn what_does_not_fit_those_that_are_left_is_said() {
    let mut run = Run::start_in_real_time(&[
        "--scheme",
        "groups:l=3",
        "--workers",
        "3",
        "--min-workers",
        "2",
        "--steps",
        "60",
    ]);
    let workers = run.workers(3, &[]);
    run.wait_for_steps(5);
    workers[2].signal("-KILL");
    is_planned(
        &run,
        "planned for 2 of 3 workers (0-1) under uncoded, since groups:l=3 does not fit 2",
    );
    assert_eq!(run.finishes()["runs"][0]["samples_lost"], 0);
}

#[test]
fn fewer_than_the_least_end_the_run() {
    let mut run = Run::start_in_real_time(&[
        "--scheme",
        "uncoded",
        "--workers",
        "2..4",
        "--steps",
        "9",
        "--join-wait",
        "1",
    ]);
    let _worker = run.worker(1, &[]);
    assert_eq!(run.coordinator.ends(), Some(1), "{}", run.coordinator.said());
    let why = "1 of 4 workers have joined within 1 s, and 2 are needed; missing are {0,2,3}";
    assert!(run.coordinator.said().contains(why), "{}", run.coordinator.said());
}

#[test]
fn what_no_number_of_workers_can_be_is_refused() {
    for (arguments, why) in [
        (&["train", "--workers", "5..4"][..], "MIN is 5, more than MAX, which is 4"),
        (&["train", "--workers", "0..4"], "MIN of MIN..MAX: 0 is not in 1..=4096"),
        (
            &["train", "--workers", "2..4", "--min-workers", "3"],
            "--workers 2..4 and --min-workers 3: they say the same and differ",
        ),
        (&["serve", "--workers", "4", "--min-workers", "5"], "--min-workers 5: the run has 4"),
        (&["run", "-n", "2..x", "true"], "MAX of MIN..MAX"),
        (
            &["train", "--workers", "2..4", "--scheme", "bacc:K=2"],
            "--min-workers continues with the workers that are left, which bacc:K=2 cannot do",
        ),
    ] {
        let command = Command::new(env!("CARGO_BIN_EXE_codedgrad")).args(arguments).output();
        let ended = command.unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.split_whitespace().collect::<Vec<_>>().join(" ").contains(why), "{said}");
    }
}
